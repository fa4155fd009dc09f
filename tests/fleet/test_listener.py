"""Notifications: work is taken at once where they come through, and taken where they do not."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg import sql

from flowpg.errors import StoreUnavailable
from flowpg.fleet.listener import Listener
from flowpg.fleet.task_worker import FlowTaskWorker
from flowpg.fleet.tasks import FlowTaskQueue, ResumeDueWaits
from flowpg.fleet.worker import FlowWorker
from flowpg.model.records import StartRequest
from flowpg.postgres.fleet_verbs import channel, listen_hint
from flowpg.store.postgres import PostgresEventStore
from flowpg.testing.servers import PostgresServer
from tests.bouncer import PgBouncer
from tests.engine.support import SPEC, EngineStore, Script, echo, one_step
from tests.fleet.watching import until_ended
from tests.proxy import Proxy
from tests.waiting import until_async

SELDOM = timedelta(hours=1)
"""A poll interval that finds nothing in time."""


async def until_listening(worker: FlowWorker) -> None:
    """Wait until notifications reach this worker, and it said that it waits for them."""

    async def waits() -> bool:
        services = worker._services
        return services is not None and services.listening and services._hinted_until > 0

    await until_async(waits, "the worker listens and has said so")


class Working:
    """A worker of an engine, at work inside the block."""

    def __init__(self, worker: FlowWorker) -> None:
        self._worker = worker

    async def __aenter__(self) -> FlowWorker:
        self._task = asyncio.ensure_future(self._worker.run())
        return self._worker

    async def __aexit__(self, *_: object) -> None:
        self._worker.stop()
        async with asyncio.timeout(20):
            await self._task


def notifications(dsn: str, name: str) -> tuple[psycopg.Connection[Any], Callable[[], list[str]]]:
    """A bystander that hears the channel, and what it has heard so far."""
    connection = psycopg.connect(dsn, autocommit=True)
    connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(name)))

    def heard() -> list[str]:
        found = [notify.payload for notify in connection.notifies(timeout=0.2)]
        return [payload for payload in found if not payload.startswith("probe ")]

    return connection, heard


async def test_an_idle_worker_is_told_of_work(postgres_only: EngineStore, direct_dsn: str) -> None:
    engine = await postgres_only.engine(Script(one_step(), {"work": echo}))
    worker = FlowWorker(engine, poll=SELDOM, direct_dsn=direct_dsn)
    async with Working(worker):
        for _ in range(3):
            await until_listening(worker)
            await until_ended(engine, await engine.start(SPEC, drive=False))


async def test_news_that_mean_no_run_make_a_worker_look_for_tasks_at_once(
    postgres_only: EngineStore, direct_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flowpg.fleet.services._TASKS_LATER", SELDOM.total_seconds())
    looked = asyncio.Event()
    monkeypatch.setattr(FlowTaskWorker, "look", lambda _: looked.set())
    engine = await postgres_only.engine(Script(one_step(), {"work": echo}))
    worker = FlowWorker(engine, poll=SELDOM, direct_dsn=direct_dsn)
    async with Working(worker):
        await until_listening(worker)
        await FlowTaskQueue(engine.store).dispatch(ResumeDueWaits())
        async with asyncio.timeout(20):
            await looked.wait()


async def test_work_is_found_without_notifications(postgres_only: EngineStore) -> None:
    engine = await postgres_only.engine(Script(one_step(), {"work": echo}))
    worker = FlowWorker(engine, listen=False)
    async with Working(worker):
        for _ in range(3):
            await until_ended(engine, await engine.start(SPEC, drive=False))
        assert worker._services is not None
        assert not worker._services.listening


async def test_a_burst_of_starts_notifies_a_few_times_and_says_only_the_queue(
    postgres_only: EngineStore, direct_dsn: str
) -> None:
    client = await postgres_only.engine(None)
    store = client.store
    assert isinstance(store, PostgresEventStore)
    connection, heard = notifications(direct_dsn, await store.call(channel()))
    with connection:
        for _ in range(20):
            await client.start(SPEC, {"secret": 1})
        assert heard() == []  # nobody said that it waits
        engine = await postgres_only.engine(Script(one_step(), {"work": echo}))
        worker = FlowWorker(engine, direct_dsn=direct_dsn)
        async with Working(worker):
            await until_listening(worker)
            runs = [await client.start(SPEC, {"secret": 1}) for _ in range(200)]
            await until_ended(client, *runs)
            said = await asyncio.to_thread(heard)
    assert set(said) == {"default"}
    assert len(said) <= 60


async def test_a_listener_that_is_silently_dead_is_found_and_rebuilt(
    postgres_only: EngineStore, direct_dsn: str
) -> None:
    client = await postgres_only.engine(None)
    store = client.store
    assert isinstance(store, PostgresEventStore)
    heard = asyncio.Event()

    async def name() -> str:
        return await store.call(channel())

    with Proxy(direct_dsn) as proxy:
        listener = Listener(
            proxy.dsn,
            name,
            frozenset({"default"}),
            heard.set,
            store.notify,
            probe_every=0.05,
            probe_timeout=0.3,
        )
        listener.start()

        async def healthy() -> bool:
            return listener.healthy

        async def found_out() -> bool:
            return listener.rebuilt > 0

        await until_async(healthy, "notifications come through")
        with proxy.black_hole():
            await until_async(found_out, "the probe does not come back")
            assert not listener.healthy
        await until_async(healthy, "another connection is made")
        heard.clear()
        await store.call(listen_hint(["default"], timedelta(seconds=60)))
        await client.start(SPEC)
        async with asyncio.timeout(20):
            await heard.wait()
        await listener.close()


async def test_a_worker_with_a_dead_listener_works_on_and_stops_in_time(
    postgres_only: EngineStore, direct_dsn: str
) -> None:
    engine = await postgres_only.engine(Script(one_step(), {"work": echo}))
    with Proxy(direct_dsn) as proxy:
        worker = FlowWorker(
            engine,
            poll=timedelta(seconds=0.1),
            direct_dsn=proxy.dsn,
        )
        async with Working(worker):
            await until_listening(worker)
            with proxy.black_hole():
                await until_ended(engine, await engine.start(SPEC, drive=False))
                worker.stop()


async def test_a_listener_that_began_without_a_database_listens_once_it_is_there(
    postgres_only: EngineStore, direct_dsn: str
) -> None:
    store = (await postgres_only.engine(None)).store
    assert isinstance(store, PostgresEventStore)
    asked = 0

    async def name() -> str:
        nonlocal asked
        asked += 1
        if asked == 1:
            raise StoreUnavailable("not yet")
        return await store.call(channel())

    listener = Listener(direct_dsn, name, frozenset({"default"}), lambda: None, store.notify)
    listener.start()

    async def healthy() -> bool:
        return listener.healthy

    await until_async(healthy, "notifications come through")
    assert asked == 2
    await listener.close()


@pytest.mark.pgbouncer
async def test_a_pooler_that_delivers_no_notifications_is_found_out(
    postgres_only: EngineStore, pg_server: PostgresServer, pgbouncer: PgBouncer, database: str
) -> None:
    client = await postgres_only.engine(None)
    store = client.store
    assert isinstance(store, PostgresEventStore)
    dsn = pgbouncer.dsn_of(pg_server.admin_dsn, database)

    async def name() -> str:
        return await store.call(channel())

    queues = frozenset({"default"})
    listener = Listener(dsn, name, queues, lambda: None, store.notify, probe_timeout=0.2)
    listener.start()

    async def found_out() -> bool:
        return listener.rebuilt > 1

    await until_async(found_out, "the probe does not come back")
    assert not listener.healthy
    await listener.close()


async def test_a_queue_with_notifications_switched_off_is_polled(
    postgres_only: EngineStore, direct_dsn: str
) -> None:
    engine = await postgres_only.engine(Script(one_step(), {"work": echo}))
    store = engine.store
    assert isinstance(store, PostgresEventStore)
    with psycopg.connect(direct_dsn, autocommit=True) as connection:
        connection.execute(
            "INSERT INTO flowpg.flow_queues (queue, notify) VALUES ('default', false)"
            " ON CONFLICT (queue) DO UPDATE SET notify = false"
        )
    connection, heard = notifications(direct_dsn, await store.call(channel()))
    with connection:
        worker = FlowWorker(
            engine,
            poll=timedelta(seconds=0.2),
            direct_dsn=direct_dsn,
        )
        async with Working(worker):
            await until_listening(worker)
            results = await engine.start_many([StartRequest(SPEC, number) for number in range(50)])
            await until_ended(engine, *(result.run_id for result in results))
            assert await asyncio.to_thread(heard) == []


@pytest.mark.parametrize("reachable", [True, False], ids=["silent", "down"])
async def test_a_pooler_is_suspected_of_silence_only(
    reachable: bool, direct_dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def lost(_channel: str, _payload: str) -> None:
        """Says nothing to anyone."""

    dsn = direct_dsn if reachable else "postgresql://127.0.0.1:1/x"

    async def name() -> str:
        return "c"

    nothing = frozenset[str]()
    listener = Listener(dsn, name, nothing, lambda: None, lost, probe_timeout=0.1)
    listener.start()
    try:

        async def complained() -> bool:
            return "no notifications" in caplog.text

        await until_async(complained, "the listener complains")
    finally:
        await listener.close()
    assert ("--direct-dsn" in caplog.text) is reachable
