"""Closing an engine in the middle of things, and looking past what cannot be read."""

import asyncio
from typing import Any

import psycopg
import pytest

from flowpg.model.snapshot import RunStatus
from tests.engine.support import MINUTE, SPEC, EngineStore, Script, echo, one_step, short
from tests.waiting import turns


async def test_closing_an_engine_gives_its_runs_back_at_once(postgres_only: EngineStore) -> None:
    client = await postgres_only.engine(None)
    entered, cleaned = asyncio.Event(), asyncio.Event()

    async def stay(step: Any) -> Any:
        entered.set()
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.set()

    engine = await postgres_only.engine(Script(one_step(input=1), {"work": stay}))
    run_id = await client.start(SPEC)
    driving = asyncio.ensure_future(engine.drive(run_id))
    await entered.wait()
    await engine.close()
    assert cleaned.is_set()
    assert (await driving).status is RunStatus.RUNNING
    # Nobody has to wait until the lease runs out.
    heir = await postgres_only.engine(Script(one_step(input=1), {"work": echo}))
    assert (await heir.drive(run_id)).output == 1
    assert short(await heir.history(run_id)).count("step.started s") == 1


async def test_a_closed_engine_keeps_no_lease_of_a_drive_that_begins_meanwhile(
    postgres_only: EngineStore,
) -> None:
    client = await postgres_only.engine(None)
    runtime = Script(one_step(input=1), {"work": echo})
    engine = await postgres_only.engine(runtime)
    run_id = await client.start(SPEC)
    driving = asyncio.ensure_future(engine.drive(run_id))
    await turns(1)  # it has begun, and no more
    await engine.close()
    await asyncio.wait({driving})
    lease = await client.store.acquire_run(run_id, "another", MINUTE)
    assert lease is not None or (await client.run_info(run_id)).status.terminal
    driving.exception()


@pytest.mark.parametrize("what", ["a payload", "the order"])
async def test_one_unreadable_history_leaves_the_snapshots_of_the_others(
    postgres_only: EngineStore, direct_dsn: str, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    engine = await postgres_only.engine(Script(one_step(input=1), {"work": echo}))
    good = [await engine.start(SPEC) for _ in range(2)]
    broken = await engine.start(SPEC)
    with psycopg.connect(direct_dsn, autocommit=True) as connection:
        connection.execute("ALTER TABLE flowpg.flow_event_log DISABLE TRIGGER USER")
        if what == "a payload":
            connection.execute(
                "UPDATE flowpg.flow_event_log SET payload = '[1]'"
                " WHERE run_id = %s AND sequence = 1",
                (broken,),
            )
        else:
            connection.execute(
                "DELETE FROM flowpg.flow_event_log WHERE run_id = %s AND sequence = 1", (broken,)
            )
    snapshots = await engine.list_snapshots()
    assert [snapshot.run_id for snapshot in snapshots] == sorted(good)
    assert broken in caplog.text
