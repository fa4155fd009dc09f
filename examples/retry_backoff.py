"""A delayed retry: between two attempts the run is suspended and holds no compute."""

import asyncio
from datetime import timedelta
from typing import Any

from flowpg import (
    Decision,
    FlowRuntime,
    FlowWorker,
    RetryPolicy,
    StepInvocation,
    WorkflowInvocation,
    WorkflowSpec,
    open_engine,
)

SPEC = WorkflowSpec.python("examples.retry_backoff")


class Flaky(FlowRuntime):
    """One step that succeeds at its third attempt."""

    workflows = (SPEC,)

    def run_workflow(self, invocation: WorkflowInvocation) -> Decision:
        """The policy is part of the step's definition and must not change while it is open."""
        ctx = invocation.context()
        if not ctx.step_completed("call"):
            retry = RetryPolicy.exponential(5, initial=timedelta(milliseconds=200))
            return ctx.schedule_step("call", "call", None, retry)
        return ctx.complete({"attempts": ctx.step_output("call")})

    def run_step(self, step: StepInvocation) -> Any:
        """The attempt number is 1 the first time."""
        if step.attempt < 3:
            raise ConnectionError(f"attempt {step.attempt} found nobody at home")
        return step.attempt


async def main() -> Any:
    """Start it, see it suspended, and let a worker carry it over its retries."""
    async with open_engine(Flaky(), queue="examples-retry") as engine:
        run_id = await engine.start(SPEC)
        status = (await engine.snapshot(run_id)).status
        await FlowWorker(engine).run_until(run_id)
        return {"after_start": str(status), **(await engine.snapshot(run_id)).output}


if __name__ == "__main__":
    print(asyncio.run(main()))
