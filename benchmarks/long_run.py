"""One run with very many steps: does a step cost the same at the end as at the beginning?

The value is the time a step takes in the last tenth over the time in the first tenth.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from pathlib import Path

from benchmarks.harness.bench import Bench
from benchmarks.harness.contestant import Contestant, WorkerOptions, await_all, workers
from benchmarks.harness.ledger import Ledger, read
from benchmarks.harness.result import Result, Sample, rounded
from benchmarks.ours.programs import Programs
from flowpg.replay.projection import project
from flowpg.replay.runtime import WorkflowInvocation
from flowpg.store.postgres import PostgresEventStore

PARTS = 10


def options(parser: argparse.ArgumentParser) -> None:
    """Its options."""
    parser.add_argument("--steps", type=int, default=1000, help="steps of the run")


def run(bench: Bench, chosen: argparse.Namespace) -> Result:
    """Measure."""
    given = {"steps": chosen.steps, "sleep_ms": 0}

    def measure(contestant: Contestant, dsn: str) -> Sample:
        with tempfile.TemporaryDirectory() as place:
            ledger = Path(place, "ledger")
            wanted = WorkerOptions(dsn, ledger=str(ledger))
            with workers(contestant, wanted, 1) as running:
                client = contestant.client(dsn)
                try:
                    client.start("chain", [{"steps": 20, "sleep_ms": 0}])
                    await_all(client, running)
                    before = running[0].memory()
                    (run_id,) = client.start("chain", [given])
                    await_all(client, running, patience=1200)
                    end = client.completed_at([run_id])[run_id]
                finally:
                    client.close()
                after, highest = running[0].memory(), running[0].memory("VmHWM")
            moments = [entry.moment for entry in read(ledger) if entry.run == run_id] + [end]
        size = max(1, chosen.steps // PARTS)
        parts = [
            (moments[min(first + size, chosen.steps)] - moments[first]) / size * 1000
            for first in range(0, chosen.steps - size + 1, size)
        ]
        more = {
            "ms_a_step_first": rounded(parts[0]),
            "ms_a_step_last": rounded(parts[-1]),
            "ms_a_step": [rounded(part) for part in parts],
            "steps_s": rounded(chosen.steps / (end - moments[0])),
            "mib_before": before,
            "mib_after": after,
            "mib_highest": highest,
        }
        if contestant.name == "flowpg":
            more |= asyncio.run(_replay(dsn, run_id))
        return Sample(parts[-1] / parts[0], more)

    params = {"steps": chosen.steps}
    return bench.compare(measure, unit="last/first tenth", higher_is_better=False, params=params)


async def _replay(dsn: str, run_id: str) -> dict[str, float]:
    """Seconds from nothing to the decision that follows from the whole history."""
    async with await PostgresEventStore.connect(dsn) as store:
        began = time.perf_counter()
        loaded = (await store.load_runs([run_id]))[run_id]
        read_after = time.perf_counter() - began
        snapshot = project(run_id, loaded.history)
        folded_after = time.perf_counter() - began
        Programs(Ledger(None)).run_workflow(
            WorkflowInvocation(run_id, snapshot.spec, snapshot.input, snapshot, loaded.history)
        )
        decided_after = time.perf_counter() - began
    return {
        "events": len(loaded.history),
        "replay_s": rounded(decided_after),
        "replay_read_s": rounded(read_after),
        "replay_fold_s": rounded(folded_after - read_after),
    }
