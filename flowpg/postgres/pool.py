"""Connections for the asynchronous store: a pool of autocommit connections, one call each.

Every verb is one statement in autocommit mode: one round trip, no transaction left open, and no
state kept in a session, so that a PgBouncer in transaction mode may stand between.

The pool has no background tasks: a connection is made by the call that needs it, and an event loop
that ends finds nothing of ours that never would.

A process that is forked off begins with an empty pool: two processes on one connection would read
each other's answers.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from time import monotonic
from typing import Any, TypeVar

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from flowpg.errors import FlowError, StoreError, StoreUnavailable
from flowpg.postgres.calls import Call, psycopg_sql
from flowpg.postgres.dsn import parsed_dsn
from flowpg.postgres.errors import SERVER_MOVED, connection_refused, translate

T = TypeVar("T")

Connection = psycopg.AsyncConnection[Any]

# Without the keepalives a peer that vanished without a word is noticed after two hours.
_DEFAULTS = {
    "connect_timeout": 10,
    "application_name": "flowpg",
    "keepalives_idle": 15,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}


_STATEMENT_TIMEOUT = "SELECT set_config('statement_timeout', %s, true)"

MAX_AGE = 3600.0
"""Seconds after which a connection is replaced, so that servers that moved are noticed."""


LEFT_BEHIND: list[object] = []
"""Connections and pools of a parent process: never used here, and never closed by the garbage
collector either, which would end the parent's sessions on the server."""


@dataclass(slots=True)
class _Kept:
    """A connection, when it was made, in which era of the pool, and whether it is ending."""

    connection: Connection
    made_at: float
    era: int
    ending: bool = False

    def notice(self, message: psycopg.errors.Diagnostic) -> None:
        """The server's last words, which come before the end itself does."""
        if message.severity_nonlocalized in ("FATAL", "PANIC"):
            self.ending = True

    def is_usable(self) -> bool:
        """Whether the connection, which nobody uses, is connected still, and in no transaction."""
        pgconn = self.connection.pgconn
        if self.connection.closed or pgconn.transaction_status != TransactionStatus.IDLE:
            return False
        try:
            # Without a round trip: reads what the server has said unasked, and understands it.
            pgconn.consume_input()
            pgconn.is_busy()
            pgconn.consume_input()
        except psycopg.Error:
            return False
        return not (self.ending or self.connection.closed)


class AsyncPool:
    """At most ``max_size`` connections to one database, made when needed and kept.

    ``prepare`` False sends no prepared statements, which PgBouncer in transaction mode needs
    unless it tracks them itself. ``timeout`` is how many seconds a call waits for a connection
    that others use before it raises StoreUnavailable.
    """

    def __init__(
        self,
        dsn: str,
        *,
        schema: str,
        max_size: int = 4,
        prepare: bool = True,
        timeout: float = 30.0,
    ) -> None:
        self.schema = schema
        self.dsn = dsn
        self.prepare = prepare
        self._options = connection_options(dsn, prepare)
        self._max_size = max(1, max_size)
        self._timeout = timeout
        self._role: str | None = None
        self._closed = False
        self._begin()

    def _begin(self) -> None:
        self._process = os.getpid()
        self._size = 0  # connections that are open or being made
        self._idle: list[_Kept] = []
        # Each is given a connection, or None: a place in the pool to make one.
        self._waiting: deque[asyncio.Future[_Kept | None]] = deque()
        self._era = 0  # connections of an earlier era are not used again
        self._making: set[asyncio.Task[_Kept]] = set()

    async def open(self, check: Callable[[Connection], Awaitable[None]] | None = None) -> None:
        """Connect, and let ``check`` look at the first connection.

        StoreUnavailable, with the server's own reason, if the server does not answer or refuses.
        """
        async with self._connection() as connection:
            self._role = connection.info.user
            if check is not None:
                try:
                    await check(connection)
                except psycopg.Error as error:
                    raise self._translated(error, "the check of the schema") from None

    async def run(self, call: Call[T], timeout: timedelta | None = None) -> T:
        """Send one call and read its rows. Raises what ``translate`` makes of a driver's error.
        ``timeout`` is the statement timeout of this call alone."""
        async with self._connection() as connection:
            try:
                rows = await self._execute(connection, call, timeout)
            except psycopg.Error as error:
                if error.sqlstate in SERVER_MOVED:
                    # After a failover every connection leads to a server that refuses to write:
                    # make all of them again, and so look the host up again.
                    self._era += 1
                raise self._translated(error, call.function.name, call.token) from None
        return call.read(rows)

    async def notify(self, channel: str, payload: str) -> None:
        """Send a notification. Raises as ``run``."""
        async with self._connection() as connection:
            try:
                await connection.execute("SELECT pg_notify(%s, %s)", (channel, payload))
            except psycopg.Error as error:
                raise self._translated(error, "pg_notify") from None

    def stats(self) -> dict[str, int]:
        """How many connections there are, how many of them are free, and how many calls wait."""
        return {
            "pool_size": self._size,
            "pool_available": len(self._idle),
            "requests_waiting": len(self._waiting),
        }

    async def close(self) -> None:
        """Close every connection: the free ones now, the others when their call ends or, if they
        are still being made, when they are."""
        self._closed = True
        if self._process != os.getpid():
            return
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_exception(StoreError("the store is closed"))
        while self._idle:
            self._discard(self._idle.pop())

    async def _execute(
        self, connection: Connection, call: Call[Any], timeout: timedelta | None
    ) -> list[tuple[Any, ...]]:
        sql = psycopg_sql(call.function, self.schema)
        cursor = psycopg.AsyncCursor(connection, row_factory=tuple_row)
        if connection.isolation_level is None and timeout is None:
            await cursor.execute(sql, call.values)
            return await cursor.fetchall()
        async with connection.transaction():
            if timeout is not None:
                # For this transaction only: behind a pooler the next one may be somebody else's.
                milliseconds = max(1, round(timeout.total_seconds() * 1000))
                await cursor.execute(_STATEMENT_TIMEOUT, (str(milliseconds),))
            await cursor.execute(sql, call.values)
            return await cursor.fetchall()

    def _translated(self, error: psycopg.Error, what: str, token: str = "") -> FlowError:
        return translate(error, what, schema=self.schema, token=token, role=self._role)

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[Connection]:
        kept = await self._acquire()
        try:
            yield kept.connection
        finally:
            # Nothing is awaited on the way back, where a cancellation could lose it.
            self._take_back(kept)

    async def _acquire(self) -> _Kept:
        if self._closed:
            raise StoreError("the store is closed")
        if self._process != os.getpid():
            LEFT_BEHIND.extend((self._idle, self._waiting, self._making))
            self._begin()
        while self._idle:
            kept = self._idle.pop()
            if self._may_keep(kept):
                return kept
            self._discard(kept)
        found = None
        if self._size < self._max_size:
            self._size += 1
        else:
            found = await self._wait()
        return found or await self._make()

    def _may_keep(self, kept: _Kept) -> bool:
        young = monotonic() - kept.made_at < MAX_AGE
        return young and kept.era == self._era and not self._closed and kept.is_usable()

    async def _wait(self) -> _Kept | None:
        waiter: asyncio.Future[_Kept | None]
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        try:
            async with asyncio.timeout(self._timeout):
                return await waiter
        except BaseException as error:
            if waiter in self._waiting:
                self._waiting.remove(waiter)
            elif not waiter.cancelled() and waiter.exception() is None:
                self._give(waiter.result())  # it was served in the moment it gave up
            if isinstance(error, TimeoutError):
                raise StoreUnavailable(
                    f"no database connection became free within {self._timeout:g} s: all "
                    f"{self._max_size} connections of the pool are busy"
                ) from None
            raise

    async def _make(self) -> _Kept:
        # In a task of its own: a cancelled connect would leave a half-made connection to the
        # garbage collector, and a session on the server until then. Finished, it is for others.
        task = asyncio.create_task(self._connect())
        self._making.add(task)
        task.add_done_callback(self._making.discard)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(self._adopt)
            raise

    def _adopt(self, task: asyncio.Task[_Kept]) -> None:
        if not task.cancelled() and task.exception() is None:
            self._take_back(task.result())

    async def _connect(self) -> _Kept:
        connection, era = None, self._era
        try:
            connection = await psycopg.AsyncConnection.connect(
                self.dsn, autocommit=True, **self._options
            )
            await _configure(connection)
        except BaseException as error:
            if connection is not None:
                connection.pgconn.finish()
            self._give(None)
            if isinstance(error, psycopg.Error):
                raise connection_refused(error) from None
            raise
        kept = _Kept(connection, monotonic(), era)
        connection.add_notice_handler(kept.notice)
        return kept

    def _take_back(self, kept: _Kept) -> None:
        if self._may_keep(kept):
            self._give(kept)
        else:
            self._discard(kept)

    def _give(self, found: _Kept | None) -> None:
        # To whoever waits longest; else a connection is kept, and a place is free.
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(found)
                return
        if found is None:
            self._size -= 1
        else:
            self._idle.append(found)

    def _discard(self, kept: _Kept) -> None:
        kept.connection.pgconn.finish()  # what close() does, without having to be awaited
        self._give(None)


def connection_options(dsn: str, prepare: bool) -> dict[str, Any]:
    """Options of every connection made here, those that the DSN names excepted."""
    named = parsed_dsn(dsn)
    options: dict[str, Any] = {"prepare_threshold": 5 if prepare else None}
    options.update({name: value for name, value in _DEFAULTS.items() if name not in named})
    return options


async def _configure(connection: Connection) -> None:
    # The verbs are written for READ COMMITTED. Where a DBA has set another default, a single
    # statement cannot say so, and an explicit transaction is opened around it instead.
    cursor = await connection.execute("SELECT current_setting('default_transaction_isolation')")
    row = await cursor.fetchone()
    if row is None or row[0] != "read committed":
        await connection.set_isolation_level(psycopg.IsolationLevel.READ_COMMITTED)
