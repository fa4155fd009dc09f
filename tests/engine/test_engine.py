"""The engine itself: its limits, its builds, its choices, and calls without a runtime."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any, cast

import pytest

from flowpg.engine.flow_engine import FlowEngine
from flowpg.engine.lease import LeaseKeeper
from flowpg.errors import (
    InvalidArgument,
    InvalidTransition,
    InvalidWorkflow,
    ReplayLimitExceeded,
    RuntimeBuildUnavailable,
    UnknownWorkflow,
)
from flowpg.model.commands import Decision
from flowpg.model.events import STEP_COMPLETED
from flowpg.model.operations import ChildOperationReference, WorkflowProgress
from flowpg.model.records import (
    Append,
    AppendOutcome,
    AppendResult,
    Heartbeat,
    StartOutcome,
    StartRequest,
)
from flowpg.model.snapshot import RunStatus
from flowpg.model.spec import WorkflowSpec
from flowpg.replay.context import WorkflowContext
from flowpg.store.memory import InMemoryEventStore
from flowpg.store.protocol import FlowEventStore
from tests.engine.support import (
    MINUTE,
    SECOND,
    SPEC,
    EngineStore,
    Script,
    appends_nothing,
    echo,
    in_order,
    keeper_of,
    one_step,
    short,
    wrapping,
)


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


async def test_the_limit_does_not_count_replays_that_news_from_outside_asked_for(
    engine_store: EngineStore,
) -> None:
    hooks = [f"h{number}" for number in range(10)]
    answers = iter(hooks)

    def workflow(ctx: WorkflowContext) -> Decision:
        missing = [hook for hook in hooks if not ctx.hook_received(hook)]
        if missing:
            return tuple(ctx.create_hook(hook, f"token-{hook}") for hook in missing)
        return ctx.complete()

    async def answer(name: str, args: Any) -> None:
        if name == "append" and appends_nothing(args) and (hook := next(answers, None)):
            await client.store.resume_hook("r", hook, 1)

    client = await engine_store.engine(None)
    engine = await engine_store.engine(
        Script(workflow), max_replays=2, wrap=wrapping(before=answer)
    )
    await engine.start_with_id("r", SPEC)
    assert (await engine.drive("r")).status is RunStatus.COMPLETED


async def test_a_run_that_cannot_be_driven_does_not_keep_others_from_their_timers(
    engine_store: EngineStore,
) -> None:
    def workflow(ctx: WorkflowContext) -> Decision:
        if ctx.wait_completed("w"):
            return ctx.complete() if ctx.input == "good" else ()
        return ctx.sleep("w", SECOND)

    engine = await engine_store.engine(Script(workflow))
    for run_id in ("a", "b", "c"):
        await engine.start_with_id(run_id, SPEC, "bad" if run_id == "b" else "good")
    engine_store.advance(2 * SECOND)
    assert len(await engine.resume_due_waits()) == 3
    statuses = {run_id: (await engine.snapshot(run_id)).status for run_id in ("a", "b", "c")}
    assert statuses == {
        "a": RunStatus.COMPLETED,
        "b": RunStatus.RUNNING,
        "c": RunStatus.COMPLETED,
    }


async def test_a_store_that_refuses_what_was_decided_blocks_the_run_and_does_not_loop(
    engine_store: EngineStore,
) -> None:
    """The store says no twice: to the decision, and to the outcome without it."""

    class Refusing:
        def __init__(self, inner: FlowEventStore) -> None:
            self._inner = inner

        def __getattr__(self, name: str) -> Any:
            return getattr(self._inner, name)

        async def append(self, append: Append) -> AppendResult:
            if any(event.type == STEP_COMPLETED for event in append.events):
                now = await self._inner.now()
                detail = {"reason": "it is not Tuesday"}
                return AppendResult("r", AppendOutcome.INVALID, 0, now, detail=detail)
            return await self._inner.append(append)

    engine = await engine_store.engine(
        Script(one_step(input=1), {"work": echo}),
        wrap=lambda store: cast("FlowEventStore", Refusing(store)),
    )
    with pytest.raises(InvalidTransition, match="not Tuesday"):
        await engine.start_with_id("r", SPEC)
    assert "not Tuesday" in str((await engine.run_info("r")).blocked_reason)


async def test_a_drive_leaves_nothing_behind_in_its_engine(engine_store: EngineStore) -> None:
    engine = await engine_store.engine(Script(one_step(input=1), {"work": echo}))
    await engine.start(SPEC)
    await (await engine_store.engine(Script(lambda ctx: ()))).start(SPEC, drive=False)
    engine.runtime = Script(lambda ctx: ())
    with pytest.raises(InvalidTransition):
        await engine.start(SPEC)
    for left in (engine._drives, engine._locks, keeper_of(engine)._held):
        assert not left


async def test_a_heartbeat_says_nothing_about_a_lease_that_was_given_back_meanwhile() -> None:
    store = InMemoryEventStore()
    await store.start(StartRequest(SPEC, None, "r"))
    lease = await store.acquire_run("r", "me", MINUTE)
    assert lease is not None

    async def give_back(name: str, args: Any) -> None:
        await store.give_back(lease)
        keeper.drop(lease)

    keeper = LeaseKeeper(wrapping(before=give_back)(store), MINUTE, MINUTE)
    heard: list[Heartbeat] = []
    keeper.hold(lease, heard.append)
    await keeper.beat()
    await keeper.close()
    assert heard == []


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


async def test_a_wait_for_a_number_is_refused_in_words(engine_store: EngineStore) -> None:
    engine = await engine_store.engine(Script(one_step(), {"work": echo}))
    run_id = await engine.start(SPEC)
    assert (await engine.wait(run_id, SECOND)).terminal
    with pytest.raises(InvalidArgument, match="timedelta, not int"):
        await engine.wait(run_id, 60)  # type: ignore[arg-type]
