"""Two steps, the second fed by the first, with typed input and output."""

import asyncio
from typing import Any

from pydantic import BaseModel

from flowpg import (
    Decision,
    FlowRuntime,
    StepInvocation,
    UnknownStep,
    WorkflowInvocation,
    WorkflowSpec,
    open_engine,
)

SPEC = WorkflowSpec.python("examples.sequential_steps")


class Order(BaseModel):
    """The input of a run."""

    user_id: str
    cents: int


class User(BaseModel):
    """The output of the first step."""

    id: str
    name: str


class Sequential(FlowRuntime):
    """Load the user, then charge them."""

    workflows = (SPEC,)

    def run_workflow(self, invocation: WorkflowInvocation) -> Decision:
        """One decision from what is recorded."""
        ctx = invocation.context()
        order = ctx.input_as(Order)
        if not ctx.step_completed("load-user"):
            return ctx.schedule_step("load-user", "load_user", {"user_id": order.user_id})
        user = ctx.step_output_as("load-user", User)
        if not ctx.step_completed("charge"):
            return ctx.schedule_step("charge", "charge", {"user": user.id, "cents": order.cents})
        return ctx.complete({"name": user.name, "receipt": ctx.step_output("charge")})

    def run_step(self, step: StepInvocation) -> Any:
        """The side effects."""
        match step.step_name:
            case "load_user":
                return {"id": step.input["user_id"], "name": "Ada"}
            case "charge":
                return f"charged {step.input['cents']} cents"
        raise UnknownStep(step.step_name)


async def main() -> Any:
    """Run it and return its output."""
    async with open_engine(Sequential()) as engine:
        run_id = await engine.start(SPEC, {"user_id": "u-1", "cents": 4200})
        return (await engine.snapshot(run_id)).output


if __name__ == "__main__":
    print(asyncio.run(main()))
