"""The timeouts of one attempt at work: timers that say which limit has passed first."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from datetime import timedelta
from time import monotonic
from typing import NamedTuple

from flowpg.errors import (
    HeartbeatTimeout,
    ScheduleToCloseTimeout,
    ScheduleToStartTimeout,
    StartToCloseTimeout,
    StepTimeout,
)
from flowpg.model.snapshot import StepSnapshot
from flowpg.model.timeouts import StepTimeouts


class Limits(NamedTuple):
    """The timeouts of a step, and how many seconds are left for this attempt to begin and for the
    step to end, None without such a limit."""

    timeouts: StepTimeouts
    to_start: float | None
    to_close: float | None

    @property
    def over(self) -> bool:
        """Whether the step has no time left at all, so that its code need not begin."""
        return self.to_close is not None and self.to_close <= 0


class Limit(NamedTuple):
    """A limit that passes ``after`` so long, and what to call then."""

    after: timedelta
    pass_: Callable[[], None]


class AttemptClock:
    """Calls ``expired`` with the error of the first limit that passes, in the event loop in which
    it was made; more than once if that does not stop the clock. ``begin`` and ``beat`` may be
    called from any thread."""

    def __init__(
        self, step_id: str, limits: Limits, expired: Callable[[StepTimeout], None]
    ) -> None:
        self._step_id = step_id
        self._limits = limits
        self._expired = expired
        self._loop = asyncio.get_running_loop()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._stopped = False
        self._begun = False
        self._heard = 0.0
        if limits.to_start is not None:
            self._limit(limits.to_start, ScheduleToStartTimeout)
        if limits.to_close is not None:
            self._limit(limits.to_close, ScheduleToCloseTimeout)

    def begin(self) -> None:
        """The code of the step begins."""
        try:
            own = asyncio.get_running_loop() is self._loop
        except RuntimeError:
            own = False
        if own:
            self._begin()
        else:
            self._loop.call_soon_threadsafe(self._begin)

    def beat(self) -> None:
        """The step gave a sign of life."""
        self._heard = monotonic()

    def first_within(self, time: timedelta) -> Limit | None:
        """The limit that passes first if an attempt that has just begun takes ``time`` of another
        clock than the loop's, without a sign of life. None if that is time enough."""
        timeouts, left = self._limits.timeouts, self._limits.to_close
        found: list[tuple[timedelta | None, type[StepTimeout]]] = [
            (timeouts.start_to_close, StartToCloseTimeout),
            (timeouts.heartbeat, HeartbeatTimeout),
            (None if left is None else timedelta(seconds=left), ScheduleToCloseTimeout),
        ]
        passing = [(after, kind) for after, kind in found if after is not None and after < time]
        if not passing:
            return None
        after, kind = min(passing, key=lambda one: one[0])
        return Limit(after, functools.partial(self._expire, kind))

    def stop(self) -> None:
        """Nothing expires any more."""
        self._stopped = True
        for timer in self._timers.values():
            timer.cancel()

    def _begin(self) -> None:
        if self._stopped or self._begun:
            return
        self._begun = True
        waiting = self._timers.pop("ScheduleToStartTimeout", None)
        if waiting is not None:
            waiting.cancel()
        timeouts = self._limits.timeouts
        if timeouts.start_to_close is not None:
            self._limit(timeouts.start_to_close.total_seconds(), StartToCloseTimeout)
        if timeouts.heartbeat is not None:
            self._heard = max(self._heard, monotonic())
            self._look(timeouts.heartbeat.total_seconds())

    def _look(self, seconds: float) -> None:
        left = self._heard + seconds - monotonic()
        if left > 0:
            self._timers["look"] = self._loop.call_later(left, self._look, seconds)
        else:
            self._expire(HeartbeatTimeout)

    def _limit(self, seconds: float, kind: type[StepTimeout]) -> None:
        delay = max(0.0, seconds)
        self._timers[kind.__name__] = self._loop.call_later(delay, self._expire, kind)

    def _expire(self, kind: type[StepTimeout]) -> None:
        if not self._stopped:
            what = _said(kind, self._limits.timeouts)
            self._expired(kind(f"step {self._step_id!r} {what}"))


def spent(step_id: str, timeouts: StepTimeouts) -> ScheduleToCloseTimeout:
    """The error of a step whose time was over before this attempt of it could begin."""
    return ScheduleToCloseTimeout(f"step {step_id!r} {_said(ScheduleToCloseTimeout, timeouts)}")


def not_begun(step: StepSnapshot) -> ScheduleToStartTimeout:
    """The error of a step that no worker of its queue took in time."""
    limit = None if step.timeouts is None else step.timeouts.schedule_to_start
    return ScheduleToStartTimeout(
        f"step {step.step_id!r} was not begun by a worker of queue {step.queue!r} within its "
        f"schedule_to_start of {_span(limit)}"
    )


def _said(kind: type[StepTimeout], timeouts: StepTimeouts) -> str:
    if kind is ScheduleToStartTimeout:
        return f"did not begin within its schedule_to_start of {_span(timeouts.schedule_to_start)}"
    if kind is HeartbeatTimeout:
        return f"gave no heartbeat for its limit of {_span(timeouts.heartbeat)}"
    if kind is StartToCloseTimeout:
        return f"took longer than its start_to_close of {_span(timeouts.start_to_close)}"
    return f"took longer than its schedule_to_close of {_span(timeouts.schedule_to_close)}"


def _span(limit: timedelta | None) -> str:
    return f"{limit.total_seconds():g} s" if limit is not None else "none"
