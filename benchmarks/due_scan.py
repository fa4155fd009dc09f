"""How long does moving 500 due timers into the queue take among many, also with an old snapshot?

The tables are filled at once. With ``--old-snapshot`` a transaction stays open meanwhile, so the
rows moved before stay in the index, dead, in front of the ones that are looked for.
"""

from __future__ import annotations

import argparse
import contextlib
from statistics import median

from benchmarks.harness.bench import Bench
from benchmarks.harness.contestant import Contestant
from benchmarks.harness.result import Result, Sample, rounded
from benchmarks.harness.tables import call, fill, old_snapshot, session, timed
from flowpg.postgres import reads, verbs


def options(parser: argparse.ArgumentParser) -> None:
    """Its options."""
    parser.add_argument("--rows", type=int, default=1_000_000, help="timers in the table")
    parser.add_argument("--limit", type=int, default=500, help="timers moved by one call")
    parser.add_argument("--old-snapshot", action="store_true", help="keep a transaction open")
    parser.add_argument("--churn", type=int, default=100_000, help="timers moved beforehand")


def run(bench: Bench, chosen: argparse.Namespace) -> Result:
    """Measure."""
    most = chosen.rows // 2 // chosen.limit  # half of the timers are not due
    if most < 2:
        raise SystemExit(f"--rows {chosen.rows} is too little for two calls of {chosen.limit}")
    calls = min(10, most - 1)
    churn = min(chosen.churn, (most - calls - 1) * chosen.limit)
    due = churn + (calls + 1) * chosen.limit

    def measure(contestant: Contestant, dsn: str) -> Sample:
        with session(dsn) as connection, contextlib.ExitStack() as stack:
            fill(connection, "fill_runs", "fill_wakeups", rows=chosen.rows, due=due)
            if chosen.old_snapshot:
                stack.enter_context(old_snapshot(dsn))
            for first in range(0, churn, 1000):
                call(connection, verbs.enqueue_due(None, min(1000, churn - first)))
            if not chosen.old_snapshot:
                connection.execute("VACUUM flowpg.scheduled_wakeups")
            call(connection, verbs.enqueue_due(None, chosen.limit))
            taken = []
            for _ in range(calls):
                took, moved = timed(lambda: call(connection, verbs.enqueue_due(None, chosen.limit)))
                if len(moved) != chosen.limit:
                    raise RuntimeError(f"{len(moved)} timers were moved, not {chosen.limit}")
                taken.append(took)
            peek, _ = timed(lambda: call(connection, reads.next_wakeup()))
        return Sample(
            median(taken), {"slowest": rounded(max(taken)), "next_wakeup_ms": rounded(peek)}
        )

    params = {
        "rows": chosen.rows,
        "limit": chosen.limit,
        "old_snapshot": chosen.old_snapshot,
        "moved_before": churn,
    }
    return bench.compare(measure, unit="ms", higher_is_better=False, params=params)
