"""The durable calls of one run, matched with what its history recorded, in the same order.

Workflow code makes calls; the history says in which order they were recorded. Both must agree: the
next recorded call is the oldest one that is not recorded yet. Otherwise the code takes another path
than it took before, and the run must not go on with it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import groupby
from typing import NoReturn

from flowpg.authoring.operations import (
    HookOperation,
    Operation,
    ProgressOperation,
    StepOperation,
    TimerOperation,
    recorded_as,
)
from flowpg.errors import NonDeterministic
from flowpg.model.commands import RuntimeCommand, ScheduleSteps
from flowpg.model.events import RUN_PROGRESS_RECORDED, FlowEventEnvelope
from flowpg.model.snapshot import WorkflowRunSnapshot


class Ledger:
    """Calls that are made and not recorded, and calls that are recorded and open."""

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self.steps: dict[str, StepOperation] = {}
        self.timers: dict[str, TimerOperation] = {}
        self.hooks: dict[str, HookOperation] = {}
        self._made: deque[Operation] = deque()

    # -- workflow code --------------------------------------------------------------------------

    def add(self, operation: Operation) -> None:
        """Workflow code made this call."""
        self._made.append(operation)

    # -- the history ----------------------------------------------------------------------------

    def record(self, event: FlowEventEnvelope) -> None:
        """The history recorded a call. NonDeterministic unless it is the next one made."""
        operation = self._next()
        if event.type == RUN_PROGRESS_RECORDED and not (
            isinstance(operation, ProgressOperation) and operation.id == event.subject
        ):
            return  # a client reports progress too
        if operation is None:
            self._differs(event, "but the code makes no further call")
        if type(operation).event_type != event.type or operation.id != event.subject:
            self._differs(event, f"found {operation}, called at {operation.site}")
        difference = operation.difference(event.data)
        if difference is not None:
            self._differs(event, f"which {difference} than the call at {operation.site} has")
        self._made.popleft()
        operation.recorded = True
        if isinstance(operation, StepOperation):
            self.steps[operation.id] = operation
        elif isinstance(operation, TimerOperation):
            self.timers[operation.id] = operation
        elif isinstance(operation, HookOperation):
            self.hooks[operation.id] = operation

    def take_step(self, step_id: str) -> StepOperation | None:
        """The step whose outcome the history holds."""
        return self.steps.pop(step_id, None)

    def take_timer(self, wait_id: str) -> TimerOperation | None:
        """The timer that fired."""
        return self.timers.pop(wait_id, None)

    def take_hook(self, hook_id: str) -> HookOperation | None:
        """The hook that was answered or disposed."""
        return self.hooks.pop(hook_id, None)

    def cancel_all(self) -> list[Operation]:
        """A cancellation request closed every open call; returns them, and those never recorded."""
        found: list[Operation] = [
            *self.steps.values(),
            *self.timers.values(),
            *self.hooks.values(),
            *(o for o in self._made if not isinstance(o, ProgressOperation)),
        ]
        self.steps.clear()
        self.timers.clear()
        self.hooks.clear()
        self._made = deque(o for o in self._made if isinstance(o, ProgressOperation))
        return found

    # -- the decision ---------------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        """Whether nothing is open and nothing new is asked for."""
        return self._next() is None and not self.steps and not self._awaited()

    def commands(self, snapshot: WorkflowRunSnapshot, everything: bool) -> list[RuntimeCommand]:
        """The new calls, in the order in which they were made, after the open ones.

        Whoever drives on from its own last decision knows what is open; one open call then stands
        for all. ``everything`` names them all, so that a driver that takes over starts them again.
        """
        new = [operation for operation in self._made if not operation.dropped]
        if not everything and len(new) == 1:
            return [new[0].command()]
        opened: list[Operation] = [*self.steps.values(), *self._awaited()]
        if not everything:
            opened = [] if new else opened[:1]
        return _commands(snapshot, [*opened, *new])

    def open_steps(self, snapshot: WorkflowRunSnapshot) -> list[RuntimeCommand]:
        """The steps that are at work, whether anybody waits for them or not."""
        return _commands(snapshot, list(self.steps.values()))

    def reports(self) -> list[RuntimeCommand]:
        """The progress reports that are not recorded yet: all that may stand beside the end."""
        return [o.command() for o in self._made if isinstance(o, ProgressOperation)]

    # -- helpers --------------------------------------------------------------------------------

    def _awaited(self) -> list[Operation]:
        found: list[Operation] = [o for o in self.timers.values() if not o.dropped]
        found += [o for o in self.hooks.values() if not o.dropped]
        return found

    def _next(self) -> Operation | None:
        while self._made and self._made[0].dropped:
            self._made.popleft()
        return self._made[0] if self._made else None

    def _differs(self, event: FlowEventEnvelope, found: str) -> NoReturn:
        raise NonDeterministic(
            self.run_id,
            f"event {event.sequence} ({event.type}): expected {recorded_as(event)}, {found}",
        )


def _commands(
    snapshot: WorkflowRunSnapshot, operations: Sequence[Operation]
) -> list[RuntimeCommand]:
    found: list[RuntimeCommand] = []
    for kind, members in groupby(operations, key=type):
        group = list(members)
        if kind is not StepOperation:
            found.extend(operation.command() for operation in group)
            continue
        steps = [step for step in group if isinstance(step, StepOperation)]
        for step in steps:
            if step.recorded:
                known = snapshot.steps[step.id]
                step.adopt(known.retry, known.timeouts)
        if len(steps) == 1:
            found.append(steps[0].command())
        else:
            found.append(ScheduleSteps(steps=tuple(step.member() for step in steps)))
    return found
