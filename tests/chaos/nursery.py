"""Workers that are cheap to kill: ``python -m tests.chaos.nursery DSN``.

This process has imported everything and has no threads and no connections. For each line on its
standard input it forks a worker of transactional steps and prints the worker's process id; the
worker says when it begins its first step. The steps are of every kind; each writes one row of
``public.rows``, whose sequence also counts the rows that were rolled back.
"""

import asyncio
import os
import signal
import sys
from datetime import timedelta
from typing import Any

import psycopg
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from flowpg.authoring.app import FlowApp
from flowpg.authoring.step_context import step_context
from flowpg.engine.flow_engine import FlowEngine
from flowpg.fleet.worker import FlowWorker
from flowpg.store.postgres import PostgresEventStore
from tests.weather import pause, pause_in_thread

TABLE = "CREATE TABLE public.rows (id bigserial, run_id text NOT NULL, step_id text NOT NULL)"
STEPS = 6
"""Transactional steps of one run."""
LEASE = timedelta(seconds=1)
_CONCURRENCY = 12

app = FlowApp("rows")


@app.step(transactional=True)
async def insert(connection: psycopg.AsyncConnection[Any], seconds: float) -> None:
    await connection.execute(_INSERT, _who())
    await pause(seconds)


@app.step(transactional=True)
def insert_in_thread(connection: psycopg.Connection[Any], seconds: float) -> None:
    connection.execute(_INSERT, _who())
    pause_in_thread(seconds)


@app.step(transactional=True)
async def insert_by_session(session: AsyncSession, seconds: float) -> None:
    run_id, step_id = _who()
    await session.execute(text(_NAMED), {"run_id": run_id, "step_id": step_id})
    await pause(seconds)


@app.step(transactional=True)
def insert_by_session_in_thread(session: Session, seconds: float) -> None:
    run_id, step_id = _who()
    session.execute(text(_NAMED), {"run_id": run_id, "step_id": step_id})
    pause_in_thread(seconds)


@app.workflow
async def fill(number: int) -> None:
    """Two steps after each other, then the rest at once."""
    await insert(0.001 * (number % 5))
    await insert_in_thread.run(0.001 * (number % 3))
    await asyncio.gather(
        insert(0.002),
        insert_in_thread.run(0.001),
        insert_by_session(0.001),
        insert_by_session_in_thread.run(0.002),
    )


_INSERT = "INSERT INTO public.rows (run_id, step_id) VALUES (%s, %s)"
_NAMED = "INSERT INTO public.rows (run_id, step_id) VALUES (:run_id, :step_id)"


_silent = True


def _who() -> tuple[str, str]:
    global _silent
    if _silent:
        _silent = False
        os.write(1, b"at work\n")
    step = step_context()
    return step.run_id, step.step_id


async def work(dsn: str) -> None:
    """A worker, until it is killed."""
    store = await PostgresEventStore.connect(dsn, prepare=False)
    engine = FlowEngine.builder(app).with_store(store).with_lease(LEASE, LEASE / 4).build()
    poll = timedelta(seconds=0.1)
    async with engine:
        worker = FlowWorker(
            engine,
            None,
            _CONCURRENCY,
            poll=poll,
            max_crashes=100_000,
            listen=False,
            register=False,
            tasks=False,
        )
        await worker.run()


def main(dsn: str) -> None:
    """Fork a worker for each line."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for _ in sys.stdin:
        child = os.fork()
        if not child:
            try:
                asyncio.run(work(dsn))
            finally:
                os._exit(1)
        print(child, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
