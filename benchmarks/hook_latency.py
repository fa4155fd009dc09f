"""From answering a hook to the step after it, at low load: how long?

All runs wait before the first one is answered, so none of them needs to be in the worker's memory.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from pathlib import Path
from statistics import median

from benchmarks.harness.bench import Bench
from benchmarks.harness.contestant import (
    Contestant,
    WorkerOptions,
    await_all,
    await_parked,
    workers,
)
from benchmarks.harness.ledger import read
from benchmarks.harness.result import Result, Sample, percentile, rounded
from benchmarks.latency import TUNED


def options(parser: argparse.ArgumentParser) -> None:
    """Its options."""
    parser.add_argument("--runs", type=int, default=100, help="runs of a round")
    parser.add_argument(
        "--tuned-for", choices=TUNED, default="latency", help="what the peers' polling is set to"
    )
    parser.add_argument("--rest-ms", type=int, default=60, help="between answers: half to this")


def run(bench: Bench, chosen: argparse.Namespace) -> Result:
    """Measure."""

    def measure(contestant: Contestant, dsn: str) -> Sample:
        with tempfile.TemporaryDirectory() as place:
            ledger = Path(place, "ledger")
            wanted = WorkerOptions(
                dsn, tuned_for=chosen.tuned_for, ledger=str(ledger), in_flight=chosen.runs + 50
            )
            with workers(contestant, wanted, 1) as running:
                client = contestant.client(dsn)
                try:
                    started = client.start("signal", [{}] * chosen.runs)
                    await_parked(client, running, chosen.runs)
                    sent = {}
                    for run_id in started:
                        time.sleep(random.uniform(0.5, 1.0) * chosen.rest_ms / 1000)
                        sent[run_id] = time.time()
                        client.message(run_id)
                    await_all(client, running)
                    done = client.completed_at(started)
                finally:
                    client.close()
            ran = {entry.run: entry.moment for entry in read(ledger)}
        to_step = [(ran[run_id] - moment) * 1000 for run_id, moment in sent.items()]
        whole = [(done[run_id] - moment) * 1000 for run_id, moment in sent.items()]
        return Sample(
            median(to_step),
            {
                "p99": rounded(percentile(to_step, 0.99)),
                "completed_p50": rounded(median(whole)),
                "completed_p99": rounded(percentile(whole, 0.99)),
            },
        )

    params = {"runs": chosen.runs, "peers_tuned_for": chosen.tuned_for}
    return bench.compare(measure, unit="ms", higher_is_better=False, params=params)
