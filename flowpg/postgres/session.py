"""One synchronous connection for a thread of its own, made when needed and again when it broke.

A heartbeat must not wait for a busy pool or a busy event loop, so it does not share either.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Sequence
from typing import Any, TypeVar

import psycopg
from psycopg.rows import tuple_row

from flowpg.errors import StoreUnavailable
from flowpg.postgres.calls import Call, psycopg_sql
from flowpg.postgres.errors import connection_refused, translate
from flowpg.postgres.pool import connection_options

T = TypeVar("T")


class DirectSession:
    """Calls the functions of ``schema`` one after the other, from one thread at a time.

    A call that takes longer than ``timeout`` seconds breaks the connection and raises
    StoreUnavailable: a peer that vanished without a word would otherwise hold the thread for ever.
    """

    def __init__(self, dsn: str, schema: str, *, prepare: bool = True, timeout: float = 10) -> None:
        self._dsn = dsn
        self._schema = schema
        self._prepare = prepare
        self._timeout = timeout
        self._connection: psycopg.Connection[Any] | None = None

    def run(self, call: Call[T]) -> T:
        """Send one call and read its rows. Raises what ``translate`` makes of a driver's error."""
        connection = self._connected()
        alarm = threading.Timer(self._timeout, break_connection, (connection,))
        alarm.daemon = True
        alarm.start()
        try:
            rows = self._rows(connection, psycopg_sql(call.function, self._schema), call.values)
        except psycopg.Error as error:
            mapped = translate(error, call.function.name, schema=self._schema, token=call.token)
            if isinstance(mapped, StoreUnavailable):
                self.close()  # whatever broke it, the next call begins with a new one
            raise mapped from None
        finally:
            alarm.cancel()
        return call.read(rows)

    def close(self) -> None:
        """Close the connection; the next call makes another."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _rows(
        self, connection: psycopg.Connection[Any], sql: str, values: Sequence[Any]
    ) -> list[tuple[Any, ...]]:
        cursor = psycopg.Cursor(connection, row_factory=tuple_row)
        if connection.isolation_level is None:
            return cursor.execute(sql, values).fetchall()
        with connection.transaction():
            return cursor.execute(sql, values).fetchall()

    def _connected(self) -> psycopg.Connection[Any]:
        if self._connection is None or self._connection.closed:
            options = connection_options(self._dsn, self._prepare)
            try:
                connection = psycopg.connect(self._dsn, autocommit=True, **options)
                # As in the pool: the verbs are written for READ COMMITTED.
                found = connection.execute(
                    "SELECT current_setting('default_transaction_isolation')"
                ).fetchone()
            except psycopg.Error as error:
                raise connection_refused(error) from None
            if found is None or found[0] != "read committed":
                connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
            self._connection = connection
        return self._connection


def break_connection(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> None:
    """Let whoever waits for this connection see its end now, although the peer says nothing.

    May be called from any thread. Nothing is closed: that is left to the connection's owner.
    """
    with (
        contextlib.suppress(OSError, psycopg.Error),
        # A descriptor of our own: the owner may close his at any moment.
        socket.socket(fileno=os.dup(connection.fileno())) as own,
    ):
        own.shutdown(socket.SHUT_RDWR)
