"""What this release knows about its schema: the list of revisions, their pins, the catalog's.

Read from ``migrations/``: ``revisions.txt`` names each revision with the SHA-256 of its SQL,
``catalog.txt`` the objects that the newest one leaves behind, ``statements/`` the SQL that the
migration runner and the check need. Nothing here connects to a server.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from psycopg import sql

from flowpg.errors import InvalidArgument, SchemaAltered
from flowpg.postgres.manifest import compose
from flowpg.resources import migrations_root

DEFAULT_SCHEMA = "flowpg"
VERSION_TABLE = "flow_alembic_version"
LEDGER_TABLE = "flow_migrations"

FIRST = "0001"
"""The version that makes the schema."""

# A catalog as ``(kind, name) -> digest``.
Catalog = Mapping[tuple[str, str], str]


@dataclass(frozen=True)
class Revision:
    """One migration: a module and its SQL beside it, both called ``name``.

    The first one has no file until it is published: it is all of ``sql/``.
    """

    name: str
    published: bool
    sha256: str
    path: Path

    @property
    def version(self) -> str:
        """What ledger and version table call it: the digits before the first underscore."""
        return self.name.split("_", 1)[0]

    def content(self) -> bytes:
        """What it would run, pinned or not."""
        if self.version != FIRST or self.path.exists():
            return self.path.read_bytes()
        ending = self.path.parents[1] / "statements" / "version_table.sql"
        return f"{compose()}\n{ending.read_text(encoding='utf-8')}".encode()

    def frozen_sql(self) -> str:
        """What it runs. Raises :class:`SchemaAltered` when that is not what was pinned."""
        content = self.content()
        if sha256(content) != self.sha256:
            raise SchemaAltered(
                f"{self.path.name} of this installation is not what this release pinned; "
                "nothing was changed; install flowpg again, or in a clone run "
                "`python -m migrations.freeze`"
            )
        return content.decode()


@dataclass(frozen=True)
class Release:
    """All revisions in order, and the catalog after the last."""

    root: Path
    revisions: tuple[Revision, ...]
    catalog: Catalog

    @property
    def versions(self) -> tuple[str, ...]:
        """The versions in order."""
        return tuple(revision.version for revision in self.revisions)

    def revision(self, key: str) -> Revision:
        """The revision of this version or name."""
        return next(r for r in self.revisions if key in (r.version, r.name))

    def damage(self) -> str | None:
        """A sentence when what a revision runs is not what was pinned, else None."""
        try:
            for revision in self.revisions:
                revision.frozen_sql()
        except SchemaAltered as error:
            return str(error)
        return None

    def statement(self, name: str, **values: sql.Composable) -> str:
        """``statements/<name>.sql`` with its placeholders filled in, ready to run or to print."""
        text = (self.root / "statements" / f"{name}.sql").read_text(encoding="utf-8")
        return sql.SQL(text).format(**values).as_string(None)


def sha256(content: bytes) -> str:
    """The hex digest that pins and ledger hold."""
    return hashlib.sha256(content).hexdigest()


def load_release(root: Path | None = None) -> Release:
    """The release whose ``migrations/`` directory is ``root``; by default the installed one."""
    root = root or migrations_root()
    revisions = tuple(
        Revision(name, state == "published", pin, root / "versions" / f"{name}.sql")
        for name, state, pin in _rows(root / "revisions.txt", 3)
    )
    catalog = {(kind, name): digest for digest, kind, name in _rows(root / "catalog.txt", 3)}
    return Release(root, revisions, catalog)


def _rows(path: Path, columns: int) -> list[list[str]]:
    lines = path.read_text(encoding="utf-8").splitlines()
    return [
        line.split(None, columns - 1) for line in lines if line.strip() and not line.startswith("#")
    ]


def check_schema_name(schema: str) -> str:
    """The name unchanged, if PostgreSQL can have a schema of it.

    Any characters are fine, they are quoted. Raises :class:`InvalidArgument` otherwise.
    """
    try:
        size = len(schema.encode())
    except UnicodeEncodeError:
        size = 0
    # A longer name would be cut off silently and then name another schema.
    if not 1 <= size <= 63 or "\0" in schema:
        raise InvalidArgument(f"schema name {schema!a} must have 1 to 63 bytes of UTF-8 and no NUL")
    if schema.startswith("pg_") or schema == "information_schema":
        raise InvalidArgument(f"schema {schema!a} is PostgreSQL's own; choose another name")
    return schema
