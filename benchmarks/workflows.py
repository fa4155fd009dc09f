"""How many workflows of so many steps a second, from the commit that starts them to the last one?

N runs are committed at once; worker processes that were warmed up before take them. The clock runs
from that commit until all are completed.
"""

from __future__ import annotations

import argparse

from benchmarks.harness.bench import Bench
from benchmarks.harness.contestant import Contestant, WorkerOptions, workers
from benchmarks.harness.result import Result, Sample
from benchmarks.harness.throughput import burst

PACE = {"flowpg": 8000.0, "absurd": 1200.0, "dbos": 280.0}
"""Roughly how many steps a second each makes here: it sizes the bursts, it is no result."""


def options(parser: argparse.ArgumentParser) -> None:
    """Its options."""
    parser.add_argument("--steps", type=int, default=10, help="steps of a run")
    parser.add_argument("--workers", type=int, default=1, help="worker processes")
    parser.add_argument("--sleep-ms", type=int, default=0, help="each step sleeps 0 to this long")
    parser.add_argument("--in-flight", type=int, default=0, help="runs at once in a worker")
    parser.add_argument("--seconds", type=float, default=3.0, help="length of a burst, roughly")
    parser.add_argument("--runs", type=int, help="runs of a burst, instead of --seconds")


def run(bench: Bench, chosen: argparse.Namespace) -> Result:
    """Measure."""
    given = {"steps": chosen.steps, "sleep_ms": chosen.sleep_ms}

    def measure(contestant: Contestant, dsn: str) -> Sample:
        pace = PACE[contestant.name] * (0.7 if chosen.sleep_ms else 1.0)
        runs = chosen.runs or max(40, int(chosen.seconds * pace / (chosen.steps + 3)))
        wanted = WorkerOptions(dsn, in_flight=chosen.in_flight)
        with workers(contestant, wanted, chosen.workers) as running:
            return burst(bench, contestant, dsn, running, "steps", given, runs)

    unit = "steps/s" if chosen.steps else "workflows/s"
    params = {**given, "workers": chosen.workers, "in_flight": chosen.in_flight or "best"}
    return bench.compare(measure, unit=unit, higher_is_better=True, params=params)
