"""A PostgreSQL server that belongs to one process, for local use and for tests.

It runs as a direct child, listens on a unix socket that only its owner can reach, and ends with
its owner: on Linux the kernel shuts it down even when the owner is killed by SIGKILL. Elsewhere a
server whose owner was killed lives on until the next owner of its directory shuts it down.

The durable form keeps its data in ``FLOWPG_DATA``, by default ``.flowpg/postgres`` below the
current directory. The throwaway form lives in a new directory, in memory where there is room, does
without fsync, and is removed when it stops; when its owner is killed the directory stays behind,
until the next throwaway server of this user starts.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import queue
import re
import secrets
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import quote

import psycopg
from psycopg import sql

from flowpg.postgres.binaries import Binaries, find_binaries
from flowpg.postgres.datadir import (
    DirectoryInUse,
    EmbeddedServerError,
    ServerDirectory,
    WrongMajorVersion,
    server_environment,
)
from flowpg.postgres.identity import choose_identity
from flowpg.postgres.throwaway import make_directory

__all__ = [
    "DirectoryInUse",
    "EmbeddedPostgres",
    "EmbeddedServerError",
    "WrongMajorVersion",
    "default_directory",
    "running_dsn",
]

_POLL = 0.005
"""Seconds between two looks at whether the server is ready."""

_THROWAWAY_SETTINGS = {
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "max_wal_size": "256MB",  # as little as nobody would read again
}


def default_directory(environ: Mapping[str, str] | None = None) -> Path:
    """Where the durable server keeps its data: ``FLOWPG_DATA`` or ``.flowpg/postgres``."""
    env = os.environ if environ is None else environ
    return Path(env.get("FLOWPG_DATA") or Path(".flowpg", "postgres"))


def running_dsn(directory: Path) -> str | None:
    """URL of the server that some process runs in ``directory``, or None while none is ready."""
    path = directory.absolute().resolve()
    place = ServerDirectory(path, choose_identity(path))
    port = place.port()
    return _socket_dsn(place, port, "postgres") if port else None


class EmbeddedPostgres:
    """One PostgreSQL server that lives as long as this process, at most.

    ``directory`` holds everything of a durable server, `default_directory` when it is not given.
    With ``throwaway`` there is no directory to give. ``tcp_port`` opens 127.0.0.1 too, with a
    password, see `tcp_dsn`; 0 takes any free port. ``settings`` are server settings by name.
    ``patience`` is how many seconds a start may take, crash recovery and the end of a killed
    owner's server included.

    Use it as a context manager, or call `start` and `stop`; from asyncio, in a thread.
    """

    def __init__(
        self,
        directory: Path | str | None = None,
        *,
        throwaway: bool = False,
        binaries: Binaries | None = None,
        tcp_port: int | None = None,
        settings: Mapping[str, str] | None = None,
        patience: float = 60.0,
    ) -> None:
        if throwaway and directory is not None:
            raise EmbeddedServerError("a throwaway server chooses its own directory: give none")
        self.throwaway = throwaway
        self._wanted = None if throwaway else Path(directory or default_directory())
        self._given_binaries = binaries
        self._tcp = tcp_port
        self._settings = dict(settings or {})
        self._patience = patience
        self._port = 5432
        self._password = ""
        self._place: ServerDirectory | None = None
        self._server: subprocess.Popen[bytes] | None = None
        self._keeper: threading.Thread | None = None
        self._starter = 0

    @property
    def directory(self) -> Path:
        """The directory of this server. Raises `EmbeddedServerError` before `start`."""
        return self._running_place().path

    @property
    def dsn(self) -> str:
        """A URL of the database ``postgres`` through the unix socket, as its superuser."""
        return self.dsn_of("postgres")

    @property
    def tcp_dsn(self) -> str:
        """The same over 127.0.0.1, password included. Only with ``tcp_port``."""
        self._running_place()
        if self._tcp is None:
            raise EmbeddedServerError("this server has no TCP port: give it tcp_port=0 to get one")
        return f"postgresql://postgres:{quote(self._password)}@127.0.0.1:{self._port}/postgres"

    @property
    def version(self) -> int:
        """The server's version as PostgreSQL counts it, for example 180001 for 18.1."""
        numbers = re.findall(r"\d+", self._binaries().version)
        minor = int(numbers[1]) if re.match(r"\d+\.\d", self._binaries().version) else 0
        return int(numbers[0]) * 10000 + minor

    @property
    def release(self) -> str:
        """The server's version as people say it, for example ``18.1``."""
        return self._binaries().version

    @property
    def pid(self) -> int:
        """The process id of the postmaster. Raises `EmbeddedServerError` before `start`."""
        self._running_place()
        assert self._server is not None
        return self._server.pid

    def dsn_of(self, database: str) -> str:
        """A URL of ``database`` on this server, through the unix socket, as its superuser."""
        return _socket_dsn(self._running_place(), self._port, database)

    def start(self) -> Self:
        """Start the server, making its directory first where needed; returns when it is ready.

        Raises `BinariesNotFound`, `DirectoryInUse`, `WrongMajorVersion` or another
        `EmbeddedServerError`; afterwards nothing is running.
        """
        if self._place is not None:
            raise EmbeddedServerError(f"the server in {self._place.path} is started already")
        binaries = self._binaries()
        path = make_directory() if self.throwaway else self._wanted
        assert path is not None
        path = path.absolute().resolve()
        place = ServerDirectory(path, choose_identity(path))
        try:
            place.open(self._patience)
            self._place, self._starter = place, os.getpid()
            place.prepare(binaries, durable=not self.throwaway)
            self._launch(binaries, place)
            self._await_ready(place)
            if self._tcp is not None:
                self._set_password(place)
        except BaseException:
            if self._place is None:
                self._remove_throwaway(path)
            self.stop()
            raise
        atexit.register(self.stop)
        return self

    def stop(self) -> None:
        """Shut the server down and give up its directory; removes a throwaway one.

        Sessions are ended, their open transactions rolled back. Does nothing when the server is not
        started, and nothing in a process forked from the one that started it.
        """
        place = self._place
        if place is None or self._starter != os.getpid():
            return
        atexit.unregister(self.stop)
        # SIGINT is the fast shutdown, with a checkpoint; SIGQUIT the immediate one, which is as
        # good where nothing has to last.
        last_words = (signal.SIGQUIT, signal.SIGKILL)
        for word in last_words if self.throwaway else (signal.SIGINT, *last_words):
            if self._end_with(word):
                break
        self._server = self._keeper = self._place = None
        place.remove_socket()
        place.close()
        self._remove_throwaway(place.path)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the server ends, at most ``timeout`` seconds; whether it has ended."""
        keeper = self._keeper
        if keeper is not None:
            keeper.join(timeout)
        return keeper is None or not keeper.is_alive()

    def create_database(self, name: str, template: str | None = None) -> str:
        """Make a database, a copy of ``template`` if one is named; returns its URL.

        Raises `EmbeddedServerError` when there is one of this name, or someone is connected to the
        template.
        """
        statement = sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name))
        if template is not None:
            statement += sql.SQL(" TEMPLATE {} STRATEGY wal_log").format(sql.Identifier(template))
        try:
            with psycopg.connect(self.dsn, autocommit=True) as connection:
                connection.execute(statement)
        except psycopg.Error as error:
            raise EmbeddedServerError(
                f"database {name!r} was not made in {self.directory}: {str(error).strip()}"
            ) from error
        return self.dsn_of(name)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def __repr__(self) -> str:
        where = self._place.path if self._place else self._wanted or "a temporary directory"
        return f"<EmbeddedPostgres in {where}, {'running' if self._place else 'not started'}>"

    def _binaries(self) -> Binaries:
        if self._given_binaries is None:
            self._given_binaries = find_binaries()
        return self._given_binaries

    def _running_place(self) -> ServerDirectory:
        if self._place is None:
            raise EmbeddedServerError("the embedded server is not started: call start() first")
        return self._place

    def _launch(self, binaries: Binaries, place: ServerDirectory) -> None:
        if self._tcp is not None:
            self._port = self._tcp or _free_port()
        settings = {
            "listen_addresses": "" if self._tcp is None else "127.0.0.1",
            "port": str(self._port),
            "unix_socket_directories": _as_list_item(place.socket),
            "unix_socket_permissions": "0700",
            "logging_collector": "off",
            "max_connections": "200",
            **(_THROWAWAY_SETTINGS if self.throwaway else {}),
            **self._settings,
        }
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        command = place.identity.command(binaries.postgres, "-D", place.data, *options)
        started: queue.SimpleQueue[subprocess.Popen[bytes] | OSError] = queue.SimpleQueue()

        def keep() -> None:
            # The kernel sends the death signal when the thread that forked ends, not the process.
            # So this thread forks, and stays until the server is gone.
            try:
                # Errors in it quote statements, so it is nobody else's to read.
                with open(place.log, "wb", opener=_private) as log:
                    server = subprocess.Popen(
                        command,
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=subprocess.STDOUT,
                        env=server_environment(),
                        pass_fds=(place.server_lock,),
                        # Ctrl-C in a terminal is for the owner, who stops the server last.
                        start_new_session=True,
                    )
            except OSError as error:
                started.put(error)
                return
            started.put(server)
            server.wait()

        self._keeper = threading.Thread(target=keep, name="flowpg-embedded-server", daemon=True)
        self._keeper.start()
        outcome = started.get()
        if isinstance(outcome, OSError):
            raise EmbeddedServerError(f"the server in {place.path} could not be run: {outcome}")
        self._server = outcome

    def _await_ready(self, place: ServerDirectory) -> None:
        assert self._server is not None
        deadline = time.monotonic() + self._patience
        while place.state() != (self._server.pid, "ready"):
            if self.wait(_POLL):
                raise EmbeddedServerError(
                    f"the server in {place.path} ended while it was starting: {place.log_tail()}"
                )
            if time.monotonic() > deadline:
                raise EmbeddedServerError(
                    f"the server in {place.path} is not ready after {self._patience:.0f} s: "
                    f"{place.log_tail()}"
                )

    def _set_password(self, place: ServerDirectory) -> None:
        kept = place.path / "password"
        if not kept.exists():
            with contextlib.suppress(FileExistsError):
                os.close(os.open(kept, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        self._password = kept.read_text().strip()
        if not self._password:
            self._password = secrets.token_urlsafe(24)
            kept.write_text(self._password + "\n")
        statement = sql.SQL("ALTER ROLE postgres PASSWORD {}").format(sql.Literal(self._password))
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute(statement)

    def _end_with(self, word: signal.Signals) -> bool:
        if self._server is not None:
            self._server.send_signal(word)
        return self.wait(30.0)

    def _remove_throwaway(self, path: Path) -> None:
        if self.throwaway:
            shutil.rmtree(path, ignore_errors=True)


def _socket_dsn(place: ServerDirectory, port: int, database: str) -> str:
    host = quote(str(place.socket), safe="")
    return f"postgresql://postgres@/{quote(database, safe='')}?host={host}&port={port}"


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _as_list_item(path: Path) -> str:
    # The setting is a list, so a comma or a blank in a path has to be quoted.
    return '"' + str(path).replace('"', '""') + '"'
