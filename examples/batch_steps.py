"""A batch: every step is declared before the first runs, they run side by side, and each result
is kept as it settles."""

import asyncio
from datetime import timedelta
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

SPEC = WorkflowSpec.python("examples.batch_steps")
PAGES = ["users", "orders", "stock"]


class Batch(FlowRuntime):
    """Fetch three pages at once, then add up."""

    workflows = (SPEC,)

    def run_workflow(self, invocation: WorkflowInvocation) -> Decision:
        """The same batch comes back until all of it is done."""
        ctx = invocation.context()
        if not all(ctx.step_completed(page) for page in PAGES):
            retry = RetryPolicy.fixed(3, timedelta(milliseconds=0))
            return ctx.schedule_steps(
                [ctx.step(page, "fetch", {"page": page}, retry) for page in PAGES]
            )
        return ctx.complete({page: ctx.step_output(page) for page in PAGES})

    async def run_step(self, step: StepInvocation) -> Any:
        """The second page fails once; its siblings do not notice."""
        await asyncio.sleep(0.01)
        if step.input["page"] == "orders" and step.attempt == 1:
            raise TimeoutError("the orders page did not answer")
        return len(step.input["page"])


async def main() -> Any:
    """Run it and return its output."""
    async with open_engine(Batch()) as engine:
        run_id = await engine.start(SPEC)
        return (await engine.snapshot(run_id)).output


if __name__ == "__main__":
    print(asyncio.run(main()))
