"""The other servers a test run may use: a container, and a PgBouncer in front."""

import os

import psycopg
import pytest

from flowpg.testing.servers import DEFAULT_IMAGE, Choice, PostgresServer
from tests.bouncer import PgBouncer
from tests.postgres.owners import value


@pytest.mark.containers
def test_a_container_serves_databases_and_is_removed() -> None:
    image = os.environ.get("FLOWPG_TEST_IMAGE") or DEFAULT_IMAGE
    server = Choice("container", "the test's own", image).start()
    try:
        if server.embedded is not None:
            pytest.skip(f"the Docker engine cannot get the image {image}")
        with server.database() as name:
            assert value(server.dsn_of(name), "SELECT current_database()") == name
            assert value(server.dsn_of(name), "SHOW server_version_num") == str(server.version)
    finally:
        server.close()
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(server.admin_dsn, connect_timeout=2)


@pytest.mark.pgbouncer
def test_the_pooler_shares_connections_between_transactions(
    pgbouncer: PgBouncer, pg_server: PostgresServer, database: str
) -> None:
    dsn = pgbouncer.dsn_of(pg_server.admin_dsn, database)
    query = "SELECT pg_backend_pid()"
    with (
        psycopg.connect(dsn, autocommit=True, prepare_threshold=None) as one,
        psycopg.connect(dsn, autocommit=True, prepare_threshold=None) as other,
    ):
        # Neither is in a transaction, so both use the one server connection there is.
        assert one.execute(query).fetchone() == other.execute(query).fetchone()
        with one.transaction():
            one.execute(query)
            assert one.execute(query).fetchone() != other.execute(query).fetchone()


@pytest.mark.pgbouncer
def test_the_pooler_leads_to_the_same_database(
    pgbouncer: PgBouncer, pg_server: PostgresServer, database: str, direct_dsn: str
) -> None:
    dsn = pgbouncer.dsn_of(pg_server.admin_dsn, database)
    with psycopg.connect(dsn, prepare_threshold=None) as connection:
        connection.execute("CREATE TABLE seen AS SELECT 1 AS n")
    assert value(direct_dsn, "SELECT n FROM seen") == 1
