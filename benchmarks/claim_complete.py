"""How many tasks a second can be claimed and released, without driving them?"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

from benchmarks.claim import claimed, release
from benchmarks.harness.bench import Bench
from benchmarks.harness.contestant import Contestant
from benchmarks.harness.lanes import run_lanes
from benchmarks.harness.result import Result, Sample
from benchmarks.harness.tables import fill, session


def options(parser: argparse.ArgumentParser) -> None:
    """Its options."""
    parser.add_argument("--batch", type=int, default=100, help="tasks a call")
    parser.add_argument("--connections", type=int, default=1, help="claiming at the same time")
    parser.add_argument("--rows", type=int, default=30_000, help="tasks in the queue")
    parser.add_argument("--seconds", type=float, default=1.5, help="stop after this time")


def run(bench: Bench, chosen: argparse.Namespace) -> Result:
    """Measure."""

    def measure(contestant: Contestant, dsn: str) -> Sample:
        with session(dsn) as connection:
            fill(connection, "fill_runs", "fill_tasks", rows=chosen.rows)

        def lane(number: int, ready: Callable[[], None]) -> int:
            done = 0
            with session(dsn) as connection:
                release(connection, claimed(connection, 1))
                ready()
                end = time.perf_counter() + chosen.seconds
                while time.perf_counter() < end:
                    leases = claimed(connection, chosen.batch)
                    if not leases:
                        break
                    release(connection, leases)
                    done += len(leases)
            return done

        seconds, done = run_lanes(chosen.connections, lane)
        return Sample(sum(done) / seconds)

    params = {"batch": chosen.batch, "connections": chosen.connections, "rows": chosen.rows}
    return bench.compare(measure, unit="tasks/s", higher_is_better=True, params=params)
