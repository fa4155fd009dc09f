"""Pin what is not published yet: ``python -m migrations.freeze``, at the top of a clone.

Writes the pins in ``revisions.txt`` and, from a throwaway server, ``catalog.txt``. As long as 0001
is open it is whatever ``sql/`` is; the first run after it was set to published writes its file,
``versions/0001_core.sql``. A published revision is never written again: change ``sql/`` and add the
next revision beside it, with its SQL written by hand. ``FLOWPG_FREEZE_DSN`` names a scratch
database to use in place of the embedded server.
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

from flowpg.postgres.migrate import upgrade
from flowpg.postgres.revisions import Revision, load_release, sha256
from flowpg.postgres.schema_check import read_catalog
from flowpg.resources import migrations_root

REVISIONS_HEADER = """\
# name  state  SHA-256 of its SQL. Written by `python -m migrations.freeze`.
# Set the state to published when a release carries the revision; its line and its file then never
# change again, for databases hold this digest in flow_migrations.
"""
CATALOG_HEADER = """\
# What the newest revision leaves in the schema: digest, kind, name; see statements/catalog.sql.
# Written by `python -m migrations.freeze`.
"""


def pin(root: Path) -> None:
    """Write the pins of every revision that is still open, and the file of the first one when it
    has just been published.

    Raises ``ValueError`` when what a published revision runs is not what its pin says.
    """
    known = {revision.name: revision for revision in load_release(root).revisions}
    rows = []
    for module in sorted((root / "versions").glob("[0-9]*.py")):
        name, file = module.stem, module.with_suffix(".sql")
        revision = known.pop(name, Revision(name, False, "", file))
        content = revision.content()
        digest = sha256(content)
        if revision.published:
            if digest != revision.sha256:
                raise ValueError(
                    f"{name} is published and must not change: restore what it was, and put the "
                    "change into a new revision"
                )
            file.write_bytes(content)
        rows.append(f"{name}  {'published' if revision.published else 'open'}  {digest}\n")
    missing = sorted(name for name, revision in known.items() if revision.published)
    if missing:
        raise ValueError(f"published revisions are gone: {', '.join(missing)}")
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
        pin(draft)
        pin_catalog(draft, dsn)
        for file in (
            draft / "revisions.txt",
            draft / "catalog.txt",
            *draft.rglob("versions/*.sql"),
        ):
            shutil.copyfile(file, root / file.relative_to(draft))


def main() -> None:
    """Freeze this clone."""
    root = migrations_root()
    freeze(root)
    for revision in load_release(root).revisions:
        print(revision.name, "published" if revision.published else "open", revision.sha256)


if __name__ == "__main__":
    main()
