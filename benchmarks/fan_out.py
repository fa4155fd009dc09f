"""One run with many steps at once: how long from its start by a client to its completion?"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from statistics import median

from benchmarks.harness.bench import Bench
from benchmarks.harness.contestant import Contestant, WorkerOptions, await_all, workers
from benchmarks.harness.ledger import read
from benchmarks.harness.result import Result, Sample, rounded


def options(parser: argparse.ArgumentParser) -> None:
    """Its options."""
    parser.add_argument("--steps", type=int, default=100, help="steps at once")
    parser.add_argument("--runs", type=int, default=5, help="runs of a round, one after another")


def run(bench: Bench, chosen: argparse.Namespace) -> Result:
    """Measure."""
    given = {"steps": chosen.steps}

    def measure(contestant: Contestant, dsn: str) -> Sample:
        with tempfile.TemporaryDirectory() as place:
            ledger = Path(place, "ledger")
            wanted = WorkerOptions(dsn, tuned_for="latency", ledger=str(ledger))
            with workers(contestant, wanted, 1) as running:
                client = contestant.client(dsn)
                try:
                    client.start("fan", [given])
                    await_all(client, running)
                    begun: dict[str, float] = {}
                    for _ in range(chosen.runs):
                        began = time.time()
                        (run_id,) = client.start("fan", [given])
                        begun[run_id] = began
                        await_all(client, running)
                    done = client.completed_at(list(begun))
                finally:
                    client.close()
            first: dict[str, float] = {}
            for entry in read(ledger):
                first.setdefault(entry.run, entry.moment)
        whole = [(done[run_id] - began) * 1000 for run_id, began in begun.items()]
        inside = [(done[run_id] - first[run_id]) * 1000 for run_id in begun]
        return Sample(median(whole), {"from_first_step": rounded(median(inside))})

    params = {"steps": chosen.steps, "runs": chosen.runs}
    return bench.compare(measure, unit="ms", higher_is_better=False, params=params)
