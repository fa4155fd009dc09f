"""Waiting for the end of a run: when to look, when to ask to be told, how long to pause.

Pure: whoever waits does the looking and the pausing, synchronously or not.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

from flowpg.postgres.calls import Call, Function, interval_text

_AWAIT = Function("flow_await_run", ("text", "interval"))
_CHANNEL = Function("flow_ended_channel", ())

_ASKED_FOR = timedelta(minutes=1)
_SHORTEST, _LONGEST = 0.002, 1.0
_SHARE = 0.1
"""Untold, a wait takes at most this share longer than it has to."""
_TOLD_AT_FIRST, _TOLD_LONGEST = 0.008, 5.0


@dataclass(frozen=True, slots=True)
class Look:
    """Look whether the run has ended, and send whether it has; ``ask`` to be told of it too."""

    ask: bool


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait so many seconds, or until there is news; send anything."""

    seconds: float


class News(Protocol):
    """Somebody who tells of ends, or knows that he cannot at the moment."""

    @property
    def healthy(self) -> bool:
        """Whether ends that are asked for now will be told."""
        ...


def waiting(
    news: News | None, clock: Callable[[], float], timeout: float | None
) -> Generator[Look | Pause, bool | None, bool]:
    """The steps of a wait; returns whether the run ended within ``timeout`` seconds.

    Without news the pauses are a tenth of the time that passed, from 2 ms to a second. With news
    they only have to find what got lost: at first soon, for an end that was being committed when
    it was asked for, then every 5 seconds.
    """
    began = clock()
    asked, asked_at = False, 0.0
    told_pause = _TOLD_AT_FIRST
    while True:
        told = news is not None and news.healthy
        ask = told and (not asked or clock() - asked_at > _ASKED_FOR.total_seconds() / 2)
        if ask:
            asked_at, told_pause = clock(), _TOLD_AT_FIRST if not asked else told_pause
        asked = told
        if (yield Look(ask)):
            return True
        passed = clock() - began
        left = _LONGEST if timeout is None else timeout - passed
        if left <= 0:
            return False
        if told:
            pause, told_pause = told_pause, min(_TOLD_LONGEST, told_pause * 2)
        else:
            pause = min(_LONGEST, max(_SHORTEST, passed * _SHARE))
        # Spread out, so that many who wait do not ask at the same moment.
        pause *= random.uniform(0.75, 1.25)
        yield Pause(pause if timeout is None else min(pause, left))


def await_run(run_id: str) -> Call[bool]:
    """Ask to be told of the end of a run; whether it has ended already. RunNotFound."""
    return Call(_AWAIT, (run_id, interval_text(_ASKED_FOR)), lambda rows: bool(rows[0][0]))


def ended_channel() -> Call[str]:
    """The name of the channel on which ends are told."""
    return Call(_CHANNEL, (), lambda rows: str(rows[0][0]))
