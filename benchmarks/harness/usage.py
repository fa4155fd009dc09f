"""What the server has counted: transactions, WAL, bytes kept."""

from __future__ import annotations

from typing import Any, LiteralString

import psycopg
from psycopg import sql


def transactions(connection: psycopg.Connection[Any]) -> int:
    """Transactions of this database so far. A session reports its own once it has ended, or a
    moment after it has become idle."""
    return _one(
        connection,
        "SELECT xact_commit + xact_rollback FROM pg_stat_database"
        " WHERE datname = current_database()",
    )


def wal_position(connection: psycopg.Connection[Any]) -> int:
    """Bytes of WAL written by the server so far."""
    return _one(connection, "SELECT (pg_current_wal_lsn() - '0/0')::bigint")


def kept_bytes(connection: psycopg.Connection[Any]) -> int:
    """Bytes of all tables of this database but the catalogs, their indexes included."""
    return _one(
        connection,
        "SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint FROM pg_class c"
        " JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.relkind = 'r'"
        " AND n.nspname NOT IN ('pg_catalog', 'information_schema')",
    )


def compact_tables(connection: psycopg.Connection[Any]) -> None:
    """Rewrite all tables but the catalogs without what is dead in them."""
    rows = connection.execute(
        "SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
        " WHERE c.relkind = 'r' AND n.nspname NOT IN ('pg_catalog', 'information_schema')"
    ).fetchall()
    for schema, table in rows:
        connection.execute(sql.SQL("VACUUM FULL {}").format(sql.Identifier(schema, table)))


def _one(connection: psycopg.Connection[Any], query: LiteralString) -> int:
    row = connection.execute(query).fetchone()
    assert row is not None
    return int(row[0])
