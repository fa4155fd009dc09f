"""What the machine is, and what processes have used of it so far, as /proc tells."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

_PROC = Path("/proc")


def describe() -> dict[str, Any]:
    """Processor, cores, memory, system and Python, for the result."""
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "memory_gib": _memory_gib(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
    }


def cpu_seconds(pid: int) -> float:
    """Processor time of one process, its threads and its ended children included; 0 if it is gone
    or there is no /proc."""
    fields = _stat(pid)
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK") if fields else 0.0


def tree_cpu_seconds(pid: int) -> float:
    """Processor time of a process and all its descendants."""
    return cpu_seconds(pid) + sum(tree_cpu_seconds(child) for child in _children(pid))


def memory_mib(pid: int, what: str = "VmRSS") -> float:
    """Resident memory of a process now, or at its highest (``VmHWM``), in MiB."""
    try:
        for line in (_PROC / str(pid) / "status").read_text().splitlines():
            if line.startswith(what + ":"):
                return round(int(line.split()[1]) / 1024, 1)
    except OSError:
        pass
    return 0.0


def threads(pid: int) -> int:
    """How many threads a process has."""
    try:
        return len(list((_PROC / str(pid) / "task").iterdir()))
    except OSError:
        return 0


def _stat(pid: int) -> list[str]:
    try:
        # The name, in brackets, may hold blanks and brackets itself.
        return (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _children(pid: int) -> list[int]:
    found: list[int] = []
    try:
        for task in (_PROC / str(pid) / "task").iterdir():
            found += map(int, (task / "children").read_text().split())
    except OSError:
        pass
    return found


def _cpu_model() -> str:
    try:
        for line in (_PROC / "cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _memory_gib() -> float | None:
    try:
        first = (_PROC / "meminfo").read_text().split()
        return round(int(first[1]) / 1024 / 1024, 1)
    except (OSError, ValueError, IndexError):
        return None
