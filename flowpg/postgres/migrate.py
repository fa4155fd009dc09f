"""Bring a schema to the newest revision, or print the SQL that does.

Only this module runs DDL. It needs a role that may create objects in the schema, and a direct
connection rather than a transaction pooler if a revision builds an index concurrently. Each
revision is one transaction that also holds its rows in the version table and in
``flow_migrations``, so a failed one leaves nothing behind. One migrator works on a schema at a
time; others wait, then find the work done.
"""

from __future__ import annotations

import io
import random
import re
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import psycopg
import sqlalchemy
from alembic import command, op
from alembic.config import Config
from alembic.runtime.migration import MigrationContext, MigrationInfo
from alembic.script import ScriptDirectory
from psycopg import errors, sql

from flowpg.errors import (
    FlowError,
    InvalidArgument,
    MigrationBlocked,
    MigrationFailed,
    PermissionDenied,
)
from flowpg.postgres.migration_limits import MigrationLimits
from flowpg.postgres.revisions import (
    DEFAULT_SCHEMA,
    Release,
    Revision,
    check_schema_name,
    load_release,
)
from flowpg.postgres.schema_check import (
    SchemaState,
    check,
    connected,
    unavailable,
)

# alembic keeps the migration at work in module globals.
_alembic = threading.Lock()

# How often a migrator that waits for another one looks again, in seconds.
_POLL = 0.1


def upgrade(
    dsn: str,
    schema: str = DEFAULT_SCHEMA,
    *,
    limits: MigrationLimits | None = None,
    root: Path | None = None,
) -> tuple[str, ...]:
    """Apply what ``schema`` misses and return the versions applied, none if it was up to date.

    ``root`` is another ``migrations/`` directory than the installed one. Raises
    :class:`MigrationBlocked` when a lock was not to be had in time (run it again),
    :class:`MigrationFailed`, :class:`PermissionDenied`, :class:`SchemaAhead`,
    :class:`SchemaAltered`, :class:`StoreUnavailable`; in each case the revision at work left no
    trace.
    """
    limits = limits or MigrationLimits()
    release = load_release(root)
    if check(dsn, schema, root=root).ok:
        return ()
    with connected(dsn) as guard:
        _await_lock(guard, release, schema, limits)
        # Another migrator may have done the work while this one waited.
        status = check(dsn, schema, root=root)
        if status.ok:
            return ()
        if status.state not in (SchemaState.MISSING, SchemaState.BEHIND):
            status.raise_unless_ok()
        pending = release.revisions[len(status.applied) :]
        for revision in pending:
            _apply(dsn, schema, release, revision, limits, guard)
    return tuple(revision.version for revision in pending)


def render_sql(
    schema: str = DEFAULT_SCHEMA,
    *,
    after: str | None = None,
    limits: MigrationLimits | None = None,
    root: Path | None = None,
) -> str:
    """The SQL that :func:`upgrade` would run, for a DBA to read and run; needs no server.

    ``after`` leaves out the revisions up to that version, for a schema that has them. The result in
    the database is the same, ledger and version table included. Raises :class:`InvalidArgument` for
    a version this release does not know or a name that no schema can have.
    """
    limits = limits or MigrationLimits()
    release = load_release(root)
    check_schema_name(schema)
    if after is not None and after not in release.versions:
        raise InvalidArgument(
            f"this release has no migration {after!r}; it has {', '.join(release.versions)}"
        )
    start = 0 if after is None else release.versions.index(after) + 1
    output = io.StringIO()
    output.write(_header(schema, release, start))
    for index, revision in enumerate(release.revisions[start:], start):
        _print(output, schema, release, index, revision, limits)
    return output.getvalue()


def apply_frozen(module_file: str) -> None:
    """Run, or print, the frozen SQL beside a revision module; called by its ``upgrade()``.

    A line ``-- next`` cuts the file where a statement must be sent on its own.
    """
    context = op.get_context()
    release: Release = _config(context).attributes["release"]
    text = release.revision(Path(module_file).stem).frozen_sql()
    if context.as_sql:
        context.impl.static_output(text.strip())
        return
    for part in re.split(r"^-- next$", text, flags=re.MULTILINE):
        _execute(context.connection, part)


def record_applied(*, ctx: MigrationContext, step: MigrationInfo, **_: object) -> None:
    """Write the ledger row of the revision just run, in its transaction; called by ``env.py``."""
    release: Release = _config(ctx).attributes["release"]
    revision = release.revision(str(step.up_revision_id))
    text = release.statement(
        "record", version=sql.Literal(revision.version), sha256=sql.Literal(revision.sha256)
    )
    if ctx.as_sql:
        ctx.impl.static_output(text.strip())
    else:
        _execute(ctx.connection, text)


def _config(context: MigrationContext) -> Config:
    config = context.config
    assert config is not None, "revisions run through flowpg.postgres.migrate only"
    return config


def _execute(connection: sqlalchemy.Connection | None, text: str) -> None:
    """Send text as it is: several statements at once, and no character of it is a placeholder."""
    assert connection is not None
    driver = cast("psycopg.Connection[Any]", connection.connection.driver_connection)
    driver.execute(text)


def _await_lock(
    guard: psycopg.Connection[Any], release: Release, schema: str, limits: MigrationLimits
) -> None:
    """Take the migration lock on ``guard``, whose transaction stays open and holds it.

    Polls instead of waiting in the server, see ``try_lock.sql``.
    """
    attempt = release.statement("try_lock", schema_name=sql.Literal(schema))
    deadline = time.monotonic() + limits.other_migrator.total_seconds()
    while True:
        row = guard.execute(attempt).fetchone()
        if row and row[0]:
            return
        guard.rollback()
        if time.monotonic() >= deadline:
            raise MigrationBlocked(
                f"another migration of schema {schema!r} is still running; nothing was changed; "
                "run this again when it has ended"
            )
        time.sleep(_POLL * random.uniform(0.5, 1.5))


def _apply(
    dsn: str,
    schema: str,
    release: Release,
    revision: Revision,
    limits: MigrationLimits,
    guard: psycopg.Connection[Any],
) -> None:
    engine = sqlalchemy.create_engine(
        "postgresql+psycopg://",
        creator=lambda: psycopg.connect(dsn, prepare_threshold=None),
        poolclass=sqlalchemy.NullPool,
    )
    config = _alembic_config(release)
    try:
        with _alembic, engine.connect() as connection:
            config.attributes["connection"] = connection
            _execute(connection, _enter(release, revision, schema, limits))
            if not _is_transactional(release, revision):
                # alembic begins and commits around the revision's autocommit block itself.
                connection.commit()
            command.upgrade(config, revision.version)
            connection.commit()
    except (psycopg.Error, sqlalchemy.exc.DBAPIError) as error:
        cause = error.orig if isinstance(error, sqlalchemy.exc.DBAPIError) else error
        raise _typed(cause, schema, release, revision, limits, guard) from error


def _print(
    output: io.StringIO,
    schema: str,
    release: Release,
    index: int,
    revision: Revision,
    limits: MigrationLimits,
) -> None:
    name = sql.Literal(schema)
    config = _alembic_config(release, output)
    begin = release.versions[index - 1] if index else "base"
    transactional = _is_transactional(release, revision)
    if transactional:
        output.write("BEGIN;\n\n" + release.statement("guard", schema_name=name) + "\n")
    output.write(_enter(release, revision, schema, limits) + "\n")
    with _alembic:
        command.upgrade(config, f"{begin}:{revision.version}", sql=True)
    output.write("COMMIT;\n\n" if transactional else release.statement("leave_session") + "\n")


def _header(schema: str, release: Release, start: int) -> str:
    names = [revision.name for revision in release.revisions[start:]]
    lines = [
        f"flowpg, schema {schema!a}: {', '.join(names) or 'nothing to do'}.",
        "Run it as the role that is to own the schema, on a direct connection, stopping at the",
        "first error (psql: -v ON_ERROR_STOP=1). Each migration is one transaction and records",
        "itself, so this and `flowpg migrate` leave the same schema and know of each other.",
    ]
    return "".join(f"-- {line}\n" for line in lines) + "\n"


def _enter(release: Release, revision: Revision, schema: str, limits: MigrationLimits) -> str:
    """What comes before the revision itself: timeouts, schema, search_path."""
    values: dict[str, sql.Composable] = {
        "schema": sql.Identifier(schema),
        "lock_timeout": _setting(limits.lock),
    }
    if not _is_transactional(release, revision):
        return release.statement("enter_session", **values)
    values["schema_name"] = sql.Literal(schema)
    values["statement_timeout"] = _setting(limits.statement)
    return release.statement("enter", **values)


def _setting(limit: timedelta) -> sql.Literal:
    # Zero would switch the timeout off.
    return sql.Literal(f"{max(1, int(limit.total_seconds() * 1000))}ms")


def _alembic_config(release: Release, output: io.StringIO | None = None) -> Config:
    config = Config(output_buffer=output)
    config.set_main_option("script_location", str(release.root).replace("%", "%%"))
    config.attributes["release"] = release
    return config


def _is_transactional(release: Release, revision: Revision) -> bool:
    """False for a module that says ``transactional = False``, as concurrent indexes need."""
    scripts = ScriptDirectory.from_config(_alembic_config(release))
    module = scripts.get_revision(revision.version).module
    return bool(getattr(module, "transactional", True))


def _typed(
    cause: BaseException | None,
    schema: str,
    release: Release,
    revision: Revision,
    limits: MigrationLimits,
    guard: psycopg.Connection[Any],
) -> FlowError:
    """The typed error for a failed revision, saying what happened and what to do."""
    what = f"migration {revision.version} of schema {schema!r}"
    if not isinstance(cause, psycopg.Error):
        return MigrationFailed(f"{what} failed: {cause}")
    if cause.sqlstate is None:
        return unavailable(cause)
    unchanged = "nothing was changed"
    if not _is_transactional(release, revision):
        unchanged = (
            "it has no transaction around it and may be half done; running it again mends that"
        )
    reason = cause.diag.message_primary or type(cause).__name__
    match cause:
        case errors.LockNotAvailable() | errors.DeadlockDetected():
            return MigrationBlocked(
                f"{what} did not get a lock within {limits.lock.total_seconds():g} s and gave way "
                f"to the traffic; {unchanged}; {_holders(guard, release, schema)}run it again"
            )
        case errors.InsufficientPrivilege():
            return PermissionDenied(
                f"{what} needs a role that may create objects there, and {guard.info.user!r} may "
                f"not ({reason}); {unchanged}; use the owner of the schema, or give the output of "
                "`flowpg migrate --sql` to a DBA"
            )
        case errors.QueryCanceled():
            reason = f"a statement ran longer than {limits.statement.total_seconds():g} s"
    position = cause.diag.statement_position
    where = ""
    if position:
        text = revision.frozen_sql()
        line = text.count("\n", 0, int(position)) + 1
        where = f" near line {line} of {revision.path.name}"
    return MigrationFailed(f"{what} failed{where}: {reason}; {unchanged}")


def _holders(guard: psycopg.Connection[Any], release: Release, schema: str) -> str:
    """Who uses the schema's tables now, as the start of a clause; empty when nobody is seen."""
    text = release.statement("holders", schema_name=sql.Literal(schema))
    try:
        rows = guard.execute(text).fetchall()
    except psycopg.Error:
        return ""
    shown = [f"pid {pid} ({user}, {state}, open for {age})" for pid, user, state, age in rows]
    return f"tables of the schema are in use by {', '.join(shown)}; " if shown else ""
