"""A sampling profiler for a worker process: where its processor time goes, by Python stack.

It counts processor time, not time on the clock: where worker and server share the cores much of the
latter is spent waiting for one of them. Time in the garbage collector is counted apart, exactly; a
sample cannot tell it from the function that happened to set it off.
"""

from __future__ import annotations

import atexit
import collections
import gc
import signal
import time
from pathlib import Path
from types import FrameType

_EVERY = 0.002
"""Seconds of processor time between samples; the kernel may make it coarser."""

GC = "garbage collection (gc)"


class Sampler:
    """Samples this process from ``start`` until it ends, then writes one line a stack with its
    microseconds."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._seen: collections.Counter[tuple[str, ...]] = collections.Counter()
        self._collecting = 0.0
        self._collected = 0.0
        self._began = 0.0

    def start(self) -> None:
        """Begin."""
        self._began = time.process_time()
        gc.callbacks.append(self._collection)
        signal.signal(signal.SIGPROF, self._sample)
        signal.setitimer(signal.ITIMER_PROF, _EVERY, _EVERY)
        atexit.register(self._write)

    def _sample(self, number: int, frame: FrameType | None) -> None:
        if frame is not None and frame.f_code.co_name == "_collection":
            return  # due during a collection, whose time is counted there
        stack: list[str] = []
        while frame is not None:
            code = frame.f_code
            stack.append(f"{code.co_qualname} ({_short(code.co_filename)})")
            frame = frame.f_back
        self._seen[tuple(reversed(stack))] += 1

    def _collection(self, phase: str, _: dict[str, int]) -> None:
        if phase == "start":
            self._collecting = time.process_time()
        else:
            self._collected += time.process_time() - self._collecting

    def _write(self) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)
        whole = time.process_time() - self._began
        each = (whole - self._collected) / max(1, self._seen.total()) * 1e6
        lines = [f"{GC} {self._collected * 1e6:.0f}\n"]
        lines += [f"{';'.join(stack)} {count * each:.0f}\n" for stack, count in self._seen.items()]
        self._path.write_text("".join(lines), encoding="utf-8")


def _short(path: str) -> str:
    """The last parts of a path: the package and the module."""
    for mark in ("/site-packages/", "/flowpg/", "/python3."):
        _, found, rest = path.rpartition(mark)
        if found:
            return f"flowpg/{rest}" if mark == "/flowpg/" else rest.lstrip("0123456789/")
    return path.rpartition("/")[2]
