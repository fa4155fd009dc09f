"""A worker and a database that goes away, comes back, or is another server by then."""

import asyncio
from datetime import timedelta
from typing import Any

import psycopg
from psycopg import sql

from flowpg.fleet.worker import FlowWorker
from flowpg.model.snapshot import RunStatus
from flowpg.store.postgres import PostgresEventStore
from flowpg.testing.servers import PostgresServer
from tests.engine.support import SPEC, EngineStore, Script, in_order, one_step, short
from tests.fleet.watching import until_ended
from tests.proxy import Proxy
from tests.waiting import until_async


class Held:
    """A step that waits until it is told to go on."""

    def __init__(self) -> None:
        self.entered = asyncio.Event()
        self.go = asyncio.Event()

    async def __call__(self, step: Any) -> Any:
        self.entered.set()
        await self.go.wait()
        return step.input


async def test_a_worker_survives_a_database_that_is_out_of_reach_while_a_step_runs(
    postgres_only: EngineStore, direct_dsn: str
) -> None:
    client = await postgres_only.engine(None)
    held = Held()
    with Proxy(direct_dsn) as proxy:
        store = await PostgresEventStore.connect(proxy.dsn)
        runtime = Script(in_order("a", "b"), {"work": held})
        engine = await postgres_only.engine(runtime, wrap=lambda _: store)
        run_id = await client.start(SPEC)
        worker = FlowWorker(engine)
        working = asyncio.ensure_future(worker.run())
        await held.entered.wait()
        with proxy.away():
            held.go.set()

            async def noticed() -> bool:
                return not worker.liveness(within=timedelta(seconds=0.2)).alive

            await until_async(noticed, "claims no longer succeed")
            assert (await client.run_info(run_id)).status is RunStatus.RUNNING

        await until_ended(client, run_id)
        worker.stop()
        await working
    assert (await client.snapshot(run_id)).output == ["a", "b"]
    assert runtime.calls == [("a", 1), ("b", 1)]


async def test_a_worker_goes_on_when_every_connection_was_ended_by_the_server(
    postgres_only: EngineStore, direct_dsn: str, database: str
) -> None:
    client = await postgres_only.engine(None)
    held = Held()
    runtime = Script(in_order("a", "b"), {"work": held})
    engine = await postgres_only.engine(runtime)
    run_id = await client.start(SPEC)
    worker = FlowWorker(engine)
    working = asyncio.ensure_future(worker.run())
    await held.entered.wait()
    with psycopg.connect(direct_dsn, autocommit=True) as connection:
        # SQLSTATE 57P01, as at the shutdown of a server.
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = %s AND pid <> pg_backend_pid()",
            (database,),
        )
    held.go.set()

    await until_ended(engine, run_id)
    worker.stop()
    await working
    assert runtime.calls == [("a", 1), ("b", 1)]


async def test_a_worker_leaves_a_server_that_became_read_only_and_comes_back_when_it_is_not(
    postgres_only: EngineStore, direct_dsn: str, pg_server: PostgresServer, database: str
) -> None:
    # Past any pooler, which has read-only connections of its own to get rid of.
    stores = [await PostgresEventStore.connect(direct_dsn) for _ in range(2)]
    client = await postgres_only.engine(None, wrap=lambda _: stores[0])
    runtime = Script(one_step(), {"work": lambda step: step.attempt})
    engine = await postgres_only.engine(runtime, wrap=lambda _: stores[1])
    worker = FlowWorker(engine)
    name = sql.Identifier(database)
    working = asyncio.ensure_future(worker.run())
    with psycopg.connect(pg_server.admin_dsn, autocommit=True) as admin:
        admin.execute(
            sql.SQL("ALTER DATABASE {} SET default_transaction_read_only = on").format(name)
        )
        admin.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s",
            (database,),
        )

        async def noticed() -> bool:
            return not worker.liveness(within=timedelta(seconds=0.2)).alive

        # Connecting works and SELECT 1 works; only a claim tells.
        await until_async(noticed, "claims no longer succeed")
        admin.execute(sql.SQL("ALTER DATABASE {} RESET default_transaction_read_only").format(name))

    # Connections made meanwhile are read-only for as long as they live: they must not be kept.
    async def started() -> bool:
        try:
            await client.start_with_id("r", SPEC)
        except Exception:  # noqa: BLE001  the client's own pool recovers the same way
            return False
        return True

    await until_async(started, "the client can start a run")

    await until_ended(client, "r")
    worker.stop()
    await working
    assert short(await client.history("r")).count("step.started s") == 1
