"""The ``flowpg`` command and how it fails: with one sentence and exit code 1.

``FLOWPG_DEBUG=1`` shows the traceback as well.
"""

from __future__ import annotations

import io
import os
import sys
import traceback
from importlib.metadata import version
from typing import Annotated, Any

import psycopg
import typer
from typer.core import TyperGroup

from flowpg.console import check_deploy, fleet, lint, migrate, runs, server, worker
from flowpg.errors import FlowError, RunConflict

# In the order of `flowpg --help`.
_COMMANDS = (migrate, worker, runs, fleet, check_deploy, lint, server)


class _SentenceGroup(TyperGroup):
    """Turns an exception of a command into a sentence on standard error and exit code 1."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except Exception as error:
            if _is_for_typer(error):
                raise
            if _debugging():
                traceback.print_exc()
            typer.echo(f"flowpg: {_sentence(error)}", err=True)
            raise typer.Exit(1) from error


app = typer.Typer(
    name="flowpg",
    cls=_SentenceGroup,
    help="Durable workflows that live in PostgreSQL.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"flowpg {version('flowpg')}")
        raise typer.Exit


@app.callback()
def _main(
    _version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Durable workflows that live in PostgreSQL."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # What it cannot print it shows by its escape.
            stream.reconfigure(errors="backslashreplace")


for _module in _COMMANDS:
    _module.register(app)


def _is_for_typer(error: Exception) -> bool:
    # Its own ways to end a command, wrong usage among them, and a reader that has seen enough, as
    # in `flowpg history ... | head`.
    home = type(error).__module__.partition(".")[0]
    return home in ("typer", "click") or isinstance(error, BrokenPipeError)


def _debugging() -> bool:
    return os.environ.get("FLOWPG_DEBUG", "") not in ("", "0")


def _sentence(error: Exception) -> str:
    if isinstance(error, RunConflict):
        return f"{error}; `flowpg show {error.run_id}` shows it, a new run needs another id"
    if isinstance(error, FlowError):
        return str(error)
    if isinstance(error, psycopg.Error):
        # The server's own sentence; its DETAIL may quote what was stored.
        said = error.diag.message_primary or type(error).__name__
        return f"the database said: {said}"
    if isinstance(error, OSError):
        return str(error)
    # Any other message may quote a payload.
    return f"unexpected {type(error).__name__}; set FLOWPG_DEBUG=1 to see where it came from"
