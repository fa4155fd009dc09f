"""What the result of one attempt of a step becomes."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from flowpg.model import events, jsontext
from flowpg.model.events import NewEvent
from flowpg.model.retry import MAX_DELAY_MS
from flowpg.model.snapshot import StepSnapshot, StepStatus, WorkflowRunSnapshot
from flowpg.replay.definitions import oversize
from flowpg.replay.plan import Plan, StepLaunch
from flowpg.replay.repair import settlement

MAX_ERROR_CHARACTERS = 32_768
"""An error text is cut after this many characters, so that it always fits into an event."""

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
) -> Plan:
    """The events of an outcome, and the step to run again if it is retried at once.

    A stale outcome, of a step that is not running that attempt (any more), gives an empty plan.
    An output too large to store fails the step for good. Without ``relaunch`` a retry that is due
    at once is left for a later decision to start. The snapshot is only read.
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
            completed.text = f'{{"step_id":{jsontext.encode(step_id)},"output":{outcome.text}}}'
        size = oversize(completed)
        if not size:
            plan.events.append(completed)
            return plan
        outcome = Failure(
            f"PayloadTooLarge: with its output the event takes {size} bytes, the limit is "
            f"{events.MAX_PAYLOAD_BYTES}; store it elsewhere and return a reference",
            retryable=False,
        )
    _failed(snapshot, step, outcome, plan, relaunch)
    return plan


def outcome_events(
    snapshot: WorkflowRunSnapshot, step_id: str, attempt: int, outcome: Outcome
) -> list[NewEvent]:
    """Only the events of ``settle``."""
    return settle(snapshot, step_id, attempt, outcome).events


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
) -> None:
    step_id, attempt = step.step_id, step.attempt
    error = error_text(failure.error)
    if failure.retryable and attempt < step.retry.attempts:
        requested = failure.delay is not None
        if failure.delay is not None:
            delay = min(max(failure.delay, timedelta(0)), _MAX_DELAY)
        else:
            delay = step.retry.delay_after(snapshot.run_id, step_id, attempt)
        plan.events.append(
            events.step_retrying(step_id, attempt, error, delay, requested=requested)
        )
        if not delay and relaunch:
            plan.events.append(events.step_started(step_id, attempt + 1))
            plan.launches.append(StepLaunch(step_id, step.step_name, step.input, attempt + 1))
        return
    make = events.step_failed if failure.retryable else events.step_non_retryable
    plan.events.append(make(step_id, attempt, error))
    if step.retry.continues_workflow:
        return
    plan.events.extend(settlement(snapshot, step_id))
    if failure.retryable:
        plan.events.append(events.run_retry_exhausted(step_id, attempt, error))
    else:
        plan.events.append(events.run_failed(error))
    plan.ended = True
