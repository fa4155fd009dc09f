"""Turns that run too long: first their stack is logged, then they are abandoned.

Workflow code runs on the thread of the host's event loop, so a turn that never waits holds up every
other run of the process. A thread of its own looks at the turns at work. It counts the time that it
saw pass itself, so that a process that was stopped and continued is not taken for a slow workflow.

A turn is interrupted by raising ``TurnAbandoned`` in its thread. That is asked for only between
its beginning and ``leave``; ``leave`` takes back what was asked for and not raised
yet. So nothing is ever raised in code that is not the run's own. Code that waits in
C, such as ``time.sleep``, is interrupted where the process has given a signal for it
(``interrupt_by_signal``); otherwise when it comes back.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from time import monotonic
from types import FrameType
from typing import Any, TypeVar

from flowpg.authoring.errors import TurnTooLong
from flowpg.errors import InvalidArgument

logger = logging.getLogger("flowpg.authoring.watchdog")

T = TypeVar("T")

_PACKAGE = str(Path(__file__).resolve().parents[1])
_LONGEST_LOOK = 0.5
_SHOWN_FRAMES = 8


class TurnAbandoned(KeyboardInterrupt):
    """Raised inside a turn that ran too long. Tasks and loops let it through, as they do Ctrl-C."""


@dataclass(frozen=True, slots=True)
class TurnRules:
    """How long workflow code may run without waiting before its stack is logged (``slow``) and
    before it is abandoned (``longest``; None: never), and whether hazards are errors."""

    slow: timedelta = timedelta(seconds=2)
    longest: timedelta | None = timedelta(seconds=10)
    strict: bool = False

    def check(self) -> TurnRules:
        """InvalidArgument for times that are no time at all."""
        if self.slow <= timedelta(0) or (self.longest is not None and self.longest <= timedelta(0)):
            raise InvalidArgument("slow_turn and longest_turn must be longer than nothing")
        return self


DEFAULT_RULES = TurnRules()


class Turn:
    """The turns of one run in this process. ``began`` is when the latest one began."""

    __slots__ = (
        "began", "due", "looked", "open", "reported", "rules", "run_id", "seen", "strike_at",
        "strikes", "struck", "thread", "workflow",
    )  # fmt: skip

    def __init__(self, run_id: str, workflow: str, rules: TurnRules) -> None:
        self.run_id = run_id
        self.workflow = workflow
        self.rules = rules
        self.began = 0.0
        self.thread = 0
        self.open = False
        self.due = False
        self.struck = False
        self.strikes = 0
        self.looked = self.seen = self.strike_at = 0.0
        self.reported = False

    def run(self, work: Callable[[T], None], given: T) -> None:
        """Run workflow code, ``work(given)``. TurnTooLong if it was abandoned, whatever it
        made of that."""
        try:
            try:
                self.thread = thread = threading.get_ident()
                self.began = monotonic()
                self.open = True
                open_turns[thread] = self
                if _watchdog is None:
                    _start()
                work(given)
            finally:
                self.leave()
        except TurnAbandoned:
            # Perhaps raised on the way into ``leave``; another one is not asked for so soon.
            self.leave()
        if self.strikes:
            raise TurnTooLong(self.run_id, self.seen)

    @property
    def slow(self) -> float:
        """The seconds after which its stack is logged."""
        return self.rules.slow.total_seconds()

    @property
    def longest(self) -> float | None:
        """The seconds after which it is abandoned, if ever."""
        return None if self.rules.longest is None else self.rules.longest.total_seconds()

    def leave(self) -> None:
        """Workflow code has ended; nothing is raised in it from here on. May be called again."""
        # Closed first and asked about strikes then, as whoever strikes says so before it looks
        # whether the turn is open: one of the two sees the other, and few turns need the lock.
        self.open = self.due = False
        open_turns.pop(self.thread, None)
        if self.struck or self.strikes:
            with _lock:
                strikes = self.strikes
            if strikes:
                _take_back(self.thread)

    def __str__(self) -> str:
        return f"workflow {self.workflow!r} of run {self.run_id!r}"


open_turns: dict[int, Turn] = {}
"""The turn at work in each thread."""

_lock = threading.Lock()
_watchdog: threading.Thread | None = None
_signal: int | None = None


def turn_of_this_thread() -> Turn | None:
    """The turn whose workflow code this thread runs now, None outside one."""
    return open_turns.get(threading.get_ident())


def interrupt_by_signal(number: int = signal.SIGURG) -> None:
    """Let a signal interrupt turns of the main thread, also where they wait in C. For a process
    that is a worker and nothing else; to be called in its main thread."""
    global _signal
    signal.signal(number, _on_signal)
    _signal = number


# -- the thread ---------------------------------------------------------------------------------


def _start() -> None:
    global _watchdog
    with _lock:
        if _watchdog is None:
            _watchdog = threading.Thread(target=_watch, name="flowpg-watchdog", daemon=True)
            _watchdog.start()


def _after_fork() -> None:
    global _watchdog, _lock
    _watchdog, _lock = None, threading.Lock()
    open_turns.clear()


os.register_at_fork(after_in_child=_after_fork)


def _watch() -> None:
    pause = threading.Event()
    interval = _LONGEST_LOOK
    before = monotonic()
    while not pause.wait(interval):
        now = monotonic()
        passed, before = now - before, now
        # No more than a look takes: what was longer, nobody ran.
        passed = min(passed, 2 * interval)
        interval = _LONGEST_LOOK
        for turn in list(open_turns.values()):
            interval = min(interval, turn.slow / 4, (turn.longest or turn.slow) / 4)
            try:
                _look(turn, passed)
            except Exception as error:  # noqa: BLE001  the watch goes on
                logger.error("a turn could not be looked at: %s", type(error).__name__)
        interval = max(interval, 0.01)


def _look(turn: Turn, passed: float) -> None:
    if turn.looked != turn.began:
        turn.looked, turn.seen, turn.reported = turn.began, 0.0, False
        turn.strike_at = turn.longest or 0.0
        passed = min(passed, monotonic() - turn.began)
    turn.seen += passed
    if turn.seen >= turn.slow and not turn.reported:
        turn.reported = True
        logger.warning(
            "%s has been running for %.1f s without waiting, and holds up every run of this "
            "process; do its work in a step. It is here:\n%s",
            turn,
            turn.seen,
            stack_of(turn.thread),
        )
    if turn.longest is not None and turn.seen >= turn.strike_at and not _debugged(turn.thread):
        # Again and again, if the code catches what is raised in it.
        turn.strike_at = turn.seen + turn.longest
        _strike(turn, turn.looked)


def _strike(turn: Turn, began: float) -> None:
    with _lock, _striking(turn):
        if not turn.open or turn.began != began or open_turns.get(turn.thread) is not turn:
            return
        turn.strikes += 1
        if _signal is not None and turn.thread == threading.main_thread().ident:
            turn.due = True
            signal.pthread_kill(turn.thread, _signal)
        else:
            _raise_in(turn.thread, TurnAbandoned)
    logger.error("%s is abandoned: it did not wait for %.1f s", turn, turn.seen)


@contextlib.contextmanager
def _striking(turn: Turn) -> Iterator[None]:
    turn.struck = True
    try:
        yield
    finally:
        turn.struck = False


def _on_signal(_number: int, _frame: FrameType | None) -> None:
    # Between two instructions of the main thread, which alone opens and closes its turns.
    turn = open_turns.get(threading.get_ident())
    if turn is not None and turn.open and turn.due:
        turn.due = False
        raise TurnAbandoned


def _raise_in(thread: int, error: type[BaseException]) -> None:
    raising: Any = ctypes.pythonapi.PyThreadState_SetAsyncExc
    raising(ctypes.c_ulong(thread), ctypes.py_object(error))


def _take_back(thread: int) -> None:
    # What was asked of this thread is replaced by something that is raised at once. To ask for
    # nothing instead would leave the interpreter looking for it before every instruction that may
    # be interrupted: slow, and with a profiler, on 3.11, a loop without end.
    try:
        _raise_in(thread, TurnAbandoned)
        for _ in range(1000):  # it is raised when a loop goes round, at the latest
            pass
    except TurnAbandoned:
        return


def _debugged(thread: int) -> bool:
    # Someone who steps through the code takes their time.
    monitoring = getattr(sys, "monitoring", None)
    if monitoring is not None and monitoring.get_tool(monitoring.DEBUGGER_ID) is not None:
        return True
    frame = sys._current_frames().get(thread)
    while frame is not None:
        if frame.f_trace is not None:
            return True
        frame = frame.f_back
    return False


def stack_of(thread: int) -> str:
    """Where a thread is, the innermost frames last: places in code alone, no values."""
    frame = sys._current_frames().get(thread)
    if frame is None:
        return "(unknown)"
    frames = traceback.extract_stack(frame)
    with contextlib.suppress(StopIteration):
        # From the innermost frame of this package on: what is outside of that is no news.
        last = next(i for i in range(len(frames) - 1, -1, -1) if _ours(frames[i].filename))
        frames = traceback.StackSummary.from_list(frames[last + 1 :] or frames)
    return "".join(traceback.format_list(frames[-_SHOWN_FRAMES:]))


def _ours(name: str) -> bool:
    return name.startswith(_PACKAGE)
