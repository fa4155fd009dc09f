"""What the code of a step can know about the run it works for."""

from __future__ import annotations

import hashlib
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from flowpg.authoring import tags
from flowpg.authoring.errors import OutsideStep
from flowpg.errors import SerializationError
from flowpg.model.codecs import NO_CODECS, STEP_HEARTBEAT, CodecChain
from flowpg.replay.runtime import Heard, StepInvocation


@dataclass(frozen=True, slots=True)
class StepContext:
    """One attempt of one step. ``attempt`` counts from 1."""

    run_id: str
    workflow_name: str
    step_id: str
    step_name: str
    attempt: int
    invocation: StepInvocation | None = field(default=None, repr=False, compare=False)
    codecs: CodecChain = field(default=NO_CODECS, repr=False, compare=False)

    @property
    def cancelled(self) -> bool:
        """Whether nobody waits for the result any more: the step took too long, its run has ended,
        or another process drives it. A coroutine gets a CancelledError besides; a plain function
        runs in a thread, which cannot be stopped, and should look here from time to time."""
        return self.invocation is not None and self.invocation.cancelled

    @property
    def heartbeat_details(self) -> Any:
        """What the last heartbeat of an earlier attempt said, or of this one before a crash; None
        if there was none."""
        said = None if self.invocation is None else self.invocation.heartbeat_details
        if said is None:
            return None
        return tags.decode(self.codecs.open(said, self.run_id, STEP_HEARTBEAT, self.step_id))

    def heartbeat(self, details: Any = None) -> Heard:
        """Give a sign of life, for the heartbeat timeout of the step, and keep ``details``, any
        value that an argument may be, for the attempt that follows if this one comes to nothing.

        As often as you like, and from any thread of the step: a call costs microseconds, and the
        newest details are stored within half a second. To have them stored before the work goes on,
        ``await`` what this returns, or ``wait()`` for it in a plain function. Raises AttemptOver if
        nobody waits for this attempt any more, SerializationError or PayloadTooLarge for details
        that cannot be stored, which fail the step for good unless they are caught.
        """
        if self.invocation is None:
            return Heard()
        try:
            shape = tags.encode(details)
        except (tags.Unfit, RecursionError) as error:
            raise SerializationError(
                f"the heartbeat details of step {self.step_id!r} cannot be stored: {error}"
            ) from None
        if details is not None:
            shape = self.codecs.seal(shape, self.run_id, STEP_HEARTBEAT, self.step_id)
        return self.invocation.heartbeat(shape)

    @property
    def idempotency_key(self) -> str:
        """The same for every attempt of this step, and for no other step: 64 hexadecimal digits
        that tell nothing."""
        return step_key(self.run_id, self.step_id)

    @classmethod
    def of(cls, invocation: StepInvocation, codecs: CodecChain = NO_CODECS) -> StepContext:
        """The context of an attempt as the engine calls it."""
        return cls(
            invocation.run_id,
            invocation.workflow_name,
            invocation.step_id,
            invocation.step_name,
            invocation.attempt,
            invocation,
            codecs,
        )


def step_key(run_id: str, step_id: str) -> str:
    """A key for the outside effect of a step, the same whatever the attempt. It tells nothing."""
    digest = hashlib.sha256()
    for part in ("flowpg.step.effect.v1", run_id, step_id):
        raw = part.encode("utf-8", "surrogatepass")
        digest.update(len(raw).to_bytes(8, "big") + raw)
    return digest.hexdigest()


current_step: ContextVar[tuple[StepInvocation, CodecChain] | None] = ContextVar(
    "flowpg_step", default=None
)
"""Of what the context of the step at work is made, None outside one. Threads of it see it too."""


def step_context() -> StepContext:
    """The context of the step whose code calls this. OutsideStep anywhere else."""
    found = current_step.get()
    if found is None:
        raise OutsideStep("step_context()")
    return StepContext.of(*found)
