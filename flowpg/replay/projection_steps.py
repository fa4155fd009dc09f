"""Folding the events of steps: created, started, and every way an attempt ends."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, NoReturn

from flowpg.errors import InvalidTransition
from flowpg.model.events import (
    STEP_CANCELLED,
    STEP_COMPLETED,
    STEP_CREATED,
    STEP_FAILED,
    STEP_NON_RETRYABLE,
    STEP_RETRYING,
    STEP_STARTED,
)
from flowpg.model.retry import Backoff, RetryPolicy
from flowpg.model.snapshot import StepSnapshot, StepStatus, WorkflowRunSnapshot
from flowpg.model.timeouts import StepTimeouts
from flowpg.replay import members
from flowpg.replay.fold import Fold

Data = dict[str, Any]

# The longest delay a policy may have is 100 years, and times end with the year 9999.
LAST_SAFE_YEAR = 9890
"""Up to this year every delay of a policy gives a valid deadline."""


def check_representable(policy: RetryPolicy, at: datetime) -> None:
    """InvalidTransition if the longest delay of ``policy``, counted from ``at``, is no time."""
    try:
        at + timedelta(milliseconds=max(policy.delay_ms, policy.max_delay_ms))
    except OverflowError:
        raise InvalidTransition(
            "its retry delay gives no valid deadline; choose a shorter one"
        ) from None


# These three are what a run consists of, so they read their payloads without a call a member.


def _created(run: WorkflowRunSnapshot, data: Data, at: datetime, due: datetime | None) -> None:
    step_id, name, value = data.get("step_id"), data.get("step_name"), data.get("input", _MISSING)
    if type(step_id) is not str or type(name) is not str or value is _MISSING:
        _refuse(data, "step_name", "input")
    policy = RetryPolicy.read(data.get("retry"))
    limits = StepTimeouts.read(data["timeouts"]) if "timeouts" in data else None
    queue = members.text(data, "queue") if "queue" in data else None
    if step_id in run.steps:
        raise InvalidTransition(f"step {step_id!r} exists already")
    if at.year >= LAST_SAFE_YEAR:
        check_representable(policy, at)
    step = run.steps[step_id] = run.open.steps[step_id] = StepSnapshot(step_id, name, value, policy)
    if limits is not None:
        step.timeouts = limits
        step.created_at = at
    if queue is not None:
        step.queue = queue


def _started(run: WorkflowRunSnapshot, data: Data, at: datetime, due: datetime | None) -> None:
    step_id, attempt = data.get("step_id"), data.get("attempt")
    if type(step_id) is not str or type(attempt) is not int:
        _refuse(data, "attempt")
    step = run.steps.get(step_id) or _step(run, step_id)
    if step.status is not StepStatus.PENDING:
        raise InvalidTransition(f"step {step_id!r} is {step.status.value}, not pending")
    if attempt != step.attempt + 1:
        raise InvalidTransition(
            f"the next attempt of step {step_id!r} is {step.attempt + 1}, not {attempt}"
        )
    step.status = StepStatus.RUNNING
    step.attempt = attempt
    if step.timeouts is not None:
        step.started_at = at
    if step.retry_after is not None:
        if step.timeouts is not None:
            step.due_since = step.retry_after
        step.retry_after = None
        run.open.delayed.pop(step_id, None)


def _completed(run: WorkflowRunSnapshot, data: Data, at: datetime, due: datetime | None) -> None:
    step_id, output = data.get("step_id"), data.get("output", _MISSING)
    if type(step_id) is not str or output is _MISSING:
        _refuse(data, "output")
    step = run.steps.get(step_id) or _step(run, step_id)
    if step.status is not StepStatus.RUNNING:
        raise InvalidTransition(f"step {step_id!r} is {step.status.value}, not running")
    step.status = StepStatus.COMPLETED
    step.output = output
    step.error = None
    del run.open.steps[step_id]


_MISSING = object()

_READERS: dict[str, Callable[[Data, str], Any]] = {
    "step_id": members.text,
    "step_name": members.text,
    "input": members.anything,
    "output": members.anything,
    "attempt": members.whole,
}


def _refuse(data: Data, *names: str) -> NoReturn:
    """Raise what the first member says that is missing or mistyped."""
    for name in ("step_id", *names):
        _READERS[name](data, name)
    raise AssertionError(f"one of {names} is wrong")


def _retrying(run: WorkflowRunSnapshot, data: Data, at: datetime, due: datetime | None) -> None:
    step = _ended_attempt(run, data)
    error = members.text(data, "error")
    retry_after = members.deadline(data, "retry_after", due)
    requested = data.get("retry_requested", False)
    if type(requested) is not bool:
        raise members.wrong("retry_requested", "true or false")
    policy = step.retry
    if step.attempt >= policy.attempts:
        raise InvalidTransition(
            f"step {step.step_id!r} has used all of its {policy.attempts} attempts"
        )
    # A step may ask for a delay of its own, none included; the policy then has no say.
    if not requested:
        delayed = policy.delay_ms > 0 or policy.backoff is not Backoff.FIXED
        if delayed and retry_after is None:
            raise InvalidTransition(
                f"the policy of step {step.step_id!r} has a delay, so retry_after is needed"
            )
        if not delayed and retry_after is not None:
            raise InvalidTransition(
                f"the policy of step {step.step_id!r} has no delay, so retry_after is forbidden"
            )
    step.status = StepStatus.PENDING
    step.error = error
    step.retry_after = retry_after
    if retry_after is not None:
        run.open.delayed[step.step_id] = step


def _failed(run: WorkflowRunSnapshot, data: Data, at: datetime, due: datetime | None) -> None:
    step = _ended_attempt(run, data)
    error = members.text(data, "error")
    if step.attempt < step.retry.attempts:
        raise InvalidTransition(
            f"step {step.step_id!r} has {step.retry.attempts - step.attempt} attempts left"
        )
    _settle_failure(run, step, error, exhausted=True)


def _non_retryable(
    run: WorkflowRunSnapshot, data: Data, at: datetime, due: datetime | None
) -> None:
    step = _ended_attempt(run, data)
    _settle_failure(run, step, members.text(data, "error"), exhausted=False)


def _cancelled(run: WorkflowRunSnapshot, data: Data, at: datetime, due: datetime | None) -> None:
    step_id = members.text(data, "step_id")
    attempt = members.whole(data, "attempt")
    reason = members.text(data, "reason")
    step = _step(run, step_id)
    if not step.status.open:
        raise InvalidTransition(f"step {step_id!r} is {step.status.value}, not open")
    if attempt != step.attempt:
        raise InvalidTransition(f"step {step_id!r} is at attempt {step.attempt}, not {attempt}")
    step.status = StepStatus.CANCELLED
    step.error = reason
    step.retry_after = None
    del run.open.steps[step_id]
    run.open.delayed.pop(step_id, None)


def _settle_failure(
    run: WorkflowRunSnapshot, step: StepSnapshot, error: str, *, exhausted: bool
) -> None:
    step.status = StepStatus.FAILED
    step.error = error
    del run.open.steps[step.step_id]
    if not step.retry.continues_workflow and run.open.fatal_step is None:
        run.open.fatal_step = step.step_id
        run.open.exhausted = exhausted


def _ended_attempt(run: WorkflowRunSnapshot, data: Data) -> StepSnapshot:
    step_id = members.text(data, "step_id")
    attempt = members.whole(data, "attempt")
    step = _step(run, step_id)
    if step.status is not StepStatus.RUNNING:
        raise InvalidTransition(f"step {step_id!r} is {step.status.value}, not running")
    if attempt != step.attempt:
        raise InvalidTransition(f"step {step_id!r} runs attempt {step.attempt}, not {attempt}")
    return step


def _step(run: WorkflowRunSnapshot, step_id: str) -> StepSnapshot:
    step = run.steps.get(step_id)
    if step is None:
        raise InvalidTransition("it names a step that was never created")
    return step


FOLDS: dict[str, Fold] = {
    STEP_CREATED: _created,
    STEP_STARTED: _started,
    STEP_COMPLETED: _completed,
    STEP_RETRYING: _retrying,
    STEP_FAILED: _failed,
    STEP_NON_RETRYABLE: _non_retryable,
    STEP_CANCELLED: _cancelled,
}
"""Event type to the function that folds it."""
