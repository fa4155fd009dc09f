"""A release with one more migration than this one, and what else migration tests need."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from flowpg.postgres.revisions import load_release, sha256
from flowpg.resources import migrations_root

MODULE = """
from alembic import op
from flowpg.postgres.migrate import apply_frozen

revision = "{version}"
down_revision = "{before}"
transactional = {transactional}


def upgrade():
    if transactional:
        apply_frozen(__file__)
    else:
        with op.get_context().autocommit_block():
            apply_frozen(__file__)
"""


def next_release(
    directory: Path, text: str, *, transactional: bool = True, name: str = "0002_next"
) -> Path:
    """A copy of the migrations with one more, which runs ``text``; catalog.txt stays as it is."""
    root = directory / "migrations"
    if not root.exists():
        shutil.copytree(
            migrations_root(), root, ignore=shutil.ignore_patterns("__pycache__", "freeze.py")
        )
    pins = root / "revisions.txt"
    before = pins.read_text().split("\n")[-2].split("_")[0]
    (root / "versions" / f"{name}.sql").write_text(text)
    (root / "versions" / f"{name}.py").write_text(
        MODULE.format(version=name.split("_")[0], before=before, transactional=transactional)
    )
    with pins.open("a") as file:
        file.write(f"{name}  open  {sha256(text.encode())}\n")
    return root


def query(dsn: str, text: str, schema: str = "flowpg") -> list[tuple[Any, ...]]:
    """The rows of one statement, names looked up in the schema; committed."""
    with psycopg.connect(dsn, row_factory=psycopg.rows.tuple_row) as connection:
        connection.execute(
            sql.SQL("SET LOCAL search_path = {}, pg_temp").format(sql.Identifier(schema))
        )
        cursor = connection.execute(text)
        return cursor.fetchall() if cursor.description else []


def tables(dsn: str) -> list[str]:
    """The tables of schema flowpg."""
    rows = query(
        dsn,
        "SELECT relname FROM pg_class WHERE relnamespace = 'flowpg'::regnamespace"
        " AND relkind = 'r' ORDER BY relname",
    )
    return [name for (name,) in rows]


def ledger(dsn: str, schema: str = "flowpg") -> list[tuple[Any, ...]]:
    """Versions in the ledger and in the version table."""
    return query(dsn, "SELECT version FROM flow_migrations ORDER BY version", schema) + query(
        dsn, "SELECT version_num FROM flow_alembic_version", schema
    )


def hold_migration_lock(connection: psycopg.Connection[Any], schema: str = "flowpg") -> None:
    """Take the lock of migrators, until the connection's transaction ends."""
    text = load_release().statement("try_lock", schema_name=sql.Literal(schema))
    row = connection.execute(text).fetchone()
    assert row
    assert row[0] is True
