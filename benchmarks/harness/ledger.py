"""A witness: one line for each time a step ran, written by the process it ran in.

It is a file, so it does not depend on what is measured, and a killed process loses nothing.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Entry:
    """Step ``step`` of run ``run`` began in process ``pid`` at ``moment`` (seconds of Unix)."""

    run: str
    step: str
    pid: int
    moment: float


class Ledger:
    """Where the steps of one worker report. Without a path it forgets what it is told."""

    def __init__(self, path: str | None) -> None:
        self._pid = os.getpid()
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        self._file = None if path is None else os.open(path, flags, 0o600)

    def note(self, run: str, step: str) -> None:
        """The step begins now. One write, so lines of many processes never mix."""
        if self._file is not None:
            line = f"{run} {step} {self._pid} {time.time():.6f}\n"
            os.write(self._file, line.encode())


def read(path: Path) -> list[Entry]:
    """Everything reported so far, in the order it was written."""
    if not path.exists():
        return []
    lines = (line.split() for line in path.read_text().splitlines())
    return [Entry(run, step, int(pid), float(moment)) for run, step, pid, moment in lines]
