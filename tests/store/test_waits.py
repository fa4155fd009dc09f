"""Timers: never early, once, and harmless to redeliver."""

from datetime import timedelta

import pytest

from flowpg.errors import InvalidArgument, InvalidTransition, RunNotFound, RunTerminal
from flowpg.model import events
from flowpg.model.inspection import ScheduledWakeup, WakeupKind
from flowpg.model.records import Append
from flowpg.model.snapshot import RunStatus
from flowpg.store.protocol import FlowEventStore
from tests.store.conftest import Rig
from tests.store.support import (
    MINUTE,
    SECOND,
    drop_task,
    ended,
    open_task,
    running,
    types,
    waiting,
)


async def test_a_run_with_an_open_timer_is_suspended(store: FlowEventStore) -> None:
    await waiting(store)
    assert (await store.run_info("r")).status is RunStatus.SUSPENDED


async def test_a_timer_is_not_completed_before_its_deadline(rig: Rig) -> None:
    await waiting(rig.store)
    rig.advance(MINUTE - SECOND)
    with pytest.raises(InvalidTransition, match="not due") as caught:
        await rig.store.resume_wait("r", "w")
    assert caught.value.run_id == "r"
    assert (await types(rig.store))[-1] == "wait_created"


async def test_a_due_timer_is_completed_once_and_its_run_driven(rig: Rig) -> None:
    store = rig.store
    await waiting(store)
    await drop_task(store)
    rig.advance(MINUTE)
    result = await store.resume_wait("r", "w")
    assert (result.run_id, result.subject_id, result.applied) == ("r", "w", True)
    assert result.head_sequence == 4
    again = await store.resume_wait("r", "w")
    assert (again.applied, again.head_sequence) == (False, 4)
    assert (await types(store)).count("wait_completed") == 1
    assert (await store.run_info("r")).status is RunStatus.RUNNING
    assert await open_task(store, "r")


async def test_redelivery_of_a_completed_timer_wakes_the_run_again(rig: Rig) -> None:
    store = rig.store
    await waiting(store)
    rig.advance(MINUTE)
    await store.resume_wait("r", "w")
    await drop_task(store)
    await store.resume_wait("r", "w")
    assert await open_task(store, "r")


@pytest.mark.parametrize("how", ["request_cancellation", "force_cancel"])
async def test_a_cancelled_timer_is_resumed_without_effect(store: FlowEventStore, how: str) -> None:
    await waiting(store)
    await getattr(store, how)("r")
    result = await store.resume_wait("r", "w")
    assert not result.applied
    assert "wait_completed" not in await types(store)


async def test_an_unknown_timer_of_a_live_run_is_an_invalid_transition(
    store: FlowEventStore,
) -> None:
    await running(store)
    with pytest.raises(InvalidTransition) as caught:
        await store.resume_wait("r", "nope")
    assert caught.value.run_id == "r"


async def test_an_unknown_timer_of_an_ended_run_says_that_it_ended(store: FlowEventStore) -> None:
    await ended(store)
    with pytest.raises(RunTerminal) as caught:
        await store.resume_wait("r", "nope")
    assert (caught.value.run_id, caught.value.status) == ("r", "completed")


async def test_a_timer_of_an_unknown_run_is_not_found(store: FlowEventStore) -> None:
    with pytest.raises(RunNotFound) as caught:
        await store.resume_wait("nope", "w")
    assert caught.value.run_id == "nope"


@pytest.mark.parametrize("wait_id", ["", "  ", "\x00", "x" * 513, "\udfff"])
async def test_a_malformed_timer_id_is_refused(store: FlowEventStore, wait_id: str) -> None:
    with pytest.raises(InvalidArgument):
        await store.resume_wait("r", wait_id)


async def test_all_due_timers_are_completed_in_one_go(rig: Rig) -> None:
    store = rig.store
    for number in range(5):
        await waiting(store, f"run-{number}", delay=timedelta(minutes=number))
    rig.advance(2 * MINUTE + SECOND)
    done = await store.resume_due_waits()
    assert {item.run_id for item in done} == {"run-0", "run-1", "run-2"}
    assert {item.subject_id for item in done} == {"w"}
    assert {item.kind for item in done} == {WakeupKind.WAIT}
    assert await store.resume_due_waits() == []
    assert (await store.run_info("run-2")).status is RunStatus.RUNNING
    assert (await store.run_info("run-3")).status is RunStatus.SUSPENDED
    assert await open_task(store, "run-0")


async def test_completed_timers_name_their_deadlines(rig: Rig) -> None:
    await waiting(rig.store)
    wakeup = await rig.store.next_wakeup()
    rig.advance(MINUTE)
    assert wakeup is not None
    assert await rig.store.resume_due_waits() == [
        ScheduledWakeup("r", WakeupKind.WAIT, "w", wakeup.due_at)
    ]


async def test_due_timers_of_one_run_only(rig: Rig) -> None:
    store = rig.store
    await waiting(store, "a")
    await waiting(store, "b")
    rig.advance(MINUTE)
    assert [item.run_id for item in await store.resume_due_waits(run_id="a")] == ["a"]
    assert (await store.run_info("b")).status is RunStatus.SUSPENDED


async def test_due_timers_as_of_a_later_moment(store: FlowEventStore) -> None:
    await waiting(store)
    now = await store.now()
    assert await store.resume_due_waits(as_of=now + 59 * SECOND) == []
    assert len(await store.resume_due_waits(as_of=now + 61 * SECOND)) == 1


async def test_no_more_timers_than_the_limit_are_completed_the_earliest_first(rig: Rig) -> None:
    store = rig.store
    for number in (3, 1, 2):
        await waiting(store, f"run-{number}", delay=timedelta(minutes=number))
    rig.advance(10 * MINUTE)
    done = await store.resume_due_waits(limit=2)
    assert {item.run_id for item in done} == {"run-1", "run-2"}


async def test_several_timers_of_one_run_are_completed_together(rig: Rig) -> None:
    waits = [events.wait_created(f"w{number}", delay=MINUTE) for number in range(3)]
    await running(rig.store, *waits)
    rig.advance(MINUTE)
    assert len(await rig.store.resume_due_waits()) == 3
    assert (await types(rig.store))[-3:] == ["wait_completed"] * 3


async def test_a_timer_of_zero_is_due_at_once(store: FlowEventStore) -> None:
    await waiting(store, delay=timedelta(0))
    assert (await store.resume_wait("r", "w")).applied


async def test_a_timer_open_when_its_run_ends_is_forgotten(rig: Rig) -> None:
    store = rig.store
    await waiting(store)
    await store.append(Append("r", [events.run_completed("without it")]))
    assert await store.next_wakeup() is None
    rig.advance(MINUTE)
    assert await store.resume_due_waits() == []
    assert not (await store.resume_wait("r", "w")).applied


@pytest.mark.parametrize("limit", [0, -1, 1001])
async def test_a_limit_out_of_range_is_refused(store: FlowEventStore, limit: int) -> None:
    with pytest.raises(InvalidArgument, match="limit"):
        await store.resume_due_waits(limit=limit)
