"""A callback: the run waits for a person, who answers with the hook's token."""

import asyncio
from secrets import token_urlsafe
from typing import Any

from pydantic import BaseModel

from flowpg import (
    AnswerRejected,
    Decision,
    FlowRuntime,
    HookMetadata,
    HookTokenNotFound,
    StepInvocation,
    UnknownStep,
    WorkflowInvocation,
    WorkflowSpec,
    open_engine,
)

SPEC = WorkflowSpec.python("examples.hook_approval")


class Answer(BaseModel):
    """What the approver sends."""

    approved: bool


class Approval(FlowRuntime):
    """Ask, wait, tell."""

    workflows = (SPEC,)

    def run_workflow(self, invocation: WorkflowInvocation) -> Decision:
        """The token comes with the input: workflow code must not make random values itself."""
        ctx = invocation.context()
        if ctx.hook_disposed("approval"):
            return ctx.complete({"status": "withdrawn"})
        if not ctx.hook_received("approval"):
            metadata = HookMetadata.human_approval("holiday request")
            return ctx.create_hook("approval", ctx.input["token"], metadata, kind=Answer)
        answer = ctx.hook_payload_as("approval", Answer)
        return ctx.complete({"status": "approved" if answer.approved else "rejected"})

    def run_step(self, step: StepInvocation) -> Any:
        """There are no steps here."""
        raise UnknownStep(step.step_name)


async def main() -> Any:
    """Open the hook, find it as a router would, answer it, wrongly and rightly, and then again."""
    async with open_engine(Approval()) as engine:
        token = token_urlsafe()
        run_id = await engine.start(SPEC, {"token": token})
        [waiting] = await engine.list_active_hooks(run_id=run_id)
        try:
            await engine.resume_hook_by_token(token, {"approved": "perhaps"})
            wrong = "accepted"
        except AnswerRejected as error:
            wrong = "; ".join(f"{place} {wanted}" for place, wanted in error.failures)
        await engine.resume_hook_by_token(token, {"approved": True})
        try:
            await engine.resume_hook_by_token(token, {"approved": True})
            late = "accepted"
        except HookTokenNotFound:
            late = "refused"
        # By run and hook id the same answer may be delivered as often as an outbox likes.
        await engine.resume_hook(run_id, "approval", {"approved": True})
        kind = waiting.metadata_as(HookMetadata).kind
        said = {"kind": kind, "wrong": wrong, "late": late}
        return {**said, **(await engine.snapshot(run_id)).output}


if __name__ == "__main__":
    print(asyncio.run(main()))
