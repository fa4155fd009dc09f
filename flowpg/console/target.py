"""Which database a command works on: ``--dsn``, ``FLOWPG_DSN``, or the embedded server."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Annotated

import typer

from flowpg.postgres import target
from flowpg.postgres.target import Target

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


def open_target(
    dsn: str | None, *, schema: str = "flowpg", migrate: bool = True
) -> AbstractContextManager[Target]:
    """The database of a command; standard error tells when it is on the embedded server."""
    return target.open_target(dsn, schema=schema, migrate=migrate, say=_say)


def _say(sentence: str) -> None:
    typer.echo(f"flowpg: {sentence}", err=True)
