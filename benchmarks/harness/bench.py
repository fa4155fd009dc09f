"""Rounds of measurement: each contestant in turn, on a fresh database, round after round."""

from __future__ import annotations

import contextlib
import importlib.metadata
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.harness.contestant import Contestant
from benchmarks.harness.machine import describe
from benchmarks.harness.result import (
    Result,
    Sample,
    median_of,
    medians,
    ratio,
    rounded,
    spread_of,
    today,
)
from benchmarks.harness.server import Server

Measure = Callable[[Contestant, str], Sample]
"""Measures one contestant on a database of its own, whose URL it is given."""


@dataclass
class Bench:
    """One run of one question."""

    name: str
    server: Server
    ours: Contestant
    peers: Sequence[Contestant] = ()
    repeats: int = 3
    verbose: bool = False
    limits: list[Sample] = field(default_factory=list)

    @contextlib.contextmanager
    def arena(self, contestant: Contestant) -> Iterator[str]:
        """A fresh database with the contestant's tables; yields its URL."""
        template, new = self.server.template(contestant.name)
        if new:
            contestant.install(self.server.dsn_of(template))
        with self.server.database(template) as dsn:
            yield dsn

    def compare(
        self,
        measure: Measure,
        *,
        unit: str,
        higher_is_better: bool,
        params: Mapping[str, Any],
        limit: Callable[[str], Sample] | None = None,
    ) -> Result:
        """Measure everyone ``repeats`` times, in turn, and say how they compare.

        ``limit`` measures the server alone, in the same rounds, on a copy of our database.
        """
        missing = {peer.name: reason for peer in self.peers if (reason := peer.missing())}
        present = [self.ours, *(peer for peer in self.peers if peer.name not in missing)]
        samples: dict[str, list[Sample]] = {contestant.name: [] for contestant in present}
        for turn in range(self.repeats):
            # Whoever comes first would always meet the same state of the machine.
            first = turn % len(present)
            for contestant in present[first:] + present[:first]:
                with self.arena(contestant) as dsn:
                    sample = measure(contestant, dsn)
                self._tell(contestant.name, unit, sample)
                samples[contestant.name].append(sample)
            if limit is not None:
                with self.arena(self.ours) as dsn:
                    self.limits.append(limit(dsn))
                self._tell("limit", unit, self.limits[-1])
        own = samples[self.ours.name]
        peers: dict[str, dict[str, Any]] = {}
        for peer in self.peers:
            if peer.name in missing:
                peers[peer.name] = {"value": None, "ratio": None, "missing": missing[peer.name]}
                continue
            theirs = samples[peer.name]
            peers[peer.name] = {
                "value": median_of(theirs),
                "ratio": _paired(own, theirs, higher_is_better),
                "spread": spread_of(theirs),
                "settings": peer.settings,
                "more": medians(theirs),
            }
        return Result(
            name=self.name,
            unit=unit,
            value=median_of(own),
            repeats=self.repeats,
            spread=spread_of(own),
            params=dict(params),
            peers=peers,
            limit=self._share(own, higher_is_better),
            more={"settings": self.ours.settings, **medians(own)},
            versions=_versions(present),
            server=self.server.facts(),
            machine=describe(),
            date=today(),
        )

    def _share(self, own: Sequence[Sample], higher_is_better: bool) -> dict[str, Any] | None:
        if not self.limits:
            return None
        share = _paired(own, self.limits, higher_is_better)
        return {"value": median_of(self.limits), "share": share, "more": medians(self.limits)}

    def _tell(self, who: str, unit: str, sample: Sample) -> None:
        if self.verbose:
            more = " ".join(f"{name}={value}" for name, value in sample.more.items())
            print(f"{self.name}: {who} {rounded(sample.value)} {unit} {more}", file=sys.stderr)


def _paired(
    own: Sequence[Sample], theirs: Sequence[Sample], higher_is_better: bool
) -> float | None:
    ratios = [
        found
        for mine, other in zip(own, theirs, strict=True)
        if (found := ratio(mine.value, other.value, higher_is_better)) is not None
    ]
    return rounded(statistics.median(ratios)) if ratios else None


def _versions(contestants: Sequence[Contestant]) -> dict[str, str]:
    found: dict[str, str] = {}
    for package in dict.fromkeys(name for one in contestants for name in one.packages):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found
