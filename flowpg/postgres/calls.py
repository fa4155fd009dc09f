"""A call of one SQL function: what to send and how to read the rows, without any I/O.

The asynchronous store, the synchronous client and calls enlisted in somebody's transaction send
the same calls through different drivers. So every argument travels as text and is cast in SQL,
which leaves nothing to how a driver converts types.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, Generic, TypeVar

T = TypeVar("T")

Row = Sequence[Any]
"""One row as any driver gives it, in the order of ``Function.columns``."""


@dataclass(frozen=True, slots=True)
class Function:
    """A function of ``sql/``: its name, its arguments' types, and the columns that are read."""

    name: str
    arguments: tuple[str, ...]
    columns: tuple[str, ...] = ("r",)


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """A call ready to be sent. ``read`` turns its rows into what the verb returns.

    ``token`` is the hook token among the arguments: it belongs into the attribute of the error
    that the call may raise, and nowhere else.
    """

    function: Function
    values: tuple[str | None, ...] = field(repr=False)
    read: Callable[[Sequence[Row]], T] = field(repr=False)
    token: str = field(default="", repr=False)


@lru_cache(maxsize=512)
def psycopg_sql(function: Function, schema: str) -> str:
    """The statement with ``%s`` placeholders, for psycopg and drivers that do likewise."""
    arguments = ", ".join(f"%s::{kind}" for kind in function.arguments)
    return _statement(function, schema.replace("%", "%%"), arguments)


@lru_cache(maxsize=512)
def named_sql(function: Function, schema: str) -> str:
    """The statement with ``:a0, :a1, ...`` placeholders, for SQLAlchemy's ``text()``."""
    arguments = ", ".join(
        f"CAST(CAST(:a{number} AS text) AS {kind})"
        for number, kind in enumerate(function.arguments)
    )
    return _statement(function, schema.replace(":", "\\:"), arguments)


def named_values(call: Call[Any]) -> dict[str, str | None]:
    """The arguments of ``named_sql``."""
    return {f"a{number}": value for number, value in enumerate(call.values)}


def quoted(name: str) -> str:
    """``name`` as an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def interval_text(duration: timedelta) -> str:
    """A duration as PostgreSQL reads an interval, exact to the microsecond."""
    return f"{duration // timedelta(microseconds=1)} microseconds"


def time_text(moment: datetime | None) -> str | None:
    """A time as PostgreSQL reads a timestamptz; None stays None."""
    return None if moment is None else moment.astimezone(UTC).isoformat()


def utc(moment: datetime) -> datetime:
    """The same instant in UTC: drivers answer in the time zone of their session."""
    return moment.astimezone(UTC)


def utc_or_none(moment: datetime | None) -> datetime | None:
    """As ``utc``, for a column that may be null."""
    return None if moment is None else moment.astimezone(UTC)


def bool_text(value: bool | None) -> str | None:
    """A truth value as PostgreSQL reads a boolean; None stays None."""
    return None if value is None else str(value).lower()


def array_text(values: Sequence[str] | None) -> str | None:
    """Texts as PostgreSQL reads a text[]; None stays None."""
    if values is None:
        return None
    escaped = (value.replace("\\", "\\\\").replace('"', '\\"') for value in values)
    return "{" + ",".join(f'"{value}"' for value in escaped) + "}"


def nothing(rows: Sequence[Row]) -> None:
    """Reads the answer of a function that has nothing to say."""


def _statement(function: Function, schema: str, arguments: str) -> str:
    columns = ", ".join(_column(column) for column in function.columns)
    return f"SELECT {columns} FROM {quoted(schema)}.{function.name}({arguments}) AS r"


def _column(column: str) -> str:
    # "detail:text": the text of a json column, which no driver may decode on the way.
    name, _, kind = column.partition(":")
    return f"CAST({name} AS {kind}) AS {name}" if kind else name
