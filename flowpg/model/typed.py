"""Every event as a pydantic model, for reading histories with types and for checking foreign ones.

The engine works on lean records instead (``model.events``): these models are for the edges. Nothing
is converted when one is read: a number in a string, or true for 1, does not fit. The text form of
a model shows no payload, no error text and no token.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    TypeAdapter,
    ValidationError,
)

from flowpg.errors import FlowError, SerializationError
from flowpg.model.events import FlowEventEnvelope
from flowpg.model.operations import (
    CancellationRequest,
    ChildOperationReference,
    WorkflowProgress,
)
from flowpg.model.retry import DEFAULT_RETRY, RetryPolicy
from flowpg.model.spec import WorkflowSpec
from flowpg.model.timeouts import StepTimeouts
from flowpg.model.times import format_time, parse_time


def _read_time(value: object) -> object:
    if not isinstance(value, str):
        return value
    try:
        return parse_time(value)
    except FlowError as error:
        raise ValueError(str(error)) from None


def _read_timeouts(value: object) -> object:
    if isinstance(value, StepTimeouts):
        return value
    try:
        return StepTimeouts.read(value)
    except FlowError as error:
        raise ValueError(str(error)) from None


def _read_policy(value: object) -> object:
    if isinstance(value, RetryPolicy):
        return value
    try:
        return RetryPolicy.read(value)
    except FlowError as error:
        raise ValueError(str(error)) from None


Moment = Annotated[
    datetime,
    BeforeValidator(_read_time),
    PlainSerializer(format_time, return_type=str, when_used="json"),
]
"""A time, on the wire in RFC 3339; digits beyond microseconds round up."""

Policy = Annotated[RetryPolicy, BeforeValidator(_read_policy)]
Timeouts = Annotated[
    StepTimeouts,
    BeforeValidator(_read_timeouts),
    PlainSerializer(StepTimeouts.wire, return_type=dict[str, int]),
]
Json = Annotated[Any, Field(repr=False)]
Secret = Annotated[str, Field(repr=False)]


class _Event(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True)


class RunCreated(_Event):
    """The run was started by someone."""

    type: Literal["run_created"] = "run_created"
    spec: WorkflowSpec
    input: Json


class RunStarted(_Event):
    """A driver took it up."""

    type: Literal["run_started"] = "run_started"


class RunCompleted(_Event):
    """The workflow returned."""

    type: Literal["run_completed"] = "run_completed"
    output: Json


class RunFailed(_Event):
    """The workflow failed."""

    type: Literal["run_failed"] = "run_failed"
    error: Secret


class RunCancellationRequested(_Event):
    """Someone asked the run to clean up and end."""

    type: Literal["run_cancellation_requested"] = "run_cancellation_requested"
    request: CancellationRequest


class RunCancelled(_Event):
    """The run ended as asked for."""

    type: Literal["run_cancelled"] = "run_cancelled"
    reason: str | None = None


class RunTimedOut(_Event):
    """The run passed its deadline."""

    type: Literal["run_timed_out"] = "run_timed_out"
    deadline: Moment
    reason: str | None = None


class RunRetryExhausted(_Event):
    """A step used up its attempts and its policy fails the run."""

    type: Literal["run_retry_exhausted"] = "run_retry_exhausted"
    step_id: str
    attempt: int
    error: Secret


class RunHostShutdown(_Event):
    """The host will never resume the run."""

    type: Literal["run_host_shutdown"] = "run_host_shutdown"
    reason: str | None = None


class RunProgressRecorded(_Event):
    """A progress report."""

    type: Literal["run_progress_recorded"] = "run_progress_recorded"
    progress: Annotated[WorkflowProgress, Field(repr=False)]


class ChildOperationLinked(_Event):
    """A link to a task of another system or run."""

    type: Literal["child_operation_linked"] = "child_operation_linked"
    child: Annotated[ChildOperationReference, Field(repr=False)]


class RunAttributesSet(_Event):
    """Attributes of the run were set; null takes one away."""

    type: Literal["run_attributes_set"] = "run_attributes_set"
    attributes: Annotated[dict[str, Any], Field(repr=False)]


class PatchRecorded(_Event):
    """The run follows the code behind a patch from here on."""

    type: Literal["patch_recorded"] = "patch_recorded"
    patch_id: str


class StepCreated(_Event):
    """A step was decided on."""

    type: Literal["step_created"] = "step_created"
    step_id: str
    step_name: str
    input: Json
    retry: Policy = DEFAULT_RETRY
    timeouts: Timeouts | None = None


class StepStarted(_Event):
    """An attempt (from 1) began."""

    type: Literal["step_started"] = "step_started"
    step_id: str
    attempt: int


class StepCompleted(_Event):
    """The running attempt returned."""

    type: Literal["step_completed"] = "step_completed"
    step_id: str
    output: Json


class StepRetrying(_Event):
    """An attempt failed and another follows, not before ``retry_after``. ``retry_requested`` says
    that the step asked for that delay itself."""

    type: Literal["step_retrying"] = "step_retrying"
    step_id: str
    attempt: int
    error: Secret
    retry_after: Moment | None = None
    retry_requested: bool = False


class StepFailed(_Event):
    """The last attempt the policy allows failed."""

    type: Literal["step_failed"] = "step_failed"
    step_id: str
    attempt: int
    error: Secret


class StepNonRetryable(_Event):
    """The attempt failed in a way that no further attempt can mend."""

    type: Literal["step_non_retryable"] = "step_non_retryable"
    step_id: str
    attempt: int
    error: Secret


class StepCancelled(_Event):
    """An open step was settled because its run ended, or because the workflow gave it up."""

    type: Literal["step_cancelled"] = "step_cancelled"
    step_id: str
    attempt: int
    reason: str


class WaitCreated(_Event):
    """A timer started."""

    type: Literal["wait_created"] = "wait_created"
    wait_id: str
    resume_at: Moment


class WaitCompleted(_Event):
    """The timer came due."""

    type: Literal["wait_completed"] = "wait_completed"
    wait_id: str


class WaitCancelled(_Event):
    """The workflow gave the timer up."""

    type: Literal["wait_cancelled"] = "wait_cancelled"
    wait_id: str


class HookCreated(_Event):
    """A callback is awaited."""

    type: Literal["hook_created"] = "hook_created"
    hook_id: str
    token: Secret
    metadata: Json
    expires_at: Moment | None = None
    payload_schema: Json = None
    on_conflict: Literal["wait", "raise"] = "wait"


class HookConflicted(_Event):
    """A hook was not opened, for its token was held by an active hook."""

    type: Literal["hook_conflicted"] = "hook_conflicted"
    hook_id: str
    owner_run_id: str
    owner_hook_id: str


class HookReceived(_Event):
    """The callback came."""

    type: Literal["hook_received"] = "hook_received"
    hook_id: str
    payload: Json


class HookDisposed(_Event):
    """The callback is no longer awaited."""

    type: Literal["hook_disposed"] = "hook_disposed"
    hook_id: str


FlowEvent = Annotated[
    RunCreated
    | RunStarted
    | RunCompleted
    | RunFailed
    | RunCancellationRequested
    | RunCancelled
    | RunTimedOut
    | RunRetryExhausted
    | RunHostShutdown
    | RunProgressRecorded
    | ChildOperationLinked
    | RunAttributesSet
    | PatchRecorded
    | StepCreated
    | StepStarted
    | StepCompleted
    | StepRetrying
    | StepFailed
    | StepNonRetryable
    | StepCancelled
    | WaitCreated
    | WaitCompleted
    | WaitCancelled
    | HookCreated
    | HookConflicted
    | HookReceived
    | HookDisposed,
    Field(discriminator="type"),
]
"""Any event, told apart by its ``type``."""

_ADAPTER: TypeAdapter[FlowEvent] = TypeAdapter(FlowEvent)


def typed(envelope: FlowEventEnvelope) -> FlowEvent:
    """The event of an envelope as its model.

    SerializationError naming run, sequence and members (never a value) if it fits none.
    """
    where = f"event {envelope.sequence} of run {envelope.run_id!r}"
    data = envelope.data
    if not isinstance(data, dict):
        raise SerializationError(f"{where}: its payload is not an object")
    try:
        return _ADAPTER.validate_python({**data, "type": envelope.type})
    except ValidationError as error:
        found = error.errors(include_input=False, include_url=False, include_context=False)
        if found[0]["type"] == "union_tag_invalid":
            raise SerializationError(f"{where}: this type of event is unknown") from None
        names = sorted({".".join(map(str, item["loc"][1:])) or "its type" for item in found})
        raise SerializationError(f"{where} is malformed: check {', '.join(names)}") from None
