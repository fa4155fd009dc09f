"""Leases: one driver a run, fenced by an epoch, and no wake-up is ever lost."""

from datetime import timedelta

import pytest

from flowpg.errors import InvalidArgument
from flowpg.model import events
from flowpg.model.records import Append, AppendOutcome, Capabilities, RunLease
from flowpg.store.protocol import FlowEventStore
from tests.store.conftest import Rig
from tests.store.support import (
    MINUTE,
    SECOND,
    ended,
    leased,
    open_task,
    request,
    running,
    step,
)


async def claim(store: FlowEventStore, limit: int = 10, owner: str = "me") -> list[RunLease]:
    return await store.claim_runs("default", limit, owner, MINUTE)


async def test_runs_are_claimed_oldest_first_and_no_more_than_asked_for(
    store: FlowEventStore,
) -> None:
    for number in range(5):
        await store.start(request(f"run-{number}"))
    first, second = await claim(store, 3), await claim(store, 3)
    assert [lease.run_id for lease in first] == ["run-0", "run-1", "run-2"]
    assert [lease.run_id for lease in second] == ["run-3", "run-4"]
    assert await claim(store) == []


async def test_a_lease_tells_where_the_run_is(store: FlowEventStore) -> None:
    await running(store, *step("s"))
    (lease,) = await claim(store)
    assert (lease.run_id, lease.head_sequence, lease.attempts) == ("r", 4, 1)
    assert lease.epoch >= 1
    assert lease.wakes >= 1
    assert abs(lease.now - await store.now()) < MINUTE


async def test_an_expired_lease_is_claimed_by_another_under_a_higher_epoch(rig: Rig) -> None:
    store = rig.store
    await running(store)
    (first,) = await claim(store, owner="first")
    rig.advance(MINUTE + SECOND)
    (second,) = await claim(store, owner="second")
    assert second.epoch > first.epoch
    assert second.attempts == 2
    result = await store.append(Append("r", step("s"), epoch=first.epoch))
    assert result.outcome == "lease_lost"
    assert (await store.append(Append("r", step("s"), epoch=second.epoch))).appended
    beats = await store.heartbeat([first, second], MINUTE)
    assert [beat.held for beat in beats] == [False, True]
    assert not await store.release_run(first)
    assert not await store.give_back(first)


async def test_a_heartbeat_keeps_the_lease(rig: Rig) -> None:
    store = rig.store
    await running(store)
    (lease,) = await claim(store)
    for _ in range(3):
        rig.advance(40 * SECOND)
        (beat,) = await store.heartbeat([lease], MINUTE)
        assert (beat.run_id, beat.held, beat.head_sequence) == ("r", True, 2)
    assert await claim(store, owner="other") == []


async def test_a_heartbeat_tells_how_often_the_run_was_woken(store: FlowEventStore) -> None:
    await running(store)
    (lease,) = await claim(store)
    await store.request_cancellation("r")
    (beat,) = await store.heartbeat([lease], MINUTE)
    assert beat.wakes == lease.wakes + 1
    assert beat.head_sequence == 3


async def test_a_heartbeat_for_nothing_is_fine(store: FlowEventStore) -> None:
    assert await store.heartbeat([], MINUTE) == []


async def test_a_lease_that_ran_out_but_was_not_taken_can_be_kept(rig: Rig) -> None:
    store = rig.store
    await running(store)
    (lease,) = await claim(store)
    rig.advance(2 * MINUTE)
    (beat,) = await store.heartbeat([lease], MINUTE)
    assert beat.held
    assert await claim(store, owner="other") == []


async def test_a_released_run_is_not_claimed_until_it_is_woken(store: FlowEventStore) -> None:
    await running(store)
    (lease,) = await claim(store)
    assert await store.release_run(lease)
    assert await claim(store) == []
    await store.wake_run("r")
    assert [item.run_id for item in await claim(store)] == ["r"]


async def test_a_run_woken_while_it_is_driven_is_not_released(store: FlowEventStore) -> None:
    await running(store)
    (lease,) = await claim(store)
    await store.wake_run("r")
    assert not await store.release_run(lease)
    (beat,) = await store.heartbeat([lease], MINUTE)
    assert beat.held
    lease.wakes = beat.wakes
    assert await store.release_run(lease)


async def test_waking_a_run_twice_makes_one_task(store: FlowEventStore) -> None:
    await store.start(request())
    await store.wake_run("r")
    await store.wake_run("r")
    assert len(await claim(store)) == 1


async def test_a_run_given_back_is_claimed_again(store: FlowEventStore) -> None:
    await running(store)
    (lease,) = await claim(store)
    assert await store.give_back(lease)
    (again,) = await claim(store)
    assert again.epoch > lease.epoch


async def test_a_run_given_back_with_a_delay_is_claimed_after_it(rig: Rig) -> None:
    store = rig.store
    await running(store)
    (lease,) = await claim(store)
    assert await store.give_back(lease, delay=MINUTE)
    assert await claim(store) == []
    rig.advance(MINUTE)
    assert len(await claim(store)) == 1


async def test_waking_a_delayed_run_makes_it_claimable_at_once(store: FlowEventStore) -> None:
    await running(store)
    (lease,) = await claim(store)
    await store.give_back(lease, delay=timedelta(hours=1))
    await store.wake_run("r")
    assert len(await claim(store)) == 1


async def test_a_blocked_run_shows_why_until_its_next_event(store: FlowEventStore) -> None:
    await running(store)
    (lease,) = await claim(store)
    await store.give_back(lease, blocked_reason="no worker for 'order'")
    assert (await store.run_info("r")).blocked_reason == "no worker for 'order'"
    await store.append(Append("r", step("s")))
    assert (await store.run_info("r")).blocked_reason is None


async def test_a_lease_can_be_acquired_by_name(store: FlowEventStore) -> None:
    await running(store)
    lease = await store.acquire_run("r", "me", MINUTE)
    assert lease is not None
    assert (lease.run_id, lease.head_sequence, lease.attempts) == ("r", 2, 0)
    assert await claim(store, owner="other") == []
    assert await store.acquire_run("r", "other", MINUTE) is None


async def test_a_run_without_a_task_can_be_acquired(store: FlowEventStore) -> None:
    await running(store)
    assert await store.release_run(await leased(store))
    lease = await leased(store)
    assert await store.release_run(lease)
    assert not await open_task(store, "r")


async def test_a_delayed_run_can_be_acquired(store: FlowEventStore) -> None:
    await running(store)
    await store.give_back(await leased(store), delay=timedelta(hours=1))
    assert await store.acquire_run("r", "me", MINUTE) is not None


async def test_an_expired_lease_can_be_acquired_by_another(rig: Rig) -> None:
    store = rig.store
    await running(store)
    first = await leased(store, owner="first")
    rig.advance(MINUTE + SECOND)
    second = await store.acquire_run("r", "second", MINUTE)
    assert second is not None
    assert second.epoch > first.epoch


async def test_an_ended_run_needs_no_lease(store: FlowEventStore) -> None:
    await ended(store)
    assert await store.acquire_run("r", "me", MINUTE) is None


async def test_the_task_of_an_ended_run_is_claimed_and_released(store: FlowEventStore) -> None:
    await ended(store)
    (lease,) = await claim(store)
    assert await store.release_run(lease)
    assert await claim(store) == []


async def test_a_release_whose_answer_was_lost_can_be_repeated(store: FlowEventStore) -> None:
    await running(store)
    (lease,) = await claim(store)
    assert await store.release_run(lease)
    assert await store.release_run(lease)


async def test_events_from_outside_need_no_lease_and_wake_the_driver(
    store: FlowEventStore,
) -> None:
    await running(store, events.hook_created("h", "t", None))
    (lease,) = await claim(store)
    await store.resume_hook("r", "h", 1)
    result = await store.append(
        Append("r", step("s"), expected=3, epoch=lease.epoch, release=lease.wakes)
    )
    assert result.outcome == "event_conflict"
    (beat,) = await store.heartbeat([lease], MINUTE)
    assert (beat.wakes, beat.head_sequence) == (lease.wakes + 1, 4)


@pytest.mark.parametrize("lease", [timedelta(0), timedelta(seconds=-1)])
async def test_a_lease_that_lasts_no_time_is_refused(
    store: FlowEventStore, lease: timedelta
) -> None:
    await store.start(request())
    for call in (
        store.acquire_run("r", "me", lease),
        store.claim_runs("default", 1, "me", lease),
        store.heartbeat([], lease),
    ):
        with pytest.raises(InvalidArgument):
            await call


@pytest.mark.parametrize("owner", ["", " ", "\x00"])
async def test_a_lease_needs_an_owner(store: FlowEventStore, owner: str) -> None:
    await store.start(request())
    for call in (
        store.acquire_run("r", owner, MINUTE),
        store.claim_runs("default", 1, owner, MINUTE),
    ):
        with pytest.raises(InvalidArgument):
            await call


async def test_a_run_that_took_too_many_workers_with_it_is_set_aside(rig: Rig) -> None:
    store, may = rig.store, Capabilities(max_crashes=2)
    await store.start(request("run-1"))
    last: list[RunLease] = []
    for _ in range(3):
        last = await store.claim_runs("default", 10, "me", MINUTE, may)
        assert [lease.run_id for lease in last] == ["run-1"]
        rig.advance(MINUTE + SECOND)
    await store.start(request("run-2"))
    [other] = await store.claim_runs("default", 10, "me", MINUTE, may)
    assert other.run_id == "run-2"

    run = await store.run_info("run-1")
    assert run.blocked_reason == "lost 3 workers while they worked on it"
    late = Append("run-1", [events.run_started()], expected=1, epoch=last[0].epoch)
    assert (await store.append(late)).outcome is AppendOutcome.LEASE_LOST
    await store.wake_run("run-1")
    assert await store.claim_runs("default", 10, "me", MINUTE, may) == []
    await store.request_cancellation("run-1")  # it is stored, and moves nothing
    assert (await store.run_info("run-1")).blocked_reason is not None
    assert await store.claim_runs("default", 10, "me", MINUTE, may) == []


async def test_a_lease_that_was_given_back_is_no_crash(rig: Rig) -> None:
    store, may = rig.store, Capabilities(max_crashes=0)
    await store.start(request("run-1"))
    for _ in range(3):
        [lease] = await store.claim_runs("default", 10, "me", MINUTE, may)
        await store.give_back(lease)
        rig.advance(MINUTE + SECOND)
    assert len(await store.claim_runs("default", 10, "me", MINUTE, may)) == 1
