"""Waiting for the end of a run that others drive."""

import asyncio
from datetime import timedelta

import pytest

from flowpg.errors import RunNotFound
from flowpg.fleet.worker import FlowWorker
from flowpg.model.inspection import RunRow
from tests.engine.support import SPEC, EngineStore, Script, echo, one_step
from tests.waiting import turns


async def test_a_wait_ends_with_the_run(engine_store: EngineStore) -> None:
    client = await engine_store.engine(None)
    engine = await engine_store.engine(Script(one_step(input=1), {"work": echo}))
    run_id = await client.start(SPEC)
    looks, look, all_wait = 0, client.store.run_info, asyncio.Event()

    async def looking(run_id: str) -> RunRow:
        nonlocal looks
        row = await look(run_id)
        looks += 1
        if looks == 3:
            all_wait.set()
        return row

    client.store.run_info = looking  # type: ignore[method-assign]
    waits = [asyncio.ensure_future(client.wait(run_id)) for _ in range(3)]
    await all_wait.wait()
    assert await FlowWorker(engine).run_until_idle() == 1
    async with asyncio.timeout(30):
        for wait in waits:
            assert (await wait).output == 1
        assert (await client.wait(run_id, timedelta(0))).output == 1


async def test_a_wait_gives_up_in_time_and_knows_when_there_is_no_run(
    engine_store: EngineStore,
) -> None:
    client = await engine_store.engine(None)
    run_id = await client.start(SPEC)
    with pytest.raises(TimeoutError, match=r"has not ended within 0\.05 s"):
        await client.wait(run_id, timedelta(seconds=0.05))
    with pytest.raises(RunNotFound):
        await client.wait("none")


async def test_a_wait_that_is_cancelled_leaves_nothing_behind(engine_store: EngineStore) -> None:
    client = await engine_store.engine(None)
    run_id = await client.start(SPEC)
    looked, look = asyncio.Event(), client.store.run_info

    async def looking(run_id: str) -> RunRow:
        row = await look(run_id)
        looked.set()
        return row

    client.store.run_info = looking  # type: ignore[method-assign]
    wait = asyncio.ensure_future(client.wait(run_id))
    await looked.wait()
    await turns(1)  # from the look into the wait that follows it
    wait.cancel()
    with pytest.raises(asyncio.CancelledError):
        await wait
    await client.force_cancel(run_id)
    assert (await client.wait(run_id)).terminal
