"""Starting runs: once, however often it is asked for."""

import pytest

from flowpg.errors import (
    InvalidArgument,
    InvalidRunId,
    InvalidWorkflow,
    RunConflict,
    RunNotFound,
)
from flowpg.model.records import StartOutcome, StartRequest
from flowpg.model.snapshot import RunStatus
from flowpg.model.spec import WorkflowSpec
from flowpg.store.protocol import FlowEventStore
from tests.store.support import (
    MINUTE,
    SPEC,
    drop_task,
    ended,
    history,
    open_task,
    request,
    types,
)


async def test_a_started_run_is_pending_and_waits_to_be_driven(store: FlowEventStore) -> None:
    result = await store.start(request("r", {"order": 1}))
    assert (result.run_id, result.applied, result.head_sequence) == ("r", True, 1)
    row = await store.run_info("r")
    assert (row.status, row.workflow_name, row.queue) == (RunStatus.PENDING, "order", "default")
    assert await open_task(store, "r")


async def test_the_first_event_holds_the_spec_and_the_input(store: FlowEventStore) -> None:
    await store.start(request("r", {"order": 1}))
    (event,) = await history(store)
    assert event.type == "run_created"
    assert event.data == {"spec": SPEC.wire(), "input": {"order": 1}}


async def test_a_run_started_without_an_id_gets_one_that_sorts_by_time(
    store: FlowEventStore,
) -> None:
    first = await store.start(request(None))
    second = await store.start(request(None))
    assert first.run_id != second.run_id
    assert first.run_id[14] == "7"  # a UUID of version 7
    assert first.run_id[:8] <= second.run_id[:8]


async def test_starting_again_with_the_same_spec_and_input_changes_nothing(
    store: FlowEventStore,
) -> None:
    await store.start(request("r", {"a": 1, "b": [1.0, 2]}))
    again = await store.start(request("r", {"b": [1, 2.0], "a": 1}))
    assert (again.applied, again.head_sequence) == (False, 1)
    assert await types(store) == ["run_created"]


async def test_starting_again_wakes_a_run_whose_task_was_lost(store: FlowEventStore) -> None:
    await store.start(request("r"))
    await drop_task(store)
    await store.start(request("r"))
    assert await open_task(store, "r")


async def test_starting_again_leaves_an_ended_run_alone(store: FlowEventStore) -> None:
    await ended(store)
    assert await open_task(store, "r")  # claimed now, and so out of the way
    again = await store.start(request("r"))
    assert (again.applied, again.head_sequence) == (False, 3)
    assert not await open_task(store, "r")


@pytest.mark.parametrize(
    "spec",
    [
        WorkflowSpec.python("refund"),
        WorkflowSpec.python("order", "2"),
        SPEC.with_runtime_build("b2"),
    ],
)
async def test_the_id_of_a_run_with_another_spec_is_taken(
    store: FlowEventStore, spec: WorkflowSpec
) -> None:
    await store.start(request("r"))
    with pytest.raises(RunConflict, match="workflow spec differs") as caught:
        await store.start(request("r", spec=spec))
    assert (caught.value.run_id, caught.value.reason) == ("r", "workflow spec differs")
    assert await types(store) == ["run_created"]


async def test_the_id_of_a_run_with_another_input_is_taken(store: FlowEventStore) -> None:
    await store.start(request("r", {"secret-input": 1}))
    with pytest.raises(RunConflict, match="workflow input differs") as caught:
        await store.start(request("r", {"secret-input": 2}))
    assert "secret-input" not in str(caught.value)


async def test_true_is_another_input_than_one(store: FlowEventStore) -> None:
    await store.start(request("r", 1))
    with pytest.raises(RunConflict):
        await store.start(request("r", True))


@pytest.mark.parametrize(
    "run_id", ["", " ", "-first", "a b", "a/b", "\x00", "ä", "x" * 256, "a\n", "\ud800"]
)
async def test_a_malformed_run_id_is_refused(store: FlowEventStore, run_id: str) -> None:
    with pytest.raises(InvalidRunId):
        await store.start(request(run_id))
    assert await store.list_run_ids() == []


@pytest.mark.parametrize("run_id", ["a", "A-Z.a_z:0@9+", "x" * 255])
async def test_every_allowed_run_id_works(store: FlowEventStore, run_id: str) -> None:
    assert (await store.start(request(run_id))).run_id == run_id
    assert (await store.run_info(run_id)).run_id == run_id


@pytest.mark.parametrize("name", ["", "  ", "a\x00b", "x" * 256, "\ud800"])
async def test_a_workflow_without_a_usable_name_is_refused(
    store: FlowEventStore, name: str
) -> None:
    with pytest.raises(InvalidWorkflow):
        await store.start(request("r", spec=WorkflowSpec.python(name)))
    with pytest.raises(RunNotFound):
        await store.run_info("r")


@pytest.mark.parametrize("queue", ["", " ", "q\x00", "q" * 256])
async def test_a_malformed_queue_name_is_refused(store: FlowEventStore, queue: str) -> None:
    with pytest.raises(InvalidArgument):
        await store.start(request("r", queue=queue))


async def test_a_run_started_in_a_queue_is_claimed_from_that_queue(store: FlowEventStore) -> None:
    await store.start(request("r", queue="slow"))
    assert (await store.run_info("r")).queue == "slow"
    assert not await open_task(store, "r")
    leases = await store.claim_runs("slow", 10, "me", MINUTE)
    assert [lease.run_id for lease in leases] == ["r"]


async def test_many_runs_start_each_on_its_own_merits(store: FlowEventStore) -> None:
    await store.start(request("old", 1))
    await store.start(request("other", 1))
    results = await store.start_many(
        [
            request("new", 1),
            request("old", 1),
            request("other", 2),
            request(None, 3),
        ]
    )
    assert [item.outcome for item in results] == [
        StartOutcome.CREATED,
        StartOutcome.EXISTS,
        StartOutcome.RUN_CONFLICT,
        StartOutcome.CREATED,
    ]
    assert [item.run_id for item in results[:3]] == ["new", "old", "other"]
    assert results[2].reason == "workflow input differs"
    assert len(await store.list_run_ids()) == 4


async def test_of_two_equal_starts_in_one_call_one_creates_the_run(store: FlowEventStore) -> None:
    results = await store.start_many([request("r", 1), request("r", 1), request("r", 2)])
    assert [item.outcome for item in results] == [
        StartOutcome.CREATED,
        StartOutcome.EXISTS,
        StartOutcome.RUN_CONFLICT,
    ]
    assert await types(store) == ["run_created"]


async def test_one_malformed_start_among_many_starts_nothing(store: FlowEventStore) -> None:
    with pytest.raises(InvalidRunId):
        await store.start_many([request("good"), request("no good")])
    assert await store.list_run_ids() == []


async def test_starting_none_is_fine(store: FlowEventStore) -> None:
    assert await store.start_many([]) == []


async def test_a_thousand_runs_start_in_one_call(store: FlowEventStore) -> None:
    requests = [StartRequest(SPEC, number, f"run-{number:04}") for number in range(1000)]
    results = await store.start_many(requests)
    assert {item.outcome for item in results} == {StartOutcome.CREATED}
    assert [item.run_id for item in results] == [item.run_id for item in requests]
    assert (await store.run_summary()).pending == 1000


async def test_more_than_a_thousand_runs_a_call_are_refused(store: FlowEventStore) -> None:
    with pytest.raises(InvalidArgument, match="1000"):
        await store.start_many([request(None)] * 1001)
    assert await store.list_run_ids() == []


async def test_starting_a_run_twice_in_one_call_wakes_it_once(store: FlowEventStore) -> None:
    await store.start(request("r"))
    await store.start_many([request("r"), request("r")])
    await store.start_many([request("new"), request("new")])
    loaded = await store.load_runs(["r", "new"])
    assert (loaded["r"].wakes, loaded["new"].wakes) == (2, 1)
