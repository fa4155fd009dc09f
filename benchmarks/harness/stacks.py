"""Sampled stacks, one line each with a count, summed up by function and by module."""

from __future__ import annotations

import collections
import re
from collections.abc import Iterator
from pathlib import Path

from benchmarks.harness.result import rounded

TOP = 45
_FRAME = re.compile(r"(?P<name>.+) \((?P<file>[^:()]+)(?::\d+)?\)$")


def by_function(path: Path, whole: float) -> list[tuple[float, float, str]]:
    """Own and inclusive share of ``whole`` of each function, the largest own first."""
    own: collections.Counter[str] = collections.Counter()
    within: collections.Counter[str] = collections.Counter()
    total = 0
    for frames, count in _stacks(path):
        total += count
        own[frames[-1]] += count
        for frame in set(frames):
            within[frame] += count
    part = whole / max(1, total)
    wanted = {name for name, _ in own.most_common(TOP)} | {n for n, _ in within.most_common(TOP)}
    rows = [(rounded(own[name] * part), rounded(within[name] * part), name) for name in wanted]
    return sorted(rows, reverse=True)


def by_module(path: Path, whole: float) -> list[tuple[float, str]]:
    """Own share of ``whole`` of each module, the largest first."""
    own: collections.Counter[str] = collections.Counter()
    for frames, count in _stacks(path):
        own[_module(frames[-1])] += count
    part = whole / max(1, own.total())
    return [(rounded(count * part), name) for name, count in own.most_common(TOP)]


def _stacks(path: Path) -> Iterator[tuple[list[str], int]]:
    for line in path.read_text(encoding="utf-8").splitlines():
        stack, _, count = line.rpartition(" ")
        frames = [_plain(frame) for frame in stack.split(";")]
        # Waiting for something to happen is no work.
        if frames and not frames[-1].startswith(("select (selectors", "wait (threading")):
            yield frames, int(count)


def _plain(frame: str) -> str:
    match = _FRAME.match(frame)
    return f"{match['name']} ({match['file']})" if match else frame


def _module(frame: str) -> str:
    match = _FRAME.match(frame)
    return match["file"] if match else frame
