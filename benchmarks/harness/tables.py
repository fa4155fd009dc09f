"""Tables filled at once, and what disturbs them: an old snapshot, dead rows."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg

from flowpg.postgres.calls import Call, psycopg_sql

_SQL = Path(__file__).resolve().parents[1] / "sql"
SCHEMA = "flowpg"


def text_of(name: str) -> str:
    """The text of a file of ``benchmarks/sql``."""
    return (_SQL / f"{name}.sql").read_text(encoding="utf-8")


@contextlib.contextmanager
def session(dsn: str) -> Iterator[psycopg.Connection[Any]]:
    """An autocommit connection, with the schema in its search path for the files."""
    with psycopg.connect(dsn, autocommit=True, prepare_threshold=0) as connection:
        connection.execute("SELECT set_config('search_path', %s, false)", (SCHEMA,))
        yield connection


def fill(connection: psycopg.Connection[Any], *names: str, **given: int) -> None:
    """Run files that fill tables, then bring the statistics up to date as autovacuum would."""
    for name in names:
        connection.execute(text_of(name), given)
    connection.execute("VACUUM ANALYZE")


@contextlib.contextmanager
def old_snapshot(dsn: str) -> Iterator[None]:
    """Meanwhile a transaction is open whose snapshot keeps dead rows from being removed."""
    with psycopg.connect(dsn) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.execute("SELECT count(*) FROM pg_class")
        yield
        connection.rollback()


def call(connection: psycopg.Connection[Any], wanted: Call[Any]) -> Any:
    """Send one call the way the client does."""
    rows = connection.execute(psycopg_sql(wanted.function, SCHEMA), wanted.values).fetchall()
    return wanted.read(rows)


def timed(action: Callable[[], Any]) -> tuple[float, Any]:
    """Milliseconds that ``action`` took, and what it returned."""
    began = time.perf_counter()
    found = action()
    return (time.perf_counter() - began) * 1000, found
