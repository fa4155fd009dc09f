"""The server that everyone is measured on, and fresh databases on it.

It is the one that ``FLOWPG_DSN`` names, else an embedded one in a temporary directory with the
settings that PostgreSQL ships with: fsync on, nothing tuned.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psycopg
from psycopg import sql

from benchmarks.harness.machine import tree_cpu_seconds
from flowpg.postgres.embedded import EmbeddedPostgres
from flowpg.testing.servers import with_database

_TOLD = (
    "fsync",
    "synchronous_commit",
    "full_page_writes",
    "shared_buffers",
    "max_wal_size",
    "max_connections",
)


class Server:
    """A running server. Use it as a context manager.

    ``settings`` are settings of the embedded server by name; they are refused with a named server,
    whose settings are its owner's.
    """

    def __init__(self, dsn: str | None = None, settings: Mapping[str, str] | None = None) -> None:
        self._named = dsn or os.environ.get("FLOWPG_DSN") or None
        self._settings = dict(settings or {})
        self._embedded: EmbeddedPostgres | None = None
        self._place: Path | None = None
        self._dsn = ""
        self._mark = f"flowpg_bench_{secrets.token_hex(3)}"
        self._made = 0
        self._templates: dict[str, str] = {}

    def __enter__(self) -> Self:
        if self._named is not None:
            if self._settings:
                raise SystemExit(
                    f"this measurement wants {', '.join(self._settings)} set on the server, which "
                    "only the embedded one allows: run it without FLOWPG_DSN"
                )
            self._dsn = self._named
        else:
            self._place = Path(tempfile.mkdtemp(prefix="flowpg-bench-"))
            self._embedded = EmbeddedPostgres(self._place / "data", settings=self._settings)
            self._embedded.start()
            self._dsn = self._embedded.dsn
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._embedded is None:
            for name in self._templates.values():
                self._drop(name)
            return
        self._embedded.stop()
        if self._place is not None:
            shutil.rmtree(self._place, ignore_errors=True)

    def dsn_of(self, database: str) -> str:
        """URL of a database on this server."""
        return with_database(self._dsn, database)

    def template(self, name: str) -> tuple[str, bool]:
        """The database that copies of ``name`` are made from, and whether it is a new, empty one.

        Whoever is told that it is new installs the schema and leaves no connection behind.
        """
        if name in self._templates:
            return self._templates[name], False
        database = f"{self._mark}_{name}"
        self._admin(sql.SQL("CREATE DATABASE {} TEMPLATE template0").format(_id(database)))
        self._templates[name] = database
        return database, True

    @contextlib.contextmanager
    def database(self, template: str | None = None) -> Iterator[str]:
        """The URL of a fresh database, a copy of ``template``, dropped afterwards."""
        self._made += 1
        name = f"{self._mark}_{self._made}"
        self._admin(
            sql.SQL("CREATE DATABASE {} TEMPLATE {} STRATEGY wal_log").format(
                _id(name), _id(template or "template0")
            )
        )
        try:
            yield self.dsn_of(name)
        finally:
            self._drop(name)

    def cpu_seconds(self) -> float | None:
        """Processor time of all its processes so far; None for a server that is not ours."""
        return None if self._embedded is None else tree_cpu_seconds(self._embedded.pid)

    def facts(self) -> dict[str, Any]:
        """What it is, for the result."""
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            found: dict[str, Any] = {
                "version": connection.info.parameter_status("server_version"),
                "kind": "named by FLOWPG_DSN" if self._embedded is None else "embedded",
            }
            for name in _TOLD:
                row = connection.execute("SELECT current_setting(%s)", (name,)).fetchone()
                found[name] = row[0] if row else None
        return found

    def _admin(self, statement: sql.Composed) -> None:
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            connection.execute(statement)

    def _drop(self, name: str) -> None:
        self._admin(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(_id(name)))


def _id(name: str) -> sql.Identifier:
    return sql.Identifier(name)
