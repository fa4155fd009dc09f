"""Stopping on signals, also when the event loop is blocked.

The first SIGTERM or SIGINT drains the worker; the second does not wait for steps. Both are bounded
by a thread: a loop that does not end in time is not waited for, its leases are given back over the
heartbeat's connection, and the process exits.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from flowpg.fleet.worker import FlowWorker

logger = logging.getLogger("flowpg.fleet.shutdown")

AT_ONCE = 0.7
"""Seconds a process may take to end after the second signal."""
_MARGIN = 10.0
"""Seconds beyond the grace period for cancelled steps to clean up and leases to be given back."""
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Shutdown:
    """What signals do to a worker of this process; made in its event loop."""

    def __init__(self, worker: FlowWorker, *, exit: Callable[[int], Any] = os._exit) -> None:
        self._worker = worker
        self._loop = asyncio.get_running_loop()
        self._exit = exit
        self._ended = threading.Event()
        self._before: dict[int, Any] = {}
        self._signals = 0

    def install(self) -> None:
        """Handle SIGTERM and SIGINT from now on, until ``ended``. For the main thread."""
        # Handlers of the interpreter, not of the loop: they run although the loop is blocked.
        self._before = {number: signal.signal(number, self._signalled) for number in _SIGNALS}

    def ended(self) -> None:
        """Everything was given back; the process ends by itself, without being bounded."""
        self._ended.set()
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _signalled(self, number: int, frame: FrameType | None) -> None:
        self._signals += 1
        at_once = self._signals > 1
        limit = AT_ONCE if at_once else self._worker.grace.total_seconds() + _MARGIN
        _say(self._sentence(at_once))
        threading.Thread(target=self._bound, args=(limit,), daemon=True).start()
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(lambda: self._worker.stop(at_once=at_once))

    def _sentence(self, at_once: bool) -> str:
        if at_once:
            return "leaving at once"
        runs = self._worker.liveness().running
        if not runs:
            return "stopping: nothing is at work"
        seconds = f"{self._worker.grace.total_seconds():g}"
        return (
            f"stopping: waiting up to {seconds} s for the steps of {runs} "
            f"{'run' if runs == 1 else 'runs'}; press again to leave at once"
        )

    def _bound(self, limit: float) -> None:
        if self._ended.wait(limit):
            return
        given = self._worker.abandon()
        logger.warning("the event loop did not end in time; %d leases were given back", given)
        sys.stdout.flush()
        sys.stderr.flush()
        self._exit(0)


def _say(sentence: str) -> None:
    # In a signal handler: sys.stderr may be in the middle of a line of the code it interrupts.
    with contextlib.suppress(OSError):
        os.write(2, f"flowpg: {sentence}\n".encode())
