"""Driving one run under a lease: fold, replay, commit, run steps, and again.

A step's outcome and the decision that follows from it go into one append, and a handler starts only
after the append that holds its ``step_started``. So a sequential step costs one append, and a crash
between any two lines here loses nothing but work that is done again.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from flowpg.engine.bell import Bell
from flowpg.engine.commit import concede, fault_of
from flowpg.engine.handlers import Settled
from flowpg.engine.launching import abandon_closed, launch
from flowpg.engine.leaving import leave
from flowpg.engine.parts import DriveParts
from flowpg.engine.routing import Routes
from flowpg.engine.tip import RunTip
from flowpg.engine.transactional import Committed
from flowpg.engine.turn import take_turn
from flowpg.errors import (
    EngineFault,
    FlowError,
    InvalidTransition,
    LeaseLost,
    NonDeterministic,
    ReplayLimitExceeded,
    UnknownWorkflow,
)
from flowpg.model import events
from flowpg.model.events import step_completed
from flowpg.model.records import AppendOutcome, AppendResult, Heartbeat, LoadedRun, RunLease
from flowpg.model.snapshot import RunStatus, StepStatus, WorkflowRunSnapshot
from flowpg.replay.outcomes import Success, settle
from flowpg.replay.plan import Route, StepLaunch
from flowpg.replay.runtime import serves


class RunDrive:
    """One drive of one run, from taking the lease to giving it back."""

    def __init__(self, parts: DriveParts, lease: RunLease) -> None:
        self._parts = parts
        self._options = parts.options
        self._lease = lease
        self._store = parts.store
        self._bell = Bell()
        self._handlers = parts.handlers(lease, self._bell.ring)
        self._routes = Routes(parts.store, lease.run_id)
        self._tip: RunTip
        self._parked: RunTip | None = None  # where an earlier drive of this process left the run
        self._outcomes: list[Settled] = []  # settled, and not yet part of the stored history
        self._observed = 0  # the sequence up to which the latest replay has seen the run
        self._replays = 0  # since the last step outcome or news from outside
        self._head = -1  # the newest sequence known to be stored
        self._stop: FlowError | None = None  # why workflow code is not asked any more
        self._halted = False  # it is not asked any more: what is at work is only brought home
        self._stale = True
        self._untold = 0  # newest events that steps stored themselves, and no observer knows
        self._fresh = True  # nothing was made of the history since it was loaded
        self._lost = False
        self._owned = True
        self.over = False  # the run had ended already, and its history could not be read

    @property
    def run_id(self) -> str:
        """The run being driven."""
        return self._lease.run_id

    @property
    def tip(self) -> RunTip:
        """Where a drive that has ended left the run."""
        return self._tip

    @property
    def resting(self) -> bool:
        """Whether nothing happens until a step settles, a deadline passes, or news come."""
        return self._bell.waited_on

    def seconds_to_deadline(self) -> float | None:
        """As ``RunTip.seconds_to_deadline``, steps of other queues included."""
        return self._tip.seconds_to_deadline(self._routes.next_deadline)

    def poke(self) -> None:
        """Something was appended to the run by someone else: look again soon."""
        self._stale = True
        self._bell.ring()

    def drain(self) -> None:
        """Finish the steps at work, decide nothing new, and give the run back."""
        self._halted = True
        self._bell.ring()

    def abandon(self) -> None:
        """Cancel the steps at work, decide nothing new, and give the run back."""
        self._handlers.abandon_all()
        self.drain()

    async def run(
        self, loaded: LoadedRun | None, as_of: datetime | None, parked: RunTip | None = None
    ) -> WorkflowRunSnapshot:
        """Drive until the run has ended or waits for something from outside.

        ``loaded`` is its history, if that was read under this lease already, or what came after the
        tip ``parked``. Deadlines up to ``as_of`` count as passed if they stand in the history now.

        Raises the fault that keeps this process from driving the run (it is then blocked, with all
        stored that had happened), LeaseLost, or StoreError.
        """
        self._parked, self._routes.doubts = parked, parked is None
        self._parts.keeper.hold(self._lease, self._heard)
        try:
            snapshot = await self._drive(loaded, as_of)
            await self._routes.settle_status(self._tip)
        except BaseException as error:
            await self._leave(error)
            raise
        await self._leave(None)
        return snapshot

    async def _leave(self, error: BaseException | None) -> None:
        at_work = self._parts, self._lease, self._handlers
        self.over = await leave(*at_work, error, owned=self._owned)

    # -- the loop -------------------------------------------------------------------------------

    async def _drive(self, loaded: LoadedRun | None, as_of: datetime | None) -> WorkflowRunSnapshot:
        while True:
            if self._lost:
                self._owned = False
                raise LeaseLost(self.run_id, self._lease.epoch)
            if self._handlers.settled:
                self._take_outcomes()
                if self._untold:
                    await self._tell()
            if self._stale:
                await self._load(loaded)
                loaded = None
            if self._routes.next_deadline is not None and await self._expire(as_of):
                continue
            launches = await self._advance(as_of)
            tip = self._tip
            elsewhere = any(step.queue for step in launches)
            routed = await self._routes.take(launches, tip) if elsewhere else ()
            release = self._may_release(tip, launches)
            if tip.pending or release:
                if not await self._commit(launches, release, routed):
                    continue
                if tip.terminal or not self._owned:
                    return tip.snapshot
            elif launches:
                launch(self._handlers, tip, launches)  # their start was stored before
            as_of = None
            self._outcomes.clear()
            if self._halted and not self._handlers.busy:
                if self._stop is not None:
                    raise self._stop
                return tip.snapshot
            await self._wait()

    async def _load(self, loaded: LoadedRun | None) -> None:
        self._stale = False
        self._fresh = True
        parked, self._parked = self._parked, None
        if loaded is None or (loaded.after and not (parked and parked.resume(loaded))):
            loaded = await self._store.load(self.run_id)
        self._lease.wakes = loaded.wakes
        self._tip = parked if parked and loaded.after else RunTip(loaded)
        self._observed = 0
        if self._tip.stored > self._head:
            self._head = self._tip.stored
            self._replays = 0
        for step_id, attempt in self._handlers.running():
            step = self._tip.snapshot.steps.get(step_id)
            if step is None or step.status is not StepStatus.RUNNING or step.attempt != attempt:
                self._handlers.abandon(step_id)
        self._routes.watch(self._tip)

    async def _expire(self, as_of: datetime | None) -> bool:
        """See to the steps of other queues that nobody took in time; whether there is news."""
        tip = self._tip
        now = tip.now if as_of is None else max(as_of, tip.now)
        expired = None if self._halted else await self._routes.expire(tip, now)
        if expired is None:
            return False
        await self._load(None)
        if expired and self._parts.gate.active:
            news = (event for event in self._tip.history[tip.stored :] if event.subject in expired)
            await self._parts.gate.deliver(news)
        return True

    async def _advance(self, as_of: datetime | None) -> list[StepLaunch]:
        """Fold what has happened and what workflow code makes of it; returns steps to launch."""
        tip = self._tip
        if tip.terminal:
            return []
        now = tip.now if as_of is None else max(as_of, tip.now)
        if self._fresh and not self._halted:
            self._take_up(tip)
        if tip.suspends and not self._halted and tip.fold_due(now):
            self._observed = 0
        launches = self._fold_outcomes(tip)
        if not self._halted and self._replay_due:
            launches += await self._replay(tip, now)
            if self._halted and self._stop is not None and launches:
                # Code that cannot go on burns no attempts: fold again, without those to follow.
                await self._load(None)
                return self._fold_outcomes(self._tip)
        return launches

    def _take_up(self, tip: RunTip) -> None:
        """Begin with what was loaded, if this process may drive it."""
        spec = tip.snapshot.spec
        try:
            self._options.admit(self.run_id, spec.runtime_build)
            if not serves(self._parts.runtime, spec.name):
                raise UnknownWorkflow(spec.name)
        except EngineFault as fault:
            self._halt(fault)
            return
        self._fresh = False
        if tip.snapshot.status is RunStatus.PENDING:
            tip.fold([events.run_started()])
        tip.fold_repairs()

    def _take_outcomes(self) -> None:
        for settled in self._handlers.take():
            if settled.outcome is not None:
                self._outcomes.append(settled)
            elif settled.committed is not None:
                self._learn(settled.committed)
            elif isinstance(settled.fault, LeaseLost):
                self._lost = True
            elif settled.fault is not None:
                self._halt(settled.fault)
            else:
                self._stale = True  # the history has gone another way

    def _learn(self, done: Committed) -> None:
        """A step stored its completion itself."""
        self._replays = 0
        self._handlers.forget(self.run_id, done.step_id)
        tip = self._tip
        if self._stale or tip.pending or tip.terminal or done.sequence != tip.stored + 1:
            self._stale = True  # there is more to be read than that
            return
        tip.fold([step_completed(done.step_id, done.output.output)])
        tip.committed(done.recorded_at)
        self._head = tip.stored
        self._untold += self._parts.gate.active

    async def _tell(self) -> None:
        told, self._untold = self._untold, 0
        await self._parts.gate.deliver(self._tip.history.latest(told))

    def _fold_outcomes(self, tip: RunTip) -> list[StepLaunch]:
        launches: list[StepLaunch] = []
        if self._handlers.settled:
            self._take_outcomes()
        for settled in self._outcomes:
            outcome = settled.outcome
            if outcome is not None and not tip.terminal:
                subject = tip.snapshot, settled.step_id, settled.attempt
                now = None if type(outcome) is Success else tip.reckoned
                plan = settle(*subject, outcome, relaunch=not self._halted, now=now)
                if plan.events:
                    tip.fold(plan.events)
                    launches += plan.launches
                    self._replays = 0
                    if self._handlers.remembers and plan.events[0].type != events.STEP_RETRYING:
                        self._handlers.forget(self.run_id, settled.step_id)
        return launches

    async def _replay(self, tip: RunTip, now: datetime) -> list[StepLaunch]:
        if self._replays >= self._options.max_replays:
            self._halt(ReplayLimitExceeded(self.run_id, self._options.max_replays))
            return []
        seen = tip.snapshot.last_sequence
        try:
            plan = await take_turn(self._parts.runtime, tip, now)
        except (EngineFault, NonDeterministic, InvalidTransition) as fault:
            self._halt(fault)
            if tip.pending and tip.pending[0].type == events.RUN_STARTED:
                tip.drop_pending()  # nobody has taken this run up
            return []
        self._replays = 0 if plan.refused else self._replays + 1
        tip.fold(plan.events)
        launches = plan.launches
        if tip.suspends:
            launches += tip.fold_retries(now)
        self._observed = seen if plan.news else tip.snapshot.last_sequence
        return launches

    def _halt(self, fault: FlowError) -> None:
        """Ask workflow code no more; the first fault is the one that counts."""
        self._halted = True
        self._stop = self._stop or fault

    @property
    def _replay_due(self) -> bool:
        tip = self._tip
        return tip.snapshot.last_sequence > self._observed and not tip.terminal

    def _may_release(self, tip: RunTip, launches: Sequence[StepLaunch]) -> bool:
        if launches or self._handlers.busy:
            return tip.terminal
        return tip.terminal or not (
            self._halted or self._replay_due or (tip.suspends and tip.something_is_due())
        )

    # -- storing --------------------------------------------------------------------------------

    async def _commit(
        self, launches: Sequence[StepLaunch], release: bool, routed: Sequence[Route]
    ) -> bool:
        """Store what is folded, then launch. False if it was refused: the run is to be loaded."""
        tip = self._tip
        if not tip.pending and tip.terminal:
            self._owned = not await self._store.release(self._lease)
            return True
        routed = () if tip.terminal else routed
        result = await self._store.append(tip, self._lease, release, routed)
        while concede(tip, result):
            release, self._observed = False, 0  # it is news: the workflow is to be asked again
            result = await self._store.append(tip, self._lease, release, routed)
        if not result.appended:
            self._refused(result)
            return False
        stored = tip.pending
        tip.committed(result.recorded_at)
        self._head = tip.stored
        if self._handlers.busy:
            abandon_closed(self._handlers, stored)
        if launches:
            launch(self._handlers, tip, launches)
        if routed:
            self._routes.watch(tip)
        if release:
            self._owned = not result.released
            if self._owned and not tip.terminal:
                self._woken(result.wakes)
        if self._parts.gate.active:
            await self._parts.gate.deliver(tip.history.latest(len(stored)))
        return True

    def _woken(self, wakes: int) -> None:
        # Events would have been a conflict; it was woken without one, or by one seen already.
        if wakes <= self._lease.wakes:
            self._owned = False
        self._lease.wakes = wakes
        self._observed = 0

    def _refused(self, result: AppendResult) -> None:
        """Learn from a refusal: the history is read again, what was settled is kept."""
        self._stale = True
        if result.outcome in (AppendOutcome.EVENT_CONFLICT, AppendOutcome.RUN_TERMINAL):
            return
        fault = fault_of(result, self._tip)
        if result.outcome in (AppendOutcome.LEASE_LOST, AppendOutcome.RUN_NOT_FOUND):
            self._owned = False
            raise fault
        if self._stop is not None:
            raise fault
        self._halt(fault)

    # -- waiting --------------------------------------------------------------------------------

    async def _wait(self) -> None:
        """Until a handler settles, the run is woken, a deadline passes, or the lease is lost."""
        handlers = self._handlers
        if self._stale or self._lost or handlers.settled or not handlers.busy:
            return
        seconds: float | None = None
        if not self._halted:
            if self._replay_due:
                return
            if self._tip.suspends or self._routes.next_deadline is not None:
                seconds = self.seconds_to_deadline()
        if await self._bell.wait(seconds):
            await self._store.read_clock(self._tip)

    def _heard(self, beat: Heartbeat) -> None:
        if not beat.held:
            self._lost = True
        elif beat.wakes > self._lease.wakes:
            self._stale = True
        else:
            return
        self._bell.ring()
