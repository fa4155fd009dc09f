"""How long does finding a hook by its token take among many?"""

from __future__ import annotations

import argparse
import random
from functools import partial
from statistics import median

from benchmarks.harness.bench import Bench
from benchmarks.harness.contestant import Contestant
from benchmarks.harness.result import Result, Sample, percentile, rounded
from benchmarks.harness.tables import fill, session, timed

_FIND = "SELECT run_id FROM flowpg.flow_find_hook(%s)"


def options(parser: argparse.ArgumentParser) -> None:
    """Its options."""
    parser.add_argument("--rows", type=int, default=1_000_000, help="active hooks")
    parser.add_argument("--lookups", type=int, default=2000, help="tokens looked up")


def run(bench: Bench, chosen: argparse.Namespace) -> Result:
    """Measure."""

    def measure(contestant: Contestant, dsn: str) -> Sample:
        with session(dsn) as connection:
            fill(connection, "fill_runs", "fill_hooks", rows=chosen.rows)
            wanted = connection.execute(
                "SELECT token FROM flowpg.flow_active_hooks WHERE random() < %s",
                (min(1.0, 2 * chosen.lookups / chosen.rows),),
            ).fetchall()
            random.shuffle(wanted)
            taken = []
            for (token,) in wanted[: chosen.lookups]:
                took, found = timed(partial(connection.execute, _FIND, (token,)))
                if found.fetchone() is None:
                    raise RuntimeError("a token was not found")
                taken.append(took)
            trip, _ = timed(lambda: [connection.execute("SELECT 1") for _ in range(200)])
        more = {"p99": rounded(percentile(taken, 0.99)), "round_trip_ms": rounded(trip / 200)}
        return Sample(median(taken), more)

    params = {"rows": chosen.rows, "lookups": chosen.lookups}
    return bench.compare(measure, unit="ms", higher_is_better=False, params=params)
