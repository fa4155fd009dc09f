"""The engine itself: its limits, its builds, its choices, and calls without a runtime."""

from collections.abc import Callable
from datetime import timedelta

import pytest

from flowpg.engine.flow_engine import FlowEngine
from flowpg.errors import (
    InvalidArgument,
    InvalidWorkflow,
    ReplayLimitExceeded,
    RuntimeBuildUnavailable,
    UnknownWorkflow,
)
from flowpg.model.commands import Decision
from flowpg.model.operations import ChildOperationReference, WorkflowProgress
from flowpg.model.records import StartOutcome, StartRequest
from flowpg.model.snapshot import RunStatus
from flowpg.model.spec import WorkflowSpec
from flowpg.replay.context import WorkflowContext
from tests.engine.support import SECOND, SPEC, EngineStore, Script, echo, in_order, one_step, short


async def test_a_workflow_that_decides_for_ever_meets_the_limit_and_stays_resumable(
    engine_store: EngineStore,
) -> None:
    def workflow(ctx: WorkflowContext) -> Decision:
        number = len(ctx.history)
        return ctx.record_progress(WorkflowProgress(progress_id=f"p{number}", completed=number))

    runtime = Script(workflow)
    engine = await engine_store.engine(runtime, max_replays=7)
    with pytest.raises(ReplayLimitExceeded) as caught:
        await engine.start_with_id("r", SPEC)
    assert caught.value.limit == runtime.replays == 7
    assert str((await engine.run_info("r")).blocked_reason).startswith("ReplayLimitExceeded")
    runtime.workflow = lambda ctx: ctx.complete("enough")
    assert (await engine.drive("r")).output == "enough"


async def test_opening_timers_without_end_meets_the_limit_too(engine_store: EngineStore) -> None:
    def workflow(ctx: WorkflowContext) -> Decision:
        return ctx.sleep(f"w{len(ctx.history)}", timedelta(0))

    engine = await engine_store.engine(Script(workflow), max_replays=5)
    with pytest.raises(ReplayLimitExceeded):
        await engine.start(SPEC)


async def test_the_limit_does_not_count_replays_that_follow_an_outcome(
    engine_store: EngineStore,
) -> None:
    names = [f"s{number}" for number in range(20)]
    engine = await engine_store.engine(Script(in_order(*names), {"work": echo}), max_replays=2)
    assert (await engine.snapshot(await engine.start(SPEC))).output == names


async def test_a_run_pinned_to_another_build_is_blocked_and_not_written_to(
    engine_store: EngineStore,
) -> None:
    pinned = SPEC.with_runtime_build("v1")
    runtime = Script(one_step(input=1), {"work": echo})
    for builds, unpinned in (((), False), (("v2",), True)):
        wrong = await engine_store.engine(runtime, builds=builds, unpinned=unpinned)
        with pytest.raises(RuntimeBuildUnavailable) as caught:
            await wrong.start_with_id("r", pinned)
        assert caught.value.required == "v1"
        assert short(await wrong.history("r")) == ["run.created"]
        assert "needs build v1" in str((await wrong.run_info("r")).blocked_reason)
        assert not wrong.supports_runtime_build("v1")
    assert runtime.replays == 0
    right = await engine_store.engine(runtime, builds=["v2", "v1"])
    assert right.supports_runtime_build("v1")
    assert (await right.drive("r")).output == 1


async def test_a_run_without_a_build_is_only_admitted_by_an_engine_with_one_if_that_is_said(
    engine_store: EngineStore,
) -> None:
    runtime = Script(one_step(input=1), {"work": echo})
    strict = await engine_store.engine(runtime, builds=["v1"])
    with pytest.raises(RuntimeBuildUnavailable):
        await strict.start_with_id("r", SPEC)
    lenient = await engine_store.engine(runtime, builds=["v1"], unpinned=True)
    assert (await lenient.drive("r")).output == 1


async def test_an_engine_that_may_not_drive_a_run_completes_no_timer_of_it_either(
    engine_store: EngineStore,
) -> None:
    def workflow(ctx: WorkflowContext) -> Decision:
        return ctx.complete() if ctx.wait_completed("w") else ctx.sleep("w", SECOND)

    right = await engine_store.engine(Script(workflow), builds=["v1"])
    await right.start_with_id("r", SPEC.with_runtime_build("v1"))
    history = await right.history("r")
    engine_store.advance(2 * SECOND)
    wrong = await engine_store.engine(Script(workflow))
    with pytest.raises(RuntimeBuildUnavailable):
        await wrong.drive("r")
    assert await right.history("r") == history


async def test_an_unknown_workflow_waits_visibly_for_a_process_that_knows_it(
    engine_store: EngineStore,
) -> None:
    def unknown(ctx: WorkflowContext) -> Decision:
        raise UnknownWorkflow(ctx.spec.name)

    engine = await engine_store.engine(Script(unknown))
    with pytest.raises(UnknownWorkflow):
        await engine.start_with_id("r", SPEC)
    [blocked] = await engine.list_runs(blocked=True)
    assert blocked.run_id == "r"
    assert blocked.status is RunStatus.PENDING
    assert "no workflow named 'order'" in str(blocked.blocked_reason)
    knows = await engine_store.engine(Script(lambda ctx: ctx.complete("known")))
    assert (await knows.drive("r")).output == "known"
    assert await engine.list_runs(blocked=True) == []


async def test_an_engine_without_a_runtime_is_a_client(engine_store: EngineStore) -> None:
    client = await engine_store.engine(None)
    run_id = await client.start(SPEC, {"n": 1})
    with pytest.raises(InvalidArgument, match="no runtime"):
        await client.drive(run_id)
    snapshot = await client.record_progress(run_id, WorkflowProgress(progress_id="p", completed=1))
    assert [report.completed for report in snapshot.progress] == [1]
    link = ChildOperationReference(reference_id="c", kind="run", operation_id="1")
    assert "c" in (await client.link_child_operation(run_id, link)).child_operations
    assert await client.resume_due_waits() == []
    results = await client.start_many(
        [StartRequest(SPEC, 1, "many-1"), StartRequest(SPEC, 2, "many-1")]
    )
    assert [r.outcome for r in results] == [StartOutcome.CREATED, StartOutcome.RUN_CONFLICT]


async def test_progress_reported_from_outside_is_seen_by_the_workflow(
    engine_store: EngineStore,
) -> None:
    def workflow(ctx: WorkflowContext) -> Decision:
        progress = ctx.progress("p")
        if progress is not None:
            return ctx.complete(progress.completed)
        return ctx.create_hook("h", "token")

    engine = await engine_store.engine(Script(workflow))
    run_id = await engine.start(SPEC)
    report = WorkflowProgress(progress_id="p", completed=3)
    assert (await engine.record_progress(run_id, report)).output == 3


async def test_a_spec_that_cannot_be_run_is_refused(engine_store: EngineStore) -> None:
    engine = await engine_store.engine(Script(in_order()))
    for spec in (WorkflowSpec.python(" "), WorkflowSpec.python("a", version="")):
        with pytest.raises(InvalidWorkflow):
            await engine.start(spec)
    assert await engine.list_run_ids() == []


async def test_the_queue_of_an_engine_is_the_queue_of_the_runs_it_starts(
    engine_store: EngineStore,
) -> None:
    store = await engine_store.connect()
    engine = FlowEngine.builder().with_store(store).with_queue("slow").build()
    engine_store.engines.append(engine)
    usual = await engine.start(SPEC)
    special = await engine.start(SPEC, queue="special")
    assert (await engine.run_info(usual)).queue == "slow"
    assert (await engine.run_info(special)).queue == "special"


def test_a_builder_refuses_what_makes_no_sense() -> None:
    builder = FlowEngine.builder()
    calls: list[Callable[[], object]] = [
        lambda: builder.with_max_replays(0),
        lambda: builder.with_lease(timedelta(0)),
        lambda: builder.with_lease(timedelta(seconds=1), heartbeat=timedelta(0)),
        lambda: builder.with_queue(" "),
        lambda: builder.with_runtime_build(""),
        lambda: builder.with_step_threads(0),
    ]
    for call in calls:
        with pytest.raises(InvalidArgument):
            call()


async def test_an_engine_in_memory_needs_nothing_else() -> None:
    async with FlowEngine.in_memory(Script(one_step(input=1), {"work": echo})) as engine:
        assert (await engine.snapshot(await engine.start(SPEC))).output == 1


async def test_a_context_manager_closes_the_store_with_the_engine(
    postgres_only: EngineStore,
) -> None:
    async with FlowEngine(await postgres_only.connect()) as engine:
        await engine.start(SPEC)
    with pytest.raises(Exception, match="clos"):
        await engine.run_summary()
