"""A claim brings the histories of short runs along: the same that a read would have found."""

import psycopg
import pytest

from flowpg.engine.parked import ParkedRuns, load_claimed
from flowpg.engine.tip import RunTip
from flowpg.model import events
from flowpg.model.records import Append, LoadedRun, RunLease
from flowpg.postgres import claim_verbs
from flowpg.store.postgres import PostgresEventStore
from tests.store.support import MINUTE, request, running, step


async def claim(store: PostgresEventStore) -> list[RunLease]:
    return await store.claim_runs("default", 10, "me", MINUTE)


async def test_short_histories_come_with_the_claim_and_long_ones_do_not(
    postgres_store: PostgresEventStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = postgres_store
    monkeypatch.setattr(claim_verbs, "SHORT_HISTORY", 4)
    await store.start(request("new", {"a": [1, "ü"]}))
    await running(store, *step("s"), run_id="short")
    await running(store, *step("s"), events.step_completed("s", None), run_id="long")
    leases = await claim(store)
    assert [lease.run_id for lease in leases] == ["new", "short", "long"]
    read = await store.load_runs(["new", "short", "long"])
    for lease in leases:
        found = read[lease.run_id]
        assert (lease.head_sequence, lease.wakes) == (found.head_sequence, found.wakes)
        if lease.run_id == "long":
            assert lease.loaded is None
            continue
        loaded = lease.loaded
        assert loaded is not None
        assert loaded.history == found.history
        assert (loaded.head_sequence, loaded.status, loaded.wakes, loaded.after) == (
            *(found.head_sequence, found.status, found.wakes),
            0,
        )
        assert loaded.now == lease.now <= found.now


async def test_what_came_with_the_claim_is_not_read_again(
    postgres_store: PostgresEventStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = postgres_store
    asked: list[tuple[list[str], list[int]]] = []
    read = store.load_runs

    async def load_runs(run_ids: list[str], after: list[int]) -> dict[str, LoadedRun]:
        asked.append((run_ids, after))
        return await read(run_ids, after)

    monkeypatch.setattr(store, "load_runs", load_runs)
    monkeypatch.setattr(claim_verbs, "SHORT_HISTORY", 3)
    for run_id in ("new", "parked", "ahead"):
        await store.start(request(run_id))
    await running(store, *step("s"), run_id="long")
    parked = ParkedRuns(10)
    for run_id in ("parked", "ahead"):
        await store.append(Append(run_id, [events.run_started()]))
        parked.park(RunTip((await read([run_id]))[run_id]))
    # The tip of one remembers an event that its store has lost; the other has got a new one.
    tip = parked.take("ahead")
    assert tip is not None
    tip.stored += 1
    parked.park(tip)
    await store.append(Append("parked", [events.run_failed("no")]))
    await store.wake_run("parked")
    found = await load_claimed(store, parked, await claim(store))
    assert asked == [(["long"], [0])]
    for run_id, after in {"new": 0, "ahead": 0, "long": 0, "parked": 1}.items():
        if run_id not in found:
            continue
        loaded, known = found[run_id]
        assert (loaded.after, known is not None) == (after, after > 0)
        assert [event.sequence for event in loaded.history] == list(
            range(after + 1, loaded.head_sequence + 1)
        )
    assert {"new", "ahead", "long"} <= set(found)


async def test_a_parked_run_goes_on_from_the_news_of_a_claim(
    postgres_store: PostgresEventStore,
) -> None:
    store = postgres_store
    await running(store, events.hook_created("h", "token", None))
    parked = ParkedRuns(10)
    tip = RunTip((await store.load_runs(["r"]))["r"])
    parked.park(tip)
    await store.resume_hook("r", "h", {"yes": 1})
    ((loaded, known),) = (await load_claimed(store, parked, await claim(store))).values()
    assert known is tip
    assert [event.type for event in loaded.history] == ["hook_created", "hook_received"]
    assert tip.resume(loaded)
    assert tip.snapshot == RunTip((await store.load_runs(["r"]))["r"]).snapshot


async def test_a_history_that_cannot_be_read_costs_no_neighbour_its_lease(
    postgres_store: PostgresEventStore, direct_dsn: str
) -> None:
    store = postgres_store
    for run_id in ("deep", "fine"):
        await store.start(request(run_id))
    # What no verb would store: a foreign writer's payload that nothing could walk through.
    deep = '{"a":' + "[" * 400 + "]" * 400 + "}"
    with psycopg.connect(direct_dsn, autocommit=True) as connection:
        connection.execute(
            "INSERT INTO flowpg.flow_events (run_id, sequence, event_id, event_type, subject_id,"
            " payload) VALUES ('deep', 2, gen_random_uuid(), 'foreign', 'x', %s)",
            (deep,),
        )
    leases = {lease.run_id: lease.loaded for lease in await claim(store)}
    assert set(leases) == {"deep", "fine"}
    assert leases["deep"] is None
    assert leases["fine"] is not None
