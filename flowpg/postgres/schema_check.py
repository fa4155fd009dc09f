"""Is the schema in the database the one this release needs? Reads only, never changes anything.

Serving processes call :func:`verify` or :func:`verify_async` before they do anything else. One pass
reads the catalog and the ledger in one read-only look; what is compared is described in
``migrations/statements/catalog.sql``.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql
from psycopg.rows import tuple_row

from flowpg.errors import (
    PermissionDenied,
    SchemaAhead,
    SchemaAltered,
    SchemaBehind,
    SchemaError,
    SchemaMissing,
    StoreUnavailable,
)
from flowpg.postgres.dsn import parsed_dsn
from flowpg.postgres.errors import connection_refused
from flowpg.postgres.revisions import (
    DEFAULT_SCHEMA,
    LEDGER_TABLE,
    VERSION_TABLE,
    Catalog,
    Release,
    check_schema_name,
    load_release,
)

# Tests may replace the clock by one that reads an offset, so only its presence is compared.
REPLACEABLE = frozenset({("function", "flow_now()")})


class SchemaState(StrEnum):
    """How the schema in the database relates to this release."""

    OK = "ok"
    MISSING = "missing"
    BEHIND = "behind"
    AHEAD = "ahead"
    ALTERED = "altered"


_ERRORS: Mapping[SchemaState, type[SchemaError]] = {
    SchemaState.MISSING: SchemaMissing,
    SchemaState.BEHIND: SchemaBehind,
    SchemaState.AHEAD: SchemaAhead,
    SchemaState.ALTERED: SchemaAltered,
}


@dataclass(frozen=True)
class SchemaStatus:
    """The state, a sentence that says what to do, and the versions found in the ledger."""

    state: SchemaState
    sentence: str
    schema: str
    applied: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether this release can serve from the schema."""
        return self.state is SchemaState.OK

    def raise_unless_ok(self) -> None:
        """Raise the :class:`SchemaError` that belongs to the state."""
        if not self.ok:
            raise _ERRORS[self.state](self.sentence)


def check(dsn: str, schema: str = DEFAULT_SCHEMA, *, root: Path | None = None) -> SchemaStatus:
    """The status of ``schema`` in the database at ``dsn``.

    Raises :class:`StoreUnavailable` without a connection, :class:`PermissionDenied` when the role
    may not read the ledger.
    """
    with connected(dsn) as connection:
        try:
            return check_connection(connection, schema, root=root)
        except psycopg.OperationalError as error:
            raise unavailable(error) from error


def check_connection(
    connection: psycopg.Connection[Any],
    schema: str = DEFAULT_SCHEMA,
    *,
    root: Path | None = None,
) -> SchemaStatus:
    """As :func:`check`, on an open connection; inside the caller's transaction if there is one."""
    steps = _inspect(schema, load_release(root))
    rows = None
    # Rolled back, so that the settings of an enclosing transaction come back.
    with (
        connection.transaction(force_rollback=True),
        connection.cursor(row_factory=tuple_row) as cursor,
    ):
        while True:
            try:
                query = steps.send(rows)
            except StopIteration as done:
                status: SchemaStatus = done.value
                return status
            rows = cursor.execute(query).fetchall()


async def check_async(
    connection: psycopg.AsyncConnection[Any],
    schema: str = DEFAULT_SCHEMA,
    *,
    root: Path | None = None,
) -> SchemaStatus:
    """As :func:`check_connection`, for an asynchronous connection."""
    steps = _inspect(schema, load_release(root))
    rows = None
    async with (
        connection.transaction(force_rollback=True),
        connection.cursor(row_factory=tuple_row) as cursor,
    ):
        while True:
            try:
                query = steps.send(rows)
            except StopIteration as done:
                status: SchemaStatus = done.value
                return status
            await cursor.execute(query)
            rows = await cursor.fetchall()


def verify(dsn: str, schema: str = DEFAULT_SCHEMA) -> None:
    """Return if this release can serve from ``schema``.

    Raises :class:`SchemaMissing`, :class:`SchemaBehind`, :class:`SchemaAhead` or
    :class:`SchemaAltered` otherwise, and what :func:`check` raises.
    """
    check(dsn, schema).raise_unless_ok()


async def verify_async(
    connection: psycopg.AsyncConnection[Any], schema: str = DEFAULT_SCHEMA
) -> None:
    """As :func:`verify`, on an open asynchronous connection."""
    (await check_async(connection, schema)).raise_unless_ok()


@contextmanager
def connected(dsn: str) -> Iterator[psycopg.Connection[Any]]:
    """A connection for the block. Raises :class:`StoreUnavailable` when there is none to be had."""
    parsed_dsn(dsn)
    try:
        # No prepared statements: the DSN may name a transaction pooler.
        connection = psycopg.connect(dsn, prepare_threshold=None)
    except psycopg.Error as error:
        raise connection_refused(error) from error
    with closing(connection):
        yield connection


def unavailable(error: psycopg.Error) -> StoreUnavailable:
    """The typed error for a server that stopped answering, or would not answer in time."""
    reason = error.diag.message_primary or "the connection was lost"
    return StoreUnavailable(f"PostgreSQL did not answer: {reason}; try again")


def read_catalog(
    connection: psycopg.Connection[Any], schema: str, release: Release
) -> dict[tuple[str, str], str]:
    """The catalog of ``schema`` as pinned in ``catalog.txt``; what freezing a release writes."""
    with connection.transaction(), connection.cursor(row_factory=tuple_row) as cursor:
        cursor.execute(_settings(schema))
        cursor.execute(sql.SQL(release.statement("catalog", schema_name=sql.Literal(schema))))
        return {(kind, name): digest for kind, name, digest in cursor.fetchall()}


_Query = sql.SQL | sql.Composed
# What is sent in are the rows of the query that came out; nothing, to begin with.
_Inspection = Generator[_Query, Any, SchemaStatus]


# Definitions are printed as these settings say, and they are the DBA's to choose.
_PRINTED_AS = {
    "TimeZone": "UTC",
    "DateStyle": "ISO, MDY",
    "IntervalStyle": "postgres",
    "extra_float_digits": "1",
    "bytea_output": "hex",
    "quote_all_identifiers": "off",
    "standard_conforming_strings": "on",
}


def _settings(schema: str) -> sql.Composed:
    """The search_path and whatever else decides how the catalog prints, until the transaction
    ends."""
    fixed = [
        sql.SQL("pg_catalog.set_config({}, {}, true)").format(name, value)
        for name, value in _PRINTED_AS.items()
    ]
    path = sql.SQL(
        "pg_catalog.set_config('search_path', pg_catalog.quote_ident({}) || ', pg_temp', true)"
    ).format(sql.Literal(schema))
    return sql.SQL("SELECT {}").format(sql.SQL(", ").join([path, *fixed]))


def _inspect(schema: str, release: Release) -> _Inspection:
    """The questions, one query at a time, answered by whoever holds the connection."""
    check_schema_name(schema)
    damaged = release.damage()
    if damaged:
        return SchemaStatus(SchemaState.ALTERED, damaged, schema)
    name = sql.Literal(schema)
    yield _settings(schema)
    readable: dict[str, bool] = dict(
        (yield sql.SQL(release.statement("presence", schema_name=name)))
    )
    if LEDGER_TABLE not in readable:
        rows = yield sql.SQL(release.statement("catalog", schema_name=name))
        if any((kind, table) in release.catalog for kind, table, _ in rows if kind == "table"):
            return _altered(schema, f"has flowpg tables but no {LEDGER_TABLE}")
        return SchemaStatus(
            SchemaState.MISSING,
            f"schema {schema!r} has no flowpg tables; run `flowpg migrate`",
            schema,
        )
    if not readable[LEDGER_TABLE]:
        raise PermissionDenied(
            f"this role may not read {LEDGER_TABLE} in schema {schema!r}; its owner grants that "
            "with flow_grant"
        )
    # The ledger before the catalog, so that a migration which commits in between makes this answer
    # "behind", as it was when asked. Both tables in one snapshot, for the same reason.
    ledger = sql.SQL("SELECT version, sha256 FROM flow_migrations")
    heads = sql.SQL("SELECT version_num, NULL FROM flow_alembic_version")
    # Only migrators need the version table; a serving role may lack the right to read it.
    may_read_heads = readable.get(VERSION_TABLE, False)
    rows = yield sql.SQL(" UNION ALL ").join([ledger, heads]) if may_read_heads else ledger
    applied = sorted((version, digest) for version, digest in rows if digest is not None)
    head = [version for version, digest in rows if digest is None]
    unread = VERSION_TABLE in readable and not may_read_heads
    status = judge_ledger(schema, release, applied, None if unread else head)
    if not status.ok:
        return status
    rows = yield sql.SQL(release.statement("catalog", schema_name=name))
    differences = _differences(release.catalog, {(kind, what): d for kind, what, d in rows})
    if differences:
        shown = ", ".join(differences[:3])
        more = f" and {len(differences) - 3} more" if len(differences) > 3 else ""
        return _altered(schema, f"is not as migrated: {shown}{more}")
    return status


def judge_ledger(
    schema: str,
    release: Release,
    ledger: Sequence[tuple[str, str]],
    head: Sequence[str] | None,
) -> SchemaStatus:
    """The status that follows from the ledger in order and the version table (None: unread)."""
    applied = tuple(version for version, _ in ledger)
    known = release.versions
    pins = {revision.version: revision.sha256 for revision in release.revisions}
    for version, digest in ledger:
        if version in pins and digest != pins[version]:
            return _altered(
                schema, f"was made by another text of migration {version} than this release's"
            )
    unknown = [version for version in applied if version not in pins]
    if not applied:
        return _altered(schema, "has flowpg tables that no migration made")
    if applied[: len(known)] != known[: len(applied)]:
        return _altered(schema, f"has an incomplete ledger: {', '.join(applied)}")
    if head is not None and list(head) != [applied[-1]]:
        return _altered(schema, f"has a {VERSION_TABLE} that contradicts {LEDGER_TABLE}")
    if unknown:
        return SchemaStatus(
            SchemaState.AHEAD,
            f"schema {schema!r} has migration {unknown[-1]}, this release knows up to {known[-1]}; "
            "use the newer flowpg that applied it",
            schema,
            applied,
        )
    if len(applied) < len(known):
        return SchemaStatus(
            SchemaState.BEHIND,
            f"schema {schema!r} is at migration {applied[-1]}, this release needs {known[-1]}; "
            "run `flowpg migrate`",
            schema,
            applied,
        )
    return SchemaStatus(
        SchemaState.OK, f"schema {schema!r} is at migration {applied[-1]}", schema, applied
    )


def _altered(schema: str, what: str) -> SchemaStatus:
    return SchemaStatus(
        SchemaState.ALTERED,
        f"schema {schema!r} {what}; flowpg does not use it until it is restored",
        schema,
    )


def _differences(pinned: Catalog, found: Catalog) -> list[str]:
    differences = []
    for key, digest in pinned.items():
        kind, name = key
        if key not in found:
            differences.append(f"{kind} {name} is gone")
        elif digest != found[key] and key not in REPLACEABLE:
            differences.append(f"{kind} {name} was changed")
    return differences
