"""Cancelled tasks lose no connection, leave no transaction open, and half-do nothing."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from typing import Any

import psycopg
import pytest

from flowpg.model import events
from flowpg.model.records import Append
from flowpg.store.postgres import PostgresEventStore
from tests.store.support import MINUTE, request, running, types
from tests.waiting import turns, until_async


class CancelledAt:
    """Awaits ``work`` and cancels the awaiting task at its suspension number ``at`` (from 0)."""

    def __init__(self, work: Awaitable[Any], at: int) -> None:
        self._work, self._at = work, at
        self.suspensions = 0

    def __await__(self) -> Generator[Any, Any, Any]:
        inner = self._work.__await__()
        step: Callable[[], Any] = lambda: next(inner)  # noqa: E731
        while True:
            try:
                waits_for = step()
            except StopIteration as done:
                return done.value
            if self.suspensions == self._at:
                task = asyncio.current_task()
                assert task is not None
                asyncio.get_running_loop().call_soon(task.cancel)
            self.suspensions += 1
            try:
                value = yield waits_for
            except BaseException as error:  # noqa: BLE001 -- passed on, whatever it is
                step = lambda error=error: inner.throw(error)  # type: ignore[misc] # noqa: E731
            else:
                step = lambda value=value: inner.send(value)  # type: ignore[misc] # noqa: E731


async def sweep(
    make: Callable[[int], Awaitable[Any]], check: Callable[[int, bool], Awaitable[None]]
) -> int:
    """Run ``make(n)`` cancelled at its nth suspension, for every n there is, checking after each.

    Returns how many suspensions were tried. ``check`` is told n and whether it was cancelled.
    """
    number = 0
    while True:
        work = CancelledAt(make(number), number)
        task = asyncio.create_task(_of(work))
        await asyncio.wait([task])
        cancelled = task.cancelled()
        if not cancelled:
            task.result()
        await check(number, cancelled)
        if not cancelled and work.suspensions <= number:
            return number
        number += 1


async def _of(work: CancelledAt) -> Any:
    return await work


@pytest.fixture
async def watch(direct_dsn: str) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
    async with await psycopg.AsyncConnection.connect(
        direct_dsn, autocommit=True, application_name="watch"
    ) as connection:
        yield connection


async def quiet(watch: psycopg.AsyncConnection[Any]) -> None:
    """Wait until no session of ours is busy or holds a transaction open."""

    async def is_quiet() -> bool:
        cursor = await watch.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
            " AND application_name <> 'watch' AND state <> 'idle' AND backend_type LIKE 'client%'"
        )
        row = await cursor.fetchone()
        return row is not None and row[0] == 0

    await until_async(is_quiet, "no session of ours is busy or in a transaction")


async def all_back(store: PostgresEventStore) -> None:
    """Wait until every connection of the pool is back in it, and nobody waits for one."""

    async def is_back() -> bool:
        stats = store.pool_stats()
        return stats["pool_available"] == stats["pool_size"] >= 1 and not stats["requests_waiting"]

    await until_async(is_back, "every connection is back in the pool")


@pytest.mark.parametrize("max_size", [1, 3])
async def test_a_verb_cancelled_at_any_moment_gives_its_connection_back(
    database_dsn: str,
    through_pgbouncer: bool,
    watch: psycopg.AsyncConnection[Any],
    max_size: int,
) -> None:
    async with await PostgresEventStore.connect(
        database_dsn, max_size=max_size, prepare=not through_pgbouncer
    ) as store:
        await running(store)

        async def check(number: int, cancelled: bool) -> None:
            await all_back(store)
            await quiet(watch)
            # Done or not done, but never half: repeating it makes it done exactly once.
            await store.start(request(f"run-{number}"))
            assert await types(store, f"run-{number}") == ["run_created"]

        tried = await sweep(lambda number: store.start(request(f"run-{number}")), check)
        assert tried >= 1


async def test_a_claim_cancelled_at_any_moment_leaves_leases_that_expire_and_no_lock(
    postgres_store: PostgresEventStore, watch: psycopg.AsyncConnection[Any]
) -> None:
    store = postgres_store
    await store.start_many([request(f"run-{number}") for number in range(40)])

    async def check(number: int, cancelled: bool) -> None:
        await all_back(store)
        await quiet(watch)

    await sweep(lambda _: store.claim_runs("default", 1, "me", MINUTE), check)
    left = await store.claim_runs("default", 1000, "other", MINUTE)
    assert left


async def test_an_append_cancelled_at_any_moment_is_stored_once_or_not_at_all(
    postgres_store: PostgresEventStore, watch: psycopg.AsyncConnection[Any]
) -> None:
    store = postgres_store
    await running(store)
    heads = [2]

    async def check(number: int, cancelled: bool) -> None:
        await all_back(store)
        await quiet(watch)
        head = (await store.run_info("r")).head_sequence
        assert head - heads[-1] in ((0, 1) if cancelled else (1,))
        heads.append(head)

    await sweep(
        lambda number: store.append(Append("r", [events.wait_created(f"w{number}", delay=MINUTE)])),
        check,
    )


async def test_a_neighbour_of_a_cancelled_append_is_stored(
    postgres_store: PostgresEventStore,
) -> None:
    store = postgres_store
    for run_id in ("a", "b"):
        await running(store, run_id=run_id)
    tasks = [
        asyncio.create_task(store.append(Append(run_id, [events.wait_created("w", delay=MINUTE)])))
        for run_id in ("a", "b")
    ]
    await turns(1)  # both have asked and are about to be sent together
    tasks[0].cancel()
    assert (await tasks[1]).appended
    with pytest.raises(asyncio.CancelledError):
        await tasks[0]


async def test_an_enlisted_verb_cancelled_at_any_moment_leaves_a_usable_connection(
    postgres_store: PostgresEventStore, direct_dsn: str, watch: psycopg.AsyncConnection[Any]
) -> None:
    store = postgres_store
    async with await psycopg.AsyncConnection.connect(direct_dsn) as mine:

        async def check(number: int, cancelled: bool) -> None:
            await mine.rollback()
            await quiet(watch)
            await store.start(request("again"), connection=mine)
            await mine.rollback()

        await sweep(lambda number: store.start(request("r"), connection=mine), check)
    assert await store.list_run_ids() == []


async def test_connecting_can_be_cancelled_at_any_moment_without_leaving_a_session(
    database_dsn: str, through_pgbouncer: bool, watch: psycopg.AsyncConnection[Any]
) -> None:
    async def connect() -> None:
        async with await PostgresEventStore.connect(
            database_dsn, prepare=not through_pgbouncer
        ) as store:
            await store.now()

    async def check(number: int, cancelled: bool) -> None:
        async def nobody() -> bool:
            cursor = await watch.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
                " AND application_name = 'flowpg' AND backend_type LIKE 'client%'"
            )
            row = await cursor.fetchone()
            return row is not None and row[0] == 0

        if not through_pgbouncer:
            await until_async(nobody, "every session of the cancelled store has ended")

    assert await sweep(lambda _: connect(), check) > 3


async def test_a_verb_cancelled_while_it_waits_for_a_connection_harms_nobody(
    database_dsn: str, direct_dsn: str, through_pgbouncer: bool
) -> None:
    async with (
        await PostgresEventStore.connect(
            database_dsn, max_size=1, prepare=not through_pgbouncer
        ) as store,
        await psycopg.AsyncConnection.connect(direct_dsn) as holder,
    ):
        await running(store)
        await store.request_cancellation("r", connection=holder)
        tasks = [asyncio.create_task(store.force_cancel("r"))]
        tasks += [asyncio.create_task(store.start(request(f"run-{number}"))) for number in range(5)]
        await until_async(lambda: _waiting(store, 5), "five verbs wait for the one connection")
        tasks[1].cancel()
        tasks[3].cancel()
        await until_async(lambda: _waiting(store, 3), "three verbs go on waiting")
        await holder.rollback()
        await asyncio.wait(tasks)
        assert [task.cancelled() for task in tasks] == [False, True, False, True, False, False]
        assert await store.list_run_ids() == ["r", "run-1", "run-3", "run-4"]
        await all_back(store)


async def test_a_connection_handed_over_in_the_moment_of_a_cancellation_is_not_lost(
    database_dsn: str, direct_dsn: str, through_pgbouncer: bool
) -> None:
    async with (
        await PostgresEventStore.connect(
            database_dsn, max_size=1, prepare=not through_pgbouncer
        ) as store,
        await psycopg.AsyncConnection.connect(direct_dsn) as holder,
    ):
        await running(store)
        await store.request_cancellation("r", connection=holder)
        first = asyncio.create_task(store.force_cancel("r"))
        second = asyncio.create_task(store.start(request("second")))
        await until_async(lambda: _waiting(store, 1), "one verb waits for the connection")
        first.add_done_callback(lambda _: second.cancel())
        await holder.rollback()
        await asyncio.wait([first, second])
        assert first.result().applied
        await all_back(store)
        assert (await store.start(request("third"))).applied


async def _waiting(store: PostgresEventStore, count: int) -> bool:
    return store.pool_stats()["requests_waiting"] == count
