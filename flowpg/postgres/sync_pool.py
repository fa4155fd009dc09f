"""The pool of the client for synchronous code."""

from __future__ import annotations

import atexit
import weakref
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import psycopg
from psycopg_pool import ConnectionPool

from flowpg.postgres.errors import connection_refused
from flowpg.postgres.pool import connection_options

_open: weakref.WeakSet[ConnectionPool[Any]] = weakref.WeakSet()


def open_pool(dsn: str, max_size: int, prepare: bool) -> ConnectionPool[Any]:
    """A pool of up to ``max_size`` connections. StoreUnavailable where there is none to be had."""
    options = {"autocommit": True, **connection_options(dsn, prepare)}
    try:
        # A pool only ever says that time ran out; a connection says why.
        psycopg.connect(dsn, **options).close()
    except psycopg.Error as error:
        raise connection_refused(error) from None
    pool = ConnectionPool(
        dsn,
        kwargs=options,
        min_size=0,
        max_size=max_size,
        configure=_configure,
        open=True,
        name="flowpg",
    )
    _open.add(pool)
    return pool


@atexit.register
def _close_what_is_left() -> None:
    # Its threads are daemons. From Python 3.13 on the interpreter cannot wait for them any more
    # when it lets go of the pool, and that would say so after five seconds for each.
    for pool in list(_open):
        pool.close()


def statement(connection: psycopg.Connection[Any]) -> AbstractContextManager[Any]:
    """One statement in autocommit mode; where that would run at a wrong isolation level, in a
    transaction that names the right one."""
    explicit = connection.autocommit and connection.isolation_level is not None
    return connection.transaction() if explicit else nullcontext()


def _configure(connection: psycopg.Connection[Any]) -> None:
    row = connection.execute("SELECT current_setting('default_transaction_isolation')").fetchone()
    if row is None or row[0] != "read committed":
        connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
