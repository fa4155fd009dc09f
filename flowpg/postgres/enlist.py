"""Calls inside a transaction of the caller: whose connection is it, and how does it run one.

The call runs on the given connection and commits or vanishes with the caller's transaction; no
other session sees it before. An error leaves that transaction as PostgreSQL leaves it: failed,
until it is rolled back. Whoever wants to go on after an error (a RunConflict, say) opens a
savepoint first: ``async with connection.transaction()``, ``session.begin_nested()``.

Given a connection in autocommit mode outside any transaction, the call commits by itself.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from typing import Any, TypeVar

import psycopg
from psycopg.rows import tuple_row

from flowpg.errors import FlowError, InvalidArgument
from flowpg.postgres.calls import Call, Row, named_sql, named_values, psycopg_sql
from flowpg.postgres.errors import is_driver_error, translate

T = TypeVar("T")

_ACCEPTED = (
    "connection= takes a psycopg Connection or AsyncConnection, a SQLAlchemy Connection, "
    "AsyncConnection, Session or AsyncSession, or a DB-API connection with %s parameters"
)


async def run_enlisted(connection: Any, call: Call[T], schema: str) -> T:
    """Run ``call`` in the transaction of ``connection``, whichever accepted kind it is of.

    A synchronous connection is used from a thread, so that waiting for a lock never stops the
    event loop; the caller must not use it meanwhile, which awaiting this ensures.
    """
    connection = _unwrapped(connection)
    try:
        if isinstance(connection, psycopg.AsyncConnection):
            cursor = psycopg.AsyncCursor(connection, row_factory=tuple_row)
            await cursor.execute(psycopg_sql(call.function, schema), call.values)
            rows: Sequence[Row] = await cursor.fetchall()
        elif _is_async_sqlalchemy(connection):
            rows = (await connection.execute(_text(call, schema), named_values(call))).fetchall()
        else:
            work = asyncio.ensure_future(asyncio.to_thread(_rows, connection, call, schema))
            rows = await _even_if_cancelled(work)
    except Exception as error:
        if not is_driver_error(error):
            raise
        raise _translated(error, connection, call, schema) from None
    return call.read(rows)


def run_enlisted_sync(connection: Any, call: Call[T], schema: str, *, enlisted: bool = True) -> T:
    """As ``run_enlisted``, from synchronous code and for synchronous connections.

    ``enlisted`` False: the transaction is not the caller's, and errors need not speak of it.
    """
    connection = _unwrapped(connection)
    if isinstance(connection, psycopg.AsyncConnection) or _is_async_sqlalchemy(connection):
        raise InvalidArgument("the synchronous client takes synchronous connections only")
    try:
        rows = _rows(connection, call, schema)
    except Exception as error:
        if not is_driver_error(error):
            raise
        raise _translated(error, connection, call, schema, enlisted) from None
    return call.read(rows)


def _rows(connection: Any, call: Call[Any], schema: str) -> Sequence[Row]:
    if isinstance(connection, psycopg.Connection):
        # A cursor class of our own choice: the connection's may return dicts, or bind client-side.
        cursor = psycopg.Cursor(connection, row_factory=tuple_row)
        return cursor.execute(psycopg_sql(call.function, schema), call.values).fetchall()
    if _is_sync_sqlalchemy(connection):
        rows: Sequence[Row] = connection.execute(_text(call, schema), named_values(call)).fetchall()
        return rows
    if not callable(getattr(connection, "cursor", None)):
        raise InvalidArgument(f"{_ACCEPTED}, not {type(connection).__name__}")
    foreign = connection.cursor()
    try:
        foreign.execute(psycopg_sql(call.function, schema), call.values)
        found: Sequence[Row] = foreign.fetchall()
        return found
    finally:
        foreign.close()


def _translated(
    error: Exception, connection: Any, call: Call[Any], schema: str, enlisted: bool = True
) -> FlowError:
    user = getattr(getattr(connection, "info", None), "user", None)
    return translate(
        error,
        call.function.name,
        schema=schema,
        token=call.token,
        role=user if isinstance(user, str) else None,
        enlisted=enlisted,
    )


def _unwrapped(connection: Any) -> Any:
    # A scoped_session, as Flask-SQLAlchemy hands out, stands for the session of this scope.
    module = sys.modules.get("sqlalchemy.orm")
    if module is not None and isinstance(connection, module.scoped_session):
        return connection.registry()
    return connection


# SQLAlchemy is looked up, not imported: a value cannot be of a class whose module is not loaded.
def _is_async_sqlalchemy(connection: Any) -> bool:
    module = sys.modules.get("sqlalchemy.ext.asyncio")
    return module is not None and isinstance(
        connection,
        (module.AsyncConnection, module.AsyncSession, module.async_scoped_session),
    )


def _is_sync_sqlalchemy(connection: Any) -> bool:
    core, orm = sys.modules.get("sqlalchemy"), sys.modules.get("sqlalchemy.orm")
    return (core is not None and isinstance(connection, core.Connection)) or (
        orm is not None and isinstance(connection, orm.Session)
    )


def _text(call: Call[Any], schema: str) -> Any:
    from sqlalchemy import String, bindparam, text

    clause = text(named_sql(call.function, schema))
    return clause.bindparams(*(bindparam(name, type_=String) for name in named_values(call)))


async def _even_if_cancelled(work: asyncio.Future[Sequence[Row]]) -> Sequence[Row]:
    # The thread cannot be stopped, and must not go on with the connection behind the back of a
    # caller that rolls back: wait for it, however often cancelled, then pass the cancellation on.
    cancelled: asyncio.CancelledError | None = None
    while not work.done():
        try:
            await asyncio.wait([work])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        if not work.cancelled():
            work.exception()  # nobody else will look at it
        raise cancelled
    return work.result()
