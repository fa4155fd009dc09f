"""From a driver's error to flowpg's own: one place that reads what a server or a driver said.

Driver texts may quote values: the DETAIL of a failed cast, the CONTEXT of a function, the
parameters that SQLAlchemy appends. None of that passes through here. A new error is raised
``from None``, and holds the SQLSTATE, names of database objects, and words of our own.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import psycopg

from flowpg.errors import (
    FlowError,
    PermissionDenied,
    SchemaBehind,
    SchemaMissing,
    StoreError,
    StoreUnavailable,
)
from flowpg.model.sqlstates import from_sqlstate
from flowpg.postgres.calls import quoted

# 25006: a standby, or a primary that failed over; 57Pxx: the server is going down or coming up.
SERVER_MOVED = frozenset({"25006", "57P01", "57P02", "57P03", "57P04"})
"""Answers of a server that is not, or not any more, the one to write to."""

_GONE = SERVER_MOVED | {"57P05"}
_AGAIN = {
    "40001": "the database could not serialise it with a concurrent transaction",
    "40P01": "the database ended a deadlock by refusing it",
    "55P03": "a lock was not granted within the lock timeout",
    "57014": "it was cancelled, by a statement timeout or by an administrator",
}
_REFUSED = {"25006": "the server is read-only, a standby perhaps"}
_CONNECTION_LOST = (
    "the connection to the database was lost during {what}; whether it took effect is unknown; "
    "calls are idempotent, so repeat it"
)


@dataclass(frozen=True, slots=True)
class Fault:
    """What a server said: SQLSTATE ("" if it said nothing), and texts not to be shown as is."""

    sqlstate: str
    message: str
    detail: str


def translate(
    error: BaseException,
    what: str,
    *,
    schema: str,
    token: str = "",
    role: str | None = None,
    enlisted: bool = False,
) -> FlowError:
    """The exception to raise, ``from None``, in place of a driver's ``error`` during ``what``.

    ``token`` is the hook token of the call, for the attribute of the exception.
    """
    fault = fault_of(error)
    code = fault.sqlstate
    if code.startswith("WF"):
        own = from_sqlstate(code, _members(fault.detail), fault.message, token)
        if own is not None:
            return own
        return SchemaBehind(
            f"{what} answered with {code}, which this release does not know: the schema is of a "
            "newer release; upgrade flowpg"
        )
    if code == "25006" and enlisted:
        return StoreError(
            f"{what} was not run: the transaction of the given connection is read-only, or its "
            "server is a standby (SQLSTATE 25006)"
        )
    if code == "25006" or code.startswith("53"):
        why = _REFUSED.get(code, "the server ran out of memory, locks, disk space or connections")
        return StoreUnavailable(f"{what} did nothing: {why}; repeat the call (SQLSTATE {code})")
    if code in _GONE or code.startswith("08"):
        return StoreUnavailable(f"{_CONNECTION_LOST.format(what=what)} (SQLSTATE {code})")
    if code in _AGAIN:
        advice = "roll back and repeat the whole transaction" if enlisted else "repeat the call"
        return StoreUnavailable(f"{what} did nothing: {_AGAIN[code]}; {advice} (SQLSTATE {code})")
    return _schema_error(fault, what, schema, role) or _other(error, code, what)


def connection_refused(error: BaseException) -> StoreUnavailable:
    """The error for a server that cannot be reached or does not let us in."""
    # libpq's words about a failed connection name host, port, database and role, never a secret;
    # those about a connection string that it cannot read quote that, password and all.
    unread = any(kind.__name__ == "ProgrammingError" for kind in type(error).__mro__)
    lines = [] if unread else str(error).strip().splitlines()
    return StoreUnavailable(
        f"cannot connect to PostgreSQL: {lines[0] if lines else type(error).__name__}; "
        "check the DSN and that the server is up"
    )


def is_driver_error(error: BaseException) -> bool:
    """Whether ``error`` comes from psycopg, SQLAlchemy or another DB-API driver."""
    if isinstance(error, psycopg.Error):
        return True
    names = {kind.__name__ for kind in type(error).__mro__}
    return bool(names & {"DBAPIError", "DatabaseError", "InterfaceError"})


def fault_of(error: BaseException) -> Fault:
    """What the server said, whichever driver brought it."""
    seen: BaseException | None = error
    found = Fault("", "", "")
    for _ in range(5):  # SQLAlchemy keeps the driver's error in .orig, adapters in __cause__
        if seen is None or found.detail:
            break
        # An adapter may know the SQLSTATE and leave the rest to the error that it stands for.
        found = _said(seen) or found
        following = getattr(seen, "orig", None)
        seen = following if isinstance(following, BaseException) else seen.__cause__
    return found


def _said(error: BaseException) -> Fault | None:
    fields = error.args[0] if error.args else None
    if isinstance(fields, dict) and "C" in fields:  # pg8000: the protocol's own letters
        return Fault(str(fields["C"]), str(fields.get("M") or ""), str(fields.get("D") or ""))
    code = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
    if not code:
        return None
    diag = getattr(error, "diag", None)
    message = getattr(diag, "message_primary", None) or getattr(error, "message", None)
    detail = getattr(diag, "message_detail", None) or getattr(error, "detail", None)
    return Fault(str(code), str(message or ""), str(detail or ""))


def _schema_error(fault: Fault, what: str, schema: str, role: str | None) -> FlowError | None:
    code = fault.sqlstate
    if code == "42501":
        who = repr(role) if role else "of this connection"
        grantee = role or "<role>"
        return PermissionDenied(
            f"the database role {who} may not run {what} ({fault.message}); let the owner of the "
            f"schema run: SELECT {quoted(schema)}.flow_grant('{grantee}', 'worker') "
            "(or 'client', or 'reader')"
        )
    if code == "3F000":
        return SchemaMissing(
            f"the database has no schema {schema!r}: run `flowpg migrate` with a role that may "
            "create it, or name the right schema"
        )
    if code in ("42P01", "42883", "42703", "42804"):
        return SchemaBehind(
            f"the schema {schema!r} does not have {what} as this release calls it: run "
            f"`flowpg migrate` (SQLSTATE {code})"
        )
    return None


def _other(error: BaseException, code: str, what: str) -> FlowError:
    if code == "25P02":
        return StoreError(
            f"{what} was not run: the transaction of the given connection has failed before; "
            "roll it back, or to a savepoint, first"
        )
    if code:
        return StoreError(f"the database refused {what} with SQLSTATE {code}; nothing was stored")
    if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError) or any(
        kind.__name__ in ("OperationalError", "InterfaceError") for kind in type(error).__mro__
    ):
        return StoreUnavailable(_CONNECTION_LOST.format(what=what))
    return StoreError(f"the driver refused {what}: {type(error).__name__}; nothing was stored")


def _members(detail: str) -> dict[str, Any]:
    try:
        value = json.loads(detail) if detail else {}
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
