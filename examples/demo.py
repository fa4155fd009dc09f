"""``make demo``: a workflow that survives SIGKILL, shown as it goes, on a real server.

This process is the operator: it starts the run with SQL, watches, kills the first worker in the
middle of a step, approves the invoice, and prints the history. Two worker processes do the work.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import psycopg
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from examples.invoice_workflow import approval_token, approve_invoice
from flowpg import FlowClient, WorkflowRunSnapshot
from flowpg.postgres.embedded import EmbeddedPostgres
from flowpg.postgres.migrate import upgrade

LEASE_SECONDS = 2
HOME = Path(".flowpg") / "demo"
T = TypeVar("T")
out = Console(highlight=False, soft_wrap=True)


def main() -> int:
    """The whole show; 0 if the run ended completed."""
    with EmbeddedPostgres(HOME) as server:
        dsn = server.create_database(f"demo_{os.getpid()}_{int(time.time())}")
        say("1", f"PostgreSQL {server.release} runs as a child of this process, no Docker needed.")
        upgrade(dsn)
        say("2", "Schema flowpg migrated: tables, triggers and the verbs are plain SQL functions.")
        with psycopg.connect(dsn, autocommit=True) as witness, FlowClient(dsn) as client:
            witness.execute(
                "CREATE TABLE demo_witness (at timestamptz DEFAULT clock_timestamp(), "
                "run_id text, step text, attempt int, pid int)"
            )
            return show(dsn, client, witness)


def show(dsn: str, client: FlowClient, witness: psycopg.Connection[Any]) -> int:
    """Start, kill, recover, approve, and print."""
    run_id = f"invoice-{int(time.time())}"
    client.start(approve_invoice.spec, approve_invoice.input("2026-0001"), run_id=run_id)
    say("3", f"Run [bold]{run_id}[/] started: one row, one transaction. No worker exists yet.")

    with worker(dsn, "first") as first:
        say("4", f"Worker process {first.pid} started. Waiting until it is inside a slow step ...")
        pid = until(
            "the first worker enters check_vendor",
            lambda: one(witness, "SELECT pid FROM demo_witness WHERE step = 'check_vendor'"),
        )
        os.kill(pid, signal.SIGKILL)
        first.wait()
        say(
            "5",
            f"[red]SIGKILL[/] to {pid} in the middle of 'check_vendor'. Nothing was cleaned up.",
        )

    with worker(dsn, "second") as second:
        say("6", f"Worker process {second.pid} started. It takes over once the lease runs out ...")
        until(
            "the second worker runs the interrupted step again",
            lambda: one(
                witness,
                "SELECT 1 FROM demo_witness WHERE step = 'check_vendor' AND pid <> %s",
                (pid,),
            ),
        )
        say("7", "The interrupted step runs again, as the same attempt; finished steps do not.")
        until(
            "the posting succeeds at the third attempt",
            lambda: step_done(client, run_id, "post_to_ledger"),
        )
        say("8", "'post_to_ledger' failed twice, waited a second each time, and went through.")
        until("the hook opens", lambda: bool(client.snapshot(run_id).hooks))
        say("9", "The timer fired; the run now waits for a person and holds no compute.")

        token = approval_token(run_id)
        out.print(
            "\n   Anyone with the token could approve it from psql:\n\n"
            f"   [cyan]SELECT * FROM flowpg.flow_resume_hook_by_token('{token}',\n"
            """     '{"approved": true, "by": "psql"}');[/]\n"""
        )
        client.resume_hook_by_token(token, {"approved": True, "by": "the demo"})
        say("10", "Approved (the Python client calls that very function).")
        snapshot = until("the run ends", lambda: ended(client, run_id))

    history(client, run_id)
    executions(witness)
    out.print(f"\nRun [bold]{run_id}[/] is [bold green]{snapshot.status}[/]: {snapshot.output}\n")
    out.print(
        "How to go on:\n"
        "  examples/invoice_workflow.py   the workflow you just saw, ordinary asyncio\n"
        "  docs/quickstart.md             your own workflow in ten minutes\n"
        "  .venv/bin/flowpg --help        migrate, worker, runs, history, ...\n"
        "  make test                      the whole test suite\n"
    )
    return 0 if snapshot.status == "completed" else 1


@contextmanager
def worker(dsn: str, name: str) -> Iterator[subprocess.Popen[bytes]]:
    """A worker in a process of its own, ended when the block is left."""
    command = [sys.executable, "-m", "flowpg", "worker"]
    command += ["--app", "examples.invoice_workflow:app"]
    command += ["--lease", str(LEASE_SECONDS)]
    environment = {**os.environ, "FLOWPG_DSN": dsn}
    with (HOME / f"worker-{name}.log").open("wb") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(timeout=20)


def history(client: FlowClient, run_id: str) -> None:
    """The event stream as a table."""
    table = Table(title="The history: everything the run is", title_justify="left")
    for column in ("#", "event", "about", "recorded"):
        table.add_column(column)
    for event in client.history(run_id):
        when = event.recorded_at.strftime("%H:%M:%S.%f")[:-3]
        table.add_row(str(event.sequence), event.key, event.subject or "", when)
    out.print()
    out.print(table)


def executions(witness: psycopg.Connection[Any]) -> None:
    """Which process executed which step, as the steps themselves saw it."""
    table = Table(title="Who executed the steps", title_justify="left")
    for column in ("step", "attempt", "by process"):
        table.add_column(column)
    rows = witness.execute(
        "SELECT step, attempt, string_agg(pid::text, ', ' ORDER BY at) "
        "FROM demo_witness GROUP BY step, attempt ORDER BY min(at)"
    )
    for step, attempt, pids in rows:
        table.add_row(step, str(attempt), pids)
    out.print(table)


def one(connection: psycopg.Connection[Any], query: str, args: tuple[Any, ...] = ()) -> Any:
    """The first column of the first row, or None."""
    row = connection.execute(query.encode(), args).fetchone()
    return row[0] if row else None


def step_done(client: FlowClient, run_id: str, name: str) -> bool:
    """Whether the step of this name has completed."""
    steps = client.snapshot(run_id).steps.values()
    return any(step.step_name == name and step.status == "completed" for step in steps)


def ended(client: FlowClient, run_id: str) -> WorkflowRunSnapshot | None:
    """The snapshot once the run has ended."""
    snapshot = client.snapshot(run_id)
    return snapshot if snapshot.terminal else None


def until(what: str, probe: Callable[[], T | None], seconds: float = 60) -> T:
    """Poll until ``probe`` gives something true."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if value := probe():
            return value
        time.sleep(0.05)
    raise SystemExit(
        f"gave up after {seconds:g} s waiting until {what}; the workers' logs are in {HOME}"
    )


def say(step: str, text: str) -> None:
    """One line of the story."""
    out.print(f"[bold]{escape(step):>3}[/]  {text}")


if __name__ == "__main__":
    sys.exit(main())
