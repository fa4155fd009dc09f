"""What a user gets wrong outside of the code: the server, the role, the schema, the pool."""

import asyncio
import secrets
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo
from sqlalchemy import create_engine

from flowpg.client import FlowClient
from flowpg.errors import (
    InvalidArgument,
    PermissionDenied,
    SchemaBehind,
    SchemaMissing,
    StoreError,
    StoreUnavailable,
)
from flowpg.postgres.migrate import upgrade
from flowpg.store.postgres import PostgresEventStore
from flowpg.testing.servers import PostgresServer, with_database
from tests.store.support import MINUTE, SPEC, request, running, types
from tests.waiting import until_async


@pytest.fixture
def database(pg_server: PostgresServer, template_database: str) -> Iterator[str]:
    """A database of the test's own: these tests change more than rows."""
    with pg_server.database(template_database) as name:
        yield name


NOBODY_LISTENS = "postgresql://someone:hunter2@127.0.0.1:1/nowhere?connect_timeout=2"


async def test_a_server_that_is_not_there_is_unavailable_and_the_password_is_not_shown() -> None:
    with pytest.raises(StoreUnavailable, match="cannot connect") as caught:
        await PostgresEventStore.connect(NOBODY_LISTENS)
    assert "127.0.0.1" in str(caught.value)
    assert "hunter2" not in f"{caught.value} {caught.value.__cause__}"


@pytest.mark.parametrize("dsn", ["secret=", "host=x hunter2", "postgresql://[::1", "://"])
async def test_a_malformed_dsn_is_refused_and_not_shown(dsn: str) -> None:
    for connect in (PostgresEventStore.connect(dsn), asyncio.to_thread(FlowClient(dsn).summary)):
        with pytest.raises(StoreUnavailable) as caught:
            await connect
        assert "DSN" in str(caught.value)
        assert "hunter2" not in f"{caught.value} {caught.value.__cause__}"


async def test_a_database_that_does_not_exist_is_named(pg_server: PostgresServer) -> None:
    dsn = with_database(pg_server.admin_dsn, "no_such_database")
    with pytest.raises(StoreUnavailable, match="no_such_database"):
        await PostgresEventStore.connect(dsn)


def test_the_client_says_why_it_cannot_connect() -> None:
    with FlowClient(NOBODY_LISTENS) as client, pytest.raises(StoreUnavailable) as caught:
        client.start(SPEC)
    assert "127.0.0.1" in str(caught.value)
    assert "hunter2" not in str(caught.value)


async def test_a_database_that_was_never_migrated_is_refused_and_left_as_it_was(
    empty_database_dsn: str,
) -> None:
    with pytest.raises(SchemaMissing, match="migrate"):
        await PostgresEventStore.connect(empty_database_dsn)
    with FlowClient(empty_database_dsn) as client, pytest.raises(SchemaMissing, match="migrate"):
        client.start(SPEC)
    with psycopg.connect(empty_database_dsn) as connection:
        found = connection.execute(
            "SELECT count(*) FROM pg_class WHERE relnamespace::regnamespace::text"
            " NOT IN ('pg_catalog', 'information_schema', 'pg_toast')"
        ).fetchone()
    assert found == (0,)


async def test_a_schema_of_another_name_is_missing(direct_dsn: str) -> None:
    with pytest.raises(SchemaMissing, match="elsewhere"):
        await PostgresEventStore.connect(direct_dsn, schema="elsewhere")


async def test_a_function_that_is_gone_is_a_schema_to_migrate(
    postgres_store: PostgresEventStore, direct_dsn: str
) -> None:
    with psycopg.connect(direct_dsn, autocommit=True) as connection:
        connection.execute("ALTER FUNCTION flowpg.flow_run_summary() RENAME TO gone")
    with pytest.raises(SchemaBehind, match="flow_run_summary"):
        await postgres_store.run_summary()


@pytest.fixture
def role(pg_server: PostgresServer, direct_dsn: str) -> Iterator[str]:
    """A role that may log in to this test's database and nothing more."""
    name = f"flowpg_test_{secrets.token_hex(4)}"
    identifier = sql.Identifier(name)
    with psycopg.connect(direct_dsn, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD 'pw'").format(identifier))
        yield name
        connection.execute(sql.SQL("DROP OWNED BY {}").format(identifier))
        connection.execute(sql.SQL("DROP ROLE {}").format(identifier))


def as_role(dsn: str, role: str) -> str:
    return make_conninfo(dsn, user=role, password="pw")


def grant(dsn: str, role: str, capability: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("SELECT flowpg.flow_grant(%s, %s)", (role, capability))


async def test_a_role_without_rights_is_told_what_to_grant(role: str, direct_dsn: str) -> None:
    dsn = as_role(direct_dsn, role)
    with pytest.raises(PermissionDenied) as caught:
        await PostgresEventStore.connect(dsn)
    assert "flow_grant" in str(caught.value)
    with FlowClient(dsn) as client, pytest.raises(PermissionDenied) as told:
        client.start(SPEC)
    assert role in str(told.value)
    assert "flow_grant" in str(told.value)


async def test_a_client_role_starts_and_signals_but_drives_nothing(
    role: str, direct_dsn: str
) -> None:
    grant(direct_dsn, role, "client")
    async with await PostgresEventStore.connect(as_role(direct_dsn, role)) as store:
        assert (await store.start(request())).applied
        assert (await store.request_cancellation("r")).applied
        assert await types(store) == ["run_created", "run_cancellation_requested"]
        with pytest.raises(PermissionDenied, match="flow_claim_runs"):
            await store.claim_runs("default", 1, "me", MINUTE)


async def test_a_worker_role_does_all_a_worker_does(role: str, direct_dsn: str) -> None:
    grant(direct_dsn, role, "worker")
    async with await PostgresEventStore.connect(as_role(direct_dsn, role)) as store:
        await running(store)
        (lease,) = await store.claim_runs("default", 1, "me", MINUTE)
        await store.load_runs(["r"])
        await store.enqueue_due()
        assert (await store.heartbeat([lease], MINUTE))[0].held
        assert await store.release_run(lease)


async def test_a_reader_role_reads_and_changes_nothing(role: str, direct_dsn: str) -> None:
    grant(direct_dsn, role, "reader")
    async with await PostgresEventStore.connect(as_role(direct_dsn, role)) as store:
        assert (await store.run_summary()).total == 0
        assert await store.list_runs() == []
        with pytest.raises(PermissionDenied, match="flow_start"):
            await store.start(request())


async def test_a_pool_of_one_serves_many_tasks(database_dsn: str, through_pgbouncer: bool) -> None:
    async with await PostgresEventStore.connect(
        database_dsn, max_size=1, prepare=not through_pgbouncer
    ) as store:
        await asyncio.gather(*(store.start(request(f"run-{number}")) for number in range(50)))
        await asyncio.gather(*(running(store, run_id=f"run-{number}") for number in range(50)))
        assert (await store.run_summary()).running == 50


async def test_waiting_too_long_for_a_connection_names_the_pool(
    database_dsn: str, direct_dsn: str, through_pgbouncer: bool
) -> None:
    async with (
        await PostgresEventStore.connect(
            database_dsn, max_size=1, prepare=not through_pgbouncer, timeout=0.2
        ) as store,
        await psycopg.AsyncConnection.connect(direct_dsn) as holder,
    ):
        await running(store)
        await store.request_cancellation("r", connection=holder)
        blocked = asyncio.create_task(store.force_cancel("r"))
        await until_async(lambda: _all_busy(store), "the only connection is busy")
        with pytest.raises(StoreUnavailable, match="all 1 connections"):
            await store.run_summary()
        await holder.rollback()
        assert (await blocked).applied


async def _all_busy(store: PostgresEventStore) -> bool:
    return store.pool_stats()["pool_available"] == 0


async def test_a_closed_store_says_so(postgres_store: PostgresEventStore) -> None:
    await postgres_store.close()
    with pytest.raises(StoreError, match="closed"):
        await postgres_store.run_summary()
    with pytest.raises(StoreError, match="closed"):
        await running(postgres_store)


async def test_verbs_run_at_read_committed_whatever_the_database_says(direct_dsn: str) -> None:
    with psycopg.connect(direct_dsn, autocommit=True) as connection:
        name = connection.info.dbname
        connection.execute(
            sql.SQL("ALTER DATABASE {} SET default_transaction_isolation = 'serializable'").format(
                sql.Identifier(name)
            )
        )
        probe: Any = sql.SQL(
            "CREATE FUNCTION public.probe() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
            " INSERT INTO public.seen VALUES (current_setting('transaction_isolation'));"
            " RETURN NULL; END $$"
        )
        connection.execute("CREATE TABLE public.seen (level text)")
        connection.execute(probe)
        connection.execute(
            "CREATE TRIGGER probe AFTER INSERT ON flowpg.flow_event_log"
            " FOR EACH STATEMENT EXECUTE FUNCTION public.probe()"
        )
    async with await PostgresEventStore.connect(direct_dsn) as store:
        await running(store)
    with FlowClient(direct_dsn) as client:
        client.request_cancellation("r")
    with psycopg.connect(direct_dsn) as connection:
        seen = connection.execute("SELECT DISTINCT level FROM public.seen").fetchall()
    assert seen == [("read committed",)]


async def test_a_serialization_failure_in_the_callers_transaction_is_not_retried(
    postgres_store: PostgresEventStore, direct_dsn: str
) -> None:
    store = postgres_store
    await running(store)
    async with await psycopg.AsyncConnection.connect(direct_dsn) as mine:
        await mine.set_isolation_level(psycopg.IsolationLevel.REPEATABLE_READ)
        await mine.execute("SELECT 1")
        await store.request_cancellation("r")
        with pytest.raises(StoreError, match="whole transaction"):
            await store.force_cancel("r", connection=mine)
        await mine.rollback()
        assert (await store.force_cancel("r", connection=mine)).applied
        await mine.commit()


@pytest.mark.parametrize("schema", ["", "x" * 64, "a\x00"])
async def test_a_schema_name_that_cannot_be_is_refused(direct_dsn: str, schema: str) -> None:
    with pytest.raises(InvalidArgument, match="schema"):
        await PostgresEventStore.connect(direct_dsn, schema=schema)


@pytest.mark.parametrize("schema", ['Odd ":name" 100%', "a b", "ünïcode", "select"])
async def test_a_schema_may_have_any_name(empty_database_dsn: str, schema: str) -> None:
    upgrade(empty_database_dsn, schema)
    async with await PostgresEventStore.connect(empty_database_dsn, schema=schema) as store:
        await running(store)
        with FlowClient(empty_database_dsn, schema=schema) as client:
            client.request_cancellation("r", "why")
        engine = create_engine(empty_database_dsn.replace("postgresql:", "postgresql+psycopg:", 1))
        with engine.begin() as connection:
            await store.force_cancel("r", connection=connection)
        engine.dispose()
        assert (await types(store))[-1] == "run_cancelled"
