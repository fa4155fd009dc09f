"""One attempt of a step that its run has left to another queue, carried out here.

The handler code, the timeouts and the outcome are those of a step in its own run's process. Only
the event of the outcome is recorded here, with the fence of the task checked in that transaction;
what follows from it, an end of the run included, is decided by whoever drives the run.
"""

from __future__ import annotations

import asyncio
import logging
import random
from time import monotonic

from flowpg.engine.attempt_clock import Limits, not_begun
from flowpg.engine.bell import Bell
from flowpg.engine.errortext import describe
from flowpg.engine.handlers import Settled
from flowpg.engine.parts import DriveParts
from flowpg.engine.tip import RunTip
from flowpg.errors import (
    InvalidTransition,
    LeaseLost,
    RunNotFound,
    StoreUnavailable,
)
from flowpg.model.events import NewEvent
from flowpg.model.records import StepLease
from flowpg.model.snapshot import StepSnapshot, StepStatus
from flowpg.postgres.append_verbs import event_text
from flowpg.postgres.step_verbs import StepCompletion, settle_step
from flowpg.replay.outcomes import Failure, Outcome, settle, start_deadline
from flowpg.replay.plan import following
from flowpg.replay.runtime import StepInvocation
from flowpg.store.postgres import PostgresEventStore

logger = logging.getLogger("flowpg.engine.steps")

_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 2.0


class RoutedStep:
    """The attempt that a task stands for; ``run`` it once."""

    def __init__(self, parts: DriveParts, store: PostgresEventStore, lease: StepLease) -> None:
        self._parts = parts
        self._store = store
        self.lease = lease
        self._bell = Bell()
        self._over = False
        self.recording = False
        """Whether its outcome is being recorded: from here on the database decides."""

        self._handlers = parts.handlers(lease, self._bell.ring)

    def abandon(self) -> None:
        """Cancel the handler: nobody waits for it any more, or the task is somebody else's."""
        self._over = True
        self._handlers.abandon_all()
        self._bell.ring()

    async def run(self) -> bool:
        """Carry the attempt out and record its outcome; True if that removed the task, False if
        nobody waits for the attempt.

        Raises LeaseLost, EngineFault where this process cannot run the step, InvalidTransition
        for an outcome that the history does not allow, or StoreError. Cancelled, it waits for the
        handler to clean up.
        """
        try:
            return await self._run()
        finally:
            self._handlers.abandon_all()
            await self._handlers.gone(self._parts.options.cancel_grace)

    async def _run(self) -> bool:
        lease = self.lease
        try:
            tip = RunTip(await self._parts.store.load(lease.run_id))
        except RunNotFound:
            return False  # it was removed
        step = tip.snapshot.steps.get(lease.step_id)
        if tip.terminal or self._over or step is None:
            return False
        if step.status is not StepStatus.RUNNING or step.attempt != lease.attempt:
            return False
        settled = await self._carry_out(tip, step)
        if settled is None:
            return False
        if settled.committed is not None:
            await self._tell(settled.committed.sequence)
            return True
        if settled.fault is not None:
            raise settled.fault
        return settled.outcome is not None and await self._record(tip, settled.outcome)

    async def _carry_out(self, tip: RunTip, step: StepSnapshot) -> Settled | None:
        lease, limits = self.lease, self._limits(tip, step)
        if limits is not None and limits.to_start is not None and limits.to_start <= 0:
            failure = Failure(describe(not_begun(step)), retryable=False)
            return Settled(step.step_id, step.attempt, failure)
        invocation = StepInvocation(
            lease.run_id,
            step.step_id,
            step.attempt,
            step.step_name,
            step.input,
            tip.snapshot.spec.name,
        )
        invocation.task_id = lease.task_id
        self._handlers.launch(invocation, step.retry.attempts, limits, again=lease.again)
        while not self._handlers.settled:
            if self._over:
                return None
            await self._bell.wait(None)
        return self._handlers.take()[0]

    def _limits(self, tip: RunTip, step: StepSnapshot) -> Limits | None:
        launch = following(step, again=True)
        limits = tip.limits(step, launch)
        if limits is None or limits.to_start is None or self.lease.again:
            return limits
        # It has waited in the queue since its attempt was recorded.
        deadline = start_deadline(step)
        left = None if deadline is None else (deadline - tip.reckoned).total_seconds()
        return limits._replace(to_start=left)

    async def _record(self, tip: RunTip, outcome: Outcome) -> bool:
        lease = self.lease
        subject = tip.snapshot, lease.step_id, lease.attempt
        plan = settle(*subject, outcome, relaunch=False, now=tip.reckoned)
        event: NewEvent = plan.events[0]
        done = await self._settle(event_text(lease.run_id, event))
        if done.outcome == "appended":
            await self._tell(done.sequence)
            return True
        if done.outcome == "lease_lost":
            raise LeaseLost(lease.run_id, lease.epoch)
        if done.outcome == "invalid":
            raise InvalidTransition(
                done.reason or f"the outcome of step {lease.step_id!r} was refused",
                run_id=lease.run_id,
            )
        return False  # superseded, or its run has ended

    async def _settle(self, text: str) -> StepCompletion:
        """Once at most, however often it is sent: the first that commits removes the task."""
        since, pause = monotonic(), _FIRST_PAUSE
        self.recording = True
        while True:
            try:
                return await self._store.call(settle_step(self.lease, text))
            except StoreUnavailable as error:
                if monotonic() - since >= self._parts.options.lease.total_seconds():
                    raise
                logger.warning("the database is unavailable (%s); trying again", error)
                await asyncio.sleep(pause * random.uniform(0.5, 1.0))
                pause = min(_LONGEST_PAUSE, 2 * pause)

    async def _tell(self, sequence: int) -> None:
        gate = self._parts.gate
        if gate.active and sequence > 0:
            await gate.deliver(await self._store.history_page(self.lease.run_id, sequence - 1, 1))
