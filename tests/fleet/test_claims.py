"""Claiming: nothing hangs it for good, nothing it took is stranded, and it tells how it does."""

import asyncio
import http.client
import json
from datetime import timedelta
from typing import Any, cast

import psycopg
import pytest

from flowpg.errors import SerializationError, StoreError, StoreUnavailable
from flowpg.fleet.liveness import served
from flowpg.fleet.pacing import Pace
from flowpg.fleet.worker import FlowWorker
from flowpg.model.records import RunLease
from flowpg.model.snapshot import RunStatus
from flowpg.postgres import claim_verbs
from flowpg.store.postgres import PostgresEventStore
from flowpg.store.protocol import FlowEventStore
from tests.engine.support import (
    LEASE,
    SPEC,
    EngineStore,
    Script,
    echo,
    in_order,
    one_step,
    wrapping,
)
from tests.fleet.watching import until_ended
from tests.waiting import until_async

BRIEF = timedelta(seconds=0.05)


async def test_a_claim_that_hangs_is_noticed_and_another_is_made(
    engine_store: EngineStore,
) -> None:
    hanging, released = asyncio.Event(), asyncio.Event()

    async def hang(name: str, args: Any) -> None:
        if name == "claim_runs" and not released.is_set():
            hanging.set()
            await asyncio.Event().wait()

    engine = await engine_store.engine(
        Script(in_order("a"), {"work": echo}), wrap=wrapping(before=hang)
    )
    run_id = await engine.start(SPEC, drive=False)
    worker = FlowWorker(engine, claim_timeout=10 * BRIEF)  # time for one that is well
    working = asyncio.ensure_future(worker.run())
    await hanging.wait()

    async def not_alive() -> bool:
        return not worker.liveness(within=BRIEF).alive

    # The event loop turns, and so do heartbeats; only claims do not succeed.
    await until_async(not_alive, "the worker is no longer called alive")
    released.set()

    await until_ended(engine, run_id)
    assert worker.liveness().alive
    worker.stop()
    await working
    assert not worker.liveness().ready


async def test_a_claim_that_fails_for_no_good_reason_does_not_end_the_worker(
    engine_store: EngineStore,
) -> None:
    failures = 3

    async def fail(name: str, args: Any) -> None:
        nonlocal failures
        if name == "claim_runs" and failures:
            failures -= 1
            raise KeyError("a defect")

    engine = await engine_store.engine(
        Script(in_order("a"), {"work": echo}), wrap=wrapping(before=fail)
    )
    run_id = await engine.start(SPEC, drive=False)
    await FlowWorker(engine).run_until(run_id, timeout=timedelta(seconds=20))
    assert failures == 0


class Counted:
    """Passes calls on and notes their names, those of claims that look at deadlines too apart;
    those fail if they ``shall``."""

    def __init__(self, inner: FlowEventStore) -> None:
        self._inner = inner
        self.names: list[str] = []
        self.shall = False

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._inner, name)

        async def call(*args: Any, **kwargs: Any) -> Any:
            due = bool(kwargs.get("due"))
            self.names.append(name + " with what is due" * due)
            if due and self.shall:
                raise StoreError("a deadline that cannot be read")
            return await method(*args, **kwargs)

        return call


def counting(counted: list[Counted], *, failing: bool = False) -> Any:
    """For ``EngineStore.engine(wrap=...)``."""

    def wrap(store: FlowEventStore) -> FlowEventStore:
        counted.append(Counted(store))
        counted[-1].shall = failing
        return cast("FlowEventStore", counted[-1])

    return wrap


async def test_a_worker_with_nothing_to_do_looks_at_runs_and_deadlines_in_one_call(
    engine_store: EngineStore,
) -> None:
    counted: list[Counted] = []
    engine = await engine_store.engine(Script(in_order("a")), wrap=counting(counted))
    worker = FlowWorker(engine, ["default", *(f"queue-{n}" for n in range(19))], poll=BRIEF)
    working = asyncio.ensure_future(worker.run())
    names = counted[0].names
    await until_async(lambda: _true(len(names) >= 8), "it has looked eight times")
    worker.stop()
    await working
    assert set(names) == {"claim_runs with what is due"}


async def test_a_deadline_that_cannot_be_looked_at_keeps_no_work_from_being_claimed(
    engine_store: EngineStore,
) -> None:
    counted: list[Counted] = []
    engine = await engine_store.engine(
        Script(in_order("a"), {"work": echo}), wrap=counting(counted, failing=True)
    )
    run_id = await engine.start(SPEC, drive=False)
    await FlowWorker(engine).run_until(run_id, timeout=timedelta(seconds=20))
    assert counted[0].names.count("claim_runs with what is due") == 1


async def _true(value: bool) -> bool:
    return value


async def test_a_claim_that_hangs_does_not_keep_a_stopped_worker(
    engine_store: EngineStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flowpg.fleet.worker._LAST_CALL", 0.01)
    hanging = asyncio.Event()

    async def hang(name: str, args: Any) -> None:
        if name == "claim_runs":
            hanging.set()
            await asyncio.Event().wait()

    engine = await engine_store.engine(Script(in_order("a")), wrap=wrapping(before=hang))
    worker = FlowWorker(engine)
    working = asyncio.ensure_future(worker.run())
    await hanging.wait()
    worker.stop()
    async with asyncio.timeout(20):
        await working


class Deaf(PostgresEventStore):
    """Hears no answer to its first claim that took something."""

    deaf = True

    async def claim_runs(self, *args: Any, **kwargs: Any) -> list[RunLease]:
        leases = await super().claim_runs(*args, **kwargs)
        if leases and self.deaf:
            self.deaf = False
            await asyncio.Event().wait()
        return leases


@pytest.mark.parametrize("stopped", [False, True])
async def test_what_a_claim_took_whose_answer_was_not_waited_for_is_given_back(
    postgres_only: EngineStore, monkeypatch: pytest.MonkeyPatch, stopped: bool
) -> None:
    monkeypatch.setattr("flowpg.fleet.worker._LAST_CALL", 0.2)
    assert postgres_only.dsn is not None
    waiting = await postgres_only.engine(None)
    schema = cast("PostgresEventStore", waiting.store).schema
    store = await Deaf.connect(postgres_only.dsn, schema=schema)
    engine = await postgres_only.engine(Script(in_order("a"), {"work": echo}), wrap=lambda _: store)
    run_id = await engine.start(SPEC, drive=False)
    worker = FlowWorker(engine, claim_timeout=timedelta(seconds=30) if stopped else 20 * BRIEF)
    working = asyncio.ensure_future(worker.run())
    if stopped:
        await until_async(lambda: _true(not store.deaf), "it is claimed")
        worker.stop()
        await working
        [lease] = await waiting.store.claim_runs("default", 10, "other", LEASE)
        assert (lease.run_id, lease.attempts, lease.previous_owner) == (run_id, 1, None)
    else:
        # Long before the lease would have run out.
        await waiting.wait(run_id, timedelta(seconds=20))
        worker.stop()
        await working
    await store.close()


@pytest.mark.parametrize("cancelled", [False, True])
async def test_what_is_claimed_while_the_worker_is_told_to_stop_is_given_back_at_once(
    engine_store: EngineStore, cancelled: bool
) -> None:
    claimed, go_on = asyncio.Event(), asyncio.Event()

    async def hold(name: str, args: Any) -> None:
        if name == "claim_runs":
            claimed.set()
            await go_on.wait()

    runtime = Script(one_step(), {"work": echo})
    engine = await engine_store.engine(runtime, wrap=wrapping(after=hold))
    runs = {await engine.start(SPEC, drive=False) for _ in range(3)}
    worker = FlowWorker(engine)
    working = asyncio.ensure_future(worker.run())
    await claimed.wait()
    worker.stop(at_once=cancelled)
    go_on.set()
    await working
    assert runtime.calls == []
    other = await engine_store.engine(None)
    leases = await other.store.claim_runs("default", 10, "other", LEASE)
    assert {lease.run_id for lease in leases} == runs


@pytest.mark.parametrize("kind", [SerializationError, StoreUnavailable, ValueError])
async def test_one_run_that_cannot_be_read_strands_none_of_those_claimed_with_it(
    engine_store: EngineStore, kind: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claim_verbs, "SHORT_HISTORY", 0)  # none comes with the claim
    poisoned = ""

    async def fail(name: str, args: Any) -> None:
        if name == "load_runs" and poisoned in args[0]:
            raise kind("poison")

    engine = await engine_store.engine(
        Script(in_order("a"), {"work": echo}), wrap=wrapping(before=fail)
    )
    runs = [await engine.start(SPEC, drive=False) for _ in range(4)]
    poisoned = runs[1]
    worker = FlowWorker(engine)
    if kind is StoreUnavailable:  # a drive has patience with that, as long as its lease lasts
        working = [asyncio.ensure_future(worker.run())]
    else:
        working = []
        assert await worker.run_once() == 4
    for run_id in runs:

        async def ended(run_id: str = run_id) -> bool:
            return (await engine.run_info(run_id)).status is RunStatus.COMPLETED

        if run_id != poisoned:
            await until_async(ended, "the neighbour completes")
    assert not (await engine.run_info(poisoned)).status.terminal
    worker.stop(at_once=True)
    await asyncio.gather(*working)


async def test_a_broken_history_blocks_its_run_and_says_so(
    postgres_only: EngineStore, direct_dsn: str
) -> None:
    engine = await postgres_only.engine(Script(in_order("a"), {"work": echo}))
    runs = [await engine.start(SPEC, drive=False) for _ in range(3)]
    with psycopg.connect(direct_dsn, autocommit=True) as connection:
        # What no verb would store: a foreign writer's events that mean nothing here.
        connection.execute(
            "INSERT INTO flowpg.flow_events (run_id, sequence, event_id, event_type, subject_id,"
            " payload) VALUES (%s, 2, gen_random_uuid(), 'step_completed', 'ghost',"
            " %s)",
            (runs[1], '{"step_id": "ghost", "output": 1}'),
        )
    assert await FlowWorker(engine).run_once() == 3
    assert (await engine.run_info(runs[1])).blocked_reason
    for run_id in (runs[0], runs[2]):
        assert (await engine.run_info(run_id)).status is RunStatus.COMPLETED


async def test_a_worker_that_joins_takes_no_run_that_a_live_one_owns(
    engine_store: EngineStore,
) -> None:
    client = await engine_store.engine(None)
    runs = [await client.start(SPEC, number) for number in range(40)]
    go = asyncio.Event()
    half = asyncio.Event()
    calls: list[str] = []

    async def work(step: Any) -> Any:
        calls.append(step.run_id)
        if len(calls) == 20:
            half.set()
        await go.wait()
        return step.input

    first = FlowWorker(await engine_store.engine(Script(one_step(), {"work": work})))
    working = [asyncio.ensure_future(first.run())]
    await half.wait()
    joined = [
        FlowWorker(await engine_store.engine(Script(one_step(), {"work": work}))) for _ in range(2)
    ]
    working += [asyncio.ensure_future(worker.run()) for worker in joined]

    async def all_begun() -> bool:
        return len(calls) == 40

    await until_async(all_begun, "the workers that joined take the rest")
    go.set()
    await until_ended(client, *runs)
    for worker in (first, *joined):
        worker.stop()
    await asyncio.gather(*working)
    assert sorted(calls) == sorted(runs)


@pytest.mark.parametrize("size", [1, 2])
async def test_a_small_pool_does_not_deadlock_though_every_step_asks_for_a_connection(
    postgres_only: EngineStore, database_dsn: str, through_pgbouncer: bool, size: int
) -> None:
    store = await PostgresEventStore.connect(
        database_dsn, max_size=size, prepare=not through_pgbouncer
    )

    async def work(step: Any) -> Any:
        # A call of its own, while this run's and other runs' appends wait for the same pool.
        return (await engine.run_info(step.run_id)).head_sequence

    runtime = Script(in_order("a", "b"), {"work": work})
    engine = await postgres_only.engine(runtime, wrap=lambda _: store)
    runs = [await engine.start(SPEC, drive=False) for _ in range(50)]
    worker = FlowWorker(engine, concurrency=50)
    async with asyncio.timeout(60):
        assert await worker.run_until_idle() == 50
    assert {(await engine.run_info(run_id)).status for run_id in runs} == {RunStatus.COMPLETED}


async def test_liveness_is_served_over_http(engine_store: EngineStore) -> None:
    engine = await engine_store.engine(Script(in_order("a")))
    worker = FlowWorker(engine, concurrency=7)

    def get(port: int, path: str) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read()

    async with served(worker.liveness, 0, "127.0.0.1") as port:
        status, body = await asyncio.to_thread(get, port, "/ready")
        assert (status, json.loads(body)["slots"]) == (200, 7)
        assert (await asyncio.to_thread(get, port, "/health"))[0] == 200
        assert (await asyncio.to_thread(get, port, "/other"))[0] == 404
        worker.stop()
        assert (await asyncio.to_thread(get, port, "/ready"))[0] == 503
        assert (await asyncio.to_thread(get, port, "/health"))[0] == 200


def test_pauses_double_while_there_is_nothing_and_back_off_apart_while_claims_fail() -> None:
    pace = Pace(0.05, 1.0)
    pauses = []
    for _ in range(6):
        pauses.append(pace.seconds())
        pace.found(busy=False)
    assert all(0.04 <= pause <= 1.2 for pause in pauses)
    assert pace.quiet
    assert pace.seconds(told=True) >= 2
    assert pace.seconds() >= 0.8
    pace.found(busy=True)
    assert pace.seconds() <= 0.06
    for _ in range(20):
        pace.failed()
    assert 5 <= pace.seconds() <= 10
    assert not pace.quiet
    pace.found(busy=True)
    assert pace.seconds() <= 0.06


async def test_a_takeover_is_logged_with_the_run_and_who_was_lost(
    engine_store: EngineStore, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "flowpg.fleet.worker")
    client = await engine_store.engine(None)
    taken, given = await client.start(SPEC), await client.start(SPEC)
    leases = await client.store.claim_runs("default", 10, "the lost one", LEASE)
    assert [lease.previous_owner for lease in leases] == [None, None]
    await client.store.give_back(next(lease for lease in leases if lease.run_id == given))
    engine_store.leases_run_out()
    engine = await engine_store.engine(Script(one_step(), {"work": echo}))
    assert await FlowWorker(engine).run_until_idle() == 2
    said = [record.getMessage() for record in caplog.records if "taken over" in record.message]
    assert said == [f"run {taken!r} is taken over from the lost one, whose lease ran out"]
