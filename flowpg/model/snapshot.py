"""The state of a run as its history says: plain mutable records, folded event by event.

``wire`` gives the JSON form. Maps are ordered by first appearance in the history; ``wire`` orders
them by id.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from flowpg.errors import HookTokenConflict
from flowpg.model.decoding import decode_as
from flowpg.model.operations import ChildOperationReference, WorkflowProgress
from flowpg.model.retry import RetryPolicy
from flowpg.model.spec import WorkflowSpec
from flowpg.model.timeouts import StepTimeouts
from flowpg.model.times import format_time

T = TypeVar("T")


class RunStatus(StrEnum):
    """Where a run stands. ``suspended`` is derived: running, with something still awaited."""

    PENDING = "pending"
    RUNNING = "running"
    SUSPENDED = "suspended"
    CANCELLING = "cancelling"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def terminal(self) -> bool:
        """Whether no event may follow."""
        return self in TERMINAL_STATUSES


TERMINAL_STATUSES = frozenset({RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.CANCELLED})
"""Those after which no event may follow."""


class StepStatus(StrEnum):
    """Where a step stands; pending covers both "not yet started" and "between two attempts"."""

    PENDING = "pending"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def open(self) -> bool:
        """Whether an outcome is still expected."""
        return self is StepStatus.PENDING or self is StepStatus.RUNNING


class WaitStatus(StrEnum):
    """Where a timer stands."""

    WAITING = "waiting"
    COMPLETED = "completed"
    CANCELLED = "cancelled"


class HookStatus(StrEnum):
    """Where a hook stands."""

    ACTIVE = "active"
    RECEIVED = "received"
    DISPOSED = "disposed"
    CANCELLED = "cancelled"
    CONFLICTED = "conflicted"
    """It was never opened: its token was held by another hook."""


@dataclass(slots=True)
class StepSnapshot:
    """One step; ``attempt`` is the number of the latest started attempt, 0 before the first."""

    step_id: str
    step_name: str
    input: Any = field(repr=False)
    retry: RetryPolicy
    status: StepStatus = StepStatus.PENDING
    attempt: int = 0
    output: Any = field(default=None, repr=False)
    error: str | None = field(default=None, repr=False)
    retry_after: datetime | None = None
    timeouts: StepTimeouts | None = None
    created_at: datetime | None = None
    """When it was recorded, kept where it has timeouts."""
    started_at: datetime | None = None
    """When its latest attempt was recorded, kept where it has timeouts."""
    due_since: datetime | None = None
    """When its latest delayed attempt came due, kept where it has timeouts."""
    queue: str | None = None
    """Whose workers run it; None for those that drive its run."""

    def output_as(self, kind: type[T]) -> T:
        """The output validated as ``kind``; SerializationError if it does not fit."""
        return decode_as(self.output, kind, f"the output of step {self.step_id!r}")

    def wire(self) -> dict[str, Any]:
        """The JSON object of this step; timeouts are left out where it has none."""
        shape = {
            "step_id": self.step_id,
            "step_name": self.step_name,
            "input": self.input,
            "retry": self.retry.wire(),
            "status": self.status.value,
            "attempt": self.attempt,
            "output": self.output,
            "error": self.error,
            "retry_after": _time(self.retry_after),
        }
        if self.timeouts:
            shape["timeouts"] = self.timeouts.wire()
        if self.queue is not None:
            shape["queue"] = self.queue
        return shape


@dataclass(slots=True)
class WaitSnapshot:
    """One timer; ``resume_at`` is the durable deadline."""

    wait_id: str
    resume_at: datetime
    status: WaitStatus = WaitStatus.WAITING

    def wire(self) -> dict[str, Any]:
        """The JSON object of this timer."""
        return {
            "wait_id": self.wait_id,
            "resume_at": format_time(self.resume_at),
            "status": self.status.value,
        }


@dataclass(slots=True)
class HookSnapshot:
    """One hook, with the payload it received.

    One that is conflicted has no token and no metadata, for the history has none of them; the
    ``owner_...`` say which hook held its token then.
    """

    hook_id: str
    token: str = field(repr=False)
    metadata: Any = field(repr=False)
    status: HookStatus = HookStatus.ACTIVE
    payload: Any = field(default=None, repr=False)
    expires_at: datetime | None = None
    payload_schema: Any = field(default=None, repr=False)
    """JSON Schema of the answer; None where the workflow did not say what it waits for."""
    on_conflict: str = "wait"
    owner_run_id: str | None = None
    owner_hook_id: str | None = None

    def metadata_as(self, kind: type[T]) -> T:
        """The metadata validated as ``kind``; SerializationError if it does not fit."""
        return decode_as(self.metadata, kind, f"the metadata of hook {self.hook_id!r}")

    def payload_as(self, kind: type[T]) -> T:
        """The payload validated as ``kind``; SerializationError if it does not fit."""
        return decode_as(self.payload, kind, f"the payload of hook {self.hook_id!r}")

    def wire(self) -> dict[str, Any]:
        """The JSON object of this hook, its token included; the schema, and what is about
        conflicts, are left out where there is nothing to say."""
        shape = {
            "hook_id": self.hook_id,
            "token": self.token,
            "metadata": self.metadata,
            "status": self.status.value,
            "payload": self.payload,
            "expires_at": _time(self.expires_at),
        }
        if self.payload_schema is not None:
            shape["payload_schema"] = self.payload_schema
        if self.on_conflict != "wait":
            shape["on_conflict"] = self.on_conflict
        if self.status is HookStatus.CONFLICTED:
            shape["owner_run_id"] = self.owner_run_id
            shape["owner_hook_id"] = self.owner_hook_id
        return shape


def conflict_of(hook: HookSnapshot) -> HookTokenConflict | None:
    """The error of a hook that was refused its token, without the token; None if it was not."""
    if hook.status is not HookStatus.CONFLICTED:
        return None
    return HookTokenConflict("", hook.owner_run_id or "", hook.owner_hook_id or "")


@dataclass(slots=True)
class CancellationSnapshot:
    """The cancellation request of a run, when it was recorded and where in the stream."""

    reason: str | None
    requested_at: datetime
    sequence: int

    def wire(self) -> dict[str, Any]:
        """The JSON object of this request."""
        return {
            "reason": self.reason,
            "requested_at": format_time(self.requested_at),
            "sequence": self.sequence,
        }


class _Outcome(BaseModel):
    model_config = ConfigDict(frozen=True)

    def wire(self) -> dict[str, Any]:
        """The JSON object of this outcome."""
        return {
            name: format_time(value) if isinstance(value, datetime) else value
            for name, value in self
        }


class CompletedOutcome(_Outcome):
    """The workflow returned."""

    type: Literal["completed"] = "completed"
    output: Any = Field(default=None, repr=False)


class FailedOutcome(_Outcome):
    """The workflow failed."""

    type: Literal["failed"] = "failed"
    error: str = Field(repr=False)


class CancelledOutcome(_Outcome):
    """The run was cancelled."""

    type: Literal["cancelled"] = "cancelled"
    reason: str | None = None


class TimedOutOutcome(_Outcome):
    """The run passed its deadline."""

    type: Literal["timed_out"] = "timed_out"
    deadline: datetime
    reason: str | None = None


class RetryExhaustedOutcome(_Outcome):
    """A step used up its attempts."""

    type: Literal["retry_exhausted"] = "retry_exhausted"
    step_id: str
    attempt: int
    error: str = Field(repr=False)


class HostShutdownOutcome(_Outcome):
    """The host will never resume the run."""

    type: Literal["host_shutdown"] = "host_shutdown"
    reason: str | None = None


WorkflowTerminalOutcome = Annotated[
    CompletedOutcome
    | FailedOutcome
    | CancelledOutcome
    | TimedOutOutcome
    | RetryExhaustedOutcome
    | HostShutdownOutcome,
    Field(discriminator="type"),
]


@dataclass(slots=True)
class OpenWork:
    """What of a run is open, so that no question about it needs a scan of all it ever did.

    Derived from the rest of the snapshot and kept by the projection; never on the wire.
    ``delayed`` are the pending steps with a retry deadline; ``timed_hooks`` the active hooks with
    an expiry. ``fatal_step`` is a failed step whose policy fails the run, ``exhausted`` whether it
    used up its attempts (else it was not retryable).
    """

    steps: dict[str, StepSnapshot] = field(default_factory=dict)
    delayed: dict[str, StepSnapshot] = field(default_factory=dict)
    waits: dict[str, WaitSnapshot] = field(default_factory=dict)
    hooks: dict[str, HookSnapshot] = field(default_factory=dict)
    timed_hooks: dict[str, HookSnapshot] = field(default_factory=dict)
    progress: dict[str, WorkflowProgress] = field(default_factory=dict)
    fatal_step: str | None = None
    exhausted: bool = False

    @property
    def suspends(self) -> bool:
        """Whether something from outside is awaited: a timer, a hook or a delayed retry."""
        return bool(self.waits or self.hooks or self.delayed)


@dataclass(slots=True)
class WorkflowRunSnapshot:
    """Everything a history says about its run."""

    run_id: str
    spec: WorkflowSpec
    input: Any = field(repr=False)
    status: RunStatus = RunStatus.PENDING
    steps: dict[str, StepSnapshot] = field(default_factory=dict)
    waits: dict[str, WaitSnapshot] = field(default_factory=dict)
    hooks: dict[str, HookSnapshot] = field(default_factory=dict)
    cancellation: CancellationSnapshot | None = None
    progress: list[WorkflowProgress] = field(default_factory=list)
    child_operations: dict[str, ChildOperationReference] = field(default_factory=dict)
    attributes: dict[str, Any] = field(default_factory=dict, repr=False)
    patches: dict[str, None] = field(default_factory=dict)
    output: Any = field(default=None, repr=False)
    error: str | None = field(default=None, repr=False)
    """As its event holds it: where the workflow raised, the last line is the record of the error,
    for programs. ``Workflow.result`` raises the error itself, and shows the words alone."""

    terminal_outcome: WorkflowTerminalOutcome | None = None
    last_sequence: int = 0
    open: OpenWork = field(default_factory=OpenWork, repr=False, compare=False)

    def input_as(self, kind: type[T]) -> T:
        """The input validated as ``kind``; SerializationError if it does not fit."""
        return decode_as(self.input, kind, f"the input of run {self.run_id!r}")

    def output_as(self, kind: type[T]) -> T:
        """The output validated as ``kind``; SerializationError if it does not fit."""
        return decode_as(self.output, kind, f"the output of run {self.run_id!r}")

    def hook_metadata_as(self, hook_id: str, kind: type[T]) -> T:
        """The metadata of a hook validated as ``kind``; KeyError for an unknown hook."""
        return self.hooks[hook_id].metadata_as(kind)

    @property
    def terminal(self) -> bool:
        """Whether the run has ended."""
        return self.status in TERMINAL_STATUSES

    def wire(self) -> dict[str, Any]:
        """The JSON form; maps are ordered by id. It holds hook tokens: treat it as a secret."""
        # By hand: pydantic cannot write a lone surrogate inside a key, and JSON can.
        return {
            "run_id": self.run_id,
            "spec": self.spec.wire(),
            "input": self.input,
            "status": self.status.value,
            "steps": {key: one.wire() for key, one in sorted(self.steps.items())},
            "waits": {key: one.wire() for key, one in sorted(self.waits.items())},
            "hooks": {key: one.wire() for key, one in sorted(self.hooks.items())},
            "cancellation": self.cancellation.wire() if self.cancellation else None,
            "progress": [one.wire() for one in self.progress],
            "child_operations": {
                key: one.wire() for key, one in sorted(self.child_operations.items())
            },
            "attributes": self.attributes,
            "patches": sorted(self.patches),
            "output": self.output,
            "error": self.error,
            "terminal_outcome": self.terminal_outcome.wire() if self.terminal_outcome else None,
            "last_sequence": self.last_sequence,
        }


def _time(moment: datetime | None) -> str | None:
    return None if moment is None else format_time(moment)
