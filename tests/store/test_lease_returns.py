"""Giving back: leases of one moment share a call, a busy run keeps none of the others."""

import asyncio
import dataclasses
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest

from flowpg.errors import StoreUnavailable
from flowpg.model.records import RunLease
from flowpg.postgres.fleet_verbs import release_strays
from flowpg.postgres.lease_returns import LeaseReturns
from flowpg.store.postgres import PostgresEventStore
from flowpg.store.protocol import FlowEventStore
from tests.store.conftest import Rig
from tests.store.support import MINUTE, request
from tests.waiting import turns, until_async


async def _claimed(store: FlowEventStore, count: int) -> list[RunLease]:
    for number in range(count):
        await store.start(request(f"run-{number}"))
    leases = await store.claim_runs("default", count, "me", MINUTE)
    assert len(leases) == count
    return leases


async def test_leases_given_back_together_can_all_be_claimed_and_count_no_attempt(
    store: FlowEventStore,
) -> None:
    leases = await _claimed(store, 20)
    assert all(await asyncio.gather(*map(store.give_back, leases)))
    assert not any(await asyncio.gather(*map(store.give_back, leases)))
    again = await store.claim_runs("default", 50, "you", MINUTE)
    assert {lease.run_id for lease in again} == {lease.run_id for lease in leases}
    assert {lease.attempts for lease in again} == {1}


@pytest.mark.parametrize(
    "how",
    [
        {"delay": MINUTE},
        {"blocked_reason": "no such step"},
        {"delay": MINUTE, "blocked_reason": "x"},
    ],
)
async def test_an_attempt_that_was_used_stays_counted(rig: Rig, how: dict[str, Any]) -> None:
    store = rig.store
    [lease] = await _claimed(store, 1)
    assert await store.give_back(lease, **how)
    rig.advance(MINUTE * 2)
    [again] = await store.claim_runs("default", 1, "you", MINUTE)
    assert again.attempts == 2


class _Server:
    """Says what it was sent, refuses the runs in ``busy`` in company, and breaks when told to."""

    def __init__(self, busy: Sequence[str] = ()) -> None:
        self.calls: list[list[str]] = []
        self.alone: list[str] = []
        self.busy = busy
        self.error: Exception | None = None
        self.called = asyncio.Event()

    async def send(self, leases: Sequence[RunLease]) -> list[bool]:
        self.calls.append([lease.run_id for lease in leases])
        self.called.set()
        await turns(1)  # what comes meanwhile has to wait
        if self.error is not None:
            raise self.error
        return [lease.run_id not in self.busy for lease in leases]

    async def send_one(self, lease: RunLease) -> bool:
        self.alone.append(lease.run_id)
        return True


def _lease(run_id: str) -> RunLease:
    return RunLease(run_id, 1, 1, 1, datetime(2030, 1, 1, tzinfo=UTC), 1)


async def test_what_is_given_back_in_one_moment_is_one_call_and_what_comes_meanwhile_the_next() -> (
    None
):
    server = _Server(busy=["b"])
    returns = LeaseReturns(server.send, server.send_one)
    first = [asyncio.ensure_future(returns.give_back(_lease(name))) for name in "abc"]
    await server.called.wait()
    second = [asyncio.ensure_future(returns.give_back(_lease(name))) for name in "de"]
    assert await asyncio.gather(*first, *second) == [True] * 5
    assert server.calls == [["a", "b", "c"], ["d", "e"]]
    assert server.alone == ["b"]


async def test_a_call_that_fails_tells_each_of_its_members_and_not_the_next() -> None:
    server = _Server()
    returns = LeaseReturns(server.send, server.send_one)
    server.error = StoreUnavailable("away")
    answers = await asyncio.gather(
        *(returns.give_back(_lease(name)) for name in "ab"), return_exceptions=True
    )
    assert [type(answer) for answer in answers] == [StoreUnavailable] * 2
    server.error = None
    assert await returns.give_back(_lease("c"))


async def test_a_run_that_somebody_holds_keeps_no_other_lease(
    postgres_store: PostgresEventStore, direct_dsn: str
) -> None:
    leases = await _claimed(postgres_store, 5)
    with psycopg.connect(direct_dsn) as holder:
        holder.execute("SELECT flowpg.flow_lock_runs(ARRAY['run-2'])")
        given = {
            lease.run_id: asyncio.ensure_future(postgres_store.give_back(lease)) for lease in leases
        }
        await asyncio.gather(*(given[f"run-{number}"] for number in (0, 1, 3, 4)))

        async def waits() -> bool:
            with psycopg.connect(direct_dsn, autocommit=True) as watcher:
                return bool(
                    watcher.execute(
                        "SELECT FROM pg_stat_activity WHERE wait_event = 'advisory'"
                        " AND datname = current_database()"
                    ).fetchall()
                )

        await until_async(waits, "the last one waits for its run")
        assert not given["run-2"].done()
    assert await given["run-2"]
    again = await postgres_store.claim_runs("default", 5, "another", MINUTE)
    assert [lease.attempts for lease in again] == [1] * 5, "no claim that was not used is counted"


async def test_a_lease_that_was_lost_is_not_given_back(
    postgres_store: PostgresEventStore,
) -> None:
    leases = await _claimed(postgres_store, 3)
    await postgres_store.give_back(leases[1])
    answers = await asyncio.gather(*map(postgres_store.give_back, leases))
    assert answers == [True, False, True]


async def test_strays_are_what_a_name_holds_beyond_what_its_process_has(
    postgres_store: PostgresEventStore,
) -> None:
    store = postgres_store
    leases = await _claimed(store, 4)
    lost_and_taken_again = dataclasses.replace(leases[1], epoch=leases[1].epoch - 1)
    held = [leases[0], lost_and_taken_again]
    assert await store.call(release_strays(["other"], "me", held)) == (0, 0)
    assert await store.call(release_strays(["default"], "you", held)) == (0, 0)
    assert await store.call(release_strays(["default"], "me", held)) == (3, 0)
    assert await store.call(release_strays(["default"], "me", held)) == (0, 0)
    again = await store.claim_runs("default", 50, "you", MINUTE)
    assert {lease.run_id: lease.attempts for lease in again} == {
        lease.run_id: 1 for lease in leases[1:]
    }
