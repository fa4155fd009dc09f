"""What an engine asks of user code, and what it hands over.

Whatever user code is given, it may change: containers are copied on the way out, so a changed
input or output never reaches a snapshot and never alters a later replay.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from flowpg.model.commands import Decision
from flowpg.model.events import FlowEventEnvelope
from flowpg.model.jsontext import copied
from flowpg.model.snapshot import WorkflowRunSnapshot, decode_as
from flowpg.model.spec import WorkflowSpec

if TYPE_CHECKING:
    from flowpg.replay.context import WorkflowContext

T = TypeVar("T")


def idempotency_key(run_id: str, step_id: str, attempt: int) -> str:
    """A key for the outside effect of one attempt: the same when that attempt is delivered again
    after a crash, another one for the next attempt. 64 hexadecimal digits that tell nothing."""
    digest = hashlib.sha256()
    for part in ("flowpg.step.v1", run_id, step_id, str(attempt)):
        raw = part.encode("utf-8", "surrogatepass")
        digest.update(len(raw).to_bytes(8, "big") + raw)
    return digest.hexdigest()


class WorkflowInvocation:
    """One replay: what a decision may depend on, and nothing else."""

    __slots__ = ("_input", "history", "run_id", "snapshot", "spec")

    def __init__(
        self,
        run_id: str,
        spec: WorkflowSpec,
        input: Any,
        snapshot: WorkflowRunSnapshot,
        history: Sequence[FlowEventEnvelope] = (),
    ) -> None:
        self.run_id = run_id
        self.spec = spec
        self._input = input
        self.snapshot = snapshot
        """The folded history; belongs to the engine and is not to be changed."""
        self.history = history
        """The events themselves, decoded when read; not to be changed either."""

    @property
    def input(self) -> Any:
        """The run's input, a copy at each call."""
        return copied(self._input)

    def input_as(self, kind: type[T]) -> T:
        """The input validated as ``kind``; SerializationError if it does not fit."""
        return decode_as(copied(self._input), kind, f"the input of run {self.run_id!r}")

    def context(self) -> WorkflowContext:
        """The readable side of this invocation, and the constructors of commands."""
        from flowpg.replay.context import WorkflowContext

        return WorkflowContext(self)

    def __repr__(self) -> str:
        return f"WorkflowInvocation(run_id={self.run_id!r}, workflow={self.spec.name!r})"


class StepInvocation:
    """One attempt of one step. ``attempt`` counts from 1."""

    __slots__ = (
        "attempt",
        "input",
        "run_id",
        "step_id",
        "step_name",
        "workflow_name",
    )

    def __init__(
        self,
        run_id: str,
        step_id: str,
        attempt: int,
        step_name: str,
        input: Any,
        workflow_name: str,
    ) -> None:
        self.run_id = run_id
        self.step_id = step_id
        self.attempt = attempt
        self.step_name = step_name
        self.input = copied(input)
        """The step's input, this invocation's own copy."""
        self.workflow_name = workflow_name

    @property
    def idempotency_key(self) -> str:
        """See ``idempotency_key``. An effect that must happen once over all attempts needs a key
        made from the run and step id instead."""
        return idempotency_key(self.run_id, self.step_id, self.attempt)

    def input_as(self, kind: type[T]) -> T:
        """The input validated as ``kind``; SerializationError if it does not fit."""
        return decode_as(self.input, kind, f"the input of step {self.step_id!r}")

    def __repr__(self) -> str:
        return (
            f"StepInvocation(run_id={self.run_id!r}, step_id={self.step_id!r}, "
            f"attempt={self.attempt}, step_name={self.step_name!r})"
        )


class FlowRuntime(Protocol):
    """User code as the engine calls it. Either method may be plain or a coroutine function.

    Raise UnknownWorkflow or UnknownStep for a name this process does not have: the run is then
    blocked until a process that has it comes, not failed.
    """

    def run_workflow(self, invocation: WorkflowInvocation) -> Decision | Awaitable[Decision]:
        """Decide what is next from the invocation alone: no I/O, no clock, no random numbers. Any
        exception that is no engine fault fails the run."""
        ...

    def run_step(self, invocation: StepInvocation) -> Any:
        """Do the work of one step and return a JSON value. It may run more than once. An
        exception is a failed attempt; NonRetryable and RetryLater say how to go on."""
        ...
