"""What the result of one attempt of a step becomes."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from flowpg.model import events, jsontext
from flowpg.model.retry import MAX_DELAY_MS
from flowpg.model.sizes import limits
from flowpg.model.snapshot import StepSnapshot, StepStatus, WorkflowRunSnapshot
from flowpg.replay.definitions import oversize
from flowpg.replay.plan import Plan, following
from flowpg.replay.repair import settlement

MAX_ERROR_CHARACTERS = 32_768
"""An error text is cut after this many characters, so that it always fits into an event."""

_NO_DELAY = timedelta(0)
_MAX_DELAY = timedelta(milliseconds=MAX_DELAY_MS)


@dataclass(slots=True)
class Success:
    """The handler returned ``output``, a value that went through JSON already; ``text`` is its
    JSON text if that is at hand."""

    output: Any = field(repr=False)
    text: str | None = field(default=None, repr=False, compare=False)

    @classmethod
    def of(cls, value: Any, what: str = "the output of the step") -> Success:
        """What a handler returned, as it will come back from the store. SerializationError naming
        ``what`` if JSON cannot carry it."""
        text, output = jsontext.stored(value, what)
        return cls(output, text)


@dataclass(frozen=True, slots=True)
class Failure:
    """The handler failed with ``error``. ``delay`` is the pause the step itself asks for before
    its next attempt, None to leave that to its policy."""

    error: str = field(repr=False)
    retryable: bool = True
    delay: timedelta | None = None


Outcome = Success | Failure


def settle(
    snapshot: WorkflowRunSnapshot,
    step_id: str,
    attempt: int,
    outcome: Outcome,
    *,
    relaunch: bool = True,
    now: datetime | None = None,
) -> Plan:
    """The events of an outcome, and the step to run again if it is retried at once.

    A stale outcome, of a step that is not running that attempt (any more), gives an empty plan.
    An output too large to store fails the step for good. Without ``relaunch`` a retry that is due
    at once is left for a later decision to start. A step whose next attempt would begin, counted
    from the store's time ``now``, after its schedule_to_close is over has failed. The snapshot is
    only read.
    """
    plan = Plan()
    step = snapshot.steps.get(step_id)
    if (
        snapshot.terminal
        or step is None
        or step.status is not StepStatus.RUNNING
        or step.attempt != attempt
    ):
        return plan
    if isinstance(outcome, Success):
        completed = events.step_completed(step_id, outcome.output)
        if outcome.text is not None:
            key = jsontext.quote(step_id) if step_id.isascii() else jsontext.encode(step_id)
            completed.text = f'{{"step_id":{key},"output":{outcome.text}}}'
        size = oversize(completed, snapshot.run_id)
        if not size:
            plan.events.append(completed)
            return plan
        outcome = Failure(
            f"PayloadTooLarge: with the output of step {step_id!r} the event takes {size} bytes, "
            f"the limit is {limits.most}; store it elsewhere and return a reference",
            retryable=False,
        )
    _failed(snapshot, step, outcome, plan, relaunch, now)
    return plan


def error_text(text: str) -> str:
    """``text``, cut to what an event can hold."""
    if len(text) <= MAX_ERROR_CHARACTERS:
        return text
    return f"{text[:MAX_ERROR_CHARACTERS]}... ({len(text)} characters)"


def _failed(
    snapshot: WorkflowRunSnapshot,
    step: StepSnapshot,
    failure: Failure,
    plan: Plan,
    relaunch: bool,
    now: datetime | None,
) -> None:
    step_id, attempt = step.step_id, step.attempt
    retryable, error = failure.retryable, error_text(failure.error)
    requested, delay = failure.delay is not None, _NO_DELAY
    again = retryable and attempt < step.retry.attempts
    if again:
        if failure.delay is not None:
            delay = min(max(failure.delay, _NO_DELAY), _MAX_DELAY)
        else:
            delay = step.retry.delay_after(snapshot.run_id, step_id, attempt)
        if step.timeouts is not None and _comes_too_late(step, delay, now):
            # It is not waited for: nothing can come of it any more.
            again = retryable = False
            error = error_text(_too_late(attempt, failure.error))
    if again:
        plan.events.append(
            events.step_retrying(step_id, attempt, error, delay, requested=requested)
        )
        if not delay and relaunch:
            plan.events.append(events.step_started(step_id, attempt + 1))
            plan.launches.append(following(step))
        return
    make = events.step_failed if retryable else events.step_non_retryable
    plan.events.append(make(step_id, attempt, error))
    if step.retry.continues_workflow:
        return
    plan.events.extend(settlement(snapshot, step_id))
    if retryable:
        plan.events.append(events.run_retry_exhausted(step_id, attempt, error))
    else:
        plan.events.append(events.run_failed(error))
    plan.ended = True


def close_deadline(step: StepSnapshot) -> datetime | None:
    """When the schedule_to_close of a step is over, by the store's clock; None if it has none."""
    limit = step.timeouts.schedule_to_close if step.timeouts is not None else None
    if limit is None or step.created_at is None:
        return None
    try:
        return step.created_at + limit
    except OverflowError:
        return None


def start_deadline(step: StepSnapshot) -> datetime | None:
    """When the schedule_to_start of the latest attempt is over, counted from when it was recorded,
    by the store's clock; None if it has none."""
    limit = step.timeouts.schedule_to_start if step.timeouts is not None else None
    if limit is None or step.started_at is None:
        return None
    try:
        return step.started_at + limit
    except OverflowError:
        return None


def _comes_too_late(step: StepSnapshot, delay: timedelta, now: datetime | None) -> bool:
    deadline = close_deadline(step)
    return deadline is not None and now is not None and deadline - now <= delay


def _too_late(attempt: int, error: str) -> str:
    last = error.partition("\n")[0]
    return (
        f"ScheduleToCloseTimeout: schedule_to_close leaves no time for another attempt; attempt "
        f"{attempt} failed with {last}"
    )
