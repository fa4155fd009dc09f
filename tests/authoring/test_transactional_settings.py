"""Transactional steps that change their session: the completion is none the worse for it, the next
step finds nothing of it, and a limit that ends their own statements is their own failure."""

import asyncio
import time
from typing import Any

import psycopg
import pytest
from sqlalchemy import Connection, text
from sqlalchemy.ext.asyncio import AsyncConnection

from flowpg import FlowApp
from flowpg.model.retry import RetryPolicy
from flowpg.model.snapshot import RunStatus
from tests.authoring.test_transactional_steps import application, ledger, rows, run
from tests.engine.support import EngineStore

__all__ = ["ledger"]

CHANGES = (
    "SET statement_timeout = '1ms'",
    "SET LOCAL statement_timeout = '1ms'",
    "SET lock_timeout = '1ms'",
    "SET idle_in_transaction_session_timeout = '10min'",
    "SET search_path = ''",
    "SET LOCAL search_path = ''",
    "SET ROLE pg_read_all_data",
    "SET LOCAL ROLE pg_read_all_data",
    "SET SESSION AUTHORIZATION pg_read_all_data",
    "SET TimeZone = 'Asia/Tokyo'",
    "SET my.own = 'left behind'",
    "SELECT pg_advisory_lock(4711)",
    "CREATE TEMP TABLE left_behind (n int)",
)
SEEN = (
    "SELECT concat_ws(' ', current_setting('statement_timeout'), current_setting('lock_timeout'),"
    " current_setting('idle_in_transaction_session_timeout'), current_setting('search_path'),"
    " current_setting('TimeZone'), coalesce(current_setting('my.own', true), ''), current_user,"
    " session_user, (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"
    " AND pid = pg_backend_pid() AND objid = 4711), to_regclass('pg_temp.left_behind'))"
)


def changing(kind: str, change: str) -> FlowApp:
    """A workflow of a step that looks, one that changes its session, and one that looks again."""
    app = FlowApp("changes")
    if kind == "psycopg_async":

        @app.step(transactional=True)
        async def see(connection: psycopg.AsyncConnection[Any]) -> str:
            return str(await (await connection.execute(SEEN)).fetchone())

        @app.step(transactional=True)
        async def alter(connection: psycopg.AsyncConnection[Any]) -> None:
            await connection.execute("INSERT INTO public.ledger VALUES ('work', 7)")
            await connection.execute(change)

    elif kind == "psycopg_sync":

        @app.step(transactional=True)
        def see(connection: psycopg.Connection[Any]) -> str:
            return str(connection.execute(SEEN).fetchone())

        @app.step(transactional=True)
        def alter(connection: psycopg.Connection[Any]) -> None:
            connection.execute("INSERT INTO public.ledger VALUES ('work', 7)")
            connection.execute(change)

    elif kind == "alchemy_async":

        @app.step(transactional=True)
        async def alter(connection: AsyncConnection) -> None:
            await connection.execute(text("INSERT INTO public.ledger VALUES ('work', 7)"))
            await connection.execute(text(change))

    else:

        @app.step(transactional=True)
        def alter(connection: Connection) -> None:
            connection.execute(text("INSERT INTO public.ledger VALUES ('work', 7)"))
            connection.execute(text(change))

    @app.workflow(name="w")
    async def w() -> list[str]:
        found = [await see()] if "psycopg" in kind else []
        await alter()
        return [*found, await see()] if "psycopg" in kind else []

    return app


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("kind", ["psycopg_async", "psycopg_sync", "alchemy_async", "alchemy_sync"])
async def test_what_a_step_sets_harms_neither_its_completion_nor_the_next_step(
    postgres_only: EngineStore, ledger: psycopg.Connection[Any], kind: str, change: str
) -> None:
    app = changing(kind, change)
    engine = await postgres_only.engine(app)
    workflow = app.workflows["w"]
    await engine.start_with_id("r", workflow.spec, workflow.input())
    found = await engine.drive("r")
    assert (found.status, rows(ledger)) == (RunStatus.COMPLETED, 1), found.error
    assert len(set(found.output)) <= 1


@pytest.mark.parametrize("setting", ["statement_timeout", "lock_timeout"])
async def test_a_statement_that_the_steps_own_limit_ends_is_a_failed_attempt(
    postgres_only: EngineStore, ledger: psycopg.Connection[Any], setting: str
) -> None:
    attempts: list[int] = []

    async def work(connection: psycopg.AsyncConnection[Any], value: int) -> int:
        attempts.append(value)
        await connection.execute(f"SET LOCAL {setting} = '5ms'")
        if setting == "lock_timeout":
            await connection.execute("LOCK TABLE public.ledger")
        await connection.execute("SELECT pg_sleep(600)")
        return value

    with ledger.transaction():
        ledger.execute("LOCK TABLE public.ledger")
        app = application(work, retry=RetryPolicy(max_attempts=2))
        found = await run(await postgres_only.engine(app), app)
    assert found.status is RunStatus.FAILED
    assert len(attempts) == 2


@pytest.mark.parametrize("statement", [True, False])
async def test_standing_still_beyond_a_limit_is_a_failed_attempt(
    postgres_only: EngineStore, ledger: psycopg.Connection[Any], statement: bool
) -> None:
    attempts: list[int] = []

    def work(connection: psycopg.Connection[Any], value: int) -> int:
        attempts.append(value)
        connection.execute("SET idle_in_transaction_session_timeout = '1ms'")
        alive = "SELECT count(*) FROM pg_stat_activity WHERE pid = %s"
        pid = connection.execute("SELECT pg_backend_pid()").fetchone()  # not that of a pooler
        until = time.monotonic() + 60
        while ledger.execute(alive, pid).fetchone() != (0,) and time.monotonic() < until:
            pass
        if statement:
            connection.execute("SELECT 1")
        return value

    app = application(work, retry=RetryPolicy(max_attempts=2))
    async with asyncio.timeout(120):
        found = await run(await postgres_only.engine(app), app)
    assert found.status is RunStatus.FAILED
    assert "idle_in_transaction_session_timeout" in str(found.error)
    assert len(attempts) == 2


async def test_a_step_that_keeps_triggers_from_firing_fails_and_says_why(
    postgres_only: EngineStore, ledger: psycopg.Connection[Any]
) -> None:
    async def work(connection: psycopg.AsyncConnection[Any], value: int) -> int:
        await connection.execute("SET LOCAL session_replication_role = replica")
        return value

    app = application(work)
    found = await run(await postgres_only.engine(app), app)
    assert found.status is RunStatus.FAILED
    assert "session_replication_role" in str(found.error)
