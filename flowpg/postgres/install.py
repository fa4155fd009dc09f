"""Makes a fresh schema straight from ``sql/``, for tests that compare it with the migrated one.

Real databases are made by the migrations; this runs the files that ``sql/manifest.txt`` lists.
"""

from __future__ import annotations

import psycopg
from psycopg import sql

from flowpg.postgres.manifest import statements
from flowpg.postgres.revisions import DEFAULT_SCHEMA
from flowpg.resources import sql_root


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
