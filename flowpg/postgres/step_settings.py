"""What a transactional step may have changed about its session, and how that is put right.

Before the completion is recorded: a limit that the step has set on its own statements is none on
ours. After the transaction: the next step that is given the connection finds it as it was.
"""

from __future__ import annotations

from typing import Any

import psycopg

LIMITS_OF_OURS = (
    "RESET statement_timeout; RESET lock_timeout; RESET idle_in_transaction_session_timeout; "
    "RESET SESSION AUTHORIZATION; RESET ROLE"
)
"""For a connection that flowpg made: its DSN says what it begins with."""

LIMITS_OF_GIVEN = (
    "SELECT set_config('statement_timeout', '0', true), set_config('lock_timeout', '0', true), "
    "set_config('idle_in_transaction_session_timeout', '0', true)"
)
"""For one of an engine that the application brought, which may have a role and limits by design:
until the end of the transaction only, and not its role."""

# DISCARD ALL, without what the driver has prepared.
_AS_NEW = (
    "RESET SESSION AUTHORIZATION; RESET ROLE; RESET ALL; CLOSE ALL; UNLISTEN *; "
    "SELECT pg_advisory_unlock_all(); DISCARD TEMP"
)


async def lift_limits_async(connection: psycopg.AsyncConnection[Any]) -> None:
    """Before a completion is recorded."""
    await psycopg.AsyncCursor(connection).execute(LIMITS_OF_OURS, prepare=False)


def lift_limits(connection: psycopg.Connection[Any]) -> None:
    """The same for a thread."""
    psycopg.Cursor(connection).execute(LIMITS_OF_OURS, prepare=False)


async def as_new_async(connection: psycopg.AsyncConnection[Any]) -> None:
    """After the transaction. A connection with which this fails is closed, and so is not kept."""
    try:
        await psycopg.AsyncCursor(connection).execute(_AS_NEW, prepare=False)
    except psycopg.Error:
        connection.pgconn.finish()  # the step itself is over by now
    except BaseException:
        connection.pgconn.finish()
        raise


def as_new(connection: psycopg.Connection[Any]) -> None:
    """The same for a thread."""
    try:
        psycopg.Cursor(connection).execute(_AS_NEW, prepare=False)
    except psycopg.Error:
        connection.close()
