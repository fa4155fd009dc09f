"""Many callers at one moment: one of them wins, all are told the truth."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import psycopg
import pytest

from flowpg.errors import HookConflict, HookTokenNotFound, RunConflict
from flowpg.model import events
from flowpg.model.records import Append, AppendResult, VerbResult
from flowpg.store.postgres import PostgresEventStore
from tests.store.support import (
    MINUTE,
    hooked,
    leased,
    request,
    running,
    step,
    types,
    waiting,
)
from tests.store.test_enlisting import blocked
from tests.waiting import until_async

CALLERS = 50
CONNECTIONS = 15


@pytest.fixture
async def store(database_dsn: str, through_pgbouncer: bool) -> AsyncIterator[PostgresEventStore]:
    """A store with many connections."""
    async with await PostgresEventStore.connect(
        database_dsn, max_size=CONNECTIONS, prepare=not through_pgbouncer
    ) as store:
        yield store


Gate = Callable[[PostgresEventStore, psycopg.AsyncConnection[Any]], Awaitable[Any]]


async def at_once(
    store: PostgresEventStore,
    dsn: str,
    hold: Gate,
    calls: Sequence[Callable[[], Awaitable[Any]]],
) -> list[Any]:
    """What the calls return or raise when as many as there are connections wait at one gate.

    ``hold`` takes the gate: it runs a verb in a transaction that is rolled back, which lets go,
    once the callers are waiting for its lock.
    """
    async with (
        await psycopg.AsyncConnection.connect(dsn) as holder,
        await psycopg.AsyncConnection.connect(dsn, autocommit=True) as watch,
    ):
        await hold(store, holder)
        tasks = [asyncio.ensure_future(call()) for call in calls]

        async def all_wait() -> bool:
            cursor = await watch.execute(
                "SELECT count(*) FROM pg_stat_activity"
                " WHERE datname = current_database() AND wait_event_type = 'Lock'"
            )
            row = await cursor.fetchone()
            return row is not None and row[0] >= min(len(calls), CONNECTIONS)

        await until_async(all_wait, "the callers wait at the gate")
        await holder.rollback()
        return await asyncio.gather(*tasks, return_exceptions=True)


def run_lock(run_id: str = "r") -> Gate:
    """A gate that every verb on the run waits at, also if the run does not exist."""

    async def hold(store: PostgresEventStore, holder: psycopg.AsyncConnection[Any]) -> None:
        known = run_id in await store.list_run_ids()
        if known:
            await store.force_cancel(run_id, connection=holder)
        else:
            await store.start(request(run_id), connection=holder)

    return hold


def applied(results: Sequence[Any]) -> list[VerbResult]:
    return [item for item in results if isinstance(item, VerbResult) and item.applied]


def kinds(results: Sequence[Any]) -> set[type]:
    return {type(item) for item in results}


async def test_fifty_starts_of_one_id_make_one_run(
    store: PostgresEventStore, direct_dsn: str
) -> None:
    calls = [lambda: store.start(request("r", {"order": 1}))] * CALLERS
    results = await at_once(store, direct_dsn, run_lock(), calls)
    assert kinds(results) == {VerbResult}
    assert {item.run_id for item in results} == {"r"}
    assert len(applied(results)) == 1
    assert await types(store) == ["run_created"]
    assert len(await store.claim_runs("default", 10, "me", MINUTE)) == 1


async def test_of_fifty_starts_with_other_inputs_one_wins_and_the_others_are_told(
    store: PostgresEventStore, direct_dsn: str
) -> None:
    calls = [partial(store.start, request("r", n)) for n in range(CALLERS)]
    results = await at_once(store, direct_dsn, run_lock(), calls)
    assert len(applied(results)) == 1
    assert kinds(results) == {VerbResult, RunConflict}
    winner = results.index(applied(results)[0])
    assert (await store.history_page("r"))[0].data["input"] == winner


async def test_fifty_equal_answers_to_a_hook_make_one_event(
    store: PostgresEventStore, direct_dsn: str
) -> None:
    await hooked(store)
    calls = [lambda: store.resume_hook("r", "h", {"ok": True})] * CALLERS
    results = await at_once(store, direct_dsn, run_lock(), calls)
    assert kinds(results) == {VerbResult}
    assert len(applied(results)) == 1
    assert (await types(store)).count("hook_received") == 1


async def test_of_fifty_answers_by_token_one_is_taken_and_its_answer_stands(
    store: PostgresEventStore, direct_dsn: str
) -> None:
    await hooked(store, token="sesame")
    calls = [partial(store.resume_hook_by_token, "sesame", n) for n in range(CALLERS)]
    results = await at_once(store, direct_dsn, run_lock(), calls)
    assert len(applied(results)) == 1
    assert kinds(results) == {VerbResult, HookTokenNotFound}
    event = (await store.history_page("r"))[-1]
    assert event.data["payload"] == results.index(applied(results)[0])


async def test_a_hook_is_answered_or_withdrawn_and_never_both(
    store: PostgresEventStore, direct_dsn: str
) -> None:
    await hooked(store)
    calls: list[Callable[[], Awaitable[Any]]] = []
    for number in range(CALLERS // 2):
        calls.append(partial(store.resume_hook, "r", "h", number))
        calls.append(lambda: store.dispose_hook("r", "h"))
    results = await at_once(store, direct_dsn, run_lock(), calls)
    assert len(applied(results)) == 1
    assert kinds(results) <= {VerbResult, HookConflict}
    assert (await types(store))[3:] in (["hook_received"], ["hook_disposed"])


async def test_of_two_runs_that_want_one_token_one_gets_it(store: PostgresEventStore) -> None:
    for number in range(20):
        for run_id in (f"a{number}", f"b{number}"):
            await running(store, run_id=run_id)
    hook = events.hook_created

    async def want(run_id: str, token: str) -> AppendResult:
        # Each in a call of its own: in one call it would be no race.
        return (await store.append_many([Append(run_id, [hook("h", token, None)])]))[0]

    for number in range(20):
        token = f"token-{number}"
        results = await asyncio.gather(want(f"a{number}", token), want(f"b{number}", token))
        assert sorted(item.outcome.value for item in results) == [
            "appended",
            "hook_token_conflict",
        ]
        winner, loser = sorted(results, key=lambda item: item.outcome.value)
        assert loser.detail["run_id"] == winner.run_id
        assert token not in str(results)
    assert len(await store.list_active_hooks()) == 20


async def test_of_fifty_appends_at_one_head_one_is_stored(
    store: PostgresEventStore, direct_dsn: str
) -> None:
    await running(store)
    appends = [
        Append("r", [events.wait_created(f"w{number}", delay=MINUTE)], expected=2)
        for number in range(CALLERS)
    ]
    calls = [partial(store.append_many, [one]) for one in appends]
    results = await at_once(store, direct_dsn, run_lock(), calls)
    outcomes = [item.outcome.value for (item,) in results]
    assert sorted(outcomes) == ["appended"] + ["event_conflict"] * (CALLERS - 1)
    assert {item.detail.get("actual") for (item,) in results} == {None, 3}
    assert (await store.run_info("r")).head_sequence == 3


async def test_fifty_appends_at_any_head_are_all_stored_in_some_order(
    store: PostgresEventStore, direct_dsn: str
) -> None:
    await running(store)
    appends = [Append("r", step(f"s{number}")) for number in range(CALLERS)]
    calls = [partial(store.append_many, [one]) for one in appends]
    results = await at_once(store, direct_dsn, run_lock(), calls)
    assert {item.outcome.value for (item,) in results} == {"appended"}
    heads = sorted(item.head_sequence for (item,) in results)
    assert heads == list(range(4, 4 + 2 * CALLERS, 2))
    history = await store.history_page("r")
    assert [event.sequence for event in history] == list(range(1, 3 + 2 * CALLERS))


async def test_a_run_is_leased_to_one_of_many_workers(
    store: PostgresEventStore, direct_dsn: str
) -> None:
    await running(store)
    calls = [partial(store.acquire_run, "r", f"worker-{n}", MINUTE) for n in range(CALLERS)]
    results = await at_once(store, direct_dsn, run_lock(), calls)
    assert len([lease for lease in results if lease is not None]) == 1


async def test_many_workers_claim_every_run_once(store: PostgresEventStore) -> None:
    await store.start_many([request(f"run-{number}") for number in range(200)])

    async def work(owner: str) -> list[str]:
        claimed: list[str] = []
        while leases := await store.claim_runs("default", 7, owner, MINUTE):
            claimed += [lease.run_id for lease in leases]
        return claimed

    async def all_claimed() -> list[str] | None:
        # A claim passes over runs that are locked at the moment, so an empty one proves nothing.
        found = await asyncio.gather(*(work(f"worker-{number}") for number in range(8)))
        seen.extend(run_id for claimed in found for run_id in claimed)
        return seen if len(seen) >= 200 else None

    seen: list[str] = []
    await until_async(all_claimed, "every run is claimed")
    assert sorted(seen) == sorted(f"run-{number}" for number in range(200))


async def test_many_schedulers_move_every_wake_up_once(store: PostgresEventStore) -> None:
    await store.start_many([request(f"run-{number}") for number in range(100)])
    await store.append_many(
        [
            Append(
                f"run-{number}",
                [events.run_started(), events.wait_created("w", delay=0 * MINUTE)],
            )
            for number in range(100)
        ]
    )
    moved: list[str] = []

    async def all_moved() -> bool:
        found = await asyncio.gather(*(store.enqueue_due(limit=30) for _ in range(8)))
        moved.extend(item.run_id for items in found for item in items)
        return len(moved) >= 100

    await until_async(all_moved, "every wake-up is moved")
    assert len(moved) == len(set(moved)) == 100


async def test_a_timer_resumed_by_many_is_completed_once(
    store: PostgresEventStore, direct_dsn: str
) -> None:
    await waiting(store, delay=0 * MINUTE)
    calls: list[Callable[[], Awaitable[Any]]] = []
    for _ in range(CALLERS // 2):
        calls.append(lambda: store.resume_wait("r", "w"))
        calls.append(lambda: store.resume_due_waits(run_id="r"))
    results = await at_once(store, direct_dsn, run_lock(), calls)
    swept = [item for found in results if isinstance(found, list) for item in found]
    assert len(applied(results)) + len(swept) == 1
    assert (await types(store)).count("wait_completed") == 1


async def test_a_run_that_is_cancelled_and_completed_ends_once(
    store: PostgresEventStore, direct_dsn: str
) -> None:
    await running(store)
    lease = await leased(store)
    complete = Append("r", [events.run_completed("done")], expected=2, epoch=lease.epoch)
    calls: list[Callable[[], Awaitable[Any]]] = [lambda: store.append_many([complete])]
    calls += [lambda: store.force_cancel("r")] * 10
    results = await at_once(store, direct_dsn, run_lock(), calls)
    ends = len(applied(results)) + sum(
        item.appended for found in results if isinstance(found, list) for item in found
    )
    assert ends == 1
    assert len((await types(store))[2:]) == 1


async def test_a_wake_up_between_the_last_look_and_the_release_is_not_lost(
    store: PostgresEventStore,
) -> None:
    for number in range(30):
        run_id = f"run-{number}"
        await hooked(store, run_id, token=run_id)
        lease = await leased(store, run_id)
        answered, released = await asyncio.gather(
            store.resume_hook(run_id, "h", 1), store.release_run(lease)
        )
        assert answered.applied
        if released:
            # The answer came after the release, and made a task of its own.
            claimed = await store.claim_runs("default", 10, "other", MINUTE)
            assert [item.run_id for item in claimed] == [run_id]
        else:
            (beat,) = await store.heartbeat([lease], MINUTE)
            assert beat.held
            assert beat.wakes > lease.wakes


async def test_batches_over_the_same_runs_in_any_order_do_not_deadlock(
    store: PostgresEventStore, direct_dsn: str
) -> None:
    ids = [f"run-{number}" for number in range(20)]
    for run_id in ids:
        await running(store, run_id=run_id)

    async def batch(number: int) -> None:
        order = ids if number % 2 else ids[::-1]
        for turn in range(5):
            name = f"{number}-{turn}"
            appends = [
                Append(run_id, [events.wait_created(name, delay=MINUTE)]) for run_id in order
            ]
            assert all(item.appended for item in await store.append_many(appends))

    async with await psycopg.AsyncConnection.connect(direct_dsn, autocommit=True) as watch:

        async def deadlocks() -> int:
            cursor = await watch.execute(
                "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
            )
            row = await cursor.fetchone()
            return int(row[0]) if row else -1

        before = await deadlocks()
        await asyncio.gather(*(batch(number) for number in range(10)))
        assert await deadlocks() == before
    assert {(await store.run_info(run_id)).head_sequence for run_id in ids} == {52}


async def test_two_transactions_of_callers_wait_for_each_other_and_both_commit(
    store: PostgresEventStore, direct_dsn: str
) -> None:
    async with AsyncExitStack() as stack:
        first, second = [
            await stack.enter_async_context(await psycopg.AsyncConnection.connect(direct_dsn))
            for _ in range(2)
        ]
        await store.start(request("r"), connection=first)
        waits = asyncio.ensure_future(store.start(request("r"), connection=second))
        await blocked(direct_dsn)
        assert not waits.done()
        await first.commit()
        assert not (await waits).applied
        await second.commit()
    assert await types(store) == ["run_created"]
