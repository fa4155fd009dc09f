"""Two ways to cancel: ask the workflow to clean up, or end it at once."""

import asyncio
from datetime import timedelta
from typing import Any

from flowpg import (
    Decision,
    FlowRuntime,
    StepInvocation,
    WorkflowInvocation,
    WorkflowSpec,
    open_engine,
)

SPEC = WorkflowSpec.python("examples.cancellation")


class Rental(FlowRuntime):
    """Hold a machine for an hour; give it back when asked to stop."""

    workflows = (SPEC,)

    def run_workflow(self, invocation: WorkflowInvocation) -> Decision:
        """Cleanup uses ids of its own: everything open before the request is cancelled."""
        ctx = invocation.context()
        if ctx.cancellation_request() is not None:
            if not ctx.step_completed("give-back"):
                return ctx.schedule_step("give-back", "give_back", ctx.step_output("rent"))
            return ctx.cancel()
        if not ctx.step_completed("rent"):
            return ctx.schedule_step("rent", "rent")
        if not ctx.wait_completed("hour"):
            return ctx.sleep("hour", timedelta(hours=1))
        return ctx.complete("the hour is over")

    def run_step(self, step: StepInvocation) -> Any:
        """The side effects."""
        return {"machine": 7} if step.step_name == "rent" else {"returned": step.input["machine"]}


async def main() -> Any:
    """Cancel one run with cleanup and one without."""
    async with open_engine(Rental()) as engine:
        polite = await engine.start(SPEC)
        await engine.request_cancellation(polite, "the customer left")
        abrupt = await engine.start(SPEC)
        await engine.force_cancel(abrupt, "the building burns")
        ends = [await engine.snapshot(run_id) for run_id in (polite, abrupt)]
        return {
            "status": [str(end.status) for end in ends],
            "reason": [end.error for end in ends],
            "cleaned_up": ["give-back" in end.steps for end in ends],
        }


if __name__ == "__main__":
    print(asyncio.run(main()))
