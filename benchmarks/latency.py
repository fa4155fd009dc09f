"""From starting a run of one step to its completion, at low load, by a separate worker: how long?

One run after another at random distances. The step tells when it began; the database tells when the
run was completed; the client waits for the result as a caller does, and says when it had it.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from pathlib import Path
from statistics import median

from benchmarks.harness.bench import Bench
from benchmarks.harness.contestant import Contestant, WorkerOptions, await_all, workers
from benchmarks.harness.ledger import read
from benchmarks.harness.result import Result, Sample, percentile, rounded

TUNED = ("latency", "nothing")


def options(parser: argparse.ArgumentParser) -> None:
    """Its options."""
    parser.add_argument("--runs", type=int, default=100, help="runs of a round")
    parser.add_argument(
        "--tuned-for", choices=TUNED, default="latency", help="what the peers' polling is set to"
    )
    parser.add_argument("--rest-ms", type=int, default=60, help="between runs: half to this")


def run(bench: Bench, chosen: argparse.Namespace) -> Result:
    """Measure."""
    given = {"steps": 1, "sleep_ms": 0}

    def measure(contestant: Contestant, dsn: str) -> Sample:
        with tempfile.TemporaryDirectory() as place:
            ledger = Path(place, "ledger")
            wanted = WorkerOptions(dsn, tuned_for=chosen.tuned_for, ledger=str(ledger))
            with workers(contestant, wanted, 1) as running:
                client = contestant.client(dsn)
                try:
                    client.start("steps", [given])
                    await_all(client, running)
                    begun, got = {}, {}
                    for _ in range(chosen.runs):
                        time.sleep(random.uniform(0.5, 1.0) * chosen.rest_ms / 1000)
                        began = time.time()
                        (run_id,) = client.start("steps", [given])
                        begun[run_id] = began
                        client.result(run_id)
                        got[run_id] = time.time()
                    done = client.completed_at(list(begun))
                finally:
                    client.close()
            ran = {entry.run: entry.moment for entry in read(ledger)}
        whole = [(done[run_id] - began) * 1000 for run_id, began in begun.items()]
        to_step = [(ran[run_id] - began) * 1000 for run_id, began in begun.items()]
        waited = [(got[run_id] - done[run_id]) * 1000 for run_id in begun]
        return Sample(
            median(whole),
            {
                "p99": rounded(percentile(whole, 0.99)),
                "to_step_p50": rounded(median(to_step)),
                "to_step_p99": rounded(percentile(to_step, 0.99)),
                "result_after_completion_p50": rounded(median(waited)),
                "result_after_completion_p99": rounded(percentile(waited, 0.99)),
            },
        )

    params = {"runs": chosen.runs, "peers_tuned_for": chosen.tuned_for}
    return bench.compare(measure, unit="ms", higher_is_better=False, params=params)
