"""Appending events: at the head that is expected, under the lease that is held, all or nothing."""

from datetime import UTC, datetime, timedelta

import pytest

from flowpg.errors import InvalidArgument, InvalidRunId, InvalidTransition
from flowpg.model import events
from flowpg.model.events import NewEvent
from flowpg.model.operations import ChildOperationReference
from flowpg.model.records import Append, AppendOutcome
from flowpg.model.snapshot import RunStatus
from flowpg.store.protocol import FlowEventStore
from tests.store.conftest import Rig
from tests.store.support import (
    MINUTE,
    SPEC,
    ended,
    history,
    hooked,
    leased,
    open_task,
    request,
    running,
    step,
    types,
)

CREATED = NewEvent(events.RUN_CREATED, {"spec": SPEC.wire(), "input": None})


def link(run_id: str | None) -> NewEvent:
    child = ChildOperationReference(
        reference_id="c", kind="run", operation_id="1", flow_run_id=run_id
    )
    return NewEvent(events.CHILD_OPERATION_LINKED, {"child": child.wire()})


async def test_events_are_stored_in_order_at_the_expected_head(store: FlowEventStore) -> None:
    await store.start(request())
    result = await store.append(Append("r", [events.run_started(), *step("s")], expected=1))
    assert (result.outcome, result.head_sequence) == (AppendOutcome.APPENDED, 4)
    found = await history(store)
    assert [event.sequence for event in found] == [1, 2, 3, 4]
    assert [event.type for event in found[1:]] == ["run_started", "step_created", "step_started"]
    assert {event.recorded_at for event in found[1:]} == {result.recorded_at}


async def test_event_ids_are_unique_and_the_same_however_often_they_are_read(
    store: FlowEventStore,
) -> None:
    await running(store, *step("s"))
    first = [event.event_id for event in await history(store)]
    assert len(set(first)) == 4
    assert first == [event.event_id for event in await history(store)]


async def test_a_stale_writer_is_told_where_the_stream_is(store: FlowEventStore) -> None:
    await running(store)
    result = await store.append(Append("r", step("s"), expected=1))
    assert result.outcome is AppendOutcome.EVENT_CONFLICT
    assert (result.head_sequence, result.detail) == (2, {"expected": 1, "actual": 2})
    assert await types(store) == ["run_created", "run_started"]


async def test_without_an_expected_head_events_go_to_the_end(store: FlowEventStore) -> None:
    await running(store)
    result = await store.append(Append("r", step("s")))
    assert (result.appended, result.head_sequence) == (True, 4)


async def test_an_append_may_create_the_run_in_a_queue(store: FlowEventStore) -> None:
    result = await store.append(
        Append("r", [CREATED, events.run_started()], expected=0, queue="slow")
    )
    assert (result.appended, result.head_sequence) == (True, 2)
    row = await store.run_info("r")
    assert (row.queue, row.status, row.workflow_name) == ("slow", RunStatus.RUNNING, "order")


@pytest.mark.parametrize("expected", [None, 0])
async def test_a_run_is_created_only_once(store: FlowEventStore, expected: int | None) -> None:
    await store.start(request())
    result = await store.append(Append("r", [CREATED], expected=expected))
    assert result.outcome is AppendOutcome.EVENT_CONFLICT
    assert result.detail == {"expected": 0, "actual": 1}


async def test_a_run_that_does_not_exist_gets_no_events(store: FlowEventStore) -> None:
    result = await store.append(Append("r", [events.run_started()]))
    assert (result.outcome, result.head_sequence) == (AppendOutcome.RUN_NOT_FOUND, 0)
    assert await store.list_run_ids() == []


async def test_nothing_follows_the_end_of_a_run(store: FlowEventStore) -> None:
    await ended(store)
    result = await store.append(Append("r", step("s")))
    assert result.outcome is AppendOutcome.RUN_TERMINAL
    assert result.detail == {"status": "completed"}
    assert (await store.run_info("r")).head_sequence == 3


@pytest.mark.parametrize(
    "new",
    [
        [],
        [events.run_started(), CREATED],
        [events.run_started(), events.run_completed(1), *step("s")],
    ],
    ids=["nothing", "created later", "after the end"],
)
async def test_an_append_that_could_never_be_stored_is_invalid(
    store: FlowEventStore, new: list[NewEvent]
) -> None:
    await store.start(request())
    result = await store.append(Append("r", new))
    assert result.outcome is AppendOutcome.INVALID
    assert set(result.detail) == {"sqlstate", "reason"}
    assert await types(store) == ["run_created"]


async def test_the_lease_of_an_append_must_be_the_current_one(store: FlowEventStore) -> None:
    await running(store)
    lease = await leased(store)
    assert (await store.append(Append("r", step("a"), epoch=lease.epoch))).appended
    result = await store.append(Append("r", step("b"), epoch=lease.epoch - 1))
    assert result.outcome is AppendOutcome.LEASE_LOST
    assert result.detail == {"epoch": lease.epoch - 1, "current": lease.epoch}
    assert (await store.run_info("r")).head_sequence == 4


async def test_a_lost_lease_is_told_before_a_conflict(store: FlowEventStore) -> None:
    await running(store)
    result = await store.append(Append("r", step("s"), expected=7, epoch=7))
    assert result.outcome is AppendOutcome.LEASE_LOST


async def test_a_conflict_is_told_before_the_end_of_the_run(store: FlowEventStore) -> None:
    await ended(store)
    result = await store.append(Append("r", step("s"), expected=2))
    assert result.outcome is AppendOutcome.EVENT_CONFLICT


async def test_one_refused_append_does_not_harm_its_neighbours(store: FlowEventStore) -> None:
    for run_id in ("a", "b", "c"):
        await running(store, run_id=run_id)
    results = await store.append_many(
        [
            Append("a", step("s"), expected=2),
            Append("b", step("s"), expected=1),
            Append("missing", step("s")),
            Append("c", step("s"), expected=2),
        ]
    )
    assert [result.run_id for result in results] == ["a", "b", "missing", "c"]
    assert [result.outcome.value for result in results] == [
        "appended",
        "event_conflict",
        "run_not_found",
        "appended",
    ]
    assert len(await types(store, "a")) == len(await types(store, "c")) == 4
    assert len(await types(store, "b")) == 2


async def test_a_run_that_occurs_twice_in_one_batch_is_stored_once(store: FlowEventStore) -> None:
    await running(store)
    first, second = await store.append_many([Append("r", step("a")), Append("r", step("b"))])
    assert (first.outcome, second.outcome) == (AppendOutcome.APPENDED, AppendOutcome.INVALID)
    assert (await types(store))[2:] == ["step_created", "step_started"]


async def test_appending_nothing_at_all_is_fine(store: FlowEventStore) -> None:
    assert await store.append_many([]) == []


async def test_a_malformed_append_is_refused_before_anything_is_stored(
    store: FlowEventStore,
) -> None:
    await running(store)
    good = Append("r", step("a"))
    with pytest.raises(InvalidRunId):
        await store.append_many([good, Append("no good", step("s"))])
    with pytest.raises(InvalidArgument):
        await store.append_many([good, Append("x", [events.wait_completed("\x00")])])
    with pytest.raises(InvalidTransition):
        await store.append_many([good, Append("x", [NewEvent(events.WAIT_COMPLETED, {})])])
    with pytest.raises(InvalidArgument, match="epoch"):
        await store.append_many([good, Append("x", [], release=1)])
    assert await types(store) == ["run_created", "run_started"]


async def test_a_deadline_left_to_the_store_counts_from_the_append(store: FlowEventStore) -> None:
    await running(store)
    delay = timedelta(hours=1, microseconds=7)
    result = await store.append(Append("r", [events.wait_created("w", delay=delay)]))
    event = (await history(store))[-1]
    due = result.recorded_at + delay
    assert event.payload == f'{{"wait_id":"w","resume_at":"{due:%Y-%m-%dT%H:%M:%S.%fZ}"}}'
    wakeup = await store.next_wakeup()
    assert wakeup is not None
    assert wakeup.due_at == due


async def test_an_absolute_deadline_is_kept_as_it_was_written(store: FlowEventStore) -> None:
    due = datetime(2100, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
    await running(store, events.wait_created("w", resume_at=due))
    assert (await history(store))[-1].data["resume_at"] == "2100-01-02T03:04:05.678901Z"
    wakeup = await store.next_wakeup()
    assert wakeup is not None
    assert wakeup.due_at == due


async def test_a_token_held_by_another_run_is_refused(store: FlowEventStore) -> None:
    await hooked(store, "owner", token="the-token")
    await running(store)
    result = await store.append(Append("r", [events.hook_created("mine", "the-token", None)]))
    assert result.outcome is AppendOutcome.HOOK_TOKEN_CONFLICT
    assert result.detail == {"run_id": "owner", "hook_id": "h", "requested_hook_id": "mine"}
    assert await types(store) == ["run_created", "run_started"]


async def test_a_token_is_free_again_once_its_hook_is_resolved(rig: Rig) -> None:
    store, take = rig.store, events.hook_created("h", "token", None)
    for number, leave in enumerate(("resume", "dispose", "cancel", "expire", "end", "request")):
        run_id = f"owner-{number}"
        hook = events.hook_created("h", "token", None, expires_in=MINUTE)
        await running(store, hook, run_id=run_id)
        match leave:
            case "resume":
                await store.resume_hook(run_id, "h", 1)
            case "dispose":
                await store.dispose_hook(run_id, "h")
            case "cancel":
                await store.force_cancel(run_id)
            case "expire":
                rig.advance(2 * MINUTE)
                assert len(await store.dispose_expired_hooks()) == 1
            case "end":
                await store.append(Append(run_id, [events.run_failed("no")]))
            case "request":
                await store.request_cancellation(run_id)
    await running(store, take)


async def test_a_hook_may_replace_another_with_the_same_token_in_one_append(
    store: FlowEventStore,
) -> None:
    await hooked(store, token="token")
    result = await store.append(
        Append("r", [events.hook_disposed("h"), events.hook_created("h2", "token", None)])
    )
    assert result.appended
    assert (await store.resume_hook_by_token("token", 1)).subject_id == "h2"


async def test_one_run_cannot_hold_a_token_twice(store: FlowEventStore) -> None:
    await running(store)
    result = await store.append(
        Append("r", [events.hook_created("a", "t", None), events.hook_created("b", "t", None)])
    )
    assert result.outcome is AppendOutcome.HOOK_TOKEN_CONFLICT
    assert result.detail == {"run_id": "r", "hook_id": "a", "requested_hook_id": "b"}
    assert await store.list_active_hooks() == []


async def test_every_hook_that_is_refused_is_named_at_once(store: FlowEventStore) -> None:
    await running(
        store, events.hook_created("one", "1", None), events.hook_created("two", "2", None)
    )
    await running(store, events.hook_created("mine", "3", None), run_id="s")
    wanted = [("a", "2"), ("b", "free"), ("c", "3"), ("d", "free"), ("e", "1"), ("f", "4")]
    made = [events.hook_created(hook_id, token, None) for hook_id, token in wanted]
    result = await store.append(Append("s", [*made[:2], events.hook_disposed("mine"), *made[2:]]))
    assert result.outcome is AppendOutcome.HOOK_TOKEN_CONFLICT
    # What the same append gives up is in nobody's way, and neither is a hook that is refused.
    assert result.detail == {
        "run_id": "r",
        "hook_id": "two",
        "requested_hook_id": "a",
        "others": [
            {"run_id": "s", "hook_id": "b", "requested_hook_id": "d"},
            {"run_id": "r", "hook_id": "one", "requested_hook_id": "e"},
        ],
    }
    assert len(await store.list_active_hooks()) == 3


async def test_a_link_to_a_run_that_does_not_exist_is_refused(store: FlowEventStore) -> None:
    await running(store)
    result = await store.append(Append("r", [link("missing")]))
    assert result.outcome is AppendOutcome.LINK_NOT_FOUND
    assert result.detail == {"flow_run_id": "missing"}
    await store.start(request("missing"))
    assert (await store.append(Append("r", [link("missing")]))).appended


async def test_a_link_may_name_no_run_or_the_run_itself(store: FlowEventStore) -> None:
    await running(store)
    assert (await store.append(Append("r", [link(None)]))).appended
    await running(store, link("other"), run_id="other")


async def test_a_release_in_the_append_takes_the_task_away(store: FlowEventStore) -> None:
    await running(store)
    lease = await leased(store)
    result = await store.append(
        Append(
            "r", [events.wait_created("w", delay=MINUTE)], epoch=lease.epoch, release=lease.wakes
        )
    )
    assert (result.appended, result.released, result.wakes) == (True, True, 0)
    assert not await open_task(store, "r")


async def test_a_run_woken_meanwhile_keeps_its_lease(store: FlowEventStore) -> None:
    await running(store)
    lease = await leased(store)
    await store.wake_run("r")
    result = await store.append(Append("r", [], epoch=lease.epoch, release=lease.wakes))
    assert (result.appended, result.released) == (True, False)
    assert result.wakes == lease.wakes + 1
    again = await store.append(Append("r", [], epoch=lease.epoch, release=result.wakes))
    assert again.released


async def test_a_run_that_ends_is_released_however_often_it_was_woken(
    store: FlowEventStore,
) -> None:
    await running(store)
    lease = await leased(store)
    await store.wake_run("r")
    result = await store.append(
        Append("r", [events.run_completed(1)], epoch=lease.epoch, release=lease.wakes)
    )
    assert result.released
    assert not await open_task(store, "r")


async def test_an_ended_run_can_still_be_released(store: FlowEventStore) -> None:
    await running(store)
    lease = await leased(store)
    await store.force_cancel("r")
    result = await store.append(Append("r", [], epoch=lease.epoch, release=lease.wakes))
    assert result.released


async def test_a_refused_append_releases_nothing(store: FlowEventStore) -> None:
    await running(store)
    lease = await leased(store)
    result = await store.append(
        Append("r", step("s"), expected=1, epoch=lease.epoch, release=lease.wakes)
    )
    assert (result.outcome, result.released) == (AppendOutcome.EVENT_CONFLICT, False)
    (beat,) = await store.heartbeat([lease], MINUTE)
    assert beat.held
