"""What a run is owed without any new decision: unfinished ends, due timers, due retries."""

from __future__ import annotations

from datetime import datetime

from flowpg.model import events
from flowpg.model.events import NewEvent
from flowpg.model.snapshot import RunStatus, WorkflowRunSnapshot
from flowpg.replay.plan import Plan, following


def repair_events(snapshot: WorkflowRunSnapshot) -> list[NewEvent]:
    """The rest of an interrupted end: a step failed in a way that fails its run, but the run goes
    on. Its open steps are settled, then the run fails. Empty for every other run."""
    step_id = snapshot.open.fatal_step
    if step_id is None or snapshot.terminal:
        return []
    step = snapshot.steps[step_id]
    error = step.error or ""
    found = settlement(snapshot, step_id)
    if snapshot.open.exhausted:
        found.append(events.run_retry_exhausted(step_id, step.attempt, error))
    else:
        found.append(events.run_failed(error))
    return found


def settlement(snapshot: WorkflowRunSnapshot, failed_step: str) -> list[NewEvent]:
    """Closes every open step but ``failed_step``, whose failure ends the run."""
    reason = f"outcome unknown: the run ended because step {failed_step!r} failed"
    return [
        events.step_cancelled(step.step_id, step.attempt, reason)
        for step in snapshot.open.steps.values()
        if step.step_id != failed_step
    ]


def due_events(snapshot: WorkflowRunSnapshot, now: datetime) -> list[NewEvent]:
    """Completes the timers and disposes the hooks whose time has come at ``now``, the earliest
    first."""
    work = snapshot.open
    if snapshot.terminal or not (work.waits or work.timed_hooks):
        return []
    due = [
        (wait.resume_at, events.wait_completed(wait.wait_id))
        for wait in work.waits.values()
        if wait.resume_at <= now
    ]
    due += [
        (hook.expires_at, events.hook_disposed(hook.hook_id))
        for hook in work.timed_hooks.values()
        if hook.expires_at is not None and hook.expires_at <= now
    ]
    due.sort(key=lambda item: item[0])
    return [event for _, event in due]


def due_retries(snapshot: WorkflowRunSnapshot, now: datetime) -> Plan:
    """Starts the next attempt of every delayed step whose time has come at ``now``.

    A step was decided on once and for all, so its retry needs no replay. A run that is not running
    yet, or has ended, gets an empty plan.
    """
    plan = Plan()
    if snapshot.terminal or snapshot.status is RunStatus.PENDING:
        return plan
    for step in snapshot.open.delayed.values():
        if step.retry_after is not None and step.retry_after <= now:
            plan.events.append(events.step_started(step.step_id, step.attempt + 1))
            plan.launches.append(following(step))
    return plan


def next_deadline(snapshot: WorkflowRunSnapshot) -> datetime | None:
    """The earliest deadline among open timers, delayed retries and expiring hooks."""
    if snapshot.terminal:
        return None
    work = snapshot.open
    times = [wait.resume_at for wait in work.waits.values()]
    times += [step.retry_after for step in work.delayed.values() if step.retry_after is not None]
    times += [h.expires_at for h in work.timed_hooks.values() if h.expires_at is not None]
    return min(times, default=None)
