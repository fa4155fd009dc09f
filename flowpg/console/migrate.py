"""``flowpg migrate``: bring the schema up to date, print the SQL that does, or check it."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

import typer

from flowpg.console.target import DsnOption, SchemaOption, open_target
from flowpg.postgres.migration_limits import MigrationLimits
from flowpg.postgres.revisions import DEFAULT_SCHEMA
from flowpg.postgres.schema_check import check

_DEFAULTS = MigrationLimits()


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command(name="migrate")(migrate)


def migrate(
    dsn: DsnOption = None,
    schema: SchemaOption = DEFAULT_SCHEMA,
    sql: Annotated[
        bool, typer.Option("--sql", help="Print the SQL for a DBA to run; needs no server.")
    ] = False,
    after: Annotated[
        str | None,
        typer.Option(help="With --sql: leave out the migrations up to this one, e.g. 0001."),
    ] = None,
    only_check: Annotated[
        bool,
        typer.Option("--check", help="Change nothing; fail unless the schema is the one needed."),
    ] = False,
    lock_timeout: Annotated[
        float,
        typer.Option(min=0.001, help="Seconds to wait for a lock before giving way to traffic."),
    ] = _DEFAULTS.lock.total_seconds(),
    statement_timeout: Annotated[
        float, typer.Option(min=0.001, help="Seconds one statement may take.")
    ] = _DEFAULTS.statement.total_seconds(),
) -> None:
    """Bring the schema to what this release needs.

    Takes a role that may create objects there, and a direct connection rather than a pooler. A
    failed migration changes nothing and can be run again.
    """
    # Alembic and SQLAlchemy: every other command begins in two thirds of the time without them.
    from flowpg.postgres.migrate import render_sql, upgrade

    if sql and only_check:
        raise typer.BadParameter("--sql and --check exclude each other")
    if after is not None and not sql:
        raise typer.BadParameter("--after goes with --sql")
    limits = MigrationLimits(
        lock=timedelta(seconds=lock_timeout), statement=timedelta(seconds=statement_timeout)
    )
    if sql:
        typer.echo(render_sql(schema, after=after, limits=limits), nl=False)
        return
    with open_target(dsn, schema=schema, migrate=False) as target:
        applied = () if only_check else upgrade(target.dsn, schema, limits=limits)
        status = check(target.dsn, schema)
    status.raise_unless_ok()
    if applied:
        typer.echo(f"applied {', '.join(applied)}; {status.sentence}")
    elif only_check:
        typer.echo(status.sentence)
    else:
        typer.echo(f"nothing to do: {status.sentence}")
