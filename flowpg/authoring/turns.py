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

from collections.abc import Callable, Sequence
from contextvars import Context
from datetime import datetime
from threading import get_ident
from time import monotonic
from typing import TYPE_CHECKING, Any

from flowpg.authoring.calls import RunCalls
from flowpg.authoring.endings import Ending
from flowpg.authoring.errors import HookClosed, WorkflowStuck
from flowpg.authoring.failures import FailureOrigin, raisable, read_failure
from flowpg.authoring.forgetting import forget
from flowpg.authoring.operations import KINDS, StepOperation
from flowpg.authoring.seen import last_decision
from flowpg.authoring.unwinding import drop
from flowpg.authoring.watchdog import DEFAULT_RULES, Turn, TurnRules
from flowpg.errors import SerializationError, UndecodablePayload
from flowpg.model import events, jsontext
from flowpg.model.codecs import (
    NO_CODECS,
    RUN_INPUT,
    STEP_ERROR,
    STEP_OUTPUT,
    CodecChain,
    is_sealed,
)
from flowpg.model.commands import Decision
from flowpg.model.events import FlowEventEnvelope, NewEvent
from flowpg.model.jsontext import copied
from flowpg.model.records import AnyEvent
from flowpg.replay.runtime import WorkflowInvocation

if TYPE_CHECKING:
    from flowpg.authoring.workflows import WorkflowDefinition


class RunTurns(RunCalls):
    """The parked coroutine of one run, and what it waits for."""

    def __init__(
        self,
        definition: WorkflowDefinition,
        invocation: WorkflowInvocation,
        rules: TurnRules = DEFAULT_RULES,
        codecs: CodecChain = NO_CODECS,
    ) -> None:
        super().__init__(invocation, codecs)
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
        # What is being delivered, and the sequence of its first event.
        self._arriving: tuple[Sequence[AnyEvent], int] = (), 1
        self._attempts: dict[str, AnyEvent] = {}
        # Events of the latest turn, which follow those that were confirmed: they were folded before
        # they were stored, so another process or a conflict may have put others in their place.
        self._unconfirmed: Sequence[AnyEvent] = ()
        self._confirmed = 0
        # What follows, where the driver went on from the latest decision of this coroutine, and by
        # what its history knows that.
        self._following: Sequence[AnyEvent] | None = None
        self._stretch: object = None

    # -- the decision ---------------------------------------------------------------------------

    def continues(self, history: Sequence[FlowEventEnvelope]) -> bool:
        """Whether ``history`` begins with everything this coroutine has seen."""
        following: Any = getattr(history, "following", None)
        if following is not None:
            self._following = following(self._stretch, self.consumed)
            if self._following is not None:
                return True
        return len(history) >= self.consumed and all(
            event.type == stored.type and jsontext.equal(event.data, stored.data)
            for event, stored in zip(
                self._unconfirmed, history[self._confirmed : self.consumed], strict=False
            )
        )

    def advance(self, invocation: WorkflowInvocation, seen: int) -> Decision:
        """Deliver what is new and return what the workflow asks for.

        Nothing is said (logged) about events up to sequence ``seen``: they were seen before.
        Raises NonDeterministic, UndecodablePayload or WorkflowStuck.
        """
        new, self._following = self._following, None
        goes_on = new is not None
        snapshot = self.snapshot = invocation.snapshot
        if new is None:
            new = invocation.history[self.consumed :]
            self._stretch = getattr(invocation.history, "stretch", None)
        before = self.consumed
        # What this drive alone has added begins with this run's own decision, which is over.
        own = goes_on and bool(new) and type(new[0]) is NewEvent
        if not own:
            self.decided = max(self.decided, last_decision(new, before))
        if seen < self.decided:
            seen = self.decided
        # The turn is inside of that: whatever is raised, the thread is given back in order.
        self.loop.take_over(self.turn, self._deliver, (new, seen, own))
        if new:
            self._unconfirmed, self._confirmed = new, before
        ending = self.ending
        if (ending.main is None or ending.main.done()) and ending.reached:
            return ending.decision(snapshot)
        commands = self.ledger.commands(snapshot, not goes_on)
        if not commands and self.ledger.idle:
            raise WorkflowStuck(
                self.run_id,
                "the workflow waits, and no step, timer or hook is open that could wake it",
            )
        return tuple(commands)

    def forget(self) -> None:
        """Drop the coroutine without running any of its code."""
        loop = self.loop
        loop.dropped = True
        alive = loop.live_tasks()
        strands = forget(task.get_coro() for task in alive) if alive else ()
        for task in loop.tasks:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        loop.tasks.clear()
        self.ending.main = None
        for strand in strands:
            drop(strand)
        # They refer to this run: without them it is gone at once, and leaves no garbage to collect.
        self.ledger.clear()
        del self.loop, self.ending, self.claims

    def _deliver(self, given: tuple[Sequence[AnyEvent], int, bool]) -> None:
        new, seen, own = given
        self._arriving = new, self.consumed + 1
        loop = self.loop
        for sequence, event in enumerate(new, self.consumed + 1):
            kind = event.type
            if kind == events.STEP_STARTED:
                self._attempts[event.data["step_id"]] = event
            elif kind in _RECORDS:
                loop.replaying = sequence <= seen
                self._recorded(event, sequence, own)
            else:
                loop.replaying = sequence <= seen
                deliver = _DELIVERIES.get(kind)
                if deliver is not None:
                    deliver(self, event)
            self.consumed = sequence
        if not self._begun:
            self._begin()

    # -- deliveries -----------------------------------------------------------------------------

    def _created(self, event: FlowEventEnvelope) -> None:
        self.started_at = self.moment = event.recorded_at

    def _started(self, event: AnyEvent) -> None:
        if not self._begun:
            self._begin()

    def _begin(self) -> None:
        self._begun = True
        try:
            given = self.codecs.open(self._input, self.run_id, RUN_INPUT)
            coroutine = self.definition.coroutine(given)
        except SerializationError as error:
            self.ending.refuse(error)
            return
        self.ending.main = self.loop.create_main_task(coroutine, Context())
        if not self.cancelling:
            self._run()

    def _recorded(self, event: AnyEvent, sequence: int, own: bool) -> None:
        if not self.claims.open and event.type != events.HOOK_CONFLICTED:
            self.ledger.record(event, sequence, own)
            return
        while self.claims.never_recorded(event, self.snapshot.hooks):
            self._run()
        self.ledger.record(event, sequence, own)
        self.consumed = sequence  # whoever is told now knows of it
        if event.type in _HOOKS:
            self.claims.record(event)
        new, first = self._arriving
        following = sequence + 1 - first
        if following < len(new) and new[following].type == events.PATCH_RECORDED:
            # Of the same decision, though a replay that knows the mark makes no call for it.
            return
        for event in self.claims.tell():
            # It was stored before it was delivered, so this time is final.
            self._reach(event.recorded_at)
            self._run()

    def _step_completed(self, event: AnyEvent) -> None:
        data = event.data
        step = self._settled(data["step_id"])
        if step is None:
            return
        try:
            output = data["output"]
            if type(output) is dict and "$" in output and is_sealed(output):
                output = self.codecs.open(output, self.run_id, STEP_OUTPUT, step.id)
            value = step.step.codec.decode_result(output)
        except SerializationError as error:
            raise UndecodablePayload(f"run {self.run_id!r}: {error}") from None
        if not step.future.done():
            step.future.set_result(value)
        self._run()

    def _step_failed(self, event: AnyEvent) -> None:
        step = self._settled(event.data["step_id"])
        if step is None:
            return
        if not step.future.done():
            origin = FailureOrigin(step.id, step.name, event.data["attempt"])
            error = self.codecs.open_error(event.data["error"], self.run_id, STEP_ERROR, step.id)
            step.future.set_exception(raisable(read_failure(error, origin)))
        self._run()

    def _settled(self, step_id: str) -> StepOperation | None:
        attempt = self._attempts.pop(step_id, None)
        began = None if attempt is None else attempt.recorded_at
        if began is not None and began > self.moment:
            # Its handler began after this was stored, so this time is final.
            self.moment = began
        return self.ledger.take_step(step_id)

    def _timer_fired(self, event: AnyEvent) -> None:
        timer = self.ledger.take_timer(event.data["wait_id"])
        self._reach(self.snapshot.waits[event.data["wait_id"]].resume_at)
        if timer is not None:
            timer.fire()
            self._run()

    def _closed(self, event: AnyEvent) -> None:
        self.ledger.closed(event, self.consumed + 1)

    def _hook_received(self, event: FlowEventEnvelope) -> None:
        hook = self.ledger.take_hook(event.data["hook_id"])
        self._reach(event.recorded_at)
        if hook is None or hook.future.done():
            return
        try:
            sealed = event.data["payload"]
            payload = self.codecs.open_answer(sealed, self.run_id, hook.id, hook.token)
            hook.future.set_result(hook.decode(copied(payload)))
        except SerializationError as error:
            hook.future.set_exception(error)
            hook.future.exception()
        self._run()

    def _hook_disposed(self, event: AnyEvent) -> None:
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
            operation.cancel(reason)
        self._run()

    def _run(self) -> None:
        self.turn.began = monotonic()  # a replay of many short turns is none that is long
        self.loop.run_ready()
        main = self.ending.main
        if main is not None and main.done():
            self.ending.look()

    def _reach(self, moment: datetime | None) -> None:
        if moment is not None and moment > self.moment:
            self.moment = moment

    @property
    def seconds(self) -> float:
        """Time since the run was created, as far as the delivered events tell."""
        return (self.moment - self.started_at).total_seconds()


_HOOKS = frozenset({events.HOOK_CREATED, events.HOOK_CONFLICTED})
_RECORDS = frozenset(KINDS)
_DELIVERIES: dict[str, Callable[[RunTurns, Any], None]] = {
    events.RUN_CREATED: RunTurns._created,
    events.RUN_STARTED: RunTurns._started,
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
