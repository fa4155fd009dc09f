"""Cancelling, terminating, progress and links: recorded once, and only while the run lives."""

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from flowpg.errors import (
    FlowError,
    InvalidArgument,
    InvalidRunId,
    InvalidTransition,
    NonDeterministic,
    RunConflict,
    RunNotFound,
    RunTerminal,
)
from flowpg.model import events
from flowpg.model.operations import ChildOperationReference, WorkflowProgress
from flowpg.model.records import Append
from flowpg.model.snapshot import RunStatus
from flowpg.store.protocol import FlowEventStore
from tests.store.support import (
    drop_task,
    ended,
    history,
    hooked,
    open_task,
    request,
    retrying,
    running,
    types,
    waiting,
)

DEADLINE = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)


async def test_a_requested_cancellation_is_recorded_with_its_reason(
    store: FlowEventStore,
) -> None:
    await running(store)
    await drop_task(store)
    result = await store.request_cancellation("r", "no longer needed")
    assert (result.run_id, result.applied, result.subject_id) == ("r", True, None)
    event = (await history(store))[-1]
    assert event.type == "run_cancellation_requested"
    assert event.data == {"request": {"reason": "no longer needed"}}
    assert (await store.run_info("r")).status is RunStatus.CANCELLING
    assert await open_task(store, "r")


async def test_a_cancellation_may_have_no_reason(store: FlowEventStore) -> None:
    await running(store)
    await store.request_cancellation("r")
    assert (await history(store))[-1].data == {"request": {}}
    assert not (await store.request_cancellation("r")).applied
    with pytest.raises(RunConflict):
        await store.request_cancellation("r", "after all")


async def test_the_same_cancellation_again_changes_nothing(store: FlowEventStore) -> None:
    await running(store)
    await store.request_cancellation("r", "why")
    again = await store.request_cancellation("r", "why")
    assert (again.applied, again.head_sequence) == (False, 3)
    with pytest.raises(RunConflict) as caught:
        await store.request_cancellation("r", "other")
    assert caught.value.run_id == "r"
    assert (await types(store)).count("run_cancellation_requested") == 1


async def test_a_pending_run_can_be_asked_to_cancel(store: FlowEventStore) -> None:
    await store.start(request())
    await store.request_cancellation("r")
    assert (await store.run_info("r")).status is RunStatus.CANCELLING


async def test_a_cancellation_closes_what_the_run_was_waiting_for(store: FlowEventStore) -> None:
    await waiting(store, "w")
    await hooked(store, "h")
    await retrying(store, "s")
    for run_id in ("w", "h", "s"):
        await store.request_cancellation(run_id)
        assert (await store.run_info(run_id)).status is RunStatus.CANCELLING
    assert await store.list_open_suspensions() == []
    assert await store.next_wakeup() is None
    assert await store.list_active_hooks() == []


async def test_a_cancelling_run_that_waits_again_is_not_called_suspended(
    store: FlowEventStore,
) -> None:
    await running(store)
    await store.request_cancellation("r")
    await store.append(Append("r", [events.hook_created("cleanup", "t", None)]))
    assert (await store.run_info("r")).status is RunStatus.CANCELLING
    assert len(await store.list_open_suspensions()) == 1


@pytest.mark.parametrize(
    ("verb", "arguments", "event_type", "data", "status"),
    [
        ("force_cancel", ["why"], "run_cancelled", {"reason": "why"}, "cancelled"),
        ("force_cancel", [], "run_cancelled", {"reason": None}, "cancelled"),
        (
            "terminate_for_timeout",
            [DEADLINE, "slow"],
            "run_timed_out",
            {"deadline": "2030-01-02T03:04:05Z", "reason": "slow"},
            "failed",
        ),
        (
            "terminate_for_host_shutdown",
            ["gone"],
            "run_host_shutdown",
            {"reason": "gone"},
            "failed",
        ),
    ],
)
async def test_a_run_is_ended_at_once_and_for_good(
    store: FlowEventStore,
    verb: str,
    arguments: list[Any],
    event_type: str,
    data: dict[str, Any],
    status: str,
) -> None:
    await hooked(store)
    result = await getattr(store, verb)("r", *arguments)
    assert (result.applied, result.head_sequence) == (True, 4)
    event = (await history(store))[-1]
    assert (event.type, _same_deadline(event.data)) == (event_type, data)
    row = await store.run_info("r")
    assert (row.status.value, row.ended_at) == (status, event.recorded_at)
    assert await store.list_active_hooks() == []
    assert not (await getattr(store, verb)("r", *arguments)).applied
    assert not (await store.force_cancel("r", "again")).applied
    assert not (await store.request_cancellation("r", "again")).applied
    assert (await store.run_info("r")).head_sequence == 4


def _same_deadline(data: dict[str, Any]) -> dict[str, Any]:
    # How many zeros the fraction of a second has is the store's own choice.
    if "deadline" in data:
        moment = datetime.fromisoformat(data["deadline"])
        return {**data, "deadline": f"{moment:%Y-%m-%dT%H:%M:%SZ}"}
    return data


async def test_a_run_asked_to_cancel_can_still_be_ended_at_once(store: FlowEventStore) -> None:
    await running(store)
    await store.request_cancellation("r", "please")
    assert (await store.force_cancel("r", "now")).applied


PROGRESS = WorkflowProgress(
    progress_id="p", completed=1, total=3, message="one", details={"file": "a"}
)


async def test_progress_is_recorded_once(store: FlowEventStore) -> None:
    await running(store)
    result = await store.record_progress("r", PROGRESS)
    assert (result.subject_id, result.applied) == ("p", True)
    assert (await history(store))[-1].data == {"progress": PROGRESS.wire()}
    assert not (await store.record_progress("r", PROGRESS)).applied
    assert (await types(store)).count("run_progress_recorded") == 1


async def test_progress_under_a_known_id_cannot_change(store: FlowEventStore) -> None:
    await running(store)
    await store.record_progress("r", PROGRESS)
    with pytest.raises(NonDeterministic) as caught:
        await store.record_progress("r", PROGRESS.model_copy(update={"completed": 2}))
    assert caught.value.run_id == "r"


async def test_an_ended_run_knows_its_old_progress_and_takes_no_new(store: FlowEventStore) -> None:
    await running(store)
    await store.record_progress("r", PROGRESS)
    await store.force_cancel("r")
    assert not (await store.record_progress("r", PROGRESS)).applied
    with pytest.raises(RunTerminal):
        await store.record_progress("r", PROGRESS.model_copy(update={"progress_id": "q"}))


@pytest.mark.parametrize(
    "progress",
    [
        WorkflowProgress(progress_id=" ", completed=0),
        WorkflowProgress(progress_id="p", completed=0, total=0),
        WorkflowProgress(progress_id="p", completed=4, total=3),
        WorkflowProgress(progress_id="p", completed=-1),
        WorkflowProgress(progress_id="x" * 513, completed=1),
    ],
)
async def test_progress_that_makes_no_sense_is_refused(
    store: FlowEventStore, progress: WorkflowProgress
) -> None:
    await running(store)
    with pytest.raises(InvalidTransition):
        await store.record_progress("r", progress)
    assert len(await types(store)) == 2


CHILD = ChildOperationReference(
    reference_id="c", kind="render", operation_id="op-1", metadata={"size": 1}
)


async def test_a_child_operation_is_linked_once(store: FlowEventStore) -> None:
    await running(store)
    result = await store.link_child_operation("r", CHILD)
    assert (result.subject_id, result.applied) == ("c", True)
    assert (await history(store))[-1].data == {"child": CHILD.wire()}
    assert not (await store.link_child_operation("r", CHILD)).applied
    with pytest.raises(NonDeterministic):
        await store.link_child_operation("r", CHILD.model_copy(update={"operation_id": "op-2"}))
    await store.force_cancel("r")
    assert not (await store.link_child_operation("r", CHILD)).applied
    with pytest.raises(RunTerminal):
        await store.link_child_operation("r", CHILD.model_copy(update={"reference_id": "d"}))


async def test_a_linked_run_must_exist(store: FlowEventStore) -> None:
    await running(store)
    child = CHILD.model_copy(update={"flow_run_id": "child-run"})
    with pytest.raises(RunNotFound) as caught:
        await store.link_child_operation("r", child)
    assert caught.value.run_id == "child-run"
    assert len(await types(store)) == 2
    await store.start(request("child-run"))
    assert (await store.link_child_operation("r", child)).applied


@pytest.mark.parametrize(
    ("member", "value", "error"),
    [
        ("reference_id", "", InvalidTransition),
        ("kind", " ", InvalidTransition),
        ("operation_id", "\x00", InvalidTransition),
        ("flow_run_id", "no good", InvalidRunId),
    ],
)
async def test_a_malformed_link_is_refused(
    store: FlowEventStore, member: str, value: str, error: type[FlowError]
) -> None:
    await running(store)
    with pytest.raises(error):
        await store.link_child_operation("r", CHILD.model_copy(update={member: value}))


@pytest.mark.parametrize("reason", ["a\x00b", "\ud800", 7])
async def test_a_reason_that_is_not_text_is_refused(store: FlowEventStore, reason: Any) -> None:
    await running(store)
    for call in (store.request_cancellation("r", reason), store.force_cancel("r", reason)):
        with pytest.raises(InvalidArgument):
            await call
    assert len(await types(store)) == 2


async def test_a_deadline_without_a_zone_is_refused(store: FlowEventStore) -> None:
    await running(store)
    beyond = datetime.max.replace(tzinfo=timezone(timedelta(hours=-1)))
    with pytest.raises(InvalidArgument):
        await store.terminate_for_timeout("r", beyond)
    for moment in (beyond, datetime.min.replace(tzinfo=timezone(timedelta(hours=1)))):
        with pytest.raises(InvalidArgument):
            await store.list_due_wakeups(as_of=moment)
    naive = DEADLINE.replace(tzinfo=None)
    with pytest.raises(InvalidArgument, match="zone"):
        await store.terminate_for_timeout("r", naive)


async def test_no_verb_knows_a_run_that_was_never_started(store: FlowEventStore) -> None:
    for call in (
        store.request_cancellation("nope"),
        store.force_cancel("nope"),
        store.terminate_for_timeout("nope", DEADLINE),
        store.terminate_for_host_shutdown("nope"),
        store.record_progress("nope", PROGRESS),
        store.link_child_operation("nope", CHILD),
        store.wake_run("nope"),
        store.run_info("nope"),
        store.history_page("nope"),
        store.acquire_run("nope", "me", DEADLINE - datetime(2029, 1, 1, tzinfo=UTC)),
    ):
        with pytest.raises(RunNotFound) as caught:
            await call
        assert caught.value.run_id == "nope"


async def test_an_ended_run_is_not_enqueued_by_a_redelivery(store: FlowEventStore) -> None:
    await ended(store)
    assert await open_task(store, "r")  # what starting it left behind; claimed now
    await store.force_cancel("r")
    await store.wake_run("r")
    assert not await open_task(store, "r")
