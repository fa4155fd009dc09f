"""Timeouts of steps: each with its own error, by the store's clock, and nothing late counts."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest

from flowpg.errors import InvalidArgument, NonDeterministic
from flowpg.model.commands import Decision
from flowpg.model.events import STEP_CREATED
from flowpg.model.retry import RetryPolicy
from flowpg.model.snapshot import RunStatus, StepStatus
from flowpg.model.timeouts import StepTimeouts
from flowpg.replay.context import WorkflowContext
from flowpg.replay.runtime import StepInvocation, WorkflowInvocation
from tests.engine.support import MINUTE, SECOND, SPEC, EngineStore, Script, one_step, short

SOON = timedelta(milliseconds=40)
ONCE = RetryPolicy.none()
GOES_ON = RetryPolicy.fixed(2).continue_workflow_on_failure()


async def for_ever(step: StepInvocation) -> None:
    await asyncio.get_running_loop().create_future()


async def test_an_attempt_that_takes_too_long_is_cancelled_and_tried_again(
    engine_store: EngineStore,
) -> None:
    cancelled: list[int] = []

    async def work(step: StepInvocation) -> str:
        try:
            if step.attempt == 1:
                await for_ever(step)
        except asyncio.CancelledError:
            cancelled.append(step.attempt)
            assert step.cancelled
            raise
        return "done"

    workflow = one_step(timeouts=StepTimeouts(start_to_close=SOON))
    engine = await engine_store.engine(Script(workflow, {"work": work}))
    await engine.start_with_id("r", SPEC, None)
    run = await engine.snapshot("r")
    assert (run.status, run.output, cancelled) == (RunStatus.COMPLETED, "done", [1])
    history = await engine.history("r")
    [retrying] = [event for event in history if event.type == "step_retrying"]
    assert retrying.data["error"] == (
        "StartToCloseTimeout: step 's' took longer than its start_to_close of 0.04 s"
    )
    [created] = [event for event in history if event.type == STEP_CREATED]
    assert created.data["timeouts"] == {"start_to_close_ms": 40}


async def test_a_late_result_of_a_thread_is_thrown_away(engine_store: EngineStore) -> None:
    goes_on, ended = threading.Event(), threading.Event()

    class Threads:
        def run_workflow(self, invocation: WorkflowInvocation) -> Decision:
            limits = StepTimeouts(start_to_close=SOON)
            return one_step(retry=RetryPolicy.fixed(2), timeouts=limits)(invocation.context())

        def run_step(self, step: StepInvocation) -> str:
            if step.attempt == 2:
                return "second"
            goes_on.wait(30)
            while not step.cancelled:
                pass
            ended.set()
            return "too late"

    engine = await engine_store.engine(Threads())
    await engine.start_with_id("r", SPEC, None)
    run = await engine.snapshot("r")
    assert run.output == "second"
    goes_on.set()
    await asyncio.to_thread(ended.wait, 30)
    assert (await engine.drive("r")).output == "second"


async def test_a_step_that_never_gets_a_thread_fails_with_schedule_to_start(
    engine_store: EngineStore,
) -> None:
    done = threading.Event()

    class Crowded:
        begins_steps = True

        def __init__(self) -> None:
            self.threads = ThreadPoolExecutor(1)
            self.threads.submit(done.wait, 60)

        def run_workflow(self, invocation: WorkflowInvocation) -> Decision:
            ctx = invocation.context()
            if error := ctx.step_failed("s"):
                return ctx.complete(error)
            limits = StepTimeouts(schedule_to_start=SOON)
            return ctx.schedule_step("s", "work", retry=GOES_ON, timeouts=limits)

        async def run_step(self, step: StepInvocation) -> Any:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self.threads, self.work, step)

        def work(self, step: StepInvocation) -> None:
            raise AssertionError("the step ran")

    runtime = Crowded()
    engine = await engine_store.engine(runtime)
    await engine.start_with_id("r", SPEC, None)
    run = await engine.snapshot("r")
    done.set()
    runtime.threads.shutdown()
    assert str(run.output).startswith("ScheduleToStartTimeout: step 's' did not begin within")
    assert run.steps["s"].attempt == 1, "it was tried again"


async def test_a_silent_attempt_fails_with_a_heartbeat_timeout(engine_store: EngineStore) -> None:
    limits = StepTimeouts(heartbeat=SOON)
    workflow = one_step(retry=ONCE, timeouts=limits)
    engine = await engine_store.engine(Script(workflow, {"work": for_ever}))
    await engine.start_with_id("r", SPEC, None)
    run = await engine.snapshot("r")
    assert run.status is RunStatus.FAILED
    assert str(run.error).startswith("HeartbeatTimeout: step 's' gave no heartbeat")


async def test_schedule_to_close_counts_over_attempts_by_the_clock_of_the_store(
    engine_store: EngineStore,
) -> None:
    def fails(step: StepInvocation) -> None:
        raise ValueError("no")

    limits = StepTimeouts(schedule_to_close=3 * MINUTE)
    policy = RetryPolicy.fixed(100, MINUTE)
    engine = await engine_store.engine(
        Script(one_step(retry=policy, timeouts=limits), {"work": fails})
    )
    await engine.start_with_id("r", SPEC, None)
    for _ in range(2):
        engine_store.advance(MINUTE)
        run = await engine.drive("r")
    # The fourth attempt would begin when the time is over: nobody waits for it.
    assert run.status is RunStatus.FAILED
    assert run.steps["s"].attempt == 3
    assert "attempt 3 failed with ValueError: no" in str(run.error)
    assert str(run.error).startswith("ScheduleToCloseTimeout: ")
    assert "step.non_retryable s" in short(await engine.history("r"))


async def test_a_retry_that_nobody_carried_out_in_time_does_not_begin(
    engine_store: EngineStore,
) -> None:
    script = Script(
        one_step(
            retry=RetryPolicy.fixed(5, MINUTE), timeouts=StepTimeouts(schedule_to_close=5 * MINUTE)
        )
    )

    def fails(step: StepInvocation) -> None:
        raise ValueError("no")

    script.steps["work"] = fails
    engine = await engine_store.engine(script)
    await engine.start_with_id("r", SPEC, None)
    engine_store.advance(10 * MINUTE)
    run = await (await engine_store.engine(script)).drive("r")
    assert run.status is RunStatus.FAILED
    assert str(run.error).startswith("ScheduleToCloseTimeout: step 's' took longer")
    assert script.calls == [("s", 1)]


async def test_a_step_in_time_leaves_no_trace_of_its_timeouts(engine_store: EngineStore) -> None:
    limits = StepTimeouts(10 * SECOND, 10 * SECOND, 10 * SECOND, 10 * SECOND)
    engine = await engine_store.engine(
        Script(one_step(timeouts=limits), {"work": lambda step: "done"})
    )
    await engine.start_with_id("r", SPEC, None)
    run = await engine.snapshot("r")
    assert run.output == "done"
    step = run.steps["s"]
    assert (step.status, step.timeouts) == (StepStatus.COMPLETED, limits)


async def test_other_timeouts_at_replay_are_another_definition(engine_store: EngineStore) -> None:
    def workflow(limits: StepTimeouts | None) -> Callable[[WorkflowContext], Decision]:
        def decide(ctx: WorkflowContext) -> Decision:
            if not ctx.wait_completed("w"):
                return ctx.schedule_step("s", "work", timeouts=limits), ctx.sleep("w", MINUTE)
            return ctx.schedule_step("s", "work", timeouts=limits)

        return decide

    first = await engine_store.engine(
        Script(workflow(StepTimeouts(heartbeat=SECOND)), {"work": lambda step: None})
    )
    await first.start_with_id("r", SPEC, None)
    second = await engine_store.engine(Script(workflow(None), {"work": lambda step: None}))
    with pytest.raises(NonDeterministic, match="step 's' has other timeouts"):
        await second.drive("r")


@pytest.mark.parametrize("limit", [timedelta(0), timedelta(-1), timedelta(days=40_000), 5])
def test_a_limit_that_means_nothing_is_refused(limit: Any) -> None:
    with pytest.raises(InvalidArgument, match="heartbeat must be"):
        StepTimeouts(heartbeat=limit)
