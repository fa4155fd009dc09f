"""Wake-ups: deadlines become drive tasks, once."""

from datetime import timedelta

import pytest

from flowpg.errors import InvalidArgument
from flowpg.model import events
from flowpg.model.inspection import ScheduledWakeup, WakeupKind
from flowpg.model.records import Append
from flowpg.model.snapshot import RunStatus
from flowpg.store.protocol import FlowEventStore
from tests.store.conftest import Rig
from tests.store.support import (
    MINUTE,
    SECOND,
    SPEC,
    drop_task,
    hooked,
    open_task,
    request,
    retrying,
    running,
    waiting,
)


async def three(store: FlowEventStore) -> None:
    """A timer, a retry and a hook with an expiry, each due in a minute, and no task."""
    await waiting(store, "timer")
    await retrying(store, "retry")
    await hooked(store, "hook", expires_in=MINUTE)
    for run_id in ("timer", "retry", "hook"):
        await drop_task(store, run_id)


async def test_due_wake_ups_become_one_task_a_run(rig: Rig) -> None:
    store = rig.store
    await three(store)
    await store.append(Append("timer", [events.wait_created("w2", delay=MINUTE)]))
    assert await store.enqueue_due() == []
    rig.advance(MINUTE)
    moved = await store.enqueue_due()
    assert {(item.run_id, item.kind.value, item.subject_id) for item in moved} == {
        ("timer", "wait", "w"),
        ("timer", "wait", "w2"),
        ("retry", "step_retry", "s"),
        ("hook", "hook_expiry", "h"),
    }
    leases = await store.claim_runs("default", 10, "me", MINUTE)
    assert sorted(lease.run_id for lease in leases) == ["hook", "retry", "timer"]


async def test_a_claim_can_make_work_of_what_is_due_in_the_same_call(rig: Rig) -> None:
    store = rig.store
    await three(store)
    assert await store.claim_runs("default", 10, "me", MINUTE, due=True) == []
    rig.advance(MINUTE)
    assert await store.claim_runs("default", 10, "me", MINUTE) == []
    leases = await store.claim_runs("default", 10, "me", MINUTE, due=True)
    assert sorted(lease.run_id for lease in leases) == ["hook", "retry", "timer"]
    assert await store.enqueue_due() == []


async def test_a_wake_up_is_moved_once(rig: Rig) -> None:
    store = rig.store
    await three(store)
    rig.advance(MINUTE)
    assert len(await store.enqueue_due()) == 3
    assert await store.enqueue_due() == []


async def test_no_more_wake_ups_than_the_limit_are_moved_the_earliest_first(rig: Rig) -> None:
    store = rig.store
    for number in (3, 1, 2):
        await waiting(store, f"run-{number}", delay=timedelta(minutes=number))
    rig.advance(10 * MINUTE)
    assert {item.run_id for item in await store.enqueue_due(limit=2)} == {"run-1", "run-2"}
    assert {item.run_id for item in await store.enqueue_due(limit=2)} == {"run-3"}


async def test_wake_ups_are_moved_as_of_a_later_moment(store: FlowEventStore) -> None:
    await waiting(store)
    later = await store.now() + 2 * MINUTE
    assert len(await store.enqueue_due(as_of=later)) == 1


async def test_a_retry_that_was_started_has_no_wake_up(rig: Rig) -> None:
    store = rig.store
    await retrying(store)
    assert (await store.run_info("r")).status is RunStatus.SUSPENDED
    rig.advance(MINUTE)
    await store.append(Append("r", [events.step_started("s", 2)]))
    assert await store.enqueue_due() == []
    assert (await store.run_info("r")).status is RunStatus.RUNNING


async def test_a_second_retry_is_a_wake_up_of_its_own(rig: Rig) -> None:
    store = rig.store
    await retrying(store)
    rig.advance(MINUTE)
    assert len(await store.enqueue_due()) == 1
    again = [events.step_started("s", 2), events.step_retrying("s", 2, "busy", MINUTE)]
    await store.append(Append("r", again))
    assert await store.enqueue_due() == []
    rig.advance(MINUTE)
    assert len(await store.enqueue_due()) == 1


async def test_a_retry_without_a_delay_is_no_wake_up(store: FlowEventStore) -> None:
    retry = {"max_attempts": 3, "delay_ms": 0}
    await running(
        store,
        events.step_created("s", "charge", None, retry),
        events.step_started("s", 1),
        events.step_retrying("s", 1, "busy", timedelta(0)),
    )
    assert await store.next_wakeup() is None


async def test_due_wake_ups_are_listed_by_kind_run_and_subject(rig: Rig) -> None:
    store = rig.store
    await three(store)
    await waiting(store, "also")
    assert await store.list_due_wakeups() == []
    rig.advance(MINUTE + SECOND)
    due = await store.list_due_wakeups()
    places = [(item.kind.value, item.run_id, item.subject_id) for item in due]
    assert places == sorted(places)
    assert len(places) == 4


async def test_moved_wake_ups_stay_listed_until_they_are_handled(rig: Rig) -> None:
    store = rig.store
    await waiting(store)
    rig.advance(MINUTE)
    await store.enqueue_due()
    assert len(await store.list_due_wakeups()) == 1
    await store.resume_wait("r", "w")
    assert await store.list_due_wakeups() == []


async def test_due_wake_ups_of_one_kind_and_up_to_a_limit(rig: Rig) -> None:
    store = rig.store
    await three(store)
    rig.advance(MINUTE + SECOND)
    for kind in WakeupKind.WAIT, WakeupKind.STEP_RETRY, WakeupKind.HOOK_EXPIRY:
        assert {item.kind for item in await store.list_due_wakeups(kind=kind)} == {kind}
    assert len(await store.list_due_wakeups(limit=2)) == 2
    later = await store.now() + timedelta(days=1)
    assert len(await store.list_due_wakeups(as_of=later)) == 3


async def test_the_next_wake_up_is_the_earliest(store: FlowEventStore) -> None:
    assert await store.next_wakeup() is None
    await waiting(store, "later", delay=2 * MINUTE)
    await waiting(store, "sooner", delay=MINUTE)
    await running(store, events.hook_created("h", "t", None), run_id="no-deadline")
    found = await store.next_wakeup()
    assert found is not None
    assert (found.run_id, found.kind, found.subject_id) == ("sooner", WakeupKind.WAIT, "w")


async def test_wake_ups_tell_the_build_their_run_is_pinned_to(rig: Rig) -> None:
    store = rig.store
    await store.start(request(spec=SPEC.with_runtime_build("build-7")))
    await store.append(Append("r", [events.run_started(), events.wait_created("w", delay=MINUTE)]))
    found = await store.next_wakeup()
    assert found is not None
    assert found == ScheduledWakeup("r", WakeupKind.WAIT, "w", found.due_at, "build-7")
    rig.advance(MINUTE)
    assert [item.runtime_build for item in await store.list_due_wakeups()] == ["build-7"]


async def test_an_ended_run_has_no_wake_ups(rig: Rig) -> None:
    store = rig.store
    await three(store)
    for run_id in ("timer", "retry", "hook"):
        await store.force_cancel(run_id)
    rig.advance(MINUTE)
    assert await store.enqueue_due() == []
    assert await store.next_wakeup() is None
    assert not await open_task(store, "nothing")


@pytest.mark.parametrize("limit", [0, 1001])
async def test_a_limit_out_of_range_is_refused(store: FlowEventStore, limit: int) -> None:
    for call in (store.enqueue_due(limit=limit), store.list_due_wakeups(limit=limit)):
        with pytest.raises(InvalidArgument):
            await call
