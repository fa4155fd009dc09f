"""An invoice approval, written by hand; ``invoice_workflow.py`` is the same in asyncio.

load, then two checks side by side, then a posting that fails twice and is retried, then a timer,
then a person's approval, then the payment.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

from pydantic import BaseModel

from flowpg import (
    Decision,
    FlowRuntime,
    HookCallbackRoute,
    HookMetadata,
    RetryPolicy,
    StepInvocation,
    UnknownStep,
    UnknownWorkflow,
    WorkflowInvocation,
    WorkflowSpec,
)

SPEC = WorkflowSpec.python("invoice.approve", version="1")


class Invoice(BaseModel):
    """What the first step reads."""

    id: str
    vendor: str
    cents: int


class Approval(BaseModel):
    """What the approver sends."""

    approved: bool
    by: str = "unknown"


def approval_token(run_id: str) -> str:
    """The token an approver holds. A real application would make it unguessable."""
    return f"approve-{run_id}"


class InvoiceApproval(FlowRuntime):
    """Decides from what is already recorded; the same history always gives the same decision."""

    workflows = (SPEC,)

    def run_workflow(self, invocation: WorkflowInvocation) -> Decision:
        """One decision: what to do next, given everything that has happened."""
        if invocation.spec.name != SPEC.name:
            raise UnknownWorkflow(invocation.spec.name)
        ctx = invocation.context()

        if not ctx.step_completed("load"):
            return ctx.schedule_step("load", "load_invoice", {"id": ctx.input["invoice_id"]})
        invoice = ctx.step_output_as("load", Invoice)

        if not (ctx.step_completed("budget") and ctx.step_completed("vendor")):
            return ctx.schedule_steps(
                [
                    ctx.step("budget", "check_budget", {"cents": invoice.cents}),
                    ctx.step("vendor", "check_vendor", {"vendor": invoice.vendor}),
                ]
            )

        if not ctx.step_completed("post"):
            retry = RetryPolicy.fixed(4, timedelta(seconds=1))
            return ctx.schedule_step("post", "post_to_ledger", {"id": invoice.id}, retry)

        if not ctx.wait_completed("cooling-off"):
            return ctx.sleep("cooling-off", timedelta(seconds=2))

        if not ctx.hook_received("approval"):
            metadata = HookMetadata.human_approval(f"invoice {invoice.id}").with_callback_route(
                HookCallbackRoute.post("/hooks/{token}")
            )
            return ctx.create_hook("approval", approval_token(ctx.run_id), metadata)
        approval = ctx.hook_payload_as("approval", Approval)

        if not approval.approved:
            return ctx.complete({"invoice": invoice.id, "paid": False, "by": approval.by})
        if not ctx.step_completed("pay"):
            return ctx.schedule_step("pay", "pay_vendor", {"id": invoice.id})
        return ctx.complete(
            {
                "invoice": invoice.id,
                "paid": True,
                "by": approval.by,
                "receipt": ctx.step_output("pay")["receipt"],
            }
        )

    async def run_step(self, step: StepInvocation) -> Any:
        """The side effects."""
        match step.step_name:
            case "load_invoice":
                await asyncio.sleep(0.2)
                return {"id": step.input["id"], "vendor": "Acme GmbH", "cents": 125_000}
            case "check_budget":
                await asyncio.sleep(0.2)
                return {"within_budget": step.input["cents"] < 1_000_000}
            case "check_vendor":
                await asyncio.sleep(0.2)
                return {"trusted": True}
            case "post_to_ledger":
                if step.attempt <= 2:
                    raise ConnectionError(f"the ledger did not answer (attempt {step.attempt})")
                return {"entry": f"L-{step.input['id']}"}
            case "pay_vendor":
                # The key is the same on every redelivery of this attempt: the bank dedupes by it.
                return {"receipt": f"R-{step.idempotency_key[:8]}"}
        raise UnknownStep(step.step_name)
