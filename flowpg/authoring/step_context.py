"""What the code of a step can know about the run it works for."""

from __future__ import annotations

import hashlib
from contextvars import ContextVar
from dataclasses import dataclass, field

from flowpg.authoring.errors import OutsideStep
from flowpg.replay.runtime import StepInvocation


@dataclass(frozen=True, slots=True)
class StepContext:
    """One attempt of one step. ``attempt`` counts from 1."""

    run_id: str
    workflow_name: str
    step_id: str
    step_name: str
    attempt: int
    invocation: StepInvocation | None = field(default=None, repr=False, compare=False)

    @property
    def cancelled(self) -> bool:
        """Whether nobody waits for the result any more: the step took too long, its run has ended,
        or another process drives it. A coroutine gets a CancelledError besides; a plain function
        runs in a thread, which cannot be stopped, and should look here from time to time."""
        return self.invocation is not None and self.invocation.cancelled

    @property
    def idempotency_key(self) -> str:
        """The same for every attempt of this step, and for no other step: 64 hexadecimal digits
        that tell nothing."""
        return step_key(self.run_id, self.step_id)

    @classmethod
    def of(cls, invocation: StepInvocation) -> StepContext:
        """The context of an attempt as the engine calls it."""
        return cls(
            invocation.run_id,
            invocation.workflow_name,
            invocation.step_id,
            invocation.step_name,
            invocation.attempt,
            invocation,
        )


def step_key(run_id: str, step_id: str) -> str:
    """A key for the outside effect of a step, the same whatever the attempt. It tells nothing."""
    digest = hashlib.sha256()
    for part in ("flowpg.step.effect.v1", run_id, step_id):
        raw = part.encode("utf-8", "surrogatepass")
        digest.update(len(raw).to_bytes(8, "big") + raw)
    return digest.hexdigest()


current_step: ContextVar[StepContext | None] = ContextVar("flowpg_step", default=None)
"""The step whose code is running, None outside one. Threads of a step see it too."""


def step_context() -> StepContext:
    """The context of the step whose code calls this. OutsideStep anywhere else."""
    context = current_step.get()
    if context is None:
        raise OutsideStep("step_context()")
    return context
