"""Heartbeats: a lease lasts as long as its holder lives, and no longer."""

import asyncio
import signal
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from flowpg.engine.flow_engine import FlowEngine
from flowpg.errors import LeaseLost, StoreUnavailable
from flowpg.fleet.heartbeat import HeartbeatThread
from flowpg.fleet.worker import FlowWorker
from flowpg.model.records import Heartbeat, RunLease
from flowpg.model.snapshot import RunStatus
from flowpg.postgres.calls import Call
from flowpg.postgres.session import DirectSession
from flowpg.replay.runtime import StepInvocation
from flowpg.store.postgres import PostgresEventStore
from tests.engine.support import LEASE, SPEC, EngineStore, Script, echo, one_step, short
from tests.fleet.apps import Quick
from tests.fleet.commands import exit_code, line, worker_process
from tests.fleet.watching import until_ended
from tests.proxy import Proxy
from tests.waiting import until, until_async


def expiry(dsn: str) -> datetime | None:
    """When the only lease of the database ends."""
    with psycopg.connect(dsn) as connection:
        row = connection.execute(
            "SELECT lease_expires_at FROM flowpg.flow_tasks WHERE lease_owner IS NOT NULL"
        ).fetchone()
    return row[0] if row else None


async def until_extended(dsn: str, by: timedelta) -> None:
    """Wait until the end of the only lease has moved on so far."""

    async def taken() -> datetime | None:
        return expiry(dsn)

    first = await until_async(taken, "the lease is taken")

    async def extended() -> bool:
        now = expiry(dsn)
        return now is not None and now - first >= by

    await until_async(extended, "the lease is extended")


class Silent:
    """A keeper that extends nothing, as if heartbeats had stopped."""

    def hold(self, lease: RunLease, listener: Any) -> None: ...

    def drop(self, lease: RunLease) -> None: ...

    async def close(self) -> None: ...


async def test_a_step_that_blocks_the_event_loop_keeps_its_lease(
    postgres_only: EngineStore, direct_dsn: str, tmp_path: Path
) -> None:
    client = await postgres_only.engine(None)
    run_id = await client.start(SPEC, "blocking")
    gate = tmp_path / "gate"
    async with worker_process(
        *(direct_dsn, "--lease", "0.6"),
        app="tests.fleet.apps:InLoop",
        environ={"FLOWPG_TEST_GATE": str(gate)},
    ) as process:
        await line(process.stdout, b"entered blocking")
        # Five leases long nothing runs in that event loop, and nobody else gets the run.
        await until_extended(direct_dsn, timedelta(seconds=3))
        assert await FlowWorker(await postgres_only.engine(Quick())).run_once() == 0
        gate.touch()

        await until_ended(client, run_id)
        process.send_signal(signal.SIGTERM)
        assert await exit_code(process) == 0
        assert process.stdout is not None
        assert await process.stdout.read() == b""
    assert (await client.snapshot(run_id)).output == "blocking"
    assert short(await client.history(run_id)).count("step.started s") == 1


async def test_a_process_that_is_wedged_for_too_long_loses_its_leases(
    postgres_only: EngineStore, direct_dsn: str, tmp_path: Path
) -> None:
    client = await postgres_only.engine(None)
    run_id = await client.start(SPEC, "blocking")
    gate = tmp_path / "gate"
    async with worker_process(
        *(direct_dsn, "--lease", "0.6", "--max-wedged", "0.5"),
        app="tests.fleet.apps:InLoop",
        environ={"FLOWPG_TEST_GATE": str(gate)},
    ) as process:
        await line(process.stdout, b"entered blocking")
        await line(process.stderr, b"no longer extended")
        other = await postgres_only.engine(Quick())
        await FlowWorker(other).run_until(run_id, timeout=timedelta(seconds=20))
        gate.touch()
        await line(process.stderr, b"was lost")
        process.send_signal(signal.SIGTERM)
        assert await exit_code(process) == 0
    assert short(await client.history(run_id)).count("step.completed s") == 1


async def test_a_blocked_event_loop_is_reported_with_its_place_in_the_code(
    postgres_only: EngineStore, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flowpg.fleet.heartbeat._REPORT_AFTER", 0.05)
    store = await postgres_only.connect()
    assert isinstance(store, PostgresEventStore)
    beats = HeartbeatThread(store.session(), LEASE, timedelta(seconds=0.02))
    beats.hold(RunLease("r", 1, 1, 1, await store.now()), lambda beat: None)
    until(lambda: "the event loop has been blocked" in caplog.text, "the report is written")
    assert "until(lambda" in caplog.text
    await beats.close()
    await store.close()


async def test_an_error_that_nobody_expected_does_not_end_the_heartbeats() -> None:
    class Odd:
        """A session whose first call fails in a way of its own."""

        failed = False

        def run(self, call: Call[Any]) -> list[Heartbeat]:
            if not self.failed:
                self.failed = True
                raise ValueError("not a database's error")
            return [Heartbeat("r", held=True, wakes=1, head_sequence=1)]

        def close(self) -> None: ...

    session: Any = Odd()
    beats = HeartbeatThread(session, LEASE, timedelta(seconds=0.02))
    extended = asyncio.Event()
    beats.hold(RunLease("r", 1, 1, 1, datetime.now(UTC)), lambda beat: extended.set())
    async with asyncio.timeout(20):
        await extended.wait()
    assert session.failed
    await beats.close()


async def test_a_run_whose_heartbeats_stop_is_run_twice_and_the_first_finish_refused(
    engine_store: EngineStore,
) -> None:
    entered, go = asyncio.Event(), asyncio.Event()

    async def work(step: StepInvocation) -> Any:
        entered.set()
        await go.wait()
        return "first"

    first = await engine_store.engine(Script(one_step(), {"work": work}))
    first.keep_leases_with(Silent())
    run_id = await first.start(SPEC, drive=False)
    [lease] = await first.store.claim_runs("default", 1, "first", LEASE)
    driving = asyncio.ensure_future(first.drive_claimed(lease))
    await entered.wait()
    engine_store.leases_run_out()
    second = await engine_store.engine(Script(one_step(), {"work": lambda step: "second"}))
    assert await FlowWorker(second).run_until_idle() == 1
    go.set()
    with pytest.raises(LeaseLost):
        await driving
    assert (await second.snapshot(run_id)).output == "second"
    assert short(await second.history(run_id)).count("step.completed s") == 1


async def test_a_run_outlasts_any_number_of_leases_while_its_holder_beats(
    postgres_only: EngineStore, direct_dsn: str
) -> None:
    lease = timedelta(seconds=0.6)
    store = await postgres_only.connect()
    go = asyncio.Event()

    async def work(step: StepInvocation) -> Any:
        await go.wait()
        return step.attempt

    builder = FlowEngine.builder(Script(one_step(), {"work": work})).with_store(store)
    engine = builder.with_lease(lease).build()
    postgres_only.engines.append(engine)
    run_id = await engine.start(SPEC, drive=False)
    worker = FlowWorker(engine)
    working = asyncio.ensure_future(worker.run())
    await until_extended(direct_dsn, 3 * lease)
    other = await postgres_only.engine(Script(one_step(), {"work": echo}))
    assert await FlowWorker(other).run_once() == 0
    go.set()

    await until_ended(engine, run_id)
    worker.stop()
    await working


async def test_a_process_that_was_stopped_beyond_its_lease_cannot_finish_what_went_to_another(
    postgres_only: EngineStore, direct_dsn: str, tmp_path: Path
) -> None:
    client = await postgres_only.engine(None)
    run_id = await client.start(SPEC, "patient")
    gate = tmp_path / "gate"
    async with worker_process(
        direct_dsn, "--lease", "1", environ={"FLOWPG_TEST_GATE": str(gate)}
    ) as process:
        await line(process.stdout, b"entered patient")
        process.send_signal(signal.SIGSTOP)
        gate.touch()  # it would finish at once, if it could
        other = await postgres_only.engine(Quick())
        await FlowWorker(other).run_until(run_id, timeout=timedelta(seconds=20))
        before = short(await client.history(run_id))
        process.send_signal(signal.SIGCONT)
        await line(process.stderr, b"was lost")
        assert short(await client.history(run_id)) == before
        process.send_signal(signal.SIGTERM)
        assert await exit_code(process) == 0
    assert before.count("step.completed s") == 1
    assert before.count("step.started s") == 1


async def test_a_heartbeat_finds_its_way_back_after_its_connection_was_cut(
    direct_dsn: str, postgres_only: EngineStore
) -> None:
    client = await postgres_only.engine(None)
    run_id = await client.start(SPEC)
    [lease] = await client.store.claim_runs("default", 1, "me", LEASE)
    answers: asyncio.Queue[Heartbeat] = asyncio.Queue()
    with Proxy(direct_dsn) as proxy:
        store = await PostgresEventStore.connect(proxy.dsn)
        beats = HeartbeatThread(store.session(), LEASE, timedelta(seconds=0.02))
        beats.hold(lease, answers.put_nowait)
        async with asyncio.timeout(20):
            for _ in range(3):
                while not answers.empty():
                    answers.get_nowait()
                assert (await answers.get()).held
                proxy.cut_all()
            await answers.get()
        await beats.close()
        await store.close()
    assert (await client.run_info(run_id)).status is RunStatus.PENDING


async def test_leases_are_given_back_without_the_event_loop_in_one_call(
    postgres_only: EngineStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await postgres_only.engine(None)
    for _ in range(3):
        await client.start(SPEC)
    store = client.store
    assert isinstance(store, PostgresEventStore)
    session = store.session()
    beats = HeartbeatThread(session, LEASE, LEASE)
    for lease in await store.claim_runs("default", 3, "me", LEASE):
        beats.hold(lease, lambda beat: None)
    assert await store.claim_runs("default", 3, "other", LEASE) == []
    called = []

    def run(call: Any) -> Any:
        called.append(call.function.name)
        return DirectSession.run(session, call)

    monkeypatch.setattr(session, "run", run)
    assert await asyncio.to_thread(beats.give_back_all) == 3
    assert called == ["flow_release_tasks"]
    assert len(await store.claim_runs("default", 3, "other", LEASE)) == 3
    await beats.close()


def test_a_session_tells_that_no_server_answers() -> None:
    from flowpg.postgres import reads

    with pytest.raises(StoreUnavailable):
        DirectSession("postgresql://127.0.0.1:1/none", "flowpg").run(reads.now())
