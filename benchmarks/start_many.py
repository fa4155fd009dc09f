"""How many runs a second can one client start, all in one transaction?"""

from __future__ import annotations

import argparse
import time

from benchmarks.harness.bench import Bench
from benchmarks.harness.contestant import Contestant
from benchmarks.harness.result import Result, Sample

PACE = {"flowpg": 1.0, "absurd": 0.2, "dbos": 0.1}
"""Share of the runs that a peer is given, to keep its rounds as short as ours."""


def options(parser: argparse.ArgumentParser) -> None:
    """Its options."""
    parser.add_argument("--runs", type=int, default=20_000, help="runs started")


def run(bench: Bench, chosen: argparse.Namespace) -> Result:
    """Measure."""

    def measure(contestant: Contestant, dsn: str) -> Sample:
        runs = max(10, int(chosen.runs * PACE[contestant.name]))
        given = {"steps": 1, "sleep_ms": 0}
        client = contestant.client(dsn)
        try:
            client.start("steps", [given] * 10)
            began = time.perf_counter()
            client.start("steps", [given] * runs)
            return Sample(runs / (time.perf_counter() - began), {"runs": runs})
        finally:
            client.close()

    params = {"runs": chosen.runs}
    return bench.compare(measure, unit="runs/s", higher_is_better=True, params=params)
