"""Sampled stacks, one line each with its microseconds, summed up by function and by module."""

from __future__ import annotations

import collections
import re
from collections.abc import Iterator
from pathlib import Path

from benchmarks.harness.result import rounded

TOP = 45
_MODULE = re.compile(r".* \((?P<file>[^()]+)\)$")


def by_function(path: Path, steps: int) -> list[tuple[float, float, str]]:
    """Own and inclusive microseconds a step of each function, the largest own first."""
    own: collections.Counter[str] = collections.Counter()
    within: collections.Counter[str] = collections.Counter()
    for frames, took in _stacks(path):
        own[frames[-1]] += took
        for frame in set(frames):
            within[frame] += took
    wanted = {name for name, _ in own.most_common(TOP)} | {n for n, _ in within.most_common(TOP)}
    rows = [(rounded(own[name] / steps), rounded(within[name] / steps), name) for name in wanted]
    return sorted(rows, reverse=True)


def by_module(path: Path, steps: int) -> list[tuple[float, str]]:
    """Own microseconds a step of each module, the largest first."""
    own: collections.Counter[str] = collections.Counter()
    for frames, took in _stacks(path):
        match = _MODULE.match(frames[-1])
        own[match["file"] if match else frames[-1]] += took
    return [(rounded(took / steps), name) for name, took in own.most_common(TOP)]


def _stacks(path: Path) -> Iterator[tuple[list[str], int]]:
    for line in path.read_text(encoding="utf-8").splitlines():
        stack, _, took = line.rpartition(" ")
        yield stack.split(";"), int(took)
