"""One run as this process sees it: its coroutine, and how far it has read the history.

Events are delivered one at a time, in the order of the log, each when nothing is ready any more,
and then the loop runs until nothing is ready again. So a race is won by the first event in the log,
in every replay. What is asked for at the end of the history is the decision.

Time is what the history vouches for at that moment, in this turn and in every replay: the start of
the run, the start of the attempt whose outcome arrives, the deadline of the timer that fired, the
arrival of an answer. The time at which an outcome is stored is unknown until it is stored, together
with the decision that it leads to.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextvars import Context
from datetime import datetime
from threading import get_ident
from time import monotonic
from typing import TYPE_CHECKING

from flowpg.authoring.calls import RunCalls
from flowpg.authoring.endings import Ending
from flowpg.authoring.errors import HookClosed, UndecodablePayload, WorkflowStuck
from flowpg.authoring.failures import FailureOrigin, read_failure
from flowpg.authoring.forgetting import forget
from flowpg.authoring.operations import StepOperation
from flowpg.authoring.unwinding import drop
from flowpg.authoring.watchdog import DEFAULT_RULES, Turn, TurnRules
from flowpg.errors import SerializationError
from flowpg.model import events, jsontext
from flowpg.model.commands import Decision
from flowpg.model.events import FlowEventEnvelope
from flowpg.model.jsontext import copied
from flowpg.replay.runtime import WorkflowInvocation

if TYPE_CHECKING:
    from flowpg.authoring.workflows import WorkflowDefinition

logger = logging.getLogger("flowpg.authoring")

DECISIONS = frozenset(
    {
        events.STEP_CREATED,
        events.STEP_CANCELLED,
        events.WAIT_CREATED,
        events.WAIT_CANCELLED,
        events.HOOK_CREATED,
        events.PATCH_RECORDED,
        events.RUN_ATTRIBUTES_SET,
        *events.TERMINAL_TYPES,
    }
)
"""Events that only a decision writes: whatever came before one was seen by workflow code."""


class RunTurns(RunCalls):
    """The parked coroutine of one run, and what it waits for."""

    def __init__(
        self,
        definition: WorkflowDefinition,
        invocation: WorkflowInvocation,
        rules: TurnRules = DEFAULT_RULES,
    ) -> None:
        super().__init__(invocation)
        self.definition = definition
        self.thread = get_ident()
        self.turn = Turn(invocation.run_id, definition.spec.name, rules)
        self.ending = Ending(self)
        self.started_at: datetime
        self.moment: datetime
        self.cancellation_reason: str | None = None
        self.cancelling = False
        self.consumed = 0
        self._input = invocation.input
        self._begun = False
        self._attempts: dict[str, FlowEventEnvelope] = {}
        # Events of the latest turn: they were folded before they were stored, so another process
        # or a conflict may have put others in their place.
        self._unconfirmed: list[FlowEventEnvelope] = []

    # -- the decision ---------------------------------------------------------------------------

    def continues(self, history: Sequence[FlowEventEnvelope]) -> bool:
        """Whether ``history`` begins with everything this coroutine has seen."""
        if len(history) < self.consumed:
            return False
        return self._same_tip(history) or all(
            event.type == history[event.sequence - 1].type
            and jsontext.equal(event.data, history[event.sequence - 1].data)
            for event in self._unconfirmed
        )

    def advance(self, invocation: WorkflowInvocation, seen: int) -> Decision:
        """Deliver what is new and return what the workflow asks for.

        Nothing is said (logged) about events up to sequence ``seen``: they were seen before.
        Raises NonDeterministic, UndecodablePayload or WorkflowStuck.
        """
        history = invocation.history
        goes_on = self._same_tip(history)
        self.snapshot = invocation.snapshot
        new = history[self.consumed :]
        self.decided = max(self.decided, _last_decision(new))
        seen = max(seen, self.decided)
        with self.loop:
            # Inside the loop's own block: whatever is raised, the thread is given back in order.
            self.turn.run(lambda: self._deliver(new, seen))
        self._unconfirmed = list(new) or self._unconfirmed
        if self.ending.reached:
            return self.ending.decision(invocation.snapshot)
        if self.ledger.idle:
            raise WorkflowStuck(
                self.run_id,
                "the workflow waits, and no step, timer or hook is open that could wake it",
            )
        return tuple(self.ledger.commands(invocation.snapshot, not goes_on))

    def forget(self) -> None:
        """Drop the coroutine without running any of its code."""
        loop = self.loop
        loop.dropped = True
        strands = forget(task.get_coro() for task in loop.live_tasks())
        for task in loop.tasks:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        loop.tasks.clear()
        self.ending.main = None
        for strand in strands:
            drop(strand)

    def _deliver(self, new: Sequence[FlowEventEnvelope], seen: int) -> None:
        for event in new:
            self.turn.began = monotonic()
            self.loop.replaying = event.sequence <= seen
            deliver = _DELIVERIES.get(event.type)
            if deliver is not None:
                deliver(self, event)
            self.consumed = event.sequence
        if not self._begun:
            self._begin()

    def _same_tip(self, history: Sequence[FlowEventEnvelope]) -> bool:
        # The very event that was delivered last: the driver went on from this run's own decision.
        last = self._unconfirmed[-1] if self._unconfirmed else None
        return (
            last is not None
            and len(history) >= self.consumed
            and history[last.sequence - 1] is last
        )

    # -- deliveries -----------------------------------------------------------------------------

    def _created(self, event: FlowEventEnvelope) -> None:
        self.started_at = self.moment = event.recorded_at

    def _started(self, event: FlowEventEnvelope) -> None:
        if not self._begun:
            self._begin()

    def _begin(self) -> None:
        self._begun = True
        try:
            coroutine = self.definition.coroutine(self._input)
        except SerializationError as error:
            self.ending.refuse(error)
            return
        self.ending.main = self.loop.create_main_task(coroutine, Context())
        if not self.cancelling:
            self._run()

    def _recorded(self, event: FlowEventEnvelope) -> None:
        self.ledger.record(event)

    def _attempted(self, event: FlowEventEnvelope) -> None:
        self._attempts[event.data["step_id"]] = event

    def _step_completed(self, event: FlowEventEnvelope) -> None:
        step = self._settled(event)
        if step is None:
            return
        try:
            value = step.decode(event.data["output"])
        except SerializationError as error:
            raise UndecodablePayload(f"run {self.run_id!r}: {error}") from None
        if not step.future.done():
            step.future.set_result(value)
        self._run()

    def _step_failed(self, event: FlowEventEnvelope) -> None:
        step = self._settled(event)
        if step is None:
            return
        if not step.future.done():
            origin = FailureOrigin(step.id, step.name, event.data["attempt"])
            step.future.set_exception(_raisable(read_failure(event.data["error"], origin)))
        self._run()

    def _settled(self, event: FlowEventEnvelope) -> StepOperation | None:
        step = self.ledger.take_step(event.data["step_id"])
        attempt = self._attempts.pop(event.data["step_id"], None)
        if attempt is not None:
            # Its handler began after this was stored, so this time is final.
            self._reach(attempt.recorded_at)
        return step

    def _timer_fired(self, event: FlowEventEnvelope) -> None:
        timer = self.ledger.take_timer(event.data["wait_id"])
        self._reach(self.snapshot.waits[event.data["wait_id"]].resume_at)
        if timer is not None:
            timer.fire()
            self._run()

    def _closed(self, event: FlowEventEnvelope) -> None:
        self.ledger.closed(event)

    def _hook_received(self, event: FlowEventEnvelope) -> None:
        hook = self.ledger.take_hook(event.data["hook_id"])
        self._reach(event.recorded_at)
        if hook is None or hook.future.done():
            return
        try:
            hook.future.set_result(hook.decode(copied(event.data["payload"])))
        except SerializationError as error:
            hook.future.set_exception(error)
            hook.future.exception()
        self._run()

    def _hook_disposed(self, event: FlowEventEnvelope) -> None:
        hook = self.ledger.take_hook(event.data["hook_id"])
        if self.snapshot.hooks[event.data["hook_id"]].expires_at is None:
            self._reach(event.recorded_at)
        if hook is not None and not hook.future.done():
            hook.future.set_exception(HookClosed(hook.id))
            hook.future.exception()  # a hook that is open need not be awaited
            self._run()

    def _cancellation_requested(self, event: FlowEventEnvelope) -> None:
        self._reach(event.recorded_at)
        self.cancelling = True
        reason = event.data["request"].get("reason")
        self.cancellation_reason = reason
        if not self._begun:
            self._begin()
        closed = self.ledger.cancel_all()
        self.ending.cancel(reason)
        self._run()
        # What the workflow itself did not wait for, such as a shielded step, is closed as well:
        # its outcome never comes. Whoever waits for it is told after the workflow was.
        for operation in closed:
            if operation.future is not None and not operation.future.done():
                operation.future.cancel(reason)
        self._run()

    def _run(self) -> None:
        self.loop.run_ready()
        self.ending.look()

    def _reach(self, moment: datetime) -> None:
        if moment > self.moment:
            self.moment = moment
            self.loop.seconds = (moment - self.started_at).total_seconds()


def _last_decision(new: Sequence[FlowEventEnvelope]) -> int:
    for event in reversed(new):
        if event.type in DECISIONS:
            return event.sequence
    return 0


def _raisable(error: BaseException) -> BaseException:
    # A future cannot hold this one: it would end the coroutine that awaits it.
    if isinstance(error, StopIteration):
        replaced = RuntimeError("a step raised StopIteration")
        replaced.__cause__ = error
        return replaced
    return error


_DELIVERIES: dict[str, Callable[[RunTurns, FlowEventEnvelope], None]] = {
    events.RUN_CREATED: RunTurns._created,
    events.RUN_STARTED: RunTurns._started,
    events.STEP_CREATED: RunTurns._recorded,
    events.WAIT_CREATED: RunTurns._recorded,
    events.HOOK_CREATED: RunTurns._recorded,
    events.RUN_PROGRESS_RECORDED: RunTurns._recorded,
    events.RUN_ATTRIBUTES_SET: RunTurns._recorded,
    events.PATCH_RECORDED: RunTurns._recorded,
    events.STEP_STARTED: RunTurns._attempted,
    events.STEP_COMPLETED: RunTurns._step_completed,
    events.STEP_FAILED: RunTurns._step_failed,
    events.STEP_NON_RETRYABLE: RunTurns._step_failed,
    events.STEP_CANCELLED: RunTurns._closed,
    events.WAIT_COMPLETED: RunTurns._timer_fired,
    events.WAIT_CANCELLED: RunTurns._closed,
    events.HOOK_RECEIVED: RunTurns._hook_received,
    events.HOOK_DISPOSED: RunTurns._hook_disposed,
    events.RUN_CANCELLATION_REQUESTED: RunTurns._cancellation_requested,
}
