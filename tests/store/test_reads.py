"""Inspection: pages that miss nothing, in an order that never changes."""

import pytest

from flowpg.errors import InvalidArgument, InvalidRunId, RunNotFound
from flowpg.model import events
from flowpg.model.inspection import RunRow, SuspensionKind, WorkflowRunSummary
from flowpg.model.records import Append
from flowpg.model.snapshot import RunStatus
from flowpg.model.spec import WorkflowSpec
from flowpg.replay.projection import project
from flowpg.store.postgres import PostgresEventStore
from flowpg.store.protocol import FlowEventStore
from tests.store.conftest import Rig
from tests.store.support import (
    MINUTE,
    SPEC,
    ended,
    history,
    hooked,
    leased,
    request,
    retrying,
    running,
    step,
    waiting,
)


async def test_a_loaded_run_holds_its_whole_history(store: FlowEventStore) -> None:
    await running(store, *step("s"), events.step_completed("s", {"a": [1, None]}))
    loaded = (await store.load_runs(["r"]))["r"]
    assert (loaded.run_id, loaded.head_sequence, loaded.status) == ("r", 5, RunStatus.RUNNING)
    assert loaded.wakes == 1
    assert abs(loaded.now - await store.now()) < MINUTE
    assert loaded.history == await history(store)
    assert project("r", loaded.history).steps["s"].output == {"a": [1, None]}


async def test_several_runs_are_loaded_at_once_and_unknown_ones_left_out(
    store: FlowEventStore,
) -> None:
    await running(store, run_id="a")
    await store.start(request("b"))
    loaded = await store.load_runs(["b", "missing", "a", "a"])
    assert {run_id: run.head_sequence for run_id, run in loaded.items()} == {"a": 2, "b": 1}
    assert await store.load_runs([]) == {}


async def test_a_loaded_run_tells_how_often_it_was_woken(store: FlowEventStore) -> None:
    await running(store)
    lease = await leased(store)
    assert (await store.load_runs(["r"]))["r"].wakes == lease.wakes
    await store.wake_run("r")
    assert (await store.load_runs(["r"]))["r"].wakes == lease.wakes + 1
    lease.wakes += 1
    assert await store.release_run(lease)
    assert (await store.load_runs(["r"]))["r"].wakes == 0


async def test_what_a_reader_does_to_a_history_does_not_change_it(store: FlowEventStore) -> None:
    await store.start(request("r", {"list": [1]}))
    for read in (
        (await store.load_runs(["r"]))["r"].history,
        await store.history_page("r"),
    ):
        read[0].data["input"]["list"].append(2)
        read.clear()
    assert (await history(store))[0].data["input"] == {"list": [1]}


async def test_a_history_is_read_page_by_page(store: FlowEventStore) -> None:
    await running(store, *step("a"), *step("b"))
    pages = [await store.history_page("r", after, 2) for after in (0, 2, 4, 6)]
    assert [[event.sequence for event in page] for page in pages] == [[1, 2], [3, 4], [5, 6], []]
    assert [event.sequence for event in await store.history_page("r", 4)] == [5, 6]


@pytest.mark.parametrize("limit", [0, -5, 1001])
async def test_a_page_has_one_to_a_thousand_events(store: FlowEventStore, limit: int) -> None:
    await store.start(request())
    with pytest.raises(InvalidArgument, match="limit"):
        await store.history_page("r", 0, limit)
    assert len(await store.history_page("r", 0, 1000)) == 1


async def test_reading_a_malformed_run_id_is_refused(store: FlowEventStore) -> None:
    for call in (
        store.history_page("no good"),
        store.load_runs(["r", "no good"]),
        store.run_info("\x00"),
        store.list_run_ids("no good"),
        store.run_builds(["r", "no good"]),
        store.list_open_suspensions(run_id="no good"),
        store.list_active_hooks(run_id="no good"),
    ):
        with pytest.raises(InvalidRunId):
            await call


async def test_run_ids_are_listed_in_byte_order(store: FlowEventStore) -> None:
    ids = ["a", "B", "a-b", "a.b", "0", "a_b", "Z", "a:b", "z@1"]
    for run_id in ids:
        await store.start(request(run_id))
    assert await store.list_run_ids() == sorted(ids)
    assert await store.list_run_ids("a", limit=2) == ["a-b", "a.b"]
    assert await store.list_run_ids("z@1") == []


async def test_runs_are_listed_newest_first_in_pages(rig: Rig) -> None:
    for number in range(7):
        await rig.store.start(request(f"run-{number}"))
        rig.advance(MINUTE)
    listed: list[RunRow] = []
    while page := await rig.store.list_runs(after=listed[-1] if listed else None, limit=3):
        listed += page
    assert [row.run_id for row in listed] == [f"run-{number}" for number in range(6, -1, -1)]


async def test_runs_created_in_one_moment_are_all_listed(store: FlowEventStore) -> None:
    ids = [f"run-{number}" for number in range(10)]
    await store.start_many([request(run_id) for run_id in ids])
    listed: list[RunRow] = []
    while page := await store.list_runs(after=listed[-1] if listed else None, limit=3):
        listed += page
    assert sorted(row.run_id for row in listed) == ids


async def test_a_row_tells_what_a_run_is_and_when_it_changed(rig: Rig) -> None:
    store = rig.store
    await store.start(request(spec=SPEC.with_runtime_build("b1"), queue="q"))
    first = await store.run_info("r")
    rig.advance(MINUTE)
    await store.append(Append("r", [events.run_started(), events.run_failed("no")]))
    row = await store.run_info("r")
    assert (row.workflow_name, row.workflow_version, row.runtime_build) == ("order", "1", "b1")
    assert (row.queue, row.status, row.head_sequence) == ("q", RunStatus.FAILED, 3)
    assert row.created_at == first.created_at
    assert row.updated_at == row.ended_at
    assert row.updated_at >= first.updated_at + MINUTE
    assert first.ended_at is None
    assert await store.list_runs() == [row]


async def test_runs_are_listed_by_what_they_are(store: FlowEventStore) -> None:
    await running(store, run_id="running")
    await ended(store, run_id="over")
    await store.start(request("refund", spec=WorkflowSpec.python("refund"), queue="slow"))
    await running(store, run_id="blocked")
    await store.give_back(await leased(store, "blocked"), blocked_reason="no such step")

    async def listed(**filters: object) -> set[str]:
        return {row.run_id for row in await store.list_runs(**filters)}  # type: ignore[arg-type]

    assert await listed(status=RunStatus.COMPLETED) == {"over"}
    assert await listed(status=RunStatus.RUNNING) == {"running", "blocked"}
    assert await listed(workflow_name="refund") == {"refund"}
    assert await listed(queue="slow") == {"refund"}
    assert await listed(blocked=True) == {"blocked"}
    assert await listed(blocked=False) == {"running", "over", "refund"}
    assert await listed(workflow_name="order", status=RunStatus.RUNNING, blocked=False) == {
        "running"
    }
    assert await listed(workflow_name="nothing") == set()


async def test_the_summary_counts_runs_and_what_they_wait_for(store: FlowEventStore) -> None:
    assert await store.run_summary() == WorkflowRunSummary()
    await store.start(request("pending"))
    await running(store, run_id="running")
    await waiting(store, "timer")
    await hooked(store, "hook")
    await retrying(store, "retry")
    await running(store, run_id="cancelling")
    await store.request_cancellation("cancelling")
    await ended(store, run_id="completed")
    await hooked(store, "cancelled", token="other")
    await store.force_cancel("cancelled")
    await waiting(store, "failed")
    await store.append(Append("failed", [events.run_failed("no")]))
    assert await store.run_summary() == WorkflowRunSummary(
        total=9,
        pending=1,
        running=1,
        suspended=3,
        cancelling=1,
        completed=1,
        failed=1,
        cancelled=1,
        terminal=3,
        non_terminal=6,
        open_waits=1,
        active_hooks=1,
        pending_retries=1,
    )


async def test_open_suspensions_are_listed_in_order(rig: Rig) -> None:
    store = rig.store
    await waiting(store, "b")
    await store.append(Append("b", [events.hook_created("h", "tb", None)]))
    await retrying(store, "a")
    await store.append(Append("a", [events.hook_created("h2", "t2", None, expires_in=MINUTE)]))
    await store.append(Append("a", [events.hook_created("h1", "t1", None)]))
    await store.append(Append("a", [events.wait_created("w", delay=2 * MINUTE)]))
    await waiting(store, "over")
    await store.force_cancel("over")
    rig.advance(MINUTE)
    found = await store.list_open_suspensions()
    assert [(item.run_id, item.kind.value, item.subject_id, item.due) for item in found] == [
        ("a", "wait", "w", False),
        ("a", "hook", "h1", None),
        ("a", "hook", "h2", True),
        ("a", "retry", "s", True),
        ("b", "wait", "w", True),
        ("b", "hook", "h", None),
    ]
    assert found[1].due_at is None
    only = await store.list_open_suspensions(run_id="b")
    assert [item.kind for item in only] == [SuspensionKind.WAIT, SuspensionKind.HOOK]


async def test_suspensions_are_due_as_of_a_moment(store: FlowEventStore) -> None:
    await waiting(store)
    now = await store.now()
    (item,) = await store.list_open_suspensions(as_of=now)
    assert item.due is False
    (item,) = await store.list_open_suspensions(as_of=now + 2 * MINUTE)
    assert item.due is True


async def test_more_suspensions_than_a_page_holds_are_all_listed(store: FlowEventStore) -> None:
    many = [events.wait_created(f"w{number:04}", delay=MINUTE) for number in range(1100)]
    await running(store, *many, run_id="many")
    hooks = [events.hook_created(f"h{number:04}", f"t{number}", None) for number in range(1100)]
    await running(store, *hooks, run_id="hooks")
    found = await store.list_open_suspensions()
    assert [item.subject_id for item in found] == [
        *(f"h{number:04}" for number in range(1100)),
        *(f"w{number:04}" for number in range(1100)),
    ]
    assert len(await store.list_open_suspensions(run_id="many")) == 1100
    assert [hook.hook_id for hook in await store.list_active_hooks()] == [
        f"h{number:04}" for number in range(1100)
    ]


async def test_active_hooks_are_listed_with_token_and_metadata(store: FlowEventStore) -> None:
    await hooked(store, "b", token="tb")
    await hooked(store, "a", token="ta", expires_in=MINUTE)
    first, second = await store.list_active_hooks()
    assert (first.run_id, first.hook_id, first.token) == ("a", "h", "ta")
    assert first.metadata == {"kind": "approval"}
    assert first.expires_at == first.created_at + MINUTE
    assert (second.run_id, second.expires_at) == ("b", None)
    assert await store.list_active_hooks(run_id="b") == [second]
    assert "ta" not in repr(first)


async def test_asking_for_an_unknown_run_by_id_is_not_found(store: FlowEventStore) -> None:
    with pytest.raises(RunNotFound):
        await store.history_page("nope")
    with pytest.raises(RunNotFound):
        await store.run_info("nope")


async def test_a_run_that_no_worker_takes_says_so(postgres_store: PostgresEventStore) -> None:
    await postgres_store.start(request())
    assert (await postgres_store.run_info("r")).waiting_for == "no worker for queue default"
    (row,) = await postgres_store.list_runs()
    assert row.waiting_for == "no worker for queue default"
    await leased(postgres_store)
    assert (await postgres_store.run_info("r")).waiting_for is None
