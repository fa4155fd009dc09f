"""The timeouts of one attempt at work: timers that say which limit has passed first."""

from __future__ import annotations

import asyncio
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
        timeouts = limits.timeouts
        if limits.to_start is not None:
            text = (
                f"did not begin within its schedule_to_start of {_span(timeouts.schedule_to_start)}"
            )
            self._limit(limits.to_start, ScheduleToStartTimeout, text)
        if limits.to_close is not None:
            text = f"took longer than its schedule_to_close of {_span(timeouts.schedule_to_close)}"
            self._limit(limits.to_close, ScheduleToCloseTimeout, text)

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
            self._limit(
                timeouts.start_to_close.total_seconds(),
                StartToCloseTimeout,
                f"took longer than its start_to_close of {_span(timeouts.start_to_close)}",
            )
        if timeouts.heartbeat is not None:
            self._heard = max(self._heard, monotonic())
            self._look(timeouts.heartbeat.total_seconds())

    def _look(self, seconds: float) -> None:
        left = self._heard + seconds - monotonic()
        if left > 0:
            self._timers["look"] = self._loop.call_later(left, self._look, seconds)
        else:
            limit = _span(self._limits.timeouts.heartbeat)
            self._expire(HeartbeatTimeout, f"gave no heartbeat for its limit of {limit}")

    def _limit(self, seconds: float, kind: type[StepTimeout], what: str) -> None:
        delay = max(0.0, seconds)
        self._timers[kind.__name__] = self._loop.call_later(delay, self._expire, kind, what)

    def _expire(self, kind: type[StepTimeout], what: str) -> None:
        if not self._stopped:
            self._expired(kind(f"step {self._step_id!r} {what}"))


def spent(step_id: str, timeouts: StepTimeouts) -> ScheduleToCloseTimeout:
    """The error of a step whose time was over before this attempt of it could begin."""
    limit = _span(timeouts.schedule_to_close)
    return ScheduleToCloseTimeout(
        f"step {step_id!r} took longer than its schedule_to_close of {limit}"
    )


def _span(limit: timedelta | None) -> str:
    return f"{limit.total_seconds():g} s" if limit is not None else "none"
