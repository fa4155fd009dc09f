"""Planning what a workflow gives up, and the small facts that it records.

A timer, a hook or a step that lost its race is closed in the append of the decision that follows
from the race, so that nothing wakes the run for it and its token is free again. What has its
outcome already, or is closed, is left alone: two racers may both have come in.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from flowpg.errors import InvalidTransition
from flowpg.model import events
from flowpg.model.attributes import check_attributes, merged
from flowpg.model.commands import (
    CancelStep,
    CancelWait,
    DisposeHook,
    RecordPatch,
    SetAttributes,
)
from flowpg.model.events import NewEvent
from flowpg.model.ids import check_id
from flowpg.model.jsontext import copied, equal
from flowpg.model.snapshot import WorkflowRunSnapshot
from flowpg.replay.plan import Plan


class Planning(Protocol):
    """The decision that is being planned."""

    run: WorkflowRunSnapshot
    plan: Plan
    live: int
    closed: set[str]
    attributes: dict[str, Any]

    def emit(self, event: NewEvent) -> NewEvent:
        """Add an event to the plan."""
        ...

    def name(self, kind: str, subject: str) -> None:
        """The decision names this subject; InvalidTransition if it does so twice."""
        ...


def cancel_wait(plan: Planning, command: CancelWait) -> None:
    """Close a timer."""
    wait_id = command.wait_id
    plan.name("wait", wait_id)
    if wait_id not in plan.run.waits:
        raise _unknown("wait", wait_id)
    _close(plan, wait_id in plan.run.open.waits, lambda: events.wait_cancelled(wait_id))


def dispose_hook(plan: Planning, command: DisposeHook) -> None:
    """Withdraw a hook."""
    hook_id = command.hook_id
    plan.name("hook", hook_id)
    if hook_id not in plan.run.hooks:
        raise _unknown("hook", hook_id)
    _close(plan, hook_id in plan.run.open.hooks, lambda: events.hook_disposed(hook_id))


def cancel_step(plan: Planning, command: CancelStep) -> None:
    """Close a step. The driver cancels its handler once that is stored."""
    step_id = command.step_id
    plan.name("step", step_id)
    step = plan.run.steps.get(step_id)
    if step is None:
        raise _unknown("step", step_id)
    if step.status.open:
        plan.closed.add(step_id)
    _close(
        plan,
        step.status.open,
        lambda: events.step_cancelled(step_id, step.attempt, command.reason),
    )


def record_patch(plan: Planning, command: RecordPatch) -> None:
    """Mark the run with a patch; one that is recorded already stays."""
    patch_id = check_id(command.patch_id, "patch id")
    plan.name("patch", patch_id)
    new = patch_id not in plan.run.patches
    if new:
        plan.plan.news = True
    _close(plan, new, lambda: events.patch_recorded(patch_id))


def set_attributes(plan: Planning, command: SetAttributes) -> None:
    """Set attributes of the run. What they are already is not set again."""
    check_attributes(command.attributes)
    after = merged(plan.attributes, command.attributes)
    new = not equal(after, plan.attributes)
    if new:
        plan.plan.news = True
        plan.attributes = after
    data = {"attributes": copied(command.attributes)}
    _close(plan, new, lambda: NewEvent(events.RUN_ATTRIBUTES_SET, data))


def _close(plan: Planning, wanted: bool, event: Callable[[], NewEvent]) -> None:
    if not wanted:
        return
    plan.emit(event())
    plan.live += 1


def _unknown(kind: str, subject: str) -> InvalidTransition:
    return InvalidTransition(
        f"{kind} {subject!r} cannot be closed, for the history does not know it; close only what "
        "an earlier decision opened"
    )


PLANNERS: dict[type, Callable[[Any, Any], None]] = {
    CancelWait: cancel_wait,
    DisposeHook: dispose_hook,
    CancelStep: cancel_step,
    RecordPatch: record_patch,
    SetAttributes: set_attributes,
}
"""Command to the function that plans it."""
