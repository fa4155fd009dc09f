"""What workflow code may decide: the commands a replay returns.

The wire form is ``{"type": "<snake_case>", ...}``. A decision is one command or a tuple of them;
all commands of a decision commit in one append.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from flowpg.model.operations import ChildOperationReference, WorkflowProgress
from flowpg.model.retry import DEFAULT_RETRY, RetryPolicy
from flowpg.model.timeouts import StepTimeouts


class _Command(BaseModel):
    # What cannot be validated may end up in a history as the text of an error.
    model_config = ConfigDict(frozen=True, hide_input_in_errors=True)


class Complete(_Command):
    """End the run with ``output``.

    ``despite_cancellation`` says that the workflow saw the request to cancel, if there was one, and
    completes all the same; without it a run that is cancelling cannot complete.
    """

    type: Literal["complete"] = "complete"
    output: Any = Field(default=None, repr=False)
    despite_cancellation: bool = False


class Fail(_Command):
    """End the run as failed."""

    type: Literal["fail"] = "fail"
    error: str = Field(repr=False)


class Cancel(_Command):
    """End the run as cancelled; only after a cancellation request, whose reason it takes."""

    type: Literal["cancel"] = "cancel"


class Timeout(_Command):
    """End the run because ``deadline`` has passed."""

    type: Literal["timeout"] = "timeout"
    deadline: datetime
    reason: str | None = None


class RecordProgress(_Command):
    """Record one progress report."""

    type: Literal["record_progress"] = "record_progress"
    progress: WorkflowProgress


class LinkChildOperation(_Command):
    """Record a link to a task that another system owns."""

    type: Literal["link_child_operation"] = "link_child_operation"
    child: ChildOperationReference


class RecordPatch(_Command):
    """Mark the run: from here on it follows the code behind the patch ``patch_id``."""

    type: Literal["record_patch"] = "record_patch"
    patch_id: str


class SetAttributes(_Command):
    """Set attributes of the run, which lists and dashboards show; null takes one away."""

    type: Literal["set_attributes"] = "set_attributes"
    attributes: dict[str, Any] = Field(repr=False)


class CancelWait(_Command):
    """Close an open timer; nothing happens if it has fired or is closed already."""

    type: Literal["cancel_wait"] = "cancel_wait"
    wait_id: str


class DisposeHook(_Command):
    """Withdraw an open hook, so that its token is free again; nothing happens if it was answered
    or is closed already."""

    type: Literal["dispose_hook"] = "dispose_hook"
    hook_id: str


class CancelStep(_Command):
    """Close an open step: its handler is cancelled, its outcome is never known. Nothing happens if
    it has settled already."""

    type: Literal["cancel_step"] = "cancel_step"
    step_id: str
    reason: str = "the workflow no longer waits for it; its outcome is unknown"


class StepCommand(_Command):
    """The definition of one step; the same id must come back with the same definition. ``queue``
    is where it is to run, None for where its run is."""

    step_id: str
    step_name: str
    input: Any = Field(default=None, repr=False)
    retry: RetryPolicy = DEFAULT_RETRY
    timeouts: StepTimeouts | None = None
    queue: str | None = None


class ScheduleStep(StepCommand):
    """Run one step."""

    type: Literal["schedule_step"] = "schedule_step"


class ScheduleSteps(_Command):
    """Run a batch of steps concurrently, all of them declared before the first one runs."""

    type: Literal["schedule_steps"] = "schedule_steps"
    steps: tuple[StepCommand, ...]


class WaitUntil(_Command):
    """Suspend until ``resume_at``, or until ``delay`` after the wait is first recorded.

    The first recorded deadline is the durable one: a later replay may recompute it freely.
    """

    type: Literal["wait_until"] = "wait_until"
    wait_id: str
    resume_at: datetime | None = None
    delay: timedelta | None = None


OnConflict = Literal["wait", "raise"]
"""What becomes of a hook whose token is held by another active hook. ``wait``: the run is blocked,
says so, and goes on by itself once the token is free. ``raise``: the conflict is recorded."""


class CreateHook(_Command):
    """Suspend until someone answers under ``token``; disposed after ``expires_in``, if given.

    ``payload_schema`` is a JSON Schema, which whoever answers is held to. It may be another in a
    later replay: the one that was recorded holds.
    ``on_conflict`` says what becomes of it if the token is taken. ``acquire`` asks the workflow
    again as soon as the hook is recorded: it goes on, now that the token is its own.
    """

    type: Literal["create_hook"] = "create_hook"
    hook_id: str
    token: str
    metadata: Any = None
    expires_in: timedelta | None = None
    payload_schema: dict[str, Any] | None = Field(default=None, repr=False)
    on_conflict: OnConflict = "wait"
    acquire: bool = False

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        yield "hook_id", self.hook_id
        yield "token", "<redacted>"

    def __str__(self) -> str:
        return repr(self)


RuntimeCommand = Annotated[
    Complete
    | Fail
    | Cancel
    | Timeout
    | RecordProgress
    | LinkChildOperation
    | RecordPatch
    | SetAttributes
    | CancelWait
    | DisposeHook
    | CancelStep
    | ScheduleStep
    | ScheduleSteps
    | WaitUntil
    | CreateHook,
    Field(discriminator="type"),
]
"""Any command. Validate foreign JSON with ``pydantic.TypeAdapter(RuntimeCommand)``."""

Decision = RuntimeCommand | tuple[RuntimeCommand, ...]
"""What one replay returns."""
