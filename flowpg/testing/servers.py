"""The server of a test run: which one it is, and databases on it.

It is the first of: the one named by ``FLOWPG_TEST_DSN``; a container, where a Docker engine answers
and no directory of programs was named; a throwaway server of our own. No other server is ever
connected to.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import secrets
import socket
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from flowpg.postgres.binaries import Binaries, find_binaries, inspect_binaries
from flowpg.postgres.embedded import EmbeddedPostgres

DEFAULT_IMAGE = "postgres:18"
DEFAULT_DOCKER = "unix:///var/run/docker.sock"
PREFIX = "flowpg_test_"
"""Every database a test run makes has a name that starts so."""


def with_database(dsn: str, database: str, **changes: str) -> str:
    """``dsn``, a URL or key=value pairs, as a URL of another database on the same server."""
    parts: dict[str, Any] = {**conninfo_to_dict(dsn), "dbname": database, **changes}
    name = parts.pop("dbname")
    user, password = parts.pop("user", None), parts.pop("password", None)
    login = quote(user, safe="") if user else ""
    if password:
        login += ":" + quote(password, safe="")
    query = urlencode(
        {key: value for key, value in parts.items() if value is not None}, quote_via=quote
    )
    return f"postgresql://{login + '@' if login else ''}/{quote(name, safe='')}?{query}"


@dataclass
class PostgresServer:
    """A running server on which this test run makes databases."""

    admin_dsn: str
    """URL of a database to connect to for making others, as a role that may do so."""
    version: int
    """As PostgreSQL counts it, for example 180001."""
    label: str
    stop: Callable[[], None]
    embedded: EmbeddedPostgres | None = None

    def __post_init__(self) -> None:
        self._mark = secrets.token_hex(4)
        self._made = 0
        self._admin: psycopg.Connection[Any] | None = None

    def create_database(self, template: str | None = None) -> str:
        """Make a database, empty or a copy of ``template``; returns its name."""
        self._made += 1
        name = f"{PREFIX}{self._mark}_{self._made}"
        # A template of our own choice keeps an empty database empty whatever template1 holds.
        statement = sql.SQL("CREATE DATABASE {} TEMPLATE {} STRATEGY wal_log").format(
            sql.Identifier(name), sql.Identifier(template or "template0")
        )
        self._execute(statement)
        return name

    def drop_database(self, name: str) -> None:
        """Drop a database that this run made, whoever is still connected to it."""
        assert name.startswith(PREFIX + self._mark)
        self._execute(
            sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name))
        )

    def dsn_of(self, database: str, **changes: str) -> str:
        """URL of a database on this server, past any pooler."""
        return with_database(self.admin_dsn, database, **changes)

    @contextlib.contextmanager
    def database(self, template: str | None = None) -> Iterator[str]:
        """A database that is dropped afterwards; yields its name."""
        name = self.create_database(template)
        try:
            yield name
        finally:
            self.drop_database(name)

    def close(self) -> None:
        """Disconnect and stop the server, if it is ours to stop."""
        if self._admin is not None:
            self._admin.close()
        self.stop()

    def _execute(self, statement: sql.Composed) -> None:
        if self._admin is None or self._admin.closed:
            self._admin = psycopg.connect(self.admin_dsn, autocommit=True)
        self._admin.execute(statement)


@dataclass(frozen=True)
class Choice:
    """Which server a test run takes, before it is started."""

    kind: str
    label: str
    value: str = ""
    binaries: Binaries | None = None

    def start(self) -> PostgresServer:
        """Start, or connect to, what was chosen."""
        if self.kind == "dsn":
            return _named_server(self)
        if self.kind == "container":
            return _container_server(self)
        return _embedded_server(self)


def choose(environ: Mapping[str, str] | None = None) -> Choice:
    """The choice for this environment. Starts nothing; asks a Docker engine whether it is there."""
    env = os.environ if environ is None else environ
    if dsn := env.get("FLOWPG_TEST_DSN"):
        named = conninfo_to_dict(dsn)
        where = f"{named.get('host', 'local socket')}:{named.get('port', 5432)}"
        return Choice("dsn", f"FLOWPG_TEST_DSN ({where})", dsn)
    if directory := env.get("FLOWPG_TEST_PG_BIN"):
        return _embedded_choice(inspect_binaries(Path(directory), "FLOWPG_TEST_PG_BIN"))
    if not env.get("FLOWPG_PG_BIN") and engine_answers(env.get("DOCKER_HOST") or DEFAULT_DOCKER):
        image = env.get("FLOWPG_TEST_IMAGE") or DEFAULT_IMAGE
        return Choice("container", f"testcontainers, image {image}", image)
    return _embedded_choice(find_binaries(env))


def engine_answers(docker_host: str, timeout: float = 1.0) -> bool:
    """Whether a Docker engine answers ``/_ping`` at ``docker_host`` within ``timeout`` seconds."""
    parts = urlsplit(docker_host)
    connection = http.client.HTTPConnection(parts.hostname or "localhost", parts.port, timeout)
    try:
        if parts.scheme == "unix":
            connection.sock = socket.socket(socket.AF_UNIX)
            connection.sock.settimeout(timeout)
            connection.sock.connect(parts.path)
        connection.request("GET", "/_ping")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _embedded_choice(binaries: Binaries) -> Choice:
    label = f"throwaway PostgreSQL {binaries.version} from {binaries.source}"
    return Choice("embedded", label, binaries=binaries)


def _named_server(choice: Choice) -> PostgresServer:
    with psycopg.connect(choice.value) as connection:
        version = connection.info.server_version
    return PostgresServer(choice.value, version, choice.label, stop=lambda: None)


def _embedded_server(choice: Choice) -> PostgresServer:
    server = EmbeddedPostgres(throwaway=True, binaries=choice.binaries)
    server.start()
    return PostgresServer(server.dsn, server.version, choice.label, server.stop, server)


def _container_server(choice: Choice) -> PostgresServer:
    from testcontainers.community.postgres import PostgresContainer

    container = PostgresContainer(choice.value, username="postgres", driver=None)
    try:
        container.start()
    except Exception as error:  # the engine's own and the HTTP client's alike
        if os.environ.get("FLOWPG_TEST_IMAGE"):
            raise
        # An engine without the image and without a network: the suite still has a server.
        instead = _embedded_choice(find_binaries())
        warnings.warn(
            f"the container of {choice.value} did not start ({type(error).__name__}: {error}); "
            f"the tests ran on {instead.label}",
            stacklevel=1,
        )
        return instead.start()
    server = _named_server(Choice("dsn", choice.label, container.get_connection_url()))
    server.stop = container.stop
    return server
