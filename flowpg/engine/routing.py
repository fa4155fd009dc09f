"""Which steps of a run its driver leaves to workers of another queue, and until when."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import NamedTuple

from flowpg.engine.attempt_clock import not_begun, spent
from flowpg.engine.commit import PatientStore
from flowpg.engine.errortext import describe
from flowpg.engine.tip import RunTip
from flowpg.errors import InvalidTransition, StepTimeout
from flowpg.model.events import STEP_CREATED
from flowpg.model.snapshot import RunStatus, StepSnapshot, StepStatus
from flowpg.postgres.append_verbs import event_text
from flowpg.postgres.step_verbs import Overdue
from flowpg.replay.outcomes import Failure, close_deadline, settle, start_deadline
from flowpg.replay.plan import Route, StepLaunch

logger = logging.getLogger("flowpg.engine.steps")


class Deadlines(NamedTuple):
    """Until when an attempt is to be taken by a worker, and its step is to have ended; None where
    there is no limit, or where it has been seen to."""

    step_id: str
    attempt: int
    begins: datetime | None
    closes: datetime | None

    @property
    def next(self) -> datetime | None:
        """The earlier of the two."""
        return min((time for time in (self.begins, self.closes) if time is not None), default=None)

    def taken(self, now: datetime) -> Deadlines:
        """What is left at ``now`` once a worker has the attempt."""
        closes = self.closes if self.closes is not None and self.closes > now else None
        return self._replace(begins=None, closes=closes)


class Routes:
    """Of one drive. A store without a queue of tasks leaves nothing to anybody: whoever drives the
    run then runs all of its steps."""

    def __init__(self, store: PatientStore, run_id: str) -> None:
        self._store = store
        self._run_id = run_id
        self._watched: list[Deadlines] = []
        self.next_deadline: datetime | None = None
        """The earliest at which a step of another queue may have failed."""

        self.doubts = True
        """Whether tasks of attempts that were begun before may be missing, as in a history that was
        imported. Not where this process has driven the run before."""

    async def take(self, launches: list[StepLaunch], tip: RunTip) -> list[Route]:
        """Take those out of ``launches`` that are not to be launched here, and return the ones to
        make a task of. An attempt that was begun before has its task already."""
        if not self._store.routes:
            return []
        own = await self._own_queue(tip)
        elsewhere = [step for step in launches if step.queue not in (None, own)]
        launches[:] = [step for step in launches if step.queue in (None, own)]
        begun = [step for step in elsewhere if step.again]
        if begun and self.doubts:
            self.doubts = False
            await self._store.ensure_tasks(self._run_id, [_begun(step, tip) for step in begun])
        return [_begins(step, tip) for step in elsewhere if not step.again]

    async def settle_status(self, tip: RunTip) -> None:
        """Let a run that only waits for steps of other queues be suspended, as its row says."""
        run = tip.snapshot
        if run.status is RunStatus.RUNNING and self._store.routes:
            waiting = [step for step in run.open.steps.values() if _may_be_elsewhere(step)]
            own = await self._own_queue(tip) if waiting else None
            if any(step.queue != own for step in waiting):
                run.status = RunStatus.SUSPENDED

    # -- deadlines ------------------------------------------------------------------------------

    def watch(self, tip: RunTip) -> None:
        """Note the deadlines of the steps that may be elsewhere."""
        if not self._store.routes:
            return
        # A run that was ended by force leaves its steps open.
        waiting = () if tip.terminal else tip.snapshot.open.steps.values()
        self._watch(
            Deadlines(step.step_id, step.attempt, start_deadline(step), close_deadline(step))
            for step in waiting
            if step.timeouts is not None and _may_be_elsewhere(step)
        )

    def _watch(self, deadlines: Iterable[Deadlines]) -> None:
        self._watched = list(deadlines)
        times = (one.next for one in self._watched)
        self.next_deadline = min((time for time in times if time is not None), default=None)

    async def expire(self, tip: RunTip, now: datetime) -> list[str] | None:
        """See to the steps whose deadline is not after ``now``: those that no worker has taken in
        time have failed, and are returned. None if no step has got its outcome meanwhile; else the
        run is to be loaded again. InvalidTransition if the history does not allow that."""
        due = [one for one in self._watched if one.next is not None and one.next <= now]
        if not due:
            return None
        own, steps = await self._own_queue(tip), tip.snapshot.steps
        elsewhere = [one for one in due if steps[one.step_id].queue != own]
        outcomes: dict[str, str] = {}
        if elsewhere:
            late = [_overdue(one, tip, now) for one in elsewhere]
            outcomes = await self._store.expire_steps(self._run_id, late)
        for step_id, outcome in outcomes.items():
            if outcome == "expired":
                _log(tip, steps[step_id])
            elif outcome not in ("superseded", "at_work", "taken"):
                raise InvalidTransition(
                    f"the timeout of step {step_id!r} was refused: {outcome}", run_id=self._run_id
                )
        # What a worker has is the worker's, until the step is to have ended.
        self._watch(one.taken(now) if one in due else one for one in self._watched)
        if not {"expired", "superseded"} & set(outcomes.values()):
            return None
        return [step_id for step_id, outcome in outcomes.items() if outcome == "expired"]

    async def _own_queue(self, tip: RunTip) -> str:
        if tip.queue is None:
            tip.queue = await self._store.queue_of(self._run_id)
        return tip.queue


def _may_be_elsewhere(step: StepSnapshot) -> bool:
    return step.queue is not None and step.status is StepStatus.RUNNING


def _begins(launch: StepLaunch, tip: RunTip) -> Route:
    """A route of an attempt whose ``step_started`` is not stored yet."""
    step = tip.snapshot.steps[launch.step_id]
    if step.timeouts is None:
        return Route(launch)
    start, close = step.timeouts.schedule_to_start, step.timeouts.schedule_to_close
    if launch.attempt > 1 or not any(
        event.type == STEP_CREATED and event.data["step_id"] == launch.step_id
        for event in tip.pending
    ):
        return Route(launch, start, close_deadline(step))
    return Route(launch, _earlier(start, close))


def _begun(launch: StepLaunch, tip: RunTip) -> Route:
    step = tip.snapshot.steps[launch.step_id]
    times = [time for time in (start_deadline(step), close_deadline(step)) if time is not None]
    return Route(launch, due_at=min(times, default=None))


def _earlier(one: timedelta | None, other: timedelta | None) -> timedelta | None:
    return min((span for span in (one, other) if span is not None), default=None)


def _overdue(one: Deadlines, tip: RunTip, now: datetime) -> Overdue:
    step = tip.snapshot.steps[one.step_id]
    assert step.timeouts is not None
    closed = one.closes is not None and one.closes <= now
    # Of both limits the one that passed first counts.
    begun = one.begins is not None and one.begins == one.next
    return Overdue(
        one.step_id,
        one.attempt,
        _failed(tip, step, not_begun(step)) if begun else None,
        _failed(tip, step, spent(step.step_id, step.timeouts)) if closed else None,
        one.closes,
    )


def _failed(tip: RunTip, step: StepSnapshot, error: StepTimeout) -> str:
    failure = Failure(describe(error), retryable=False)
    plan = settle(tip.snapshot, step.step_id, step.attempt, failure, relaunch=False)
    return event_text(tip.run_id, plan.events[0])  # what follows from it is the driver's


def _log(tip: RunTip, step: StepSnapshot) -> None:
    logger.warning(
        "step %r (%s) of run %r failed in attempt %d: no worker of queue %r has it in time",
        step.step_id,
        step.step_name,
        tip.run_id,
        step.attempt,
        step.queue,
    )
