"""What does a worker without work cost: transactions a second, processor time, memory?"""

from __future__ import annotations

import argparse
import time

import psycopg

from benchmarks.harness.bench import Bench
from benchmarks.harness.contestant import Contestant, WorkerOptions, await_all, workers
from benchmarks.harness.machine import threads
from benchmarks.harness.result import Result, Sample, rounded
from benchmarks.harness.usage import transactions


def options(parser: argparse.ArgumentParser) -> None:
    """Its options."""
    parser.add_argument("--seconds", type=float, default=30.0, help="how long to watch")
    parser.add_argument(
        "--rest",
        type=float,
        default=12.0,
        help="seconds before that: what a session did it tells the server up to ten seconds later",
    )
    parser.add_argument(
        "--tuned-for",
        choices=("nothing", "latency", "throughput"),
        default="nothing",
        help="what the peers' polling is set to",
    )


def run(bench: Bench, chosen: argparse.Namespace) -> Result:
    """Measure."""

    def measure(contestant: Contestant, dsn: str) -> Sample:
        with workers(contestant, WorkerOptions(dsn, tuned_for=chosen.tuned_for), 1) as running:
            client = contestant.client(dsn)
            try:
                client.start("steps", [{"steps": 1, "sleep_ms": 0}])
                await_all(client, running)
            finally:
                client.close()
            # It has to come to rest, and to report what it did until then.
            time.sleep(chosen.rest)
            with psycopg.connect(dsn, autocommit=True) as connection:
                first, cpu = transactions(connection), running[0].cpu()
                began = time.monotonic()
                time.sleep(chosen.seconds)
                last, seconds = transactions(connection), time.monotonic() - began
                used = running[0].cpu() - cpu
                row = connection.execute(
                    "SELECT count(*) - 1 FROM pg_stat_activity WHERE datname = current_database()"
                ).fetchone()
            return Sample(
                (last - first - 1) / seconds,
                {
                    "cpu_percent": rounded(used / seconds * 100),
                    "connections": row[0] if row else None,
                    "threads": threads(running[0].pid),
                    "mib": running[0].memory(),
                },
            )

    params = {"seconds": chosen.seconds, "peers_tuned_for": chosen.tuned_for}
    return bench.compare(measure, unit="transactions/s", higher_is_better=False, params=params)
