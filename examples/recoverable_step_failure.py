"""A failure the workflow can live with: it reads the error and takes another way."""

import asyncio
from typing import Any

from flowpg import (
    Decision,
    FlowRuntime,
    RetryPolicy,
    StepInvocation,
    WorkflowInvocation,
    WorkflowSpec,
    open_engine,
)

SPEC = WorkflowSpec.python("examples.recoverable_step_failure")


class Report(FlowRuntime):
    """Prefer the fresh report, settle for the cached one."""

    workflows = (SPEC,)

    def run_workflow(self, invocation: WorkflowInvocation) -> Decision:
        """``step_failed`` gives the recorded error once all attempts are used up."""
        ctx = invocation.context()
        if ctx.step_completed("fresh"):
            return ctx.complete({"source": "fresh", "report": ctx.step_output("fresh")})
        error = ctx.step_failed("fresh")
        if error is None:
            retry = RetryPolicy.fixed(2).continue_workflow_on_failure()
            return ctx.schedule_step("fresh", "load_fresh", None, retry)
        if not ctx.step_completed("cached"):
            return ctx.schedule_step("cached", "load_cached", {"because": error})
        return ctx.complete({"source": "cached", "report": ctx.step_output("cached")})

    def run_step(self, step: StepInvocation) -> Any:
        """The side effects."""
        if step.step_name == "load_fresh":
            raise ConnectionError("the warehouse is closed")
        return "yesterday's numbers"


async def main() -> Any:
    """Run it and return its output."""
    async with open_engine(Report()) as engine:
        run_id = await engine.start(SPEC)
        return (await engine.snapshot(run_id)).output


if __name__ == "__main__":
    print(asyncio.run(main()))
