"""How long does claiming 500 runs take among many in the queue, also with an old snapshot?

Between the claims the claimed runs are released, as workers that have finished them do, so the
tasks taken before leave the table from the side on which the claim begins.
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Sequence
from datetime import timedelta
from statistics import median
from typing import Any

import psycopg

from benchmarks.harness.bench import Bench
from benchmarks.harness.contestant import Contestant
from benchmarks.harness.result import Result, Sample, rounded
from benchmarks.harness.tables import call, fill, old_snapshot, session, timed
from flowpg.model.records import Append, RunLease
from flowpg.postgres import append_verbs, claim_verbs

LEASE = timedelta(minutes=10)
RELEASE_AT_ONCE = 100


def options(parser: argparse.ArgumentParser) -> None:
    """Its options."""
    parser.add_argument("--rows", type=int, default=1_000_000, help="tasks in the queue")
    parser.add_argument("--limit", type=int, default=500, help="tasks claimed by one call")
    parser.add_argument("--old-snapshot", action="store_true", help="keep a transaction open")
    parser.add_argument("--churn", type=int, default=50_000, help="tasks done beforehand")


def run(bench: Bench, chosen: argparse.Namespace) -> Result:
    """Measure."""
    calls = 6
    churn = min(chosen.churn, chosen.rows // 2)

    def measure(contestant: Contestant, dsn: str) -> Sample:
        with session(dsn) as connection, contextlib.ExitStack() as stack:
            fill(connection, "fill_runs", "fill_tasks", rows=chosen.rows)
            if chosen.old_snapshot:
                stack.enter_context(old_snapshot(dsn))
            for _ in range(churn // chosen.limit):
                release(connection, claimed(connection, chosen.limit))
            if not chosen.old_snapshot:
                connection.execute("VACUUM flowpg.flow_tasks")
            taken = []
            for _ in range(calls):
                took, leases = timed(lambda: claimed(connection, chosen.limit))
                if len(leases) != chosen.limit:
                    raise RuntimeError(f"{len(leases)} tasks were claimed, not {chosen.limit}")
                release(connection, leases)
                taken.append(took)
        return Sample(median(taken), {"slowest": rounded(max(taken))})

    params = {
        "rows": chosen.rows,
        "limit": chosen.limit,
        "old_snapshot": chosen.old_snapshot,
        "done_before": churn,
    }
    return bench.compare(measure, unit="ms", higher_is_better=False, params=params)


def claimed(connection: psycopg.Connection[Any], limit: int) -> list[RunLease]:
    """Claim up to ``limit`` runs."""
    found: list[RunLease] = call(
        connection, claim_verbs.claim_runs("default", limit, "bench", LEASE)
    )
    return found


def release(connection: psycopg.Connection[Any], leases: Sequence[RunLease]) -> None:
    """Give leases back, in calls of the size that workers use at most."""
    for first in range(0, len(leases), RELEASE_AT_ONCE):
        appends = [
            Append(lease.run_id, (), epoch=lease.epoch, release=lease.wakes)
            for lease in leases[first : first + RELEASE_AT_ONCE]
        ]
        results = call(connection, append_verbs.append_many(appends))
        if not all(result.released for result in results):
            raise RuntimeError("a lease was not released")
