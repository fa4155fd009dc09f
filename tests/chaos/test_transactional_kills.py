"""Transactional steps under SIGKILL at random points: as many rows as completed steps, whatever."""

import asyncio
import os
import random
import signal
import sys
from asyncio.subprocess import PIPE
from pathlib import Path
from typing import Any

import psycopg
import pytest

from flowpg.model.records import StartRequest
from flowpg.store.postgres import PostgresEventStore
from tests.chaos.nursery import STEPS, TABLE, fill
from tests.waiting import until_async
from tests.weather import pause

ROOT = Path(__file__).parents[2]

_OPEN = "SELECT count(*) FROM flowpg.flow_runs WHERE status NOT IN ('completed')"
_ROWS = """
SELECT (SELECT count(*) FROM public.rows),
       (SELECT count(DISTINCT (run_id, step_id)) FROM public.rows),
       (SELECT count(*) FROM flowpg.flow_events WHERE event_type = 'step_completed'),
       (SELECT last_value FROM public.rows_id_seq)
"""
_UNMATCHED = """
SELECT count(*) FROM flowpg.flow_events AS e
  FULL JOIN public.rows AS r ON r.run_id = e.run_id AND r.step_id = e.subject_id
 WHERE (e.event_type = 'step_completed' OR e.event_type IS NULL)
   AND (r.id IS NULL OR e.run_id IS NULL)
"""


async def kill_often(dsn: str, kills: int, runs: int) -> int:
    """Run ``runs`` workflows on one worker after the other, each killed at a random moment; returns
    how many rows were rolled back."""
    async with await PostgresEventStore.connect(dsn, prepare=False) as store:
        await store.start_many(
            [StartRequest(fill.spec, fill.input(n), f"r{n}") for n in range(runs)]
        )
    command = [sys.executable, "-m", "tests.chaos.nursery", dsn]
    nursery = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, cwd=ROOT)
    assert nursery.stdin is not None
    assert nursery.stdout is not None
    chance = random.Random(kills)
    connection = await psycopg.AsyncConnection.connect(dsn, autocommit=True, prepare_threshold=None)
    worker = 0

    async def value(query: str) -> Any:
        cursor = await connection.execute(query)
        return await cursor.fetchone()

    async def born() -> int:
        assert nursery.stdin is not None
        assert nursery.stdout is not None
        nursery.stdin.write(b"\n")
        pid = int((await nursery.stdout.readline()).decode())
        async with asyncio.timeout(60):
            assert await nursery.stdout.readline() == b"at work\n"
        return pid

    async def finished() -> bool:
        return bool((await value(_OPEN))[0] == 0)

    try:
        worker = await born()
        for _ in range(kills):
            # The pause is the point: it is the moment of the kill that is drawn by lot.
            await pause(chance.uniform(0, 0.08))
            os.kill(worker, signal.SIGKILL)
            worker = 0
            worker = await born()
        assert not await finished(), "there was nothing left to kill"
        await until_async(finished, "every run has completed", 120)
        rows, distinct, completed, drawn = await value(_ROWS)
        assert rows == distinct == completed == runs * STEPS
        assert (await value(_UNMATCHED))[0] == 0
        return int(drawn - rows)
    finally:
        if worker:
            os.kill(worker, signal.SIGKILL)
        nursery.stdin.close()
        await nursery.wait()
        await connection.close()


@pytest.fixture
def rows_dsn(database_dsn: str) -> str:
    """A database with the table that the steps fill."""
    with psycopg.connect(database_dsn, autocommit=True, prepare_threshold=None) as connection:
        connection.execute(TABLE)
    return database_dsn


@pytest.mark.timeout(240)
async def test_ten_kills_lose_and_repeat_no_row(rows_dsn: str) -> None:
    rolled_back = await kill_often(rows_dsn, 10, 60)
    assert rolled_back > 0, "no transaction was interrupted"


@pytest.mark.storm
@pytest.mark.timeout(600)
async def test_two_hundred_kills_lose_and_repeat_no_row(
    rows_dsn: str, capsys: pytest.CaptureFixture[str]
) -> None:
    rolled_back = await kill_often(rows_dsn, 200, 1000)
    assert rolled_back > 0, "no transaction was interrupted"
    with capsys.disabled():
        print(f"\n200 kills, {1000 * STEPS} steps, {rolled_back} rows rolled back")
