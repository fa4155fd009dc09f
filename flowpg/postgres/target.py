"""Which database to work on: the one that was named, or one on the embedded server."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from flowpg.errors import InvalidArgument
from flowpg.postgres.dsn import parsed_dsn
from flowpg.postgres.embedded import (
    DirectoryInUse,
    EmbeddedPostgres,
    default_directory,
    running_dsn,
)
from flowpg.postgres.revisions import DEFAULT_SCHEMA

EMPTY_DSN = (
    "{name} is empty: name a database, as postgresql://user@host/name, or leave it out altogether "
    "for the embedded server"
)
_POLL = 0.05
_OWNER_STARTS = 30.0
"""Seconds another process that owns the embedded server may take to get it ready."""


@dataclass(frozen=True)
class Target:
    """The database a command works on, for as long as `open_target` is open."""

    dsn: str
    embedded: bool
    """Whether it is on an embedded server, where the schema is kept up to date unasked."""


@contextmanager
def open_target(
    dsn: str | None,
    *,
    schema: str = DEFAULT_SCHEMA,
    migrate: bool = True,
    say: Callable[[str], None] = lambda sentence: None,
) -> Iterator[Target]:
    """The database that ``dsn`` names, or one on the embedded server, which ``say`` is told.

    The embedded server is the one some other process runs in its directory, or else one that is
    started here and stopped at the end. On it ``schema`` is brought up to date first, unless
    ``migrate`` is False; a named server is never changed. Raises InvalidArgument for an empty
    ``dsn``, StoreUnavailable for a malformed one, and what starting the server or migrating raises.
    """
    if dsn is not None:
        if not dsn.strip():
            raise InvalidArgument(EMPTY_DSN.format(name="the DSN"))
        parsed_dsn(dsn)
        yield Target(dsn, embedded=False)
        return
    directory = default_directory()
    with _embedded_dsn(directory, say) as found:
        if migrate:
            # Alembic and SQLAlchemy take half of the time that importing flowpg would.
            from flowpg.postgres.migrate import upgrade

            upgrade(found, schema)
        yield Target(found, embedded=True)


@contextmanager
def _embedded_dsn(directory: Path, say: Callable[[str], None]) -> Iterator[str]:
    server = EmbeddedPostgres(directory)
    deadline = time.monotonic() + _OWNER_STARTS
    while True:
        try:
            server.start()
        except DirectoryInUse:
            if theirs := running_dsn(directory):
                say(f"using the embedded PostgreSQL that runs in {directory.absolute()}")
                yield theirs
                return
            if time.monotonic() > deadline:
                raise
            time.sleep(_POLL)
        else:
            break
    try:
        say(
            f"no DSN and no FLOWPG_DSN: using an embedded PostgreSQL {server.release} in "
            f"{server.directory}, which stops with this process (`flowpg server` keeps one)"
        )
        yield server.dsn
    finally:
        server.stop()
