"""A worker is killed with many runs in flight: how long until another one has finished them all?

Each run has five steps of half a second. A second worker is up, but held still until the first one
is killed. The value is the time from there until all are completed, the work that is left included;
``ran_again`` counts steps that had completed before and ran once more, ``interrupted`` those that
were at work when the worker died and had to run again.
"""

from __future__ import annotations

import argparse
import collections
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import psycopg

from benchmarks.harness.bench import Bench
from benchmarks.harness.contestant import Contestant, Worker, WorkerOptions, await_all
from benchmarks.harness.ledger import Entry, read
from benchmarks.harness.result import Result, Sample, rounded
from benchmarks.harness.throughput import clock

STEPS = 5
STEP_MS = 1000
"""Each step sleeps 0 to this long, half of it on average."""


def options(parser: argparse.ArgumentParser) -> None:
    """Its options."""
    parser.add_argument("--runs", type=int, default=100, help="runs in flight")
    parser.add_argument("--lease", type=int, default=5, help="seconds")


def run(bench: Bench, chosen: argparse.Namespace) -> Result:
    """Measure."""

    def measure(contestant: Contestant, dsn: str) -> Sample:
        with tempfile.TemporaryDirectory() as place:
            return _measure(contestant, dsn, chosen.runs, chosen.lease, Path(place, "ledger"))

    params = {"runs": chosen.runs, "lease_s": chosen.lease, "steps": STEPS, "step_ms": STEP_MS // 2}
    return bench.compare(measure, unit="s", higher_is_better=False, params=params)


def _measure(contestant: Contestant, dsn: str, runs: int, lease: int, path: Path) -> Sample:
    wanted = WorkerOptions(
        dsn, tuned_for="latency", ledger=str(path), lease=lease, in_flight=runs + 50
    )
    running = [Worker(contestant, wanted)]
    client = contestant.client(dsn)
    # DBOS takes over from a dead process only when another one starts with the same id.
    starts_late = contestant.name == "dbos"
    try:
        if not starts_late:
            # It is up, but held still until it is needed: it must not take part in the work.
            running.append(Worker(contestant, replace(wanted, number=1)))
            running[1].pause()
        given = {"steps": STEPS, "sleep_ms": STEP_MS}
        started = client.start("steps", [given] * runs)
        _until_in_flight(path, runs)
        victim = running.pop(0)
        with psycopg.connect(dsn, autocommit=True) as connection:
            victim.kill()
            killed = clock(connection)
        if starts_late:
            running.append(Worker(contestant, replace(wanted, number=1)))
        else:
            running[0].go_on()
        await_all(client, running, patience=180)
        done = client.completed_at(started)
    finally:
        client.close()
        for worker in running:
            worker.stop()
    entries = read(path)
    later = [entry.moment - killed for entry in entries if entry.pid != victim.pid]
    again, interrupted = ran_twice(entries)
    return Sample(
        max(done.values()) - killed,
        {
            "completed": len(done),
            "first_step_s": rounded(min(later)),
            "ran_again": again,
            "interrupted": interrupted,
        },
    )


def _until_in_flight(path: Path, runs: int, patience: float = 60.0) -> None:
    """Wait until every run has begun and most are in the middle."""
    deadline = time.monotonic() + patience
    while True:
        entries = read(path)
        if len({entry.run for entry in entries}) == runs and len(entries) > 1.5 * runs:
            return
        if time.monotonic() > deadline:
            raise RuntimeError(f"{len(entries)} steps had begun after {patience:.0f} s")
        time.sleep(0.02)


def ran_twice(entries: list[Entry]) -> tuple[int, int]:
    """How many steps began again although the next one had begun, and how many although not."""
    ran = collections.Counter((entry.run, entry.step) for entry in entries)
    again = interrupted = 0
    for (run_id, step), times in ran.items():
        if times > 1:
            # Whoever began the next step knew that this one was completed.
            following = f"step-{int(step.removeprefix('step-')) + 1}"
            first = min(e.moment for e in entries if (e.run, e.step) == (run_id, step))
            last = max(e.moment for e in entries if (e.run, e.step) == (run_id, step))
            known = [e.moment for e in entries if (e.run, e.step) == (run_id, following)]
            if any(first < moment < last for moment in known):
                again += 1
            else:
                interrupted += 1
    return again, interrupted
