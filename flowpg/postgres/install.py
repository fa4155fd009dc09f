"""Makes a fresh schema straight from ``sql/``, for tests that compare it with the migrated one.

Real databases are made by the migrations; this runs the files that ``sql/manifest.txt`` lists.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
from psycopg import sql

from flowpg.postgres.revisions import DEFAULT_SCHEMA
from flowpg.resources import sql_root


def manifest(root: Path | None = None) -> list[Path]:
    """The files that make a fresh schema, in the order in which they are run."""
    root = root or sql_root()
    lines = (root / "manifest.txt").read_text(encoding="utf-8").splitlines()
    return [root / line.strip() for line in lines if line.strip() and not line.startswith("#")]


def statements(root: Path | None = None) -> Iterator[tuple[Path, str]]:
    """Each file of the manifest with its text."""
    for path in manifest(root):
        yield path, path.read_text(encoding="utf-8")


def install_fresh(
    conn_or_dsn: psycopg.Connection[tuple[object, ...]] | str, schema: str = DEFAULT_SCHEMA
) -> None:
    """Create ``schema`` and everything in it, in one transaction; the schema must not exist yet.

    A connection is left as it was found: its transaction, if one is open, is used and not
    committed, and its search_path comes back. A DSN is connected to and committed.

    Raises `psycopg.Error` when the database refuses; nothing is left behind then.
    """
    if isinstance(conn_or_dsn, str):
        with psycopg.connect(conn_or_dsn) as conn:
            install_fresh(conn, schema)
        return
    name = sql.Identifier(schema)
    with conn_or_dsn.transaction(), conn_or_dsn.cursor() as cursor:
        cursor.execute("SELECT current_setting('search_path')")
        before = cursor.fetchone()
        assert before is not None
        cursor.execute(sql.SQL("CREATE SCHEMA {}").format(name))
        cursor.execute(sql.SQL("SET LOCAL search_path = {}, pg_temp").format(name))
        for path, text in statements():
            try:
                # the file is ours, not input
                cursor.execute(text)
            except psycopg.Error as error:
                error.add_note(f"while running {path.relative_to(sql_root())}")
                raise
        cursor.execute("SELECT set_config('search_path', %s, true)", before)
