"""Where the connections of transactional steps come from, and what the code of a step is given.

They are apart from the connections of the store: a step may keep its transaction open while the
appends of other runs, and its own heartbeat, go on. Each kind is opened in a transaction that is
rolled back unless ``commit`` is called.

The transaction is DEFERRABLE, which means nothing in one that writes, and which no other is: so the
verb that records the completion sees whether it is still this one, or the step has ended it.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus

from flowpg.errors import InvalidArgument, StoreError, StoreUnavailable
from flowpg.postgres.errors import connection_refused, is_driver_error
from flowpg.postgres.pool import connection_options
from flowpg.postgres.step_settings import (
    LIMITS_OF_GIVEN,
    LIMITS_OF_OURS,
    as_new,
    as_new_async,
    lift_limits,
    lift_limits_async,
)
from flowpg.replay.runtime import TransactionKind

Kind = TransactionKind

_MARK = "SET TRANSACTION DEFERRABLE"
"""Of no transaction that begins after it, whoever begins that."""

MAX_CONNECTIONS = 8
"""Transactional steps of one engine that are at work at once; more wait."""


@dataclass(frozen=True, slots=True)
class Opened:
    """An open transaction: what the code of the step gets, the connection that verbs are run on,
    what is to be done first of all (flushing a session), what after that (lifting limits that the
    step has set), and how to commit. All are awaited where the session is asynchronous."""

    given: Any
    connection: Any
    flush: Callable[[], Any]
    lift: Callable[[], Any]
    commit: Callable[[], Any]


class StepSessions:
    """Opens transactions on the database of ``dsn``, or, where the application brings an engine of
    SQLAlchemy (``engine``), on that."""

    def __init__(
        self,
        dsn: str,
        *,
        prepare: bool = True,
        engine: Any = None,
        max_size: int = MAX_CONNECTIONS,
        timeout: float = 30.0,
    ) -> None:
        self._dsn = dsn
        self._options = connection_options(dsn, prepare)
        self._max_size = max_size
        self._timeout = timeout
        self._given_engine = engine
        self._limits = LIMITS_OF_OURS if engine is None else LIMITS_OF_GIVEN
        self._engine: Any = None
        self._async_engine: Any = None
        self._lock = threading.Lock()
        self._slots = threading.BoundedSemaphore(max_size)
        self._async_slots: asyncio.Semaphore | None = None
        self._idle: list[psycopg.Connection[Any]] = []
        self._async_idle: list[psycopg.AsyncConnection[Any]] = []
        self._closed = False

    # -- for coroutines -------------------------------------------------------------------------

    @asynccontextmanager
    async def open(self, kind: Kind) -> AsyncIterator[Opened]:
        """A transaction for a coroutine. StoreUnavailable if there is no connection."""
        if self._closed:
            raise StoreError("the engine is closed")
        if kind != "psycopg":
            async with self._open_alchemy(kind) as opened:
                yield opened
            return
        if self._async_slots is None:
            self._async_slots = asyncio.Semaphore(self._max_size)
        async with self._async_slots:
            connection = await self._async_connection()
            try:
                block = connection.transaction()
                try:
                    transaction = await block.__aenter__()
                except psycopg.Error as error:
                    raise connection_refused(error) from None
                try:
                    commit = functools.partial(block.__aexit__, None, None, None)
                    lift = functools.partial(lift_limits_async, connection)
                    yield Opened(connection, connection, _nothing_async, lift, commit)
                finally:
                    if _entered(connection, transaction):
                        with contextlib.suppress(psycopg.Error):
                            await block.__aexit__(psycopg.Rollback, psycopg.Rollback(), None)
            finally:
                connection.row_factory = psycopg.rows.tuple_row
                if self._may_keep(connection):
                    await as_new_async(connection)
                if self._may_keep(connection):
                    self._async_idle.append(connection)
                else:
                    connection.pgconn.finish()

    async def _async_connection(self) -> psycopg.AsyncConnection[Any]:
        while self._async_idle:
            connection = self._async_idle.pop()
            if self._may_keep(connection):
                return connection
            connection.pgconn.finish()
        return await self._connect_async()

    async def _connect_async(self) -> psycopg.AsyncConnection[Any]:
        try:
            connection = await psycopg.AsyncConnection.connect(
                self._dsn, autocommit=True, **self._options
            )
            await connection.set_isolation_level(psycopg.IsolationLevel.READ_COMMITTED)
            await connection.set_deferrable(True)
        except psycopg.Error as error:
            raise connection_refused(error) from None
        return connection

    @asynccontextmanager
    async def _open_alchemy(self, kind: Kind) -> AsyncIterator[Opened]:
        engine = self._alchemy_async()
        try:
            connection = await engine.connect()
        except Exception as error:  # noqa: BLE001  those of any driver
            raise _refused(error) from None
        try:
            transaction = await connection.begin()
            try:
                await connection.exec_driver_sql(_MARK)
            except Exception as error:  # noqa: BLE001
                raise _refused(error) from None
            commit = transaction.commit
            lift = functools.partial(connection.exec_driver_sql, self._limits)
            if kind == "connection":
                yield Opened(connection, connection, _nothing_async, lift, commit)
                return
            from sqlalchemy.ext.asyncio import AsyncSession

            async with AsyncSession(bind=connection, expire_on_commit=False) as session:
                yield Opened(session, connection, session.flush, lift, commit)
        finally:
            # Its rollback is not to be cut off by a second cancellation.
            await asyncio.shield(asyncio.ensure_future(connection.close()))

    def _alchemy_async(self) -> Any:
        if self._async_engine is None:
            from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

            if isinstance(self._given_engine, AsyncEngine):
                self._async_engine = self._given_engine
            else:
                self._async_engine = create_async_engine(
                    "postgresql+psycopg://",
                    async_creator=self._connect_plain_async,
                    pool_size=self._max_size,
                    max_overflow=0,
                    pool_timeout=self._timeout,
                    isolation_level="READ COMMITTED",
                )
        return self._async_engine

    async def _connect_plain_async(self) -> psycopg.AsyncConnection[Any]:
        return await psycopg.AsyncConnection.connect(self._dsn, **self._options)

    # -- for threads ----------------------------------------------------------------------------

    @contextmanager
    def open_sync(self, kind: Kind) -> Iterator[Opened]:
        """A transaction for a plain function, in the thread that runs it."""
        if self._closed:
            raise StoreError("the engine is closed")
        if kind != "psycopg":
            with self._open_alchemy_sync(kind) as opened:
                yield opened
            return
        if not self._slots.acquire(timeout=self._timeout):
            raise StoreUnavailable(
                f"no connection for a transactional step became free within {self._timeout:g} s: "
                f"all {self._max_size} are at work"
            )
        try:
            connection = self._sync_connection()
            try:
                block = connection.transaction()
                try:
                    transaction = block.__enter__()
                except psycopg.Error as error:
                    raise connection_refused(error) from None
                try:
                    commit = functools.partial(block.__exit__, None, None, None)
                    lift = functools.partial(lift_limits, connection)
                    yield Opened(connection, connection, _nothing, lift, commit)
                finally:
                    if _entered(connection, transaction):
                        with contextlib.suppress(psycopg.Error):
                            block.__exit__(psycopg.Rollback, psycopg.Rollback(), None)
            finally:
                connection.row_factory = psycopg.rows.tuple_row
                if self._may_keep(connection):
                    as_new(connection)
                with self._lock:
                    kept = self._may_keep(connection)
                    if kept:
                        self._idle.append(connection)
                if not kept:
                    connection.close()
        finally:
            self._slots.release()

    def _sync_connection(self) -> psycopg.Connection[Any]:
        with self._lock:
            while self._idle:
                connection = self._idle.pop()
                if self._may_keep(connection):
                    return connection
                connection.close()
        try:
            connection = psycopg.connect(self._dsn, autocommit=True, **self._options)
            connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
            connection.deferrable = True
        except psycopg.Error as error:
            raise connection_refused(error) from None
        return connection

    @contextmanager
    def _open_alchemy_sync(self, kind: Kind) -> Iterator[Opened]:
        engine = self._alchemy_sync()
        try:
            connecting = engine.connect()
        except Exception as error:  # noqa: BLE001  those of any driver
            raise _refused(error) from None
        with connecting as connection:
            transaction = connection.begin()
            try:
                connection.exec_driver_sql(_MARK)
            except Exception as error:  # noqa: BLE001
                raise _refused(error) from None
            commit = transaction.commit
            lift = functools.partial(connection.exec_driver_sql, self._limits)
            if kind == "connection":
                yield Opened(connection, connection, _nothing, lift, commit)
                return
            from sqlalchemy.orm import Session

            with Session(bind=connection, expire_on_commit=False) as session:
                yield Opened(session, connection, session.flush, lift, commit)

    def _alchemy_sync(self) -> Any:
        with self._lock:
            if self._engine is None:
                from sqlalchemy import Engine, create_engine

                if isinstance(self._given_engine, Engine):
                    self._engine = self._given_engine
                else:
                    self._engine = create_engine(
                        "postgresql+psycopg://",
                        creator=lambda: psycopg.connect(self._dsn, **self._options),
                        pool_size=self._max_size,
                        max_overflow=0,
                        pool_timeout=self._timeout,
                        isolation_level="READ COMMITTED",
                    )
            return self._engine

    # -- both -----------------------------------------------------------------------------------

    async def close(self) -> None:
        """Close the connections that nobody uses; those at work when their step is over."""
        self._closed = True
        with self._lock:
            idle: list[Any] = [*self._idle, *self._async_idle]
            self._idle.clear()
            self._async_idle.clear()
        for connection in idle:
            connection.pgconn.finish()
        if self._engine is not None and self._engine is not self._given_engine:
            await asyncio.to_thread(self._engine.dispose)
        if self._async_engine is not None and self._async_engine is not self._given_engine:
            await self._async_engine.dispose()

    def _may_keep(self, connection: Any) -> bool:
        idle = connection.pgconn.transaction_status == TransactionStatus.IDLE
        return idle and not connection.closed and not self._closed


def check_kind(kind: object) -> None:
    """InvalidArgument unless ``kind`` is one."""
    if kind not in ("psycopg", "connection", "session"):
        raise InvalidArgument('kind must be "psycopg", "connection" or "session"')


def is_lost(connection: Any, error: BaseException) -> bool:
    """Whether a driver's ``error`` means that ``connection`` is gone with its transaction."""
    if not is_driver_error(error):
        return False
    if isinstance(connection, (psycopg.Connection, psycopg.AsyncConnection)):
        return bool(connection.closed)
    return bool(getattr(error, "connection_invalidated", False))


def _entered(connection: Any, transaction: Any) -> bool:
    """Whether a transaction block is to be left by a rollback, be it for psycopg's count alone."""
    active: bool = transaction.status is transaction.Status.ACTIVE
    return active and not connection.closed


def _refused(error: BaseException) -> BaseException:
    if not is_driver_error(error):
        return error
    return connection_refused(getattr(error, "orig", None) or error)


def _nothing() -> None:
    return None


async def _nothing_async() -> None:
    return None
