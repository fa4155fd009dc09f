"""The one JSON line that a question prints."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any


@dataclass(frozen=True)
class Sample:
    """One measurement: its value in the question's unit, and whatever else was seen."""

    value: float
    more: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class Result:
    """The answer to a question, with what it was measured on.

    ``value`` is the median over ``repeats``, ``spread`` the lowest and the highest. ``ratio`` in
    ``peers`` says how many times better than that peer flowpg is, whatever the unit: the median
    of the ratios of the rounds. ``limit`` is what the server does without flowpg, and how much
    of it flowpg reaches.
    """

    name: str
    unit: str
    value: float
    repeats: int
    spread: tuple[float, float]
    params: dict[str, Any]
    peers: dict[str, dict[str, Any]]
    limit: dict[str, Any] | None
    more: dict[str, Any]
    versions: dict[str, str]
    server: dict[str, Any]
    machine: dict[str, Any]
    date: str

    def line(self) -> str:
        """One line of JSON."""
        return json.dumps(vars(self))


def today() -> str:
    """The date and time to the minute, in UTC."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%MZ")


def rounded(value: float) -> float:
    """Four significant digits: no measurement here is better than that."""
    return float(f"{value:.4g}")


def median_of(samples: Sequence[Sample]) -> float:
    """The median value."""
    return rounded(statistics.median(sample.value for sample in samples))


def spread_of(samples: Sequence[Sample]) -> tuple[float, float]:
    """The lowest and the highest value."""
    values = [sample.value for sample in samples]
    return rounded(min(values)), rounded(max(values))


def medians(samples: Sequence[Sample]) -> dict[str, Any]:
    """The median of each number in ``more``; of anything else the last."""
    merged: dict[str, Any] = {}
    for name in dict.fromkeys(name for sample in samples for name in sample.more):
        values = [sample.more[name] for sample in samples if sample.more.get(name) is not None]
        if values and all(isinstance(value, int | float) for value in values):
            merged[name] = rounded(statistics.median(values))
        else:
            merged[name] = values[-1] if values else None
    return merged


def ratio(ours: float, theirs: float, higher_is_better: bool) -> float | None:
    """How many times better ours is; None when one of them is nothing."""
    if not ours or not theirs:
        return None
    return ours / theirs if higher_is_better else theirs / ours


def percentile(values: Sequence[float], share: float) -> float:
    """The value that ``share`` of the values do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]
