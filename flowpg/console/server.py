"""``flowpg server``: keep an embedded PostgreSQL running in the foreground."""

from __future__ import annotations

import shlex
import signal
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from flowpg.postgres.embedded import (
    DirectoryInUse,
    EmbeddedPostgres,
    EmbeddedServerError,
    default_directory,
    running_dsn,
)

_LOOK_AGAIN = 0.25
"""Seconds between two looks at whether the server is still there."""


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command(name="server")(serve)


def serve(
    data: Annotated[
        Path | None,
        typer.Option(help="Its directory. [default: FLOWPG_DATA or .flowpg/postgres]"),
    ] = None,
    tcp: Annotated[
        int | None,
        typer.Option(help="Listen on this port of 127.0.0.1 too, with a password; 0 is any port."),
    ] = None,
    wait: Annotated[
        float,
        typer.Option(min=0, help="Seconds that another process may keep its server for."),
    ] = 10,
) -> None:
    """Run the embedded PostgreSQL in the foreground, and print its DSN; where one runs already and
    goes on running, print that one's DSN and fail.

    Other commands find it by themselves when they are started in the same directory. It stops with
    Ctrl-C, SIGTERM, or the end of this process however it comes.
    """
    ended = threading.Event()

    def end(_number: int, _frame: FrameType | None) -> None:
        ended.set()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end)
    directory = data or default_directory()
    with ExitStack() as stack:
        # A command that began at the same time may have been first, with a server for itself.
        patient_until, said = time.monotonic() + wait, False
        while True:
            try:
                server = stack.enter_context(EmbeddedPostgres(directory, tcp_port=tcp))
                break
            except DirectoryInUse:
                if ended.is_set():
                    return
                if time.monotonic() >= patient_until:
                    if theirs := running_dsn(directory):
                        _print_dsn(theirs)
                    raise
            if not said:
                typer.echo(
                    f"flowpg: another process has a server in {directory}; waiting up to "
                    f"{wait:g} s for it to end",
                    err=True,
                )
                said = True
            ended.wait(_LOOK_AGAIN)
        typer.echo(
            f"flowpg: PostgreSQL {server.release} in {server.directory}; Ctrl-C stops it", err=True
        )
        _print_dsn(server.dsn if tcp is None else server.tcp_dsn)
        while not ended.is_set():
            if server.wait(_LOOK_AGAIN):
                raise EmbeddedServerError(
                    f"the server in {server.directory} ended by itself; its server.log says why"
                )


def _print_dsn(dsn: str) -> None:
    # For programs on standard output; for people, as a line to paste.
    typer.echo(f"export FLOWPG_DSN={shlex.quote(dsn)}", err=True)
    typer.echo(dsn)
