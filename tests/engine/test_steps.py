"""Steps: run once, kept as JSON, and the same value on the first run as on every replay."""

import asyncio
import threading
from datetime import timedelta
from enum import StrEnum
from typing import Any

import pytest

from flowpg.errors import UnknownStep
from flowpg.model.commands import Decision
from flowpg.model.retry import RetryPolicy
from flowpg.model.snapshot import RunStatus, StepStatus
from flowpg.replay.context import WorkflowContext
from flowpg.replay.runtime import StepInvocation, WorkflowInvocation, idempotency_key
from tests.engine.support import SPEC, EngineStore, Script, echo, in_order, one_step, short
from tests.waiting import turns


async def test_steps_are_driven_in_order_until_the_run_completes(engine_store: EngineStore) -> None:
    runtime = Script(in_order("a", "b"), {"work": echo})
    engine = await engine_store.engine(runtime)
    run_id = await engine.start(SPEC, {"n": 1})
    snapshot = await engine.snapshot(run_id)
    assert snapshot.status is RunStatus.COMPLETED
    assert snapshot.output == ["a", "b"]
    assert short(await engine.history(run_id)) == [
        "run.created",
        "run.started",
        "step.created a",
        "step.started a",
        "step.completed a",
        "step.created b",
        "step.started b",
        "step.completed b",
        "run.completed",
    ]
    assert runtime.calls == [("a", 1), ("b", 1)]


async def test_an_outcome_and_the_decision_that_follows_share_one_append(
    engine_store: EngineStore,
) -> None:
    engine = await engine_store.engine(Script(in_order("a", "b"), {"work": echo}))
    history = await engine.history(await engine.start(SPEC))
    together = [
        {event.recorded_at for event in history[first:last]}
        for first, last in ((1, 4), (4, 7), (7, 9))
    ]
    assert [len(times) for times in together] == [1, 1, 1]


async def test_a_step_invocation_tells_who_it_is_and_its_key_is_stable(
    engine_store: EngineStore,
) -> None:
    seen: list[StepInvocation] = []
    engine = await engine_store.engine(
        Script(one_step(input={"cents": 7}), {"work": lambda step: seen.append(step)})
    )
    run_id = await engine.start(SPEC)
    [step] = seen
    assert (step.run_id, step.step_id, step.attempt) == (run_id, "s", 1)
    assert (step.step_name, step.workflow_name, step.input) == ("work", "order", {"cents": 7})
    assert step.idempotency_key == idempotency_key(run_id, "s", 1)


async def test_a_plain_step_function_runs_in_a_thread_and_does_not_block_the_loop(
    engine_store: EngineStore,
) -> None:
    loop, loop_ran = asyncio.get_running_loop(), threading.Event()

    class Blocking:
        def run_workflow(self, invocation: WorkflowInvocation) -> Decision:
            return one_step()(invocation.context())

        def run_step(self, step: StepInvocation) -> Any:
            # Would never be set if this ran on the loop's own thread.
            loop.call_soon_threadsafe(loop_ran.set)
            return loop_ran.wait(20)

    engine = await engine_store.engine(Blocking())
    assert (await engine.snapshot(await engine.start(SPEC))).output is True


async def test_workflow_code_may_be_asynchronous(engine_store: EngineStore) -> None:
    class Asynchronous(Script):
        async def run_workflow(self, invocation: WorkflowInvocation) -> Decision:  # type: ignore[override]
            await turns(1)
            return self.workflow(invocation.context())

    engine = await engine_store.engine(Asynchronous(one_step(input=3), {"work": echo}))
    assert (await engine.snapshot(await engine.start(SPEC))).output == 3


async def test_cancelling_a_drive_while_workflow_code_is_asked_does_not_fail_the_run(
    engine_store: EngineStore,
) -> None:
    asked = asyncio.Event()

    class Pondering(Script):
        async def run_workflow(self, invocation: WorkflowInvocation) -> Decision:  # type: ignore[override]
            asked.set()
            await asyncio.Event().wait()
            raise AssertionError

    engine = await engine_store.engine(Pondering(one_step()))
    driving = asyncio.ensure_future(engine.start_with_id("r", SPEC))
    await asked.wait()
    driving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await driving
    assert short(await engine.history("r")) == ["run.created"]


async def test_workflow_code_that_cancels_itself_fails_its_run(engine_store: EngineStore) -> None:
    class Cancelling(Script):
        async def run_workflow(self, invocation: WorkflowInvocation) -> Decision:  # type: ignore[override]
            raise asyncio.CancelledError("by itself")

    engine = await engine_store.engine(Cancelling(one_step()))
    snapshot = await engine.snapshot(await engine.start(SPEC))
    assert (snapshot.status, snapshot.error) == (RunStatus.FAILED, "CancelledError: by itself")


class Colour(StrEnum):
    RED = "red"


async def test_the_first_run_sees_the_value_that_every_replay_sees(
    engine_store: EngineStore,
) -> None:
    def workflow(ctx: WorkflowContext) -> Decision:
        if not ctx.step_completed("s"):
            return ctx.schedule_step("s", "work", {"pair": (1, 2), "colour": Colour.RED})
        output = ctx.step_output("s")
        return ctx.complete([type(output["pair"]).__name__, type(output["colour"]).__name__])

    inputs: list[Any] = []

    def work(step: StepInvocation) -> Any:
        inputs.append(step.input)
        return {"pair": (1, 2), "colour": Colour.RED}

    engine = await engine_store.engine(Script(workflow, {"work": work}))
    run_id = await engine.start(SPEC)
    assert (await engine.snapshot(run_id)).output == ["list", "str"]
    assert inputs == [{"pair": [1, 2], "colour": "red"}]
    assert type(inputs[0]["colour"]) is str


async def test_a_step_that_is_open_may_be_asked_for_with_equal_values_of_other_types(
    engine_store: EngineStore,
) -> None:
    """A tuple or an enum comes back as a list or a string; asking for it again is no drift."""

    def workflow(ctx: WorkflowContext) -> Decision:
        if ctx.step_completed("s"):
            return ctx.complete()
        retry = RetryPolicy.fixed(2, timedelta(seconds=1))
        return ctx.schedule_step("s", "work", {"pair": (1, 2), "colour": Colour.RED}, retry)

    def work(step: StepInvocation) -> Any:
        if step.attempt == 1:
            raise TimeoutError

    engine = await engine_store.engine(Script(workflow, {"work": work}))
    run_id = await engine.start(SPEC)
    engine_store.advance(timedelta(seconds=1))
    assert (await engine.drive(run_id)).status is RunStatus.COMPLETED


async def test_changing_a_value_after_it_was_handed_over_alters_no_replay(
    engine_store: EngineStore,
) -> None:
    shared: list[int] = [1]

    def workflow(ctx: WorkflowContext) -> Decision:
        first = ctx.step_output("first", [])
        first.append("changed by the workflow")
        ctx.input["changed"] = True
        if not ctx.step_completed("first"):
            return ctx.schedule_step("first", "work", shared)
        shared.append(2)
        if not ctx.step_completed("second"):
            return ctx.schedule_step("second", "work", ctx.step_output("first"))
        return ctx.complete([ctx.input, ctx.step_output("first"), ctx.step_output("second")])

    kept: list[Any] = []

    def work(step: StepInvocation) -> Any:
        step.input.append("changed by the step")
        kept.append(step.input)
        return step.input

    def shared_is_stable(ctx: WorkflowContext) -> Decision:
        shared[:] = [1]
        return workflow(ctx)

    engine = await engine_store.engine(Script(shared_is_stable, {"work": work}))
    run_id = await engine.start(SPEC, {})
    for value in kept:
        value.clear()
    snapshot = await engine.snapshot(run_id)
    once = [1, "changed by the step"]
    assert snapshot.output == [{}, once, [*once, "changed by the step"]]
    assert snapshot.steps["first"].input == [1]


async def test_a_step_may_be_looped_over_with_equal_arguments_and_results_are_not_swapped(
    engine_store: EngineStore,
) -> None:
    gates = [asyncio.Event() for _ in range(3)]
    ended = [asyncio.Event() for _ in range(3)]
    entered = asyncio.Event()

    def workflow(ctx: WorkflowContext) -> Decision:
        ids = [f"call-{n}" for n in range(3)]
        if not all(map(ctx.step_completed, ids)):
            return ctx.schedule_steps([ctx.step(step_id, "work", "same") for step_id in ids])
        return ctx.complete([ctx.step_output(step_id) for step_id in ids])

    async def work(step: StepInvocation) -> Any:
        number = int(step.step_id[-1])
        if number == 2:
            entered.set()
        await gates[number].wait()
        ended[number].set()
        return step.step_id

    engine = await engine_store.engine(Script(workflow, {"work": work}))
    driving = asyncio.ensure_future(engine.start(SPEC))
    await entered.wait()
    for gate, end in zip(reversed(gates), reversed(ended), strict=True):
        gate.set()
        await end.wait()
    output = (await engine.snapshot(await driving)).output
    assert output == ["call-0", "call-1", "call-2"]


async def test_an_unknown_step_blocks_the_run_and_another_engine_finishes_it(
    engine_store: EngineStore,
) -> None:
    lacking = await engine_store.engine(Script(one_step(input=1)))
    with pytest.raises(UnknownStep):
        await lacking.start_with_id("r", SPEC)
    assert "UnknownStep" in str((await lacking.run_info("r")).blocked_reason)
    assert (await lacking.snapshot("r")).steps["s"].status is StepStatus.RUNNING

    runtime = Script(one_step(input=1), {"work": echo})
    complete = await engine_store.engine(runtime)
    assert (await complete.drive("r")).output == 1
    assert runtime.calls == [("s", 1)]
    assert (await complete.run_info("r")).blocked_reason is None


async def test_a_workflow_that_raises_fails_its_run_with_type_message_and_cause(
    engine_store: EngineStore,
) -> None:
    def workflow(ctx: WorkflowContext) -> Decision:
        try:
            raise KeyError("inner")
        except KeyError as error:
            raise ValueError("outer") from error

    engine = await engine_store.engine(Script(workflow))
    snapshot = await engine.snapshot(await engine.start(SPEC))
    assert snapshot.status is RunStatus.FAILED
    assert snapshot.error == "ValueError: outer\n  caused by KeyError: 'inner'"


@pytest.mark.parametrize("returned", [None, 7, ("nothing",), "complete"])
async def test_a_workflow_that_returns_no_command_fails_its_run(
    engine_store: EngineStore, returned: Any
) -> None:
    engine = await engine_store.engine(Script(lambda ctx: returned))
    snapshot = await engine.snapshot(await engine.start(SPEC))
    assert snapshot.status is RunStatus.FAILED
    assert "TypeError" in str(snapshot.error)
