"""Sampled stacks, one line each with its microseconds, summed up by function and by module."""

from __future__ import annotations

import collections
import re
from collections.abc import Iterator
from pathlib import Path

from benchmarks.harness.result import rounded

TOP = 45

PHASES = (
    ("garbage collection", "garbage collection"),
    ("wire: connection pool, driver, reading rows", "AsyncPool."),
    ("group commit: making and handing out groups", "GroupCommit."),
    ("append: checking and writing its text", "PostgresEventStore.append"),
    ("append: patience around it", "PatientStore."),
    ("workflow code", "Programs.run_workflow"),
    ("decision: commands into events", "decide ("),
    ("turn: around workflow code", "take_turn"),
    ("folding events before they are stored", "RunTip.fold"),
    ("folding: times after the commit", "RunTip.committed"),
    ("outcomes into events", "settle ("),
    ("steps: launching", "RunDrive._launch"),
    ("steps: handler and its result", "StepHandlers."),
    ("loading and projecting histories", "RunDrive._load"),
    ("claiming", "FlowWorker._claim"),
    ("drive: the loop around all of this", "RunDrive."),
    ("engine: around a drive", "EngineCore."),
    ("event loop", "BaseEventLoop._run_once"),
)
"""Parts of a step, and how to tell them: a sample belongs to the first one that is in its stack."""
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


def by_phase(path: Path, steps: int) -> list[tuple[float, str]]:
    """Microseconds a step of each part of the work, the largest first."""
    spent: collections.Counter[str] = collections.Counter()
    for frames, took in _stacks(path):
        found = (name for name, mark in PHASES if any(mark in frame for frame in frames))
        spent[next(found, "other")] += took
    return [(rounded(took / steps), name) for name, took in spent.most_common()]


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
