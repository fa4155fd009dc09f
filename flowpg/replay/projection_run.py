"""Folding the events of the run itself: created, started, asked to cancel, ended."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import ValidationError

from flowpg.errors import InvalidTransition, InvalidWorkflow
from flowpg.model.events import (
    RUN_CANCELLATION_REQUESTED,
    RUN_CANCELLED,
    RUN_COMPLETED,
    RUN_FAILED,
    RUN_HOST_SHUTDOWN,
    RUN_RETRY_EXHAUSTED,
    RUN_STARTED,
    RUN_TIMED_OUT,
)
from flowpg.model.snapshot import (
    CancellationSnapshot,
    CancelledOutcome,
    CompletedOutcome,
    FailedOutcome,
    HookStatus,
    HostShutdownOutcome,
    OpenWork,
    RetryExhaustedOutcome,
    RunStatus,
    StepStatus,
    TimedOutOutcome,
    WaitStatus,
    WorkflowRunSnapshot,
)
from flowpg.model.spec import WorkflowSpec
from flowpg.model.times import format_time
from flowpg.replay import members
from flowpg.replay.fold import Fold

Data = dict[str, Any]


def created(run_id: str, data: Data) -> WorkflowRunSnapshot:
    """The snapshot that ``run_created`` begins. InvalidWorkflow if its spec cannot be run."""
    try:
        spec = WorkflowSpec.read(data.get("spec"))
    except ValidationError as error:
        parts = {".".join(map(str, item["loc"])) for item in error.errors(include_input=False)}
        names = ", ".join(sorted(filter(None, parts))) or "its type"
        raise InvalidWorkflow(f"the workflow spec is not usable; check {names}") from None
    return WorkflowRunSnapshot(run_id, spec, members.anything(data, "input"), last_sequence=1)


def _started(run: WorkflowRunSnapshot, data: Data, at: datetime, due: datetime | None) -> None:
    if run.status is not RunStatus.PENDING:
        raise InvalidTransition(f"the run is {run.status.value}, not pending")
    run.status = RunStatus.RUNNING


def _completed(run: WorkflowRunSnapshot, data: Data, at: datetime, due: datetime | None) -> None:
    output = members.anything(data, "output")
    # A workflow may decide to finish all the same; whether it may is a question to its decision.
    if run.open.steps:
        raise InvalidTransition(f"step {next(iter(run.open.steps))!r} is still open")
    run.status = RunStatus.COMPLETED
    run.output = output
    run.terminal_outcome = CompletedOutcome(output=output)


def _failed(run: WorkflowRunSnapshot, data: Data, at: datetime, due: datetime | None) -> None:
    error = members.text(data, "error")
    run.status = RunStatus.FAILED
    run.error = error
    run.terminal_outcome = FailedOutcome(error=error)


def _cancelled(run: WorkflowRunSnapshot, data: Data, at: datetime, due: datetime | None) -> None:
    reason = members.optional_text(data, "reason")
    run.status = RunStatus.CANCELLED
    run.error = reason
    run.terminal_outcome = CancelledOutcome(reason=reason)


def _timed_out(run: WorkflowRunSnapshot, data: Data, at: datetime, due: datetime | None) -> None:
    reason = members.optional_text(data, "reason")
    deadline = members.deadline(data, "deadline", None)
    if deadline is None:
        raise members.wrong("deadline", "an RFC 3339 time")
    run.status = RunStatus.FAILED
    run.error = reason if reason is not None else f"timed out at {format_time(deadline)}"
    run.terminal_outcome = TimedOutOutcome(deadline=deadline, reason=reason)


def _host_shutdown(
    run: WorkflowRunSnapshot, data: Data, at: datetime, due: datetime | None
) -> None:
    reason = members.optional_text(data, "reason")
    run.status = RunStatus.FAILED
    run.error = reason if reason is not None else "the host shut down for good"
    run.terminal_outcome = HostShutdownOutcome(reason=reason)


def _retry_exhausted(
    run: WorkflowRunSnapshot, data: Data, at: datetime, due: datetime | None
) -> None:
    step_id = members.text(data, "step_id")
    attempt = members.whole(data, "attempt")
    error = members.text(data, "error")
    step = run.steps.get(step_id)
    if step is None:
        raise InvalidTransition("it names a step that does not exist")
    if step.status is not StepStatus.FAILED:
        raise InvalidTransition(f"step {step_id!r} is {step.status.value}, not failed")
    if step.attempt != attempt:
        raise InvalidTransition(f"step {step_id!r} failed at attempt {step.attempt}")
    if step.retry.continues_workflow:
        raise InvalidTransition(f"the failure of step {step_id!r} is left to the workflow")
    if step.error != error:
        raise InvalidTransition(f"step {step_id!r} failed with another error")
    run.status = RunStatus.FAILED
    run.error = error
    run.terminal_outcome = RetryExhaustedOutcome(step_id=step_id, attempt=attempt, error=error)


def _cancellation_requested(
    run: WorkflowRunSnapshot, data: Data, at: datetime, due: datetime | None
) -> None:
    request = data.get("request")
    if type(request) is not dict:
        raise members.wrong("request", "an object")
    reason = members.optional_text(request, "reason")
    if run.cancellation is not None:
        raise InvalidTransition("cancellation was requested before")
    work = run.open
    for step in work.steps.values():
        step.status = StepStatus.CANCELLED
        step.retry_after = None
    for wait in work.waits.values():
        wait.status = WaitStatus.CANCELLED
    for hook in work.hooks.values():
        hook.status = HookStatus.CANCELLED
    # What failed the run before this request still does.
    run.open = OpenWork(
        progress=work.progress, fatal_step=work.fatal_step, exhausted=work.exhausted
    )
    run.status = RunStatus.CANCELLING
    run.cancellation = CancellationSnapshot(reason, at, run.last_sequence + 1)


FOLDS: dict[str, Fold] = {
    RUN_STARTED: _started,
    RUN_COMPLETED: _completed,
    RUN_FAILED: _failed,
    RUN_CANCELLED: _cancelled,
    RUN_TIMED_OUT: _timed_out,
    RUN_HOST_SHUTDOWN: _host_shutdown,
    RUN_RETRY_EXHAUSTED: _retry_exhausted,
    RUN_CANCELLATION_REQUESTED: _cancellation_requested,
}
"""Event type to the function that folds it, run_created excepted."""
