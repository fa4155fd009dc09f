"""Many durable sleeps end at the same moment: how long from then until all runs are completed?"""

from __future__ import annotations

import argparse
import time

import psycopg

from benchmarks.harness.bench import Bench
from benchmarks.harness.contestant import (
    Contestant,
    WorkerOptions,
    await_all,
    await_parked,
    workers,
)
from benchmarks.harness.result import Result, Sample, rounded
from benchmarks.harness.throughput import clock

PACE = {"flowpg": 2500.0, "absurd": 700.0, "dbos": 220.0}
"""Runs a second that each parks, roughly: it says how far off the common deadline has to be."""


def options(parser: argparse.ArgumentParser) -> None:
    """Its options."""
    parser.add_argument("--runs", type=int, default=10_000, help="runs that sleep")


def run(bench: Bench, chosen: argparse.Namespace) -> Result:
    """Measure."""

    def measure(contestant: Contestant, dsn: str) -> Sample:
        lead = 3 + 1.3 * chosen.runs / PACE[contestant.name]
        for _ in range(3):
            sample = _measure(bench, contestant, dsn, chosen.runs, lead)
            if sample is not None:
                return sample
            lead *= 2
        raise RuntimeError(f"{contestant.name} does not get {chosen.runs} runs to sleep in time")

    params = {"runs": chosen.runs}
    return bench.compare(measure, unit="s", higher_is_better=False, params=params)


def _measure(
    bench: Bench, contestant: Contestant, dsn: str, runs: int, lead: float
) -> Sample | None:
    """None when the deadline passed before all of them slept."""
    # A contestant that keeps sleeping runs in memory has to be allowed to keep all of them.
    in_flight = runs + 100 if contestant.name == "dbos" else 0
    with workers(contestant, WorkerOptions(dsn, in_flight=in_flight), 1) as running:
        client = contestant.client(dsn)
        try:
            with psycopg.connect(dsn, autocommit=True) as connection:
                idle = running[0].memory()
                due = clock(connection) + lead
                started = client.start("timer", [{"due": due}] * runs)
                early = await_parked(client, running, runs, until=time.monotonic() + lead - 0.5)
                slept = running[0].memory()
                if not early or clock(connection) > due - 0.3:
                    await_all(client, running)
                    return None
                time.sleep(max(0.0, due - clock(connection)))
            worker_cpu, server_cpu = running[0].cpu(), bench.server.cpu_seconds()
            await_all(client, running)
            worker_cpu = running[0].cpu() - worker_cpu
            if server_cpu is not None:
                server_cpu = (bench.server.cpu_seconds() or 0) - server_cpu
            done = client.completed_at(started)
        finally:
            client.close()
        seconds = sorted(moment - due for moment in done.values())
        more = {
            "first": rounded(seconds[0]),
            "half": rounded(seconds[len(seconds) // 2]),
            "worker_cpu_us": rounded(worker_cpu / runs * 1e6),
            "server_cpu_us": None if server_cpu is None else rounded(server_cpu / runs * 1e6),
            "mib_before": idle,
            "mib_asleep": slept,
            "mib_highest": running[0].memory("VmHWM"),
        }
        return Sample(seconds[-1], more)
