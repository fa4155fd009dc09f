"""Code that changed under an open run: the run is blocked with the difference, nothing is written,
and it goes on once the code fits again."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from flowpg.errors import FlowError, HookTokenConflict, InvalidTransition, NonDeterministic
from flowpg.model.commands import Decision
from flowpg.model.operations import ChildOperationReference, WorkflowProgress
from flowpg.model.retry import RetryPolicy
from flowpg.model.snapshot import RunStatus
from flowpg.replay.context import WorkflowContext
from tests.engine.support import SECOND, SPEC, EngineStore, Script, echo, in_order, one_step, short

PAUSE = RetryPolicy.fixed(3, timedelta(hours=1))


def fails_once(step: Any) -> Any:
    if step.attempt == 1:
        raise ConnectionError
    return step.input


def step(step_id: str = "s", name: str = "work", **options: Any) -> Callable[[Any], Decision]:
    """A workflow of one step that is then waiting for its retry."""
    return lambda ctx: ctx.schedule_step(step_id, name, **{"retry": PAUSE, **options})


def hook(**options: Any) -> Callable[[Any], Decision]:
    """A workflow of one hook."""
    return lambda ctx: ctx.create_hook(**{"hook_id": "h", "token": "the-secret-token", **options})


DRIFT = {
    "another step name": (step(), step(name="other"), '"work"'),
    "another step input": (step(input={"a": 1}), step(input={"a": 2}), "differs at $.a"),
    "true is not 1": (step(input=[1]), step(input=[True]), "$[0] (history: number"),
    "another retry policy": (step(), step(retry=RetryPolicy.fixed(4)), '"max_attempts":3'),
    "other hook metadata": (hook(metadata="a"), hook(metadata="b"), "differs at $"),
    "another hook token": (hook(), hook(token="another-secret-token"), "<redacted>"),
}


@pytest.mark.parametrize("name", DRIFT)
async def test_a_changed_definition_blocks_the_run_and_the_old_code_frees_it(
    engine_store: EngineStore, name: str
) -> None:
    before, after, shown = DRIFT[name]
    runtime = Script(before, {"work": fails_once, "other": fails_once})
    engine = await engine_store.engine(runtime)
    run_id = await engine.start(SPEC)
    history = await engine.history(run_id)

    runtime.workflow = after
    with pytest.raises(NonDeterministic) as caught:
        await engine.drive(run_id)
    assert "history" in str(caught.value)
    assert "replay" in str(caught.value)
    assert shown in str(caught.value)
    assert await engine.history(run_id) == history
    info = await engine.run_info(run_id)
    assert info.status is RunStatus.SUSPENDED
    assert str(info.blocked_reason).startswith("NonDeterministic: ")
    for text in (str(caught.value), repr(caught.value), str(info.blocked_reason)):
        assert "secret-token" not in text

    runtime.workflow = before
    assert (await engine.drive(run_id)).status is RunStatus.SUSPENDED
    assert (await engine.run_info(run_id)).blocked_reason is None


def steps(*names: str) -> Callable[[WorkflowContext], Decision]:
    return in_order(*names)


def then_hook(first: Callable[[WorkflowContext], Decision]) -> Callable[[Any], Decision]:
    """A workflow of steps that then waits for a hook."""

    def workflow(ctx: WorkflowContext) -> Decision:
        decision = first(ctx)
        if decision.type == "complete":  # type: ignore[union-attr]
            return ctx.create_hook("h", "token")
        return decision

    return workflow


def parent(kind: str, child: str = "c", **options: Any) -> Callable[[WorkflowContext], Decision]:
    """A workflow that links a child operation and then keeps asking for that link."""

    def workflow(ctx: WorkflowContext) -> Decision:
        reference = ChildOperationReference(reference_id=child, kind=kind, operation_id="1")
        return (ctx.link_child_operation(reference), ctx.create_hook("h", "token"))

    return workflow


def reports(completed: int) -> Callable[[WorkflowContext], Decision]:
    def workflow(ctx: WorkflowContext) -> Decision:
        progress = WorkflowProgress(progress_id="p", completed=completed)
        return (ctx.record_progress(progress), ctx.create_hook("h", "token"))

    return workflow


def renamed(ctx: WorkflowContext) -> Decision:
    if not ctx.step_completed("a"):
        return ctx.schedule_step("a", "renamed", "a")
    return ctx.schedule_step("b", "work", "b")


def branch_on_the_clock(ctx: WorkflowContext) -> Decision:
    return ctx.schedule_step("s", "work", "another branch", PAUSE)


# The code before, the code after. Each leaves the run open after its first drive.
MUTATIONS: dict[str, tuple[Any, Any]] = {
    "a step renamed": (step(), step(name="renamed")),
    "two steps swapped": (
        lambda ctx: (
            (ctx.step_completed("a") and step("b", input=2)(ctx)) or step("a", input=1)(ctx)
        ),
        lambda ctx: (
            (ctx.step_completed("b") and step("a", input=1)(ctx)) or step("a", input=2)(ctx)
        ),
    ),
    "the batch in another way": (
        lambda ctx: ctx.schedule_steps([ctx.step("a", "work", 1, PAUSE)]),
        lambda ctx: ctx.schedule_steps([ctx.step("a", "work", 2, PAUSE)]),
    ),
    "another child": (parent("task"), parent("other")),
    "another report": (reports(1), reports(2)),
    "another hook": (hook(), hook(metadata={"kind": "other"})),
    "a branch on the clock": (step(), branch_on_the_clock),
    "the open step left out at the end": (step(), lambda ctx: ctx.complete()),
    "the step done over and over": (
        one_step(input=1),
        lambda ctx: ctx.schedule_step("s", "work", 1),
    ),
}


@pytest.mark.parametrize("name", MUTATIONS)
async def test_a_mutation_of_the_code_blocks_the_run_and_putting_it_back_frees_it(
    engine_store: EngineStore, name: str
) -> None:
    before, after = MUTATIONS[name]
    opened = then_hook(before) if name.startswith("the step done") else before
    runtime = Script(opened, {"work": fails_once, "renamed": fails_once})
    if name.startswith("the step done"):
        runtime.steps["work"] = echo
    engine = await engine_store.engine(runtime)
    run_id = await engine.start(SPEC)
    history = short(await engine.history(run_id))
    other = await engine.start(SPEC, drive=False)

    runtime.workflow = after
    with pytest.raises((NonDeterministic, InvalidTransition)):
        await engine.drive(run_id)
    assert short(await engine.history(run_id)) == history
    assert (await engine.run_info(run_id)).blocked_reason is not None
    # Others are not touched by it.
    runtime.workflow = lambda ctx: ctx.complete("fine")
    assert (await engine.drive(other)).output == "fine"

    runtime.workflow = opened
    assert not (await engine.drive(run_id)).terminal
    assert (await engine.run_info(run_id)).blocked_reason is None


async def test_a_step_that_became_a_timer_of_the_same_id_is_other_work_and_the_step_stays_open(
    engine_store: EngineStore,
) -> None:
    """A hand-written runtime may leave a step alone; it cannot complete beside it."""
    runtime = Script(step(), {"work": fails_once})
    engine = await engine_store.engine(runtime)
    run_id = await engine.start(SPEC)

    def changed(ctx: WorkflowContext) -> Decision:
        return ctx.complete() if ctx.wait_completed("s") else ctx.sleep("s", SECOND)

    runtime.workflow = changed
    await engine.drive(run_id)
    engine_store.advance(2 * SECOND)
    with pytest.raises(InvalidTransition, match="step 's' is open"):
        await engine.drive(run_id)
    assert (await engine.snapshot(run_id)).waits["s"].status == "completed"


async def test_what_had_happened_is_stored_although_the_decision_after_it_is_refused(
    engine_store: EngineStore,
) -> None:
    def drifts(ctx: WorkflowContext) -> Decision:
        if ctx.step_completed("a"):
            return ctx.schedule_step("a", "work", "other")
        return ctx.schedule_step("a", "work", "a")

    runtime = Script(drifts, {"work": echo})
    engine = await engine_store.engine(runtime)
    with pytest.raises(NonDeterministic):
        await engine.start_with_id("r", SPEC)
    assert short(await engine.history("r"))[-1] == "step.completed a"
    runtime.workflow = in_order("a", "b")
    assert (await engine.drive("r")).output == ["a", "b"]
    assert runtime.calls == [("a", 1), ("b", 1)]


async def test_a_hook_token_that_is_taken_is_a_conflict_and_free_again_after_its_resolution(
    engine_store: EngineStore,
) -> None:
    def workflow(ctx: WorkflowContext) -> Decision:
        if not ctx.step_completed("s"):
            return ctx.schedule_step("s", "work", "kept")
        if ctx.hook_received("h"):
            return ctx.complete(ctx.hook_payload("h"))
        return ctx.create_hook("h", "the-secret-token")

    runtime = Script(workflow, {"work": echo})
    engine = await engine_store.engine(runtime)
    await engine.start_with_id("owner", SPEC)
    with pytest.raises(HookTokenConflict) as caught:
        await engine.start_with_id("loser", SPEC)
    assert (caught.value.run_id, caught.value.hook_id) == ("owner", "h")
    assert caught.value.token == "the-secret-token"
    info = await engine.run_info("loser")
    for text in (str(caught.value), repr(caught.value), str(info.blocked_reason)):
        assert "secret-token" not in text
    assert str(info.blocked_reason).startswith("HookTokenConflict: ")
    assert short(await engine.history("loser"))[-1] == "step.completed s"

    await engine.resume_hook("owner", "h", "first")
    assert await engine.start_with_id("loser", SPEC) == "loser"
    await engine.resume_hook_by_token("the-secret-token", "second")
    assert (await engine.snapshot("loser")).output == "second"
    assert (await engine.snapshot("owner")).output == "first"


async def test_of_runs_that_claim_one_token_at_once_exactly_one_gets_it(
    engine_store: EngineStore,
) -> None:
    workflow = hook()
    engines = [await engine_store.engine(Script(workflow)) for _ in range(3)]
    results = await asyncio.gather(
        *(engines[n % 3].start_with_id(f"r{n}", SPEC) for n in range(9)), return_exceptions=True
    )
    refused = [result for result in results if isinstance(result, HookTokenConflict)]
    [active] = await engines[0].list_active_hooks()
    assert len(refused) == 8
    assert {error.run_id for error in refused} == {active.run_id}
    assert active.run_id in results


@pytest.mark.parametrize("how", ["dispose", "complete", "fail", "cancel", "timeout"])
async def test_a_token_is_free_again_after_every_end_of_its_owner(
    engine_store: EngineStore, how: str
) -> None:
    def workflow(ctx: WorkflowContext) -> Decision:
        if ctx.hook_disposed("h"):
            return ctx.complete("disposed")
        if ctx.wait_completed("w"):
            return ctx.complete() if ctx.input == "complete" else ctx.fail("no")
        return (ctx.create_hook("h", "token"), ctx.sleep("w", SECOND))

    engine = await engine_store.engine(Script(workflow))
    await engine.start_with_id("owner", SPEC, how)
    match how:
        case "dispose":
            await engine.dispose_hook("owner", "h")
        case "cancel":
            await engine.force_cancel("owner")
        case "timeout":
            await engine.terminate_for_timeout("owner", await engine.store.now())
        case _:
            engine_store.advance(2 * SECOND)
            await engine.resume_due_waits()
    assert (await engine.snapshot("owner")).terminal
    await engine.start_with_id("next", SPEC, "dispose")
    [active] = await engine.list_active_hooks()
    assert (active.run_id, active.hook_id) == ("next", "h")


async def test_a_link_to_a_run_that_does_not_exist_blocks_until_it_does(
    engine_store: EngineStore,
) -> None:
    def workflow(ctx: WorkflowContext) -> Decision:
        if ctx.spec.name != SPEC.name or ctx.child_operation("c") is not None:
            return ctx.complete()
        child = ChildOperationReference(
            reference_id="c", kind="run", operation_id="1", flow_run_id="child"
        )
        return ctx.link_child_operation(child)

    engine = await engine_store.engine(Script(workflow))
    with pytest.raises(FlowError, match="'child' does not exist"):
        await engine.start_with_id("parent", SPEC)
    assert short(await engine.history("parent")) == ["run.created"]
    await engine.start_with_id("child", SPEC.model_copy(update={"name": "child"}))
    assert (await engine.drive("parent")).status is RunStatus.COMPLETED


async def test_progress_and_links_are_recorded_once_and_then_replayed(
    engine_store: EngineStore,
) -> None:
    def workflow(ctx: WorkflowContext) -> Decision:
        if ctx.progress("p") is None:
            return ctx.record_progress(WorkflowProgress(progress_id="p", completed=1, total=2))
        if ctx.child_operation("c") is None:
            return ctx.link_child_operation(
                ChildOperationReference(reference_id="c", kind="task", operation_id="1")
            )
        return ctx.complete()

    runtime = Script(workflow)
    engine = await engine_store.engine(runtime)
    run_id = await engine.start(SPEC)
    assert short(await engine.history(run_id)) == [
        "run.created",
        "run.started",
        "run.progress.recorded p",
        "child.operation.linked c",
        "run.completed",
    ]
    assert runtime.replays == 3


@pytest.mark.parametrize("what", ["progress", "link"])
async def test_recording_the_same_fact_again_is_no_progress(
    engine_store: EngineStore, what: str
) -> None:
    def workflow(ctx: WorkflowContext) -> Decision:
        if what == "progress":
            return ctx.record_progress(WorkflowProgress(progress_id="p", completed=1))
        return ctx.link_child_operation(
            ChildOperationReference(reference_id="c", kind="task", operation_id="1")
        )

    runtime = Script(workflow)
    engine = await engine_store.engine(runtime)
    with pytest.raises(InvalidTransition, match="no progress"):
        await engine.start(SPEC)
    assert runtime.replays == 2


async def test_a_history_in_which_nothing_can_be_decided_is_not_written_to(
    engine_store: EngineStore,
) -> None:
    engine = await engine_store.engine(Script(lambda ctx: ()))
    with pytest.raises(InvalidTransition, match="no progress"):
        await engine.start_with_id("r", SPEC)
    assert short(await engine.history("r")) == ["run.created"]
    assert (await engine.snapshot("r")).status is RunStatus.PENDING
