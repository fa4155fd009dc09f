"""The same work on several connections at once, timed from when all of them are ready."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")

Lane = Callable[[int, Callable[[], None]], T]
"""Work of one thread: its number, and what to call once it is ready to begin."""


def run_lanes(count: int, lane: Lane[T]) -> tuple[float, list[T]]:
    """Run ``lane`` in ``count`` threads. Returns the seconds from when the last one was ready until
    all had ended, and what they returned. Raises what one of them raised."""
    ready = threading.Barrier(count + 1)

    def guarded(number: int) -> T:
        try:
            return lane(number, _waiting(ready))
        except BaseException:
            ready.abort()
            raise

    with ThreadPoolExecutor(count) as pool:
        lanes = [pool.submit(guarded, number) for number in range(count)]
        # A broken barrier is the echo of what one of them raises below.
        with contextlib.suppress(threading.BrokenBarrierError):
            ready.wait()
        began = time.perf_counter()
        for each in lanes:
            error = each.exception()
            if error is not None and not isinstance(error, threading.BrokenBarrierError):
                raise error
        return time.perf_counter() - began, [each.result() for each in lanes]


def _waiting(ready: threading.Barrier) -> Callable[[], None]:
    def wait() -> None:
        ready.wait()

    return wait
