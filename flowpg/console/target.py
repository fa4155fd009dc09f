"""Which database a command works on, and in which schema: ``--dsn``, ``FLOWPG_DSN``, or the
embedded server."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from typing import Annotated

import typer

from flowpg.errors import InvalidArgument
from flowpg.postgres import target
from flowpg.postgres.revisions import DEFAULT_SCHEMA
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

SchemaOption = Annotated[
    str,
    typer.Option("--schema", envvar="FLOWPG_SCHEMA", help="The schema flowpg lives in."),
]
"""The ``--schema`` option that every command with a database declares."""


def open_target(
    dsn: str | None, *, schema: str = DEFAULT_SCHEMA, migrate: bool = True
) -> AbstractContextManager[Target]:
    """The database of a command; standard error tells when it is on the embedded server.

    InvalidArgument if it was named by an empty text: a variable that was not filled in, most
    likely, and no wish for another database.
    """
    # The parser of the command line takes an empty variable for one that is not set.
    variable = os.environ.get("FLOWPG_DSN")
    for name, text in (("--dsn", dsn), ("FLOWPG_DSN", variable if dsn is None else None)):
        if text is not None and not text.strip():
            raise InvalidArgument(target.EMPTY_DSN.format(name=name))
    return target.open_target(dsn, schema=schema, migrate=migrate, say=_say)


def _say(sentence: str) -> None:
    typer.echo(f"flowpg: {sentence}", err=True)
