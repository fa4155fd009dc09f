"""Transactional steps whose connection breaks: at the commit, before it, and while they work."""

import dataclasses
import inspect
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import psycopg
import pytest

from flowpg.model.retry import RetryPolicy
from flowpg.postgres.step_sessions import Opened, StepSessions
from tests.authoring.test_transactional_steps import (
    application,
    ledger,
    psycopg_async,
    psycopg_sync,
    rows,
    run,
)
from tests.engine.support import EngineStore

__all__ = ["ledger"]


# Of the server process itself: a pooler gives its clients another number.
PID = "SELECT pg_backend_pid()"


class Cut:
    """Breaks the connection of the first transaction at its commit: after the server has carried
    that out, or before it hears of it."""

    def __init__(self, *, stored: bool) -> None:
        self.stored = stored
        self.cuts = 0

    def apply(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """To every transaction that is opened from now on."""
        opening, opening_sync = StepSessions.open, StepSessions.open_sync

        @asynccontextmanager
        async def open_cut(sessions: StepSessions, kind: Any) -> AsyncIterator[Opened]:
            async with opening(sessions, kind) as opened:
                yield self._cut(opened)

        @contextmanager
        def open_cut_sync(sessions: StepSessions, kind: Any) -> Iterator[Opened]:
            with opening_sync(sessions, kind) as opened:
                yield self._cut(opened)

        monkeypatch.setattr(StepSessions, "open", open_cut)
        monkeypatch.setattr(StepSessions, "open_sync", open_cut_sync)

    def _cut(self, opened: Opened) -> Opened:
        if self.cuts:
            return opened

        async def commit() -> None:
            if self.stored:
                await opened.commit()
            self._break(opened)

        def commit_sync() -> None:
            if self.stored:
                opened.commit()
            self._break(opened)

        asynchronous = isinstance(opened.connection, psycopg.AsyncConnection)
        return dataclasses.replace(opened, commit=commit if asynchronous else commit_sync)

    def _break(self, opened: Opened) -> None:
        self.cuts += 1
        opened.connection.pgconn.finish()
        raise psycopg.OperationalError("the connection is lost")


@pytest.mark.parametrize("stored", [True, False])
@pytest.mark.parametrize("step", [psycopg_async, psycopg_sync])
async def test_a_lost_answer_to_the_commit_is_asked_for(
    postgres_only: EngineStore,
    ledger: psycopg.Connection[Any],
    monkeypatch: pytest.MonkeyPatch,
    step: Any,
    stored: bool,
) -> None:
    calls: list[int] = []
    if inspect.iscoroutinefunction(step):

        async def counted(connection: psycopg.AsyncConnection[Any], value: int) -> int:
            calls.append(value)
            found: int = await step(connection, value)
            return found

        made: Any = counted
    else:

        def counted_sync(connection: psycopg.Connection[Any], value: int) -> int:
            calls.append(value)
            found: int = step(connection, value)
            return found

        made = counted_sync
    app = application(made, retry=RetryPolicy.none())
    engine = await postgres_only.engine(app)
    cut = Cut(stored=stored)
    cut.apply(monkeypatch)
    found = await run(engine, app)
    assert (found.output, rows(ledger), cut.cuts) == (8, 1, 1)
    assert len(calls) == (1 if stored else 2)
    assert found.steps["work#1"].attempt == 1


@pytest.mark.parametrize("asynchronous", [True, False])
async def test_a_connection_that_breaks_under_the_step_costs_no_attempt(
    postgres_only: EngineStore, ledger: psycopg.Connection[Any], asynchronous: bool
) -> None:
    kill = "SELECT pg_terminate_backend(%s)"
    calls: list[int] = []

    async def dying(connection: psycopg.AsyncConnection[Any], value: int) -> int:
        calls.append(value)
        if len(calls) == 1:
            cursor = await connection.execute(PID)
            ledger.execute(kill, await cursor.fetchone())
        return await psycopg_async(connection, value)

    def dying_sync(connection: psycopg.Connection[Any], value: int) -> int:
        calls.append(value)
        if len(calls) == 1:
            ledger.execute(kill, connection.execute(PID).fetchone())
        return psycopg_sync(connection, value)

    app = application(dying if asynchronous else dying_sync, retry=RetryPolicy.none())
    found = await run(await postgres_only.engine(app), app)
    assert (found.output, rows(ledger), len(calls)) == (8, 1, 2)


async def test_an_error_of_the_step_is_its_own_whatever_became_of_the_connection(
    postgres_only: EngineStore, ledger: psycopg.Connection[Any]
) -> None:
    async def raises(connection: psycopg.AsyncConnection[Any], value: int) -> int:
        await psycopg_async(connection, value)
        connection.pgconn.finish()
        raise ValueError("mine")

    app = application(raises, retry=RetryPolicy.none())
    found = await run(await postgres_only.engine(app), app)
    assert "ValueError: mine" in str(found.error)
    assert rows(ledger) == 0
