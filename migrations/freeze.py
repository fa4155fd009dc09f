"""Freeze what is not published yet: ``python -m migrations.freeze``, at the top of a clone.

Writes ``versions/0001_core.sql`` from ``sql/manifest.txt`` (as long as 0001 is open), then the pins
in ``revisions.txt`` and, from a throwaway server, ``catalog.txt``. A published revision is never
written again: change ``sql/`` and add the next revision beside it, with its SQL written by hand.
``FLOWPG_FREEZE_DSN`` names a scratch database to use in place of the embedded server.
"""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
from psycopg import sql

from flowpg.postgres.install import statements
from flowpg.postgres.migrate import upgrade
from flowpg.postgres.revisions import load_release, sha256
from flowpg.postgres.schema_check import read_catalog
from flowpg.resources import migrations_root, sql_root

FIRST = "0001_core"

REVISIONS_HEADER = """\
# name  state  SHA-256 of its frozen SQL. Written by `python -m migrations.freeze`.
# Set the state to published when a release carries the revision; its line and its file then never
# change again, for databases hold this digest in flow_migrations.
"""
CATALOG_HEADER = """\
# What the newest revision leaves in the schema: digest, kind, name; see statements/catalog.sql.
# Written by `python -m migrations.freeze`.
"""


def compose(source: Path) -> str:
    """The files of ``sql/manifest.txt`` as one text that names no schema."""
    parts = ["-- Frozen from sql/ by migrations/freeze.py: change the files there, not this one.\n"]
    for path, text in statements(source):
        parts.append(f"\n-- sql/{path.relative_to(source)}\n{text.strip()}\n")
    return "".join(parts)


def first_revision(root: Path) -> str:
    """What 0001 runs: everything in sql/, and the comments on the table that alembic made."""
    ending = root / "statements" / "version_table.sql"
    return f"{compose(sql_root())}\n{ending.read_text(encoding='utf-8')}"


def pin(root: Path, first_sql: str) -> None:
    """Write the first revision's SQL and the pins of every revision that is still open.

    Raises ``ValueError`` when the file of a published revision is not what its pin says.
    """
    versions = root / "versions"
    published = {r.name: r.sha256 for r in load_release(root).revisions if r.published}
    if FIRST not in published:
        (versions / f"{FIRST}.sql").write_text(first_sql, encoding="utf-8")
    rows = []
    for module in sorted(versions.glob("[0-9]*.py")):
        digest = sha256(module.with_suffix(".sql").read_bytes())
        if published.get(module.stem, digest) != digest:
            raise ValueError(
                f"{module.stem}.sql is published and must not change: restore it, and put the "
                "change into a new revision"
            )
        state = "published" if module.stem in published else "open"
        rows.append(f"{module.stem}  {state}  {digest}\n")
    missing = published.keys() - {row.split()[0] for row in rows}
    if missing:
        raise ValueError(f"published revisions are gone: {', '.join(sorted(missing))}")
    (root / "revisions.txt").write_text(REVISIONS_HEADER + "".join(rows), encoding="utf-8")


def pin_catalog(root: Path, dsn: str) -> None:
    """Run all revisions into a schema of their own at ``dsn`` and write down what they made."""
    schema = f"flowpg_freeze_{secrets.token_hex(4)}"
    with psycopg.connect(dsn, autocommit=True) as connection:
        try:
            upgrade(dsn, schema, root=root)
            catalog = read_catalog(connection, schema, load_release(root))
        finally:
            connection.execute(
                sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(sql.Identifier(schema))
            )
    rows = [f"{digest}  {kind}  {name}\n" for (kind, name), digest in sorted(catalog.items())]
    (root / "catalog.txt").write_text(CATALOG_HEADER + "".join(rows), encoding="utf-8")


@contextmanager
def scratch_database() -> Iterator[str]:
    """The DSN of a database that may be written to."""
    dsn = os.environ.get("FLOWPG_FREEZE_DSN")
    if dsn:
        yield dsn
        return
    from flowpg.postgres.embedded import EmbeddedPostgres

    with EmbeddedPostgres(throwaway=True) as server:
        yield server.dsn


def freeze(root: Path) -> None:
    """Freeze ``root``, or leave it as it was when the SQL does not run."""
    with tempfile.TemporaryDirectory() as directory, scratch_database() as dsn:
        draft = Path(directory, "migrations")
        shutil.copytree(root, draft)
        pin(draft, first_revision(root))
        pin_catalog(draft, dsn)
        for name in (f"versions/{FIRST}.sql", "revisions.txt", "catalog.txt"):
            shutil.copyfile(draft / name, root / name)


def main() -> None:
    """Freeze this clone."""
    root = migrations_root()
    freeze(root)
    for revision in load_release(root).revisions:
        print(revision.name, "published" if revision.published else "open", revision.sha256)


if __name__ == "__main__":
    main()
