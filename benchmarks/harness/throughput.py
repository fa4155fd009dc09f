"""A burst: many runs committed at once, timed until the last one has completed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg

from benchmarks.harness.bench import Bench
from benchmarks.harness.contestant import Contestant, Worker, await_all
from benchmarks.harness.result import Sample, rounded

WARM_UP = 20
"""Runs before the clock starts: imports, prepared statements, a full pool."""

_NO_TIME = 0.001
"""Seconds that a burst takes at least, so that a rate can be told."""


def burst(
    bench: Bench,
    contestant: Contestant,
    dsn: str,
    running: Sequence[Worker],
    program: str,
    given: dict[str, Any],
    runs: int,
) -> Sample:
    """Steps a second (workflows a second without steps), and what they cost in processor time."""
    client = contestant.client(dsn)
    try:
        client.start(program, [given] * min(WARM_UP, runs))
        await_all(client, running)
        worker_cpu = sum(worker.cpu() for worker in running)
        server_cpu = bench.server.cpu_seconds()
        with psycopg.connect(dsn, autocommit=True) as connection:
            clock(connection)  # whoever asks first waits for the session to begin
            started = client.start(program, [given] * runs)
            began = clock(connection)
        await_all(client, running)
        worker_cpu = sum(worker.cpu() for worker in running) - worker_cpu
        server_cpu = None if server_cpu is None else (bench.server.cpu_seconds() or 0) - server_cpu
        completed = client.completed_at(started)
    finally:
        client.close()
    if len(completed) != runs:
        raise RuntimeError(f"{len(completed)} of {runs} runs of {contestant.name} completed")
    # A handful may be completed before this process has heard of the commit.
    seconds = max(max(completed.values()) - began, _NO_TIME)
    steps = int(given.get("steps") or 0)
    each = runs * max(1, steps)
    return Sample(
        each / seconds,
        {
            "runs": runs,
            "seconds": rounded(seconds),
            "workflows_s": rounded(runs / seconds),
            "worker_cpu_us": rounded(worker_cpu / each * 1e6),
            "server_cpu_us": None if server_cpu is None else rounded(server_cpu / each * 1e6),
            "worker_mib": max(worker.memory("VmHWM") for worker in running),
        },
    )


def clock(connection: psycopg.Connection[Any]) -> float:
    """The server's clock in Unix seconds."""
    row = connection.execute("SELECT extract(epoch FROM clock_timestamp())").fetchone()
    assert row is not None
    return float(row[0])
