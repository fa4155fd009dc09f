"""Where do the microseconds of a step go, in the worker and in the server?

One burst of flowpg with the profilers on: the worker samples its own stacks, the server counts what
its functions and statements take. The rates of such a run are no results.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import psycopg

from benchmarks.harness.bench import Bench
from benchmarks.harness.contestant import Contestant, WorkerOptions, workers
from benchmarks.harness.result import Result, Sample, rounded
from benchmarks.harness.stacks import by_function, by_module, by_phase
from benchmarks.harness.throughput import burst

SERVER_SETTINGS = {
    "shared_preload_libraries": "pg_stat_statements",
    "pg_stat_statements.track": "all",
    "track_functions": "all",
}
TOP = 25


def options(parser: argparse.ArgumentParser) -> None:
    """Its options."""
    parser.add_argument("--steps", type=int, default=10, help="steps of a run")
    parser.add_argument("--runs", type=int, default=2000, help="runs of the burst")
    parser.add_argument("--in-flight", type=int, default=0, help="runs at once in the worker")
    parser.add_argument("--into", type=Path, default=Path("build/profile"), help="directory")


def run(bench: Bench, chosen: argparse.Namespace) -> Result:
    """Measure; the value is the processor time of a step on both sides."""
    given = {"steps": chosen.steps, "sleep_ms": 0}
    chosen.into.mkdir(parents=True, exist_ok=True)

    def measure(contestant: Contestant, dsn: str) -> Sample:
        stacks = chosen.into / "worker.stacks"
        wanted = WorkerOptions(dsn, in_flight=chosen.in_flight, profile=str(stacks.absolute()))
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("CREATE EXTENSION IF NOT EXISTS pg_stat_statements")
            connection.execute("SELECT pg_stat_statements_reset()")
            with workers(contestant, wanted, 1) as running:
                sample = burst(bench, contestant, dsn, running, "steps", given, chosen.runs)
            _await_reports(connection)
            steps = max(1, chosen.steps) * chosen.runs
            functions = _functions(connection, steps)
            statements = _statements(connection, steps)
        found: dict[str, Any] = {}
        found["phases"] = by_phase(stacks, steps)
        found["modules"] = by_module(stacks, steps)
        found["worker"] = by_function(stacks, steps)
        found |= {"functions": functions, "statements": statements}
        _write(chosen.into / "profile.txt", found)
        whole = sample.more["worker_cpu_us"] + (sample.more["server_cpu_us"] or 0)
        return Sample(whole, {**sample.more, "written_to": str(chosen.into)})

    params = {**given, "runs": chosen.runs}
    return bench.compare(measure, unit="us/step", higher_is_better=False, params=params)


def _await_reports(connection: psycopg.Connection[Any]) -> None:
    """Wait until the sessions of the workers are gone: a session reports its functions then."""
    deadline = monotonic() + 10
    others = (
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        " AND backend_type = 'client backend'"
    )
    while connection.execute(others).fetchone() != (0,) and monotonic() < deadline:
        sleep(0.01)


def _functions(connection: psycopg.Connection[Any], steps: int) -> list[tuple[Any, ...]]:
    """Own and total microseconds a step, and calls, of each SQL function that was not inlined."""
    rows = connection.execute(
        "SELECT funcname, self_time, total_time, calls FROM pg_stat_user_functions"
        " ORDER BY self_time DESC LIMIT %s",
        (TOP,),
    )
    return [
        (rounded(own * 1000 / steps), rounded(total * 1000 / steps), calls, name)
        for name, own, total, calls in rows
    ]


def _statements(connection: psycopg.Connection[Any], steps: int) -> list[tuple[Any, ...]]:
    """Microseconds a step, calls, rows and WAL bytes a step of each statement, nested ones too."""
    rows = connection.execute(
        "SELECT query, total_exec_time, calls, rows, wal_bytes, toplevel FROM pg_stat_statements"
        " WHERE dbid = (SELECT oid FROM pg_database WHERE datname = current_database())"
        " ORDER BY total_exec_time DESC LIMIT %s",
        (TOP,),
    )
    return [
        (
            rounded(took * 1000 / steps),
            calls,
            found,
            rounded(float(wal) / steps),
            "top" if top else "   ",
            " ".join(query.split())[:160],
        )
        for query, took, calls, found, wal, top in rows
    ]


def _write(path: Path, found: dict[str, Any]) -> None:
    heads = {
        "phases": "Worker, us a step by part of the work",
        "modules": "Worker, own time by module, us a step",
        "worker": "Worker, us a step: own, with callees, function",
        "functions": "Server, us a step: own, with callees, calls, function",
        "statements": "Server, us a step, calls, rows, WAL bytes a step, statement",
    }
    with path.open("w", encoding="utf-8") as out:
        for name, rows in found.items():
            out.write(f"== {heads[name]}\n")
            for row in rows:
                out.write("  ".join(f"{cell:>8}" for cell in row[:-1]) + f"  {row[-1]}\n")
            out.write("\n")
