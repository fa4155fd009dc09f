"""Events as flowpg moves them: lean records whose payload stays text until someone reads it.

An event on the wire is ``{"type": <event type>, ...fields}``. In the store the type is a column
and the payload is the same object without ``type``. ``model.typed`` has a pydantic model for each
event; the hot path never builds one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from flowpg.model import jsontext
from flowpg.model.times import format_time, parse_time

SCHEMA_VERSION = 1
"""Envelope schema version this release writes and the newest it reads."""

MAX_PAYLOAD_BYTES = 1_048_576
"""Largest payload of one event, in bytes of its UTF-8 JSON text."""

RUN_CREATED = "run_created"
RUN_STARTED = "run_started"
RUN_COMPLETED = "run_completed"
RUN_FAILED = "run_failed"
RUN_CANCELLATION_REQUESTED = "run_cancellation_requested"
RUN_CANCELLED = "run_cancelled"
RUN_TIMED_OUT = "run_timed_out"
RUN_RETRY_EXHAUSTED = "run_retry_exhausted"
RUN_HOST_SHUTDOWN = "run_host_shutdown"
RUN_PROGRESS_RECORDED = "run_progress_recorded"
CHILD_OPERATION_LINKED = "child_operation_linked"
RUN_ATTRIBUTES_SET = "run_attributes_set"
PATCH_RECORDED = "patch_recorded"
STEP_CREATED = "step_created"
STEP_STARTED = "step_started"
STEP_COMPLETED = "step_completed"
STEP_RETRYING = "step_retrying"
STEP_FAILED = "step_failed"
STEP_NON_RETRYABLE = "step_non_retryable"
STEP_CANCELLED = "step_cancelled"
WAIT_CREATED = "wait_created"
WAIT_COMPLETED = "wait_completed"
WAIT_CANCELLED = "wait_cancelled"
HOOK_CREATED = "hook_created"
HOOK_CONFLICTED = "hook_conflicted"
HOOK_RECEIVED = "hook_received"
HOOK_DISPOSED = "hook_disposed"

TERMINAL_TYPES = frozenset(
    {
        RUN_COMPLETED,
        RUN_FAILED,
        RUN_CANCELLED,
        RUN_TIMED_OUT,
        RUN_RETRY_EXHAUSTED,
        RUN_HOST_SHUTDOWN,
    }
)

EVENT_KEYS = {
    RUN_CREATED: "flow.run.created",
    RUN_STARTED: "flow.run.started",
    RUN_COMPLETED: "flow.run.completed",
    RUN_FAILED: "flow.run.failed",
    RUN_CANCELLATION_REQUESTED: "flow.run.cancellation.requested",
    RUN_CANCELLED: "flow.run.cancelled",
    RUN_TIMED_OUT: "flow.run.timed_out",
    RUN_RETRY_EXHAUSTED: "flow.run.retry_exhausted",
    RUN_HOST_SHUTDOWN: "flow.run.host_shutdown",
    RUN_PROGRESS_RECORDED: "flow.run.progress.recorded",
    CHILD_OPERATION_LINKED: "flow.child.operation.linked",
    RUN_ATTRIBUTES_SET: "flow.run.attributes.set",
    PATCH_RECORDED: "flow.patch.recorded",
    STEP_CREATED: "flow.step.created",
    STEP_STARTED: "flow.step.started",
    STEP_COMPLETED: "flow.step.completed",
    STEP_RETRYING: "flow.step.retrying",
    STEP_FAILED: "flow.step.failed",
    STEP_NON_RETRYABLE: "flow.step.non_retryable",
    STEP_CANCELLED: "flow.step.cancelled",
    WAIT_CREATED: "flow.wait.created",
    WAIT_COMPLETED: "flow.wait.completed",
    WAIT_CANCELLED: "flow.wait.cancelled",
    HOOK_CREATED: "flow.hook.created",
    HOOK_CONFLICTED: "flow.hook.conflicted",
    HOOK_RECEIVED: "flow.hook.received",
    HOOK_DISPOSED: "flow.hook.disposed",
}
"""The dotted key of every event type, for routing and metrics; never stored."""

DEADLINE_FIELDS = {
    WAIT_CREATED: "resume_at",
    STEP_RETRYING: "retry_after",
    HOOK_CREATED: "expires_at",
}
"""Which payload member of an event holds its deadline."""


def subject_of(event_type: str, data: dict[str, Any]) -> str | None:
    """The id an event is about: step, wait, hook, progress, patch, child reference; else None."""
    if event_type.startswith("step_") or event_type == RUN_RETRY_EXHAUSTED:
        return str(data["step_id"])
    if event_type.startswith("wait_"):
        return str(data["wait_id"])
    if event_type.startswith("hook_"):
        return str(data["hook_id"])
    if event_type == RUN_PROGRESS_RECORDED:
        return str(data["progress"]["progress_id"])
    if event_type == CHILD_OPERATION_LINKED:
        return str(data["child"]["reference_id"])
    if event_type == PATCH_RECORDED:
        return str(data["patch_id"])
    return None


@dataclass(slots=True)
class NewEvent:
    """An event before it is stored; ``recorded_at`` once it is.

    ``due_in`` asks the store to compute the deadline from its own clock: recorded time plus this
    duration, written into the payload under the name of ``DEADLINE_FIELDS``. ``due_at`` is an
    absolute deadline that ``data`` already holds. At most one of them is set."""

    type: str
    data: dict[str, Any] = field(repr=False)
    due_at: datetime | None = None
    due_in: timedelta | None = None
    text: str | None = field(default=None, repr=False)
    recorded_at: datetime | None = field(default=None, repr=False, compare=False)

    @property
    def subject(self) -> str | None:
        """The id this event is about."""
        return subject_of(self.type, self.data)

    def payload(self) -> str:
        """The payload as JSON text, encoded once (SerializationError if JSON cannot carry it)."""
        if self.text is None:
            data = self.data
            if self.type == STEP_STARTED and type(attempt := data.get("attempt")) is int:
                # What every attempt of every step begins with.
                step_id = data.get("step_id")
                if len(data) == 2 and type(step_id) is str and step_id.isascii():
                    self.text = f'{{"step_id":{jsontext.quote(step_id)},"attempt":{attempt}}}'
                    return self.text
            what = f"the payload of {self.type}"
            self.text = jsontext.encode(data, what, jsontext.MAX_STORED_DEPTH)
        return self.text


class FlowEventEnvelope:
    """One stored event: its run, its place in the stream, and when the store recorded it.

    ``payload`` is the stored text, verbatim; ``data`` is its decoded form, made on first use.
    ``schema_version`` is None when the wire did not carry one, which reads as 1.
    """

    __slots__ = (
        "_data",
        "_payload",
        "_timestamp",
        "event_id",
        "recorded_at",
        "run_id",
        "schema_version",
        "sequence",
        "type",
    )

    def __init__(
        self,
        run_id: str,
        sequence: int,
        event_id: str,
        recorded_at: datetime,
        type: str,  # the wire name of the member
        *,
        payload: str | None = None,
        data: dict[str, Any] | None = None,
        schema_version: int | None = None,
        timestamp: str | None = None,
    ) -> None:
        self.run_id = run_id
        self.sequence = sequence
        self.event_id = event_id
        self.recorded_at = recorded_at
        self.type = type
        self.schema_version = schema_version
        self._payload = payload
        self._data = data
        self._timestamp = timestamp

    @property
    def timestamp(self) -> str:
        """``recorded_at`` as the wire says it: as it was read, if that was finer or written in
        another form than ours."""
        return self._timestamp or format_time(self.recorded_at)

    @property
    def data(self) -> dict[str, Any]:
        """The event's fields. Callers must not change them."""
        if self._data is None:
            what = f"event {self.sequence} of run {self.run_id!r}"
            self._data = jsontext.decode(self._payload or "{}", what)
        return self._data

    def with_data(self, data: dict[str, Any]) -> FlowEventEnvelope:
        """The same event with other fields."""
        return FlowEventEnvelope(
            self.run_id,
            self.sequence,
            self.event_id,
            self.recorded_at,
            self.type,
            data=data,
            schema_version=self.schema_version,
            timestamp=self._timestamp,
        )

    @property
    def payload(self) -> str:
        """The stored payload text."""
        if self._payload is None:
            what = f"event {self.sequence}"
            self._payload = jsontext.encode(self._data, what, jsontext.MAX_STORED_DEPTH)
        return self._payload

    @property
    def key(self) -> str:
        """The dotted event key, such as ``flow.step.completed``."""
        return EVENT_KEYS.get(self.type, f"flow.{self.type}")

    @property
    def subject(self) -> str | None:
        """The id this event is about, or None for one about the run itself."""
        return subject_of(self.type, self.data)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, FlowEventEnvelope):
            return NotImplemented
        # An explicit version 1 on the wire and none are the same envelope.
        return (
            self.run_id == other.run_id
            and self.sequence == other.sequence
            and self.event_id == other.event_id
            and self.recorded_at == other.recorded_at
            and self.type == other.type
            and (self.schema_version or 1) == (other.schema_version or 1)
            and jsontext.equal(self.data, other.data)
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        # Payloads may hold secrets, tokens among them.
        return f"FlowEventEnvelope({self.run_id!r}, {self.sequence}, {self.type!r})"


def deadline_of(event: FlowEventEnvelope) -> datetime | None:
    """The deadline a stored event carries, or None. InvalidArgument if it is not a time."""
    member = DEADLINE_FIELDS.get(event.type)
    text = event.data.get(member) if member is not None else None
    return None if text is None else parse_time(text)


def run_started() -> NewEvent:
    """The driver took the run up."""
    return NewEvent(RUN_STARTED, {}, text="{}")


def run_completed(output: Any) -> NewEvent:
    """The workflow returned ``output``."""
    return NewEvent(RUN_COMPLETED, {"output": output})


def run_failed(error: str) -> NewEvent:
    """The workflow failed."""
    return NewEvent(RUN_FAILED, {"error": error})


def run_cancelled(reason: str | None) -> NewEvent:
    """The run ended as asked for."""
    return NewEvent(RUN_CANCELLED, {"reason": reason})


def run_timed_out(deadline: datetime, reason: str | None) -> NewEvent:
    """The run passed its deadline."""
    return NewEvent(RUN_TIMED_OUT, {"deadline": format_time(deadline), "reason": reason})


def run_retry_exhausted(step_id: str, attempt: int, error: str) -> NewEvent:
    """A step used up its attempts and its policy fails the run."""
    data = {"step_id": step_id, "attempt": attempt, "error": error}
    return NewEvent(RUN_RETRY_EXHAUSTED, data)


def step_created(step_id: str, step_name: str, input: Any, retry: dict[str, Any]) -> NewEvent:
    """A step was decided on; ``retry`` is the wire form of its policy."""
    data = {"step_id": step_id, "step_name": step_name, "input": input, "retry": retry}
    return NewEvent(STEP_CREATED, data)


def step_started(step_id: str, attempt: int) -> NewEvent:
    """An attempt (from 1) is about to run."""
    text = None
    if step_id.isascii():
        text = f'{{"step_id":{jsontext.quote(step_id)},"attempt":{attempt}}}'
    return NewEvent(STEP_STARTED, {"step_id": step_id, "attempt": attempt}, text=text)


def step_completed(step_id: str, output: Any) -> NewEvent:
    """The running attempt returned ``output``."""
    return NewEvent(STEP_COMPLETED, {"step_id": step_id, "output": output})


def step_retrying(
    step_id: str, attempt: int, error: str, delay: timedelta, *, requested: bool = False
) -> NewEvent:
    """Attempt ``attempt`` failed and another follows, after ``delay`` if that is above zero.

    ``requested`` says that the step itself asked for this delay, in place of its policy's.
    """
    data: dict[str, Any] = {"step_id": step_id, "attempt": attempt, "error": error}
    if requested:
        data["retry_requested"] = True
    return NewEvent(STEP_RETRYING, data, due_in=delay if delay > timedelta(0) else None)


def step_failed(step_id: str, attempt: int, error: str) -> NewEvent:
    """The last attempt the policy allows failed."""
    return NewEvent(STEP_FAILED, {"step_id": step_id, "attempt": attempt, "error": error})


def step_non_retryable(step_id: str, attempt: int, error: str) -> NewEvent:
    """The attempt failed in a way that no further attempt can mend."""
    return NewEvent(STEP_NON_RETRYABLE, {"step_id": step_id, "attempt": attempt, "error": error})


def step_cancelled(step_id: str, attempt: int, reason: str) -> NewEvent:
    """An open step is settled because its run ends, or because the workflow gave it up; whether
    it had an effect is unknown."""
    return NewEvent(STEP_CANCELLED, {"step_id": step_id, "attempt": attempt, "reason": reason})


def wait_created(
    wait_id: str, *, resume_at: datetime | None = None, delay: timedelta | None = None
) -> NewEvent:
    """A timer, due at ``resume_at`` or ``delay`` after the event is recorded."""
    if resume_at is None:
        return NewEvent(WAIT_CREATED, {"wait_id": wait_id}, due_in=delay or timedelta(0))
    data = {"wait_id": wait_id, "resume_at": format_time(resume_at)}
    return NewEvent(WAIT_CREATED, data, due_at=resume_at)


def wait_completed(wait_id: str) -> NewEvent:
    """The timer came due."""
    return NewEvent(WAIT_COMPLETED, {"wait_id": wait_id})


def wait_cancelled(wait_id: str) -> NewEvent:
    """The workflow gave the timer up."""
    return NewEvent(WAIT_CANCELLED, {"wait_id": wait_id})


def patch_recorded(patch_id: str) -> NewEvent:
    """The run follows the code behind a patch from here on."""
    return NewEvent(PATCH_RECORDED, {"patch_id": patch_id})


def hook_created(
    hook_id: str,
    token: str,
    metadata: Any,
    *,
    expires_in: timedelta | None = None,
    payload_schema: dict[str, Any] | None = None,
    on_conflict: str = "wait",
) -> NewEvent:
    """A callback is awaited under ``token``; it is disposed ``expires_in`` later, if given. It is
    to fit ``payload_schema``, if there is one. ``on_conflict`` is what was to happen if the token
    was taken."""
    data = {"hook_id": hook_id, "token": token, "metadata": metadata}
    if payload_schema is not None:
        data["payload_schema"] = payload_schema
    if on_conflict != "wait":
        data["on_conflict"] = on_conflict
    return NewEvent(HOOK_CREATED, data, due_in=expires_in)


def hook_conflicted(hook_id: str, owner_run_id: str, owner_hook_id: str) -> NewEvent:
    """The hook was not opened: its token, which is not told, is held by an active hook."""
    data = {"hook_id": hook_id, "owner_run_id": owner_run_id, "owner_hook_id": owner_hook_id}
    return NewEvent(HOOK_CONFLICTED, data)


def hook_disposed(hook_id: str) -> NewEvent:
    """The callback is no longer awaited."""
    return NewEvent(HOOK_DISPOSED, {"hook_id": hook_id})
