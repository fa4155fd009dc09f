"""What tests of sql/ do all the time: connect, call a function, look at tables, race."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

import psycopg
import pytest
from psycopg.rows import DictRow, dict_row

from tests.waiting import until

T = TypeVar("T")
Connection = psycopg.Connection[DictRow]

SPEC = '{"name":"test","version":"1"}'
CREATED = {"type": "run_created", "payload": {"spec": {"name": "test", "version": "1"}, "input": 1}}
STARTED = {"type": "run_started"}

DEADLOCK_TIMEOUT = "100ms"


class Database:
    """A test's database. Connections commit by themselves and are closed at the end."""

    def __init__(self, dsn: str, schema: str = "flowpg") -> None:
        self.dsn = dsn
        self._schema = schema
        self._open: list[Connection] = []
        self._threads = ThreadPoolExecutor(32)
        self.main = self.connect()

    def connect(self, **settings: str) -> Connection:
        """A connection of its own."""
        connection = psycopg.connect(self.dsn, autocommit=True, row_factory=dict_row)
        self._open.append(connection)
        connection.execute(
            "SELECT set_config('search_path', %s, false)", [f'"{self._schema}", pg_temp']
        )
        for name, value in settings.items():
            connection.execute("SELECT set_config(%s, %s, false)", [name, value])
        return connection

    def close(self) -> None:
        """Close every connection; whoever still waits is interrupted."""
        for connection in self._open:
            with suppress(psycopg.Error):
                connection.cancel_safe(timeout=1)
        self._threads.shutdown(wait=True, cancel_futures=True)
        for connection in self._open:
            connection.close()

    def rows(self, query: str, *values: Any, on: Connection | None = None) -> list[DictRow]:
        """The rows of one statement."""
        cursor = (on or self.main).execute(query, values or None)
        return cursor.fetchall() if cursor.description else []

    def row(self, query: str, *values: Any, on: Connection | None = None) -> DictRow:
        """The only row of one statement."""
        (row,) = self.rows(query, *values, on=on)
        return row

    def value(self, query: str, *values: Any, on: Connection | None = None) -> Any:
        """The only value of one statement."""
        (value,) = self.row(query, *values, on=on).values()
        return value

    def append(self, *elements: dict[str, Any], on: Connection | None = None) -> list[DictRow]:
        """The answers of flow_append_many, in order."""
        return self.rows("SELECT * FROM flow_append_many(%s)", json.dumps(elements), on=on)

    def start(self, run_id: str, queue: str = "default") -> None:
        """A run that was created and started, by append: it has no task."""
        (answer,) = self.append({"run_id": run_id, "queue": queue, "events": [CREATED, STARTED]})
        assert answer["outcome"] == "appended", answer

    def open_hook(self, run_id: str, hook_id: str = "h", token: str = "t") -> None:
        """A hook of a run."""
        assert self.append({"run_id": run_id, "events": [hook(hook_id, token)]})[0]["outcome"] == (
            "appended"
        )

    def claim(self, limit: int = 10, *, on: Connection | None = None) -> list[DictRow]:
        """Claimed tasks of the default queue."""
        query = "SELECT * FROM flow_claim_tasks('default', %s, 'worker', '1 minute')"
        return self.rows(query, limit, on=on)

    def status(self, run_id: str) -> str:
        """The status of a run."""
        return str(self.row("SELECT status FROM flow_runs WHERE run_id = %s", run_id)["status"])

    def types(self, run_id: str) -> list[str]:
        """The event types of a run's history."""
        query = "SELECT event_type FROM flow_events WHERE run_id = %s ORDER BY sequence"
        return [row["event_type"] for row in self.rows(query, run_id)]

    def everything(self) -> dict[str, list[DictRow]]:
        """The whole content, to be compared with later."""
        tables = (
            "flow_events",
            "flow_runs",
            "flow_active_hooks",
            "scheduled_wakeups",
            "flow_tasks",
        )
        return {name: self.rows(f"SELECT t::text FROM {name} t ORDER BY 1") for name in tables}

    def advance(self, interval: str) -> None:
        """Let the time of flow_now() pass."""
        total = self.value("SELECT (flow_now() + %s::interval - clock_timestamp())::text", interval)
        self.main.execute(
            "CREATE OR REPLACE FUNCTION flow_now() RETURNS timestamptz LANGUAGE sql VOLATILE "
            f"PARALLEL SAFE RETURN clock_timestamp() + interval '{total}'"
        )

    # -- several connections --------------------------------------------------------------------

    def background(self, work: Callable[[Connection], T], **settings: str) -> Future[T]:
        """Work on a connection of its own, in a thread."""
        connection = self.connect(**settings)
        return self._threads.submit(work, connection)

    def background_on(self, connection: Connection, work: Callable[[Connection], T]) -> Future[T]:
        """Work on this connection, in a thread."""
        return self._threads.submit(work, connection)

    def is_settled(self, work: Future[Any]) -> bool:
        """Whether work in the background is done, or waits for a lock."""
        return work.done() or bool(
            self.value(
                "SELECT count(*) FROM pg_stat_activity "
                "WHERE datname = current_database() AND wait_event_type = 'Lock'"
            )
        )

    def race(self, count: int, work: Callable[[Connection, int], T]) -> list[T | psycopg.Error]:
        """The same work on many connections, started together; errors are results."""
        barrier = threading.Barrier(count)

        def one(connection: Connection, number: int) -> T | psycopg.Error:
            barrier.wait(30)
            try:
                return work(connection, number)
            except psycopg.Error as error:
                return error

        connections = [self.connect() for _ in range(count)]
        futures = [self._threads.submit(one, c, n) for n, c in enumerate(connections)]
        return [future.result(60) for future in futures]

    def wait_until_blocked(self, count: int = 1) -> None:
        """Wait until so many connections of this database wait for a lock."""
        query = (
            "SELECT count(*) AS n FROM pg_stat_activity "
            "WHERE datname = current_database() AND wait_event_type = 'Lock'"
        )
        until(lambda: self.value(query) >= count, f"{count} connections wait for a lock")

    def deadlocks(self) -> int:
        """How many deadlocks the server has seen in this database."""
        # a backend reports what it counted when it is idle, at the latest when it ends
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute("SELECT pg_stat_clear_snapshot()")
            row = connection.execute(
                "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
            ).fetchone()
        assert row is not None
        return int(row[0])


def hook(hook_id: str, token: str, **more: Any) -> dict[str, Any]:
    """A hook_created event."""
    payload = {"hook_id": hook_id, "token": token, "metadata": {"for": hook_id}}
    return {"type": "hook_created", "subject": hook_id, "payload": payload, **more}


def wait(wait_id: str, microseconds: int = 0) -> dict[str, Any]:
    """A wait_created event."""
    return {
        "type": "wait_created",
        "subject": wait_id,
        "due_in_us": microseconds,
        "payload": {"wait_id": wait_id},
    }


def retry(step_id: str, microseconds: int = 0) -> list[dict[str, Any]]:
    """The events of a step that failed once and waits for its second attempt."""
    return [
        {"type": "step_created", "subject": step_id, "payload": {"step_id": step_id}},
        {"type": "step_started", "subject": step_id, "payload": {"step_id": step_id}},
        {
            "type": "step_retrying",
            "subject": step_id,
            "due_in_us": microseconds,
            "payload": {"step_id": step_id},
        },
    ]


def detail(error: object) -> dict[str, Any]:
    """The fields of an error of class WF."""
    assert isinstance(error, psycopg.Error), error
    assert error.sqlstate is not None
    assert error.sqlstate.startswith("WF"), error
    assert error.diag.message_hint, "an error says what to do"
    fields: dict[str, Any] = json.loads(error.diag.message_detail or "")
    return fields


def refused(db: Database, query: str, *values: Any) -> tuple[str, dict[str, Any]]:
    """SQLSTATE and fields of the error a statement ends with, which changes nothing."""
    before = db.everything()
    with pytest.raises(psycopg.Error) as caught:
        db.rows(query, *values)
    fields = detail(caught.value)
    assert db.everything() == before
    return caught.value.sqlstate or "", fields


def wakes(db: Database, run_id: str = "r") -> int:
    """How often a run was woken since it has a task; 0 without one."""
    rows = db.rows("SELECT wakes FROM flow_tasks WHERE run_id = %s", run_id)
    return int(rows[0]["wakes"]) if rows else 0


def end(db: Database, run_id: str = "r") -> None:
    db.append({"run_id": run_id, "events": [{"type": "run_completed"}]})


def codes(results: Sequence[object]) -> list[str]:
    """The SQLSTATEs among the results of a race."""
    return sorted(r.sqlstate or "" for r in results if isinstance(r, psycopg.Error))
