"""What does a workflow leave behind and cost to write: bytes kept, WAL, transactions?

The value is what tables and indexes have grown by, a workflow, as they are after the burst.
"""

from __future__ import annotations

import argparse

import psycopg

from benchmarks.harness.bench import Bench
from benchmarks.harness.contestant import Contestant, WorkerOptions, await_all, workers
from benchmarks.harness.result import Result, Sample, rounded
from benchmarks.harness.usage import compact_tables, kept_bytes, transactions, wal_position
from benchmarks.workflows import PACE


def options(parser: argparse.ArgumentParser) -> None:
    """Its options."""
    parser.add_argument("--steps", type=int, default=10, help="steps of a run")
    parser.add_argument("--runs", type=int, default=1000, help="runs, fewer for slower peers")


def run(bench: Bench, chosen: argparse.Namespace) -> Result:
    """Measure."""
    given = {"steps": chosen.steps, "sleep_ms": 0}

    def measure(contestant: Contestant, dsn: str) -> Sample:
        slowness = 2.0 if contestant.name == "flowpg" else 4 * PACE[contestant.name] / 1200
        runs = max(5, int(chosen.runs * min(1.0, slowness)))
        with psycopg.connect(dsn, autocommit=True) as connection:
            with workers(contestant, WorkerOptions(dsn), 1) as running:
                client = contestant.client(dsn)
                try:
                    client.start("steps", [given])
                    await_all(client, running)
                    kept, wal = kept_bytes(connection), wal_position(connection)
                    client.start("steps", [given] * runs)
                    await_all(client, running)
                    wal = wal_position(connection) - wal
                finally:
                    client.close()
            # Sessions report their transactions when they end.
            done = transactions(connection)
            left = kept_bytes(connection) - kept
            compact_tables(connection)
            compact = kept_bytes(connection)
        return Sample(
            left / runs,
            {
                "runs": runs,
                "compact_bytes": rounded(compact / (runs + 1)),
                "wal_bytes": rounded(wal / runs),
                "transactions": rounded(done / runs),
            },
        )

    params = {"steps": chosen.steps, "runs": chosen.runs}
    return bench.compare(measure, unit="bytes/workflow", higher_is_better=False, params=params)
