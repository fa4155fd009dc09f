"""Which database a command works on: ``--dsn``, ``FLOWPG_DSN``, or the embedded server."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from flowpg.postgres.embedded import (
    DirectoryInUse,
    EmbeddedPostgres,
    default_directory,
    running_dsn,
)
from flowpg.postgres.migrate import upgrade

DsnOption = Annotated[
    str | None,
    typer.Option(
        "--dsn",
        envvar="FLOWPG_DSN",
        help="The database, as postgresql://user@host/name. Without one: the embedded server.",
        show_default=False,
    ),
]
"""The ``--dsn`` option that every command with a database declares."""

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
    dsn: str | None, *, schema: str = "flowpg", migrate: bool = True
) -> Iterator[Target]:
    """The database that ``dsn`` names, or one on the embedded server, which standard error tells.

    The embedded server is the one some other process runs in its directory, or else one that is
    started here and stopped at the end. On it ``schema`` is brought up to date first, unless
    ``migrate`` is False; a named server is never changed. Raises what starting the server or
    migrating raises.
    """
    if dsn:
        yield Target(dsn, embedded=False)
        return
    directory = default_directory()
    with _embedded_dsn(directory) as found:
        if migrate:
            upgrade(found, schema)
        yield Target(found, embedded=True)


@contextmanager
def _embedded_dsn(directory: Path) -> Iterator[str]:
    server = EmbeddedPostgres(directory)
    deadline = time.monotonic() + _OWNER_STARTS
    while True:
        try:
            server.start()
        except DirectoryInUse:
            if theirs := running_dsn(directory):
                _say(f"using the embedded PostgreSQL that runs in {directory.absolute()}")
                yield theirs
                return
            if time.monotonic() > deadline:
                raise
            time.sleep(_POLL)
        else:
            break
    with server_stops(server):
        _say(
            f"no --dsn and no FLOWPG_DSN: using an embedded PostgreSQL {server.release} in "
            f"{server.directory}, which stops with this command (`flowpg server` keeps one)"
        )
        yield server.dsn


@contextmanager
def server_stops(server: EmbeddedPostgres) -> Iterator[None]:
    """Stop a started server when the block is left."""
    try:
        yield
    finally:
        server.stop()


def _say(sentence: str) -> None:
    typer.echo(f"flowpg: {sentence}", err=True)
