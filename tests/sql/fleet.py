"""Short words for what tests of tasks, limits and workers do all the time."""

from __future__ import annotations

import json
from typing import Any

from psycopg.rows import DictRow

from tests.sql.database import SPEC, Connection, Database


class Clock:
    """Stops the time of flow_now(); it moves on when it is told to."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._at = db.value("SELECT flow_now()::text")
        self.step("0")

    def step(self, interval: str) -> None:
        """Let so much time pass."""
        query = "SELECT (%s::timestamptz + %s::interval)::text"
        self._at = self._db.value(query, self._at, interval)
        self._db.main.execute(
            "CREATE OR REPLACE FUNCTION flow_now() RETURNS timestamptz LANGUAGE sql VOLATILE "
            f"PARALLEL SAFE RETURN timestamptz '{self._at}'"
        )


def start(db: Database, *run_ids: str, queue: str = "default", build: str | None = None) -> None:
    """Runs with a drive task each."""
    spec = SPEC if build is None else SPEC.replace("}", f',"runtime_build":"{build}"}}')
    for run_id in run_ids:
        db.rows("SELECT flow_start(%s, '1', %s, %s)", spec, run_id, queue)


def enqueue(db: Database, kind: str = "resume_due_waits", **options: Any) -> tuple[int, bool]:
    """One task; returns its id and whether it is a new one."""
    payload = options.pop("payload", None)
    values: dict[str, Any] = {"kind": kind, "payload": payload and json.dumps(payload), **options}
    casts = {"payload": "json", "priority": "smallint"}
    arguments = ", ".join(f"p_{n} => %s::{casts.get(n) or cast_of(n)}" for n in values)
    row = db.row(f"SELECT * FROM flow_enqueue_task({arguments})", *values.values())
    return row["task_id"], row["enqueued"]


def cast_of(name: str) -> str:
    """The type of an argument of flow_enqueue_task."""
    if name in ("delay", "dedupe_ttl", "retry_delay", "timeout"):
        return "interval"
    if name in ("max_attempts", "max_stalled"):
        return "integer"
    return "boolean" if name == "keep" else "text"


def claim(
    db: Database, limit: int = 10, *, on: Connection | None = None, **options: Any
) -> list[DictRow]:
    """Claimed tasks of every kind."""
    queues = options.pop("queues", ["default"])
    lease = options.pop("lease", "1 minute")
    options = {"kinds": None, **options}
    casts = {"max_crashes": "integer", "accept_unpinned": "boolean"}
    more = "".join(f", p_{name} => %s::{casts.get(name, 'text[]')}" for name in options)
    query = f"SELECT * FROM flow_claim_tasks(%s::text[], %s, 'worker', %s{more})"
    return db.rows(query, queues, limit, lease, *options.values(), on=on)


def complete(
    db: Database,
    task: DictRow,
    ok: bool = True,
    *,
    on: Connection | None = None,
    **more: Any,
) -> str:
    """Says how a claimed task ended; returns the outcome."""
    done = [{"task_id": task["task_id"], "epoch": task["epoch"], "ok": ok, **more}]
    query = "SELECT * FROM flow_complete_tasks(%s)"
    return str(db.row(query, json.dumps(done), on=on)["outcome"])


def tasks(db: Database) -> list[int]:
    """The ids of all open tasks."""
    return [row["task_id"] for row in db.rows("SELECT task_id FROM flow_tasks ORDER BY 1")]


def release(db: Database, *claimed: DictRow) -> list[bool]:
    """Gives leases back."""
    given = [{"task_id": task["task_id"], "epoch": task["epoch"]} for task in claimed]
    rows = db.rows("SELECT * FROM flow_release_tasks(%s)", json.dumps(given))
    return [row["released"] for row in rows]
