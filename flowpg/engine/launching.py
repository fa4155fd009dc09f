"""What a stored append means for the handlers of its steps."""

from __future__ import annotations

from collections.abc import Sequence

from flowpg.engine.handlers import StepHandlers
from flowpg.engine.tip import RunTip
from flowpg.model.events import STEP_CANCELLED, NewEvent
from flowpg.replay.plan import StepLaunch
from flowpg.replay.runtime import StepInvocation


def launch(handlers: StepHandlers, tip: RunTip, launches: Sequence[StepLaunch]) -> None:
    """Start the handlers of ``launches`` that are not at work here already."""
    snapshot = tip.snapshot
    if snapshot.terminal:
        return
    run_id, workflow, steps = snapshot.run_id, snapshot.spec.name, snapshot.steps
    for step in launches:
        step_id, attempt = step.step_id, step.attempt
        if not handlers.is_running(step_id, attempt):
            invocation = StepInvocation(
                run_id, step_id, attempt, step.step_name, step.input, workflow
            )
            known = steps[step_id]
            limits = None if known.timeouts is None else tip.limits(known, step)
            handlers.launch(invocation, known.retry.attempts, limits, again=step.again)


def abandon_closed(handlers: StepHandlers, stored: Sequence[NewEvent]) -> None:
    """Cancel the handlers of steps that the workflow has given up."""
    for event in stored:
        if event.type == STEP_CANCELLED:
            handlers.abandon(event.data["step_id"])
