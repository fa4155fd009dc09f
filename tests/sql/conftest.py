"""A database of the test's own, made straight from sql/."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from flowpg.postgres.install import install_fresh
from flowpg.testing.servers import PostgresServer
from tests.sql.database import Database


@pytest.fixture(scope="session")
def sql_template(pg_server: PostgresServer) -> Iterator[str]:
    """The name of a database with a fresh schema that nobody connects to, to be copied."""
    with pg_server.database() as name:
        install_fresh(pg_server.dsn_of(name))
        yield name


@pytest.fixture
def db(pg_server: PostgresServer, sql_template: str) -> Iterator[Database]:
    """A fresh schema in a database of the test's own, and connections to it."""
    with pg_server.database(sql_template) as name:
        database = Database(pg_server.dsn_of(name))
        yield database
        database.close()
