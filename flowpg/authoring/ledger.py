"""The durable calls of one run, matched with what its history recorded, in the same order.

Workflow code makes calls; the history says in which order they were recorded. Both must agree: the
next recorded call is the oldest one that is not recorded yet. Otherwise the code takes another path
than it took before, and the run must not go on with it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import groupby
from typing import Any, NoReturn

from flowpg.authoring.operations import (
    HookOperation,
    Note,
    Operation,
    StepOperation,
    TimerOperation,
    recorded_as,
)
from flowpg.errors import NonDeterministic
from flowpg.model.codecs import NO_CODECS, STEP_INPUT, CodecChain
from flowpg.model.commands import RuntimeCommand, ScheduleSteps
from flowpg.model.events import (
    PATCH_RECORDED,
    RUN_ATTRIBUTES_SET,
    RUN_PROGRESS_RECORDED,
    STEP_CREATED,
    WAIT_CANCELLED,
)
from flowpg.model.records import AnyEvent
from flowpg.model.snapshot import WorkflowRunSnapshot

# A client reports progress too; a patch whose old branch is gone needs no call any more.
_TOLERATED = frozenset({RUN_PROGRESS_RECORDED, PATCH_RECORDED})


class Ledger:
    """Calls that are made and not recorded, calls that are recorded and open, and among those of
    the latter kind the ones that workflow code gave up and the history has not closed yet."""

    def __init__(self, run_id: str, codecs: CodecChain = NO_CODECS) -> None:
        self.run_id = run_id
        self._codecs = codecs
        self.steps: dict[str, StepOperation] = {}
        self.timers: dict[str, TimerOperation] = {}
        self.hooks: dict[str, HookOperation] = {}
        self._made: deque[Operation] = deque()
        self._given_up: dict[tuple[str, str], Operation] = {}

    # -- workflow code --------------------------------------------------------------------------

    def add(self, operation: Operation) -> None:
        """Workflow code made this call."""
        self._made.append(operation)

    def give_up(self, operation: Operation) -> None:
        """Nobody waits for this call any more: if the history holds it, it is to be closed. One
        that is given up before it is recorded never will be."""
        if operation.recorded and self._open(operation).pop(operation.id, None) is not None:
            self._given_up[operation.kind, operation.id] = operation

    # -- the history ----------------------------------------------------------------------------

    def record(self, event: AnyEvent, sequence: int, own: bool) -> None:
        """Event ``sequence`` recorded a call. NonDeterministic unless it is the next one made.
        ``own``: steps are of a decision of this very run, so defined as in the call."""
        operation = self._next()
        data = event.data
        if (
            type(operation) is StepOperation
            and event.type == STEP_CREATED
            and operation.id == data["step_id"]
            and (own or operation.difference(data) is None)
        ):
            self._made.popleft()
            operation.recorded = True
            self.steps[operation.id] = operation
            return
        if event.type in _TOLERATED and not (
            isinstance(operation, Note)
            and operation.event_type == event.type
            and operation.id == event.subject
        ):
            return
        if operation is None:
            self._differs(event, sequence, "but the code makes no further call")
        if not operation.records(event) or (
            operation.id != event.subject and event.type != RUN_ATTRIBUTES_SET
        ):
            self._differs(event, sequence, f"found {operation}, called at {operation.site}")
        difference = operation.difference(data)
        if difference is not None and isinstance(operation, StepOperation):
            difference = self._opened_difference(operation, event)
        if difference is not None:
            found = f"which {difference} than the call at {operation.site} has"
            self._differs(event, sequence, found)
        self._made.popleft()
        operation.recorded = True
        if isinstance(operation, StepOperation):
            self.steps[operation.id] = operation
        elif isinstance(operation, TimerOperation):
            self.timers[operation.id] = operation
        elif isinstance(operation, HookOperation):
            self.hooks[operation.id] = operation

    @property
    def asks(self) -> bool:
        """Whether a call was made that is not recorded yet, and somebody waits for."""
        return self._next() is not None

    def next_hook(self) -> HookOperation | None:
        """The oldest call that is not recorded, if it is a hook."""
        operation = self._next()
        return operation if type(operation) is HookOperation else None

    def take_step(self, step_id: str) -> StepOperation | None:
        """The step whose outcome the history holds, None if nobody waits for it."""
        if self._given_up:
            self._settled("step", step_id)
        step = self.steps.pop(step_id, None)
        if step is not None:
            step.future.operation = None
        return step

    def take_timer(self, wait_id: str) -> TimerOperation | None:
        """The timer that fired, None if nobody waits for it."""
        self._settled("timer", wait_id)
        return self.timers.pop(wait_id, None)

    def take_hook(self, hook_id: str) -> HookOperation | None:
        """The hook that was answered or disposed, None if nobody waits for it."""
        self._settled("hook", hook_id)
        hook = self.hooks.pop(hook_id, None)
        if hook is not None:
            hook.future.operation = None
        return hook

    def closed(self, event: AnyEvent, sequence: int) -> None:
        """Event ``sequence`` closed a call. NonDeterministic if the code still waits for it."""
        kind = "timer" if event.type == WAIT_CANCELLED else "step"
        subject = str(event.subject)
        self._settled(kind, subject)
        open_calls: dict[str, Any] = self.timers if kind == "timer" else self.steps
        operation = open_calls.get(subject)
        if operation is not None:
            raise NonDeterministic(
                self.run_id,
                f"event {sequence} ({event.type}): expected that {operation} is given up, "
                f"but the code still waits for it, called at {operation.site}",
            )

    def cancel_all(self) -> list[Operation]:
        """A cancellation request closed every open call; returns them, and those never recorded."""
        found: list[Operation] = [
            *self.steps.values(),
            *self.timers.values(),
            *self.hooks.values(),
            *(o for o in self._made if not isinstance(o, Note)),
        ]
        self._given_up.clear()
        self.steps.clear()
        self.timers.clear()
        self.hooks.clear()
        self._made = deque(o for o in self._made if isinstance(o, Note))
        return found

    def clear(self) -> None:
        """Let go of every call: the run is put aside."""
        for calls in (self.steps, self.timers, self.hooks, self._made, self._given_up):
            calls.clear()

    # -- the decision ---------------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        """Whether nothing is open and nothing new is asked for."""
        return not (self.steps or self.timers or self.hooks) and not self.asks

    def commands(self, snapshot: WorkflowRunSnapshot, everything: bool) -> Sequence[RuntimeCommand]:
        """What is given up, the open calls, and the new ones in the order in which they were made.

        Whoever drives on from its own last decision knows what is open; one open call then stands
        for all. ``everything`` names them all, so that a driver that takes over starts them again.
        """
        made = self._made
        if len(made) == 1 and not (everything or self._given_up or made[0].dropped):
            return (made[0].command(),)  # what nearly every turn asks for
        new = [operation for operation in made if not operation.dropped]
        opened: list[Operation] = [
            *self.steps.values(),
            *self.timers.values(),
            *self.hooks.values(),
        ]
        if not everything:
            opened = [] if new else opened[:1]
        return [*self.closings(), *_commands(snapshot, [*opened, *new])]

    def closings(self) -> list[RuntimeCommand]:
        """What workflow code gave up and the history has not closed yet. First of all: a new hook
        may want the token of an old one."""
        return [operation.closing() for operation in self._given_up.values()]

    def open_steps(self, snapshot: WorkflowRunSnapshot) -> list[RuntimeCommand]:
        """The steps that are at work, whether anybody waits for them or not."""
        return _commands(snapshot, list(self.steps.values()))

    def reports(self) -> list[RuntimeCommand]:
        """The notes that are not recorded yet, and what is given up: all that may stand beside
        the end."""
        return [o.command() for o in self._made if isinstance(o, Note)] + self.closings()

    # -- helpers --------------------------------------------------------------------------------

    def _open(self, operation: Operation) -> dict[str, Any]:
        if isinstance(operation, StepOperation):
            return self.steps
        return self.timers if isinstance(operation, TimerOperation) else self.hooks

    def _settled(self, kind: str, subject: str) -> None:
        if self._given_up:
            self._given_up.pop((kind, subject), None)

    def _next(self) -> Operation | None:
        made = self._made
        while made:
            operation = made[0]
            if not operation.dropped:
                return operation
            made.popleft()
        return None

    def _opened_difference(self, step: StepOperation, event: AnyEvent) -> str | None:
        # Sealed with another key, or by another chain, it may still be the same input.
        recorded = event.data["input"]
        opened = self._codecs.open(recorded, self.run_id, STEP_INPUT, step.id)
        difference = step.difference({**event.data, "input": opened}, opened=True)
        if difference is None:
            step.input = recorded
        return difference

    def _differs(self, event: AnyEvent, sequence: int, found: str) -> NoReturn:
        raise NonDeterministic(
            self.run_id,
            f"event {sequence} ({event.type}): expected {recorded_as(event)}, {found}",
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
