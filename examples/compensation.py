"""A saga: when a later step fails for good, a durable step undoes the earlier one."""

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

SPEC = WorkflowSpec.python("examples.compensation")


class Booking(FlowRuntime):
    """Reserve a seat, charge the card, and give the seat back if the charge fails."""

    workflows = (SPEC,)

    def run_workflow(self, invocation: WorkflowInvocation) -> Decision:
        """``continue_workflow_on_failure`` hands the failure to this code."""
        ctx = invocation.context()
        if not ctx.step_completed("reserve"):
            return ctx.schedule_step("reserve", "reserve_seat", ctx.input)
        failed = ctx.step_failed("charge")
        if failed is None and not ctx.step_completed("charge"):
            retry = RetryPolicy.fixed(2).continue_workflow_on_failure()
            return ctx.schedule_step("charge", "charge_card", ctx.input, retry)
        if failed is not None:
            if not ctx.step_completed("release"):
                seat = ctx.step_output("reserve")["seat"]
                return ctx.schedule_step("release", "release_seat", {"seat": seat})
            return ctx.complete({"booked": False, "released": ctx.step_output("release")})
        return ctx.complete({"booked": True})

    def run_step(self, step: StepInvocation) -> Any:
        """The side effects."""
        match step.step_name:
            case "reserve_seat":
                return {"seat": "12A"}
            case "charge_card":
                raise PermissionError("the card was declined")
            case _:
                return step.input["seat"]


async def main() -> Any:
    """Run it and return its output."""
    async with open_engine(Booking()) as engine:
        run_id = await engine.start(SPEC, {"card": "expired"})
        return (await engine.snapshot(run_id)).output


if __name__ == "__main__":
    print(asyncio.run(main()))
