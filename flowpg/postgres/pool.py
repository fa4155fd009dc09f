"""Connections for the asynchronous store: a pool of autocommit connections, one call each.

Every verb is one statement in autocommit mode: one round trip, no transaction left open, and no
state kept in a session, so that a PgBouncer in transaction mode may stand between.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import tuple_row
from psycopg_pool import AsyncConnectionPool, PoolClosed, PoolTimeout

from flowpg.errors import FlowError, StoreError, StoreUnavailable
from flowpg.postgres.calls import Call, psycopg_sql
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


class AsyncPool:
    """A pool of ``min_size`` to ``max_size`` connections to one database.

    ``prepare`` False sends no prepared statements, which PgBouncer in transaction mode needs
    unless it tracks them itself. ``timeout`` is how many seconds a call waits for a connection
    before it raises StoreUnavailable.
    """

    def __init__(
        self,
        dsn: str,
        *,
        schema: str,
        min_size: int = 1,
        max_size: int = 4,
        prepare: bool = True,
        timeout: float = 30.0,
    ) -> None:
        self.schema = schema
        self.dsn = dsn
        self.prepare = prepare
        self._timeout = timeout
        self._role: str | None = None
        self._checks: set[asyncio.Future[None]] = set()
        self._pool: AsyncConnectionPool[Connection] = AsyncConnectionPool(
            dsn,
            connection_class=psycopg.AsyncConnection,
            kwargs={"autocommit": True, **connection_options(dsn, prepare)},
            min_size=min(min_size, max_size),
            max_size=max_size,
            configure=_configure,
            open=False,
            name="flowpg",
            timeout=timeout,
        )

    async def open(self, check: Callable[[Connection], Awaitable[None]] | None = None) -> None:
        """Connect, and let ``check`` look at the first connection.

        StoreUnavailable, with the server's own reason, if the server does not answer or refuses.
        """
        # One connection made by hand: a pool only ever says that time ran out.
        options = connection_options(self.dsn, self.prepare)
        try:
            probe = await psycopg.AsyncConnection.connect(self.dsn, autocommit=True, **options)
        except psycopg.Error as error:
            raise connection_refused(error) from None
        async with probe:
            self._role = probe.info.user
            if check is not None:
                try:
                    await check(probe)
                except psycopg.Error as error:
                    raise self._translated(error, "the check of the schema") from None
        await self._pool.open(wait=False)

    async def run(self, call: Call[T]) -> T:
        """Send one call and read its rows. Raises what ``translate`` makes of a driver's error."""
        try:
            async with self._pool.connection() as connection:
                rows = await self._execute(connection, call)
        except PoolTimeout:
            raise StoreUnavailable(
                f"no database connection became free within {self._timeout:g} s: the server is "
                f"away, or all {self._pool.max_size} connections of the pool are busy"
            ) from None
        except PoolClosed:
            raise StoreError("the store is closed") from None
        except psycopg.Error as error:
            mapped = self._translated(error, call.function.name, call.token)
            if isinstance(mapped, StoreUnavailable):
                self._recheck(error)
            raise mapped from None
        return call.read(rows)

    async def _execute(self, connection: Connection, call: Call[Any]) -> list[tuple[Any, ...]]:
        sql = psycopg_sql(call.function, self.schema)
        cursor = psycopg.AsyncCursor(connection, row_factory=tuple_row)
        if connection.isolation_level is None:
            await cursor.execute(sql, call.values)
            return await cursor.fetchall()
        async with connection.transaction():
            await cursor.execute(sql, call.values)
            return await cursor.fetchall()

    def _translated(self, error: psycopg.Error, what: str, token: str = "") -> FlowError:
        return translate(error, what, schema=self.schema, token=token, role=self._role)

    def _recheck(self, error: psycopg.Error) -> None:
        # What ended one connection has often ended its idle sisters too: find them now, rather
        # than one failed call at a time. A server that answers and only refuses to write passes
        # every check: after a failover to be seen, all connections are made again, and the host
        # is looked up again.
        if not self._checks:
            moved = (error.sqlstate or "") in SERVER_MOVED
            task = asyncio.ensure_future(self._pool.drain() if moved else self._pool.check())
            self._checks.add(task)
            task.add_done_callback(self._checks.discard)

    def stats(self) -> dict[str, int]:
        """Counters of the pool, as psycopg's pool names them."""
        return self._pool.get_stats()

    async def close(self) -> None:
        """Close every connection once it is given back."""
        for task in self._checks:
            task.cancel()
        await self._pool.close()


def connection_options(dsn: str, prepare: bool) -> dict[str, Any]:
    """Options of every connection made here, those that the DSN names excepted."""
    try:
        named = conninfo_to_dict(dsn)
    except psycopg.ProgrammingError:
        # libpq's text quotes the DSN, which may hold a password.
        raise StoreUnavailable(
            "the DSN is malformed: use postgresql://user@host:port/database or key=value pairs"
        ) from None
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
