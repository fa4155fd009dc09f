"""What the tests of the stores say again and again."""

from datetime import timedelta
from typing import Any

from flowpg.model import events
from flowpg.model.events import FlowEventEnvelope, NewEvent
from flowpg.model.records import Append, AppendResult, RunLease, StartRequest
from flowpg.model.retry import DEFAULT_RETRY, RetryPolicy
from flowpg.model.spec import WorkflowSpec
from flowpg.store.protocol import FlowEventStore

SPEC = WorkflowSpec.python("order")
MINUTE = timedelta(minutes=1)
SECOND = timedelta(seconds=1)


def request(run_id: str | None = "r", input: Any = None, **more: Any) -> StartRequest:
    """A run to start, under the id ``r`` unless said otherwise."""
    return StartRequest(more.pop("spec", SPEC), input, run_id, **more)


async def running(store: FlowEventStore, *new: NewEvent, run_id: str = "r") -> AppendResult:
    """A run that was started and taken up, with further events; nobody holds its lease."""
    await store.start(request(run_id))
    result = await store.append(Append(run_id, [events.run_started(), *new]))
    assert result.appended, result
    return result


async def waiting(store: FlowEventStore, run_id: str = "r", delay: timedelta = MINUTE) -> None:
    """A run with a timer ``w`` that is due in a minute."""
    await running(store, events.wait_created("w", delay=delay), run_id=run_id)


async def hooked(
    store: FlowEventStore,
    run_id: str = "r",
    token: str = "secret-token",
    expires_in: timedelta | None = None,
) -> None:
    """A run with an active hook ``h``."""
    hook = events.hook_created("h", token, {"kind": "approval"}, expires_in=expires_in)
    await running(store, hook, run_id=run_id)


async def ended(store: FlowEventStore, run_id: str = "r") -> None:
    """A run that completed."""
    await running(store, events.run_completed("done"), run_id=run_id)


async def retrying(store: FlowEventStore, run_id: str = "r") -> None:
    """A run whose step ``s`` is tried again in a minute."""
    retry = RetryPolicy.fixed(3, MINUTE)
    await running(
        store,
        events.step_created("s", "charge", None, retry.wire()),
        events.step_started("s", 1),
        events.step_retrying("s", 1, "busy", MINUTE),
        run_id=run_id,
    )


def step(step_id: str) -> list[NewEvent]:
    """The events that create and start a step."""
    created = events.step_created(step_id, "charge", None, DEFAULT_RETRY.wire())
    return [created, events.step_started(step_id, 1)]


async def leased(store: FlowEventStore, run_id: str = "r", owner: str = "me") -> RunLease:
    """The lease of a run, for a minute."""
    lease = await store.acquire_run(run_id, owner, MINUTE)
    assert lease is not None
    return lease


async def open_task(store: FlowEventStore, run_id: str) -> bool:
    """Whether a drive task of this run can be claimed now; claims everything, so ask once."""
    leases = await store.claim_runs("default", 1000, "probe", MINUTE)
    return run_id in {lease.run_id for lease in leases}


async def drop_task(store: FlowEventStore, run_id: str = "r") -> None:
    """Take the drive task of a run away, as a driver does that has nothing more to do."""
    assert await store.release_run(await leased(store, run_id))


async def history(store: FlowEventStore, run_id: str = "r") -> list[FlowEventEnvelope]:
    """The events of a run."""
    return await store.history_page(run_id)


async def types(store: FlowEventStore, run_id: str = "r") -> list[str]:
    """The types of a run's events."""
    return [event.type for event in await history(store, run_id)]
