"""The scheduler: what is due becomes work once, whoever looks and however often."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from flowpg.errors import InvalidArgument, PermissionDenied, StoreUnavailable
from flowpg.fleet.scheduler import FlowScheduler, FlowSchedulerTick
from flowpg.fleet.worker import FlowWorker
from flowpg.model.commands import Decision
from flowpg.model.events import WAIT_COMPLETED
from flowpg.model.inspection import ScheduledWakeup
from flowpg.model.retry import RetryPolicy
from flowpg.replay.context import WorkflowContext
from flowpg.store.memory import InMemoryEventStore
from tests.engine.support import MINUTE, SECOND, SPEC, EngineStore, Script
from tests.waiting import until_async


def sleeps(ctx: WorkflowContext) -> Decision:
    """A timer of a minute, then the end."""
    return ctx.complete("slept") if ctx.wait_completed("nap") else ctx.sleep("nap", MINUTE)


def retries(ctx: WorkflowContext) -> Decision:
    """A step whose second attempt comes after a minute."""
    if ctx.step_completed("s"):
        return ctx.complete("retried")
    return ctx.schedule_step("s", "work", None, RetryPolicy.fixed(2, MINUTE))


def expires(ctx: WorkflowContext) -> Decision:
    """A hook that nobody answers for a minute."""
    if ctx.hook_disposed("h"):
        return ctx.complete("expired")
    return ctx.create_hook("h", "token", expires_in=MINUTE)


def first_fails(step: Any) -> int:
    """Fails once."""
    if step.attempt == 1:
        raise RuntimeError("on purpose")
    return int(step.attempt)


async def _waiting(store: EngineStore, workflow: Any = sleeps, runs: int = 1) -> list[str]:
    engine = await store.engine(Script(workflow, {"work": first_fails}))
    return [await engine.start(SPEC) for _ in range(runs)]


@pytest.mark.parametrize(
    ("workflow", "field", "output"),
    [
        (sleeps, "due_waits", "slept"),
        (retries, "due_retries", "retried"),
        (expires, "due_expiries", "expired"),
    ],
)
async def test_a_tick_says_what_was_due_and_a_worker_goes_on_with_it(
    engine_store: EngineStore, workflow: Any, field: str, output: str
) -> None:
    (run_id,) = await _waiting(engine_store, workflow)
    engine = await engine_store.engine(Script(workflow, {"work": first_fails}))
    scheduler = FlowScheduler(engine)
    assert await scheduler.enqueue_due_work() == FlowSchedulerTick()

    engine_store.advance(MINUTE)
    tick = await scheduler.enqueue_due_work()
    assert [wakeup.run_id for wakeup in getattr(tick, field)] == [run_id]
    assert (tick.dispatched, tick.enqueued_tasks) == (1, 1)
    assert await scheduler.enqueue_due_work() == FlowSchedulerTick()

    await FlowWorker(engine).run_until_idle()
    assert (await engine.snapshot(run_id)).output == output


async def test_many_schedulers_dispatch_each_deadline_once(engine_store: EngineStore) -> None:
    run_ids = await _waiting(engine_store, runs=20)
    engine_store.advance(MINUTE)
    schedulers = [FlowScheduler(await engine_store.engine(None), limit=7) for _ in range(4)]

    dispatched: list[str] = []

    async def every(scheduler: FlowScheduler) -> None:
        while len(dispatched) < len(run_ids):
            tick = await scheduler.enqueue_due_work()
            dispatched.extend(wakeup.run_id for wakeup in tick.due_waits)

    await asyncio.gather(*map(every, schedulers))
    assert sorted(dispatched) == sorted(run_ids)

    engine = await engine_store.engine(Script(sleeps))
    assert await FlowWorker(engine).run_until_idle() == len(run_ids)
    for run_id in run_ids:
        history = await engine.history(run_id)
        assert [event.type for event in history].count(WAIT_COMPLETED) == 1


async def test_a_tick_dispatches_no_more_than_its_limit_and_the_earliest_first(
    engine_store: EngineStore,
) -> None:
    first = await _waiting(engine_store)
    engine_store.advance(SECOND)
    await _waiting(engine_store, runs=2)
    engine_store.advance(MINUTE)
    scheduler = FlowScheduler(await engine_store.engine(None), limit=1)
    tick = await scheduler.enqueue_due_work()
    assert [wakeup.run_id for wakeup in tick.due_waits] == first


async def test_the_delay_is_that_of_the_earliest_deadline_and_zero_when_it_has_passed(
    engine_store: EngineStore,
) -> None:
    scheduler = FlowScheduler(await engine_store.engine(None))
    assert await scheduler.next_wakeup_delay() is None
    await _waiting(engine_store)
    delay = await scheduler.next_wakeup_delay()
    assert delay is not None
    assert timedelta(0) < delay <= MINUTE
    engine_store.advance(2 * MINUTE)
    assert await scheduler.next_wakeup_delay() == timedelta(0)


async def test_the_loop_dispatches_what_becomes_due_until_it_is_stopped(
    engine_store: EngineStore,
) -> None:
    (run_id,) = await _waiting(engine_store)
    engine = await engine_store.engine(Script(sleeps))
    scheduler = FlowScheduler(engine, poll=timedelta(seconds=0.05))
    loop = asyncio.ensure_future(scheduler.run())
    engine_store.advance(MINUTE)

    async def slept() -> bool:
        claimed = await engine.store.claim_runs("default", 1, "test", MINUTE)
        return [lease.run_id for lease in claimed] == [run_id]

    await until_async(slept, "the run has work")
    scheduler.stop()
    await loop


async def test_a_worker_that_is_told_not_to_schedule_leaves_that_to_schedulers(
    engine_store: EngineStore,
) -> None:
    await _waiting(engine_store)
    engine_store.advance(MINUTE)
    engine = await engine_store.engine(Script(sleeps))
    worker = FlowWorker(engine, schedule=False)
    assert await worker.run_until_idle() == 0
    await FlowScheduler(engine).enqueue_due_work()
    assert await worker.run_until_idle() == 1


class _Broken(InMemoryEventStore):
    """Fails with each of these in turn, and then works."""

    def __init__(self, *errors: BaseException | None) -> None:
        super().__init__()
        self.errors = list(errors)
        self.calls = 0
        self.works = asyncio.Event()

    async def enqueue_due(self, **choices: Any) -> list[ScheduledWakeup]:
        self.calls += 1
        if self.errors:
            error = self.errors.pop(0)
            if error is None:
                await asyncio.Event().wait()
            raise error or AssertionError
        self.works.set()
        return await super().enqueue_due(**choices)


@pytest.mark.parametrize(
    "errors",
    [
        [StoreUnavailable("away"), StoreUnavailable("away")],
        [RuntimeError("odd")],
        [None],
    ],
    ids=["unavailable", "unknown", "hangs"],
)
async def test_the_loop_outlives_a_database_that_fails_or_does_not_answer(
    errors: Sequence[BaseException | None],
) -> None:
    store = _Broken(*errors)
    scheduler = FlowScheduler(store, timeout=timedelta(seconds=0.05))
    loop = asyncio.ensure_future(scheduler.run())
    await asyncio.wait_for(store.works.wait(), 20)
    assert store.calls == len(errors) + 1
    scheduler.stop()
    await loop


async def test_a_tick_that_takes_too_long_is_ended_by_the_server_and_leaves_no_timeout_behind(
    postgres_only: EngineStore, direct_dsn: str
) -> None:
    (run_id,) = await _waiting(postgres_only)
    engine = await postgres_only.engine(Script(sleeps))
    await FlowWorker(engine).run_until_idle()
    postgres_only.advance(MINUTE)
    scheduler = FlowScheduler(engine, timeout=timedelta(seconds=0.02))
    with psycopg.connect(direct_dsn) as holder:
        holder.execute("LOCK TABLE flowpg.scheduled_wakeups")
        with pytest.raises(StoreUnavailable, match="57014"):
            await scheduler.enqueue_due_work()
        # the next call of the connection has all the time it needs
        later = asyncio.ensure_future(engine.store.next_wakeup())
        await until_async(lambda: _has_waited(direct_dsn), "it waits longer than that")
    await later
    tick = await FlowScheduler(engine).enqueue_due_work()
    assert [wakeup.run_id for wakeup in tick.due_waits] == [run_id]


async def _has_waited(dsn: str) -> bool:
    with psycopg.connect(dsn, autocommit=True) as connection:
        return bool(
            connection.execute(
                "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
                " AND datname = current_database() AND now() - query_start > interval '0.2 s'"
            ).fetchall()
        )


async def test_the_loop_ends_with_an_error_that_waiting_does_not_cure() -> None:
    with pytest.raises(PermissionDenied):
        await FlowScheduler(_Broken(PermissionDenied("no"))).run()


@pytest.mark.parametrize(
    "choice", [{"limit": 0}, {"limit": 1001}, {"poll": timedelta(0)}, {"timeout": -SECOND}]
)
def test_a_scheduler_that_could_not_work_is_refused(choice: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        FlowScheduler(InMemoryEventStore(), **choice)
