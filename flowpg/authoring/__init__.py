"""Durable asyncio: workflows and steps as plain functions, over the same commands and events.

::

    app = FlowApp("billing")

    @app.step(retry=Retry.exponential(5, initial=timedelta(seconds=1)))
    async def charge(order_id: str, cents: int) -> Receipt: ...

    @app.workflow
    async def checkout(order: Order) -> Result:
        receipt, stock = await asyncio.gather(charge(order.id, order.cents), reserve(order))
        async with hook("approval", Approval, expires=timedelta(days=3)) as approval:
            async with asyncio.timeout(3600):
                decision = await approval
        return Result(receipt=receipt, approved=decision.ok)
"""

from flowpg.authoring.app import FlowApp
from flowpg.authoring.context import (
    RunInfo,
    hook,
    info,
    logger,
    now,
    patched,
    progress,
    random,
    set_attributes,
    time_ns,
    uuid4,
    uuid7,
    wait_until,
)
from flowpg.authoring.errors import (
    HookClosed,
    NotDurable,
    OutsideStep,
    OutsideWorkflow,
    StepFailed,
    WorkflowFailed,
    WorkflowStuck,
)
from flowpg.authoring.failures import FailureOrigin, failure_origin
from flowpg.authoring.hooks import Hook
from flowpg.authoring.step_context import StepContext, step_context
from flowpg.authoring.steps import AsyncStep, SyncStep
from flowpg.authoring.workflows import Workflow
from flowpg.errors import UndecodablePayload
from flowpg.model.retry import RetryPolicy as Retry

__all__ = [
    "AsyncStep",
    "FailureOrigin",
    "FlowApp",
    "Hook",
    "HookClosed",
    "NotDurable",
    "OutsideStep",
    "OutsideWorkflow",
    "Retry",
    "RunInfo",
    "StepContext",
    "StepFailed",
    "SyncStep",
    "UndecodablePayload",
    "Workflow",
    "WorkflowFailed",
    "WorkflowStuck",
    "failure_origin",
    "hook",
    "info",
    "logger",
    "now",
    "patched",
    "progress",
    "random",
    "set_attributes",
    "step_context",
    "time_ns",
    "uuid4",
    "uuid7",
    "wait_until",
]
