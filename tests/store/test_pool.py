"""The pool: connections made when needed, replaced when broken, and nothing left behind."""

import asyncio
import gc
from collections.abc import Iterator

import psycopg
import pytest
from psycopg import sql

from flowpg.errors import StoreError, StoreUnavailable
from flowpg.store.postgres import PostgresEventStore
from tests.proxy import Proxy
from tests.store.support import request, running, types
from tests.waiting import turns, until_async


@pytest.fixture
def proxy(direct_dsn: str) -> Iterator[Proxy]:
    with Proxy(direct_dsn) as proxy:
        yield proxy


async def test_connections_are_made_when_calls_need_them_and_not_before(
    postgres_store: PostgresEventStore,
) -> None:
    store = postgres_store
    assert store.pool_stats() == {"pool_size": 1, "pool_available": 1, "requests_waiting": 0}
    await asyncio.gather(*(store.now() for _ in range(20)))
    assert store.pool_stats()["pool_size"] == 4
    for _ in range(5):
        await store.now()
    assert store.pool_stats() == {"pool_size": 4, "pool_available": 4, "requests_waiting": 0}


async def test_calls_get_connections_in_the_order_in_which_they_asked(
    database_dsn: str, through_pgbouncer: bool
) -> None:
    async with await PostgresEventStore.connect(
        database_dsn, max_size=1, prepare=not through_pgbouncer
    ) as store:
        order: list[int] = []

        async def ask(number: int) -> None:
            await store.now()
            order.append(number)

        await asyncio.gather(*(ask(number) for number in range(30)))
        assert order == list(range(30))


async def test_an_idle_connection_that_the_server_closed_is_not_used(
    postgres_store: PostgresEventStore, direct_dsn: str, through_pgbouncer: bool
) -> None:
    if through_pgbouncer:
        pytest.skip("a pooler answers in place of the server")
    store = postgres_store
    await asyncio.gather(*(store.now() for _ in range(20)))
    async with await psycopg.AsyncConnection.connect(direct_dsn, autocommit=True) as admin:
        await admin.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND application_name = 'flowpg'"
        )

        async def gone() -> bool:
            cursor = await admin.execute(
                "SELECT 1 FROM pg_stat_activity"
                " WHERE datname = current_database() AND application_name = 'flowpg'"
            )
            return await cursor.fetchone() is None

        await until_async(gone, "the sessions of the store are gone")
    assert (await store.start(request())).applied
    assert store.pool_stats()["pool_size"] == 1


async def test_after_a_failover_no_connection_to_the_old_primary_is_used_again(
    direct_dsn: str, through_pgbouncer: bool
) -> None:
    if through_pgbouncer:
        pytest.skip("a pooler keeps sessions on a server that became read-only")
    async with await psycopg.AsyncConnection.connect(direct_dsn, autocommit=True) as admin:
        database = sql.Identifier(admin.info.dbname)
        read_only = sql.SQL("ALTER DATABASE {} SET default_transaction_read_only = on")
        await admin.execute(read_only.format(database))
        try:
            store = await PostgresEventStore.connect(direct_dsn)
            await asyncio.gather(*(store.now() for _ in range(20)))
            assert store.pool_stats()["pool_available"] == 4
        finally:
            # Sessions made from here on may write: as if the name led to another server now.
            writable = sql.SQL("ALTER DATABASE {} RESET default_transaction_read_only")
            await admin.execute(writable.format(database))
    async with store:
        with pytest.raises(StoreUnavailable, match="25006"):
            await store.start(request("first"))
        for number in range(8):
            assert (await store.start(request(f"run-{number}"))).applied


async def test_a_failed_connection_attempt_leaves_its_place_to_the_next(proxy: Proxy) -> None:
    async with await PostgresEventStore.connect(proxy.dsn, prepare=False, max_size=1) as store:
        with proxy.away():
            for _ in range(3):
                with pytest.raises(StoreUnavailable):
                    await store.start(request())
        assert (await store.start(request())).applied
        assert await types(store) == ["run_created"]


async def test_calls_that_wait_when_the_store_closes_are_told(
    database_dsn: str, direct_dsn: str, through_pgbouncer: bool
) -> None:
    async with await psycopg.AsyncConnection.connect(direct_dsn) as holder:
        store = await PostgresEventStore.connect(
            database_dsn, max_size=1, prepare=not through_pgbouncer
        )
        await running(store)
        await store.request_cancellation("r", connection=holder)
        busy = asyncio.create_task(store.force_cancel("r"))
        late = asyncio.create_task(store.now())

        async def waits() -> bool:
            return store.pool_stats()["requests_waiting"] == 1

        await until_async(waits, "a call waits for the one connection")
        await store.close()
        with pytest.raises(StoreError, match="closed"):
            await late
        await holder.rollback()
        assert (await busy).applied
        assert store.pool_stats()["pool_size"] == 0


def test_an_event_loop_that_ends_without_closing_the_store_does_not_hang(
    database_dsn: str, through_pgbouncer: bool
) -> None:
    async def careless() -> None:
        store = await PostgresEventStore.connect(database_dsn, prepare=not through_pgbouncer)
        await store.start(request())
        tasks = [asyncio.create_task(store.now()) for _ in range(10)]
        await turns(1)  # all have begun, none has ended
        del tasks

    asyncio.run(careless())
    with pytest.warns(ResourceWarning):
        gc.collect()
