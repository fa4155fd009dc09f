"""The commands about the fleet: how it does, which build may be retired, a scheduler beside it."""

from __future__ import annotations

import asyncio
import signal
from datetime import timedelta
from typing import Annotated

import typer

from flowpg.console import lines
from flowpg.console.logs import log_to_stderr
from flowpg.console.target import DsnOption, SchemaOption, open_target
from flowpg.fleet.builds import runtime_build_usage
from flowpg.fleet.scheduler import FlowScheduler
from flowpg.postgres.fleet_verbs import HealthFact, fleet_health
from flowpg.postgres.revisions import DEFAULT_SCHEMA
from flowpg.postgres.task_verbs import RuntimeBuildUsage
from flowpg.store.postgres import PostgresEventStore


def register(app: typer.Typer) -> None:
    """Add the commands to ``app``."""
    app.command()(health)
    app.command()(builds)
    app.command()(scheduler)


def health(dsn: DsnOption = None, schema: SchemaOption = DEFAULT_SCHEMA) -> None:
    """Say where work waits, and for what. Exit code 1 if no live worker takes some of it."""
    with open_target(dsn, schema=schema) as target:

        async def look() -> list[HealthFact]:
            async with await PostgresEventStore.connect(target.dsn, schema=schema) as store:
                return await store.call(fleet_health())

        facts = asyncio.run(look())
    for text in lines.health(facts):
        typer.echo(text)
    if any(fact.kind == "unserved" for fact in facts):
        raise typer.Exit(1)


def builds(
    build: Annotated[
        str | None, typer.Argument(help="Only this build.", show_default=False)
    ] = None,
    dsn: DsnOption = None,
    schema: SchemaOption = DEFAULT_SCHEMA,
) -> None:
    """Say which builds open runs still need. For one build: exit code 1 if it must stay."""
    with open_target(dsn, schema=schema) as target:

        async def look() -> list[RuntimeBuildUsage]:
            async with await PostgresEventStore.connect(target.dsn, schema=schema) as store:
                return await runtime_build_usage(store, build)

        found = asyncio.run(look())
    if not found:
        typer.echo("flowpg: no open run is pinned to a build, and no worker has one", err=True)
    for row in found:
        since = f" since {row.oldest_created_at:%Y-%m-%d %H:%M}Z" if row.oldest_created_at else ""
        verdict = "may be retired"
        if not row.may_be_retired:
            verdict = f"{lines.counted(row.open_runs, 'open run')}{since}"
        workers = lines.counted(row.live_workers, "live worker")
        typer.echo(f"{row.runtime_build}: {verdict}; {workers}")
    if build is not None and not found[0].may_be_retired:
        raise typer.Exit(1)


def scheduler(
    dsn: DsnOption = None,
    schema: SchemaOption = DEFAULT_SCHEMA,
    poll: Annotated[
        float, typer.Option(min=0.01, help="Longest pause in seconds between two looks.")
    ] = 1.0,
    limit: Annotated[
        int, typer.Option(min=1, max=1000, help="How many deadlines to dispatch at once.")
    ] = 1000,
) -> None:
    """Make work of what is due, for workers that run with --no-schedule. Any number may run."""
    log_to_stderr()
    with open_target(dsn, schema=schema) as target:

        async def work() -> None:
            async with await PostgresEventStore.connect(target.dsn, schema=schema) as store:
                loop = FlowScheduler(store, limit=limit, poll=timedelta(seconds=poll))
                for number in (signal.SIGTERM, signal.SIGINT):
                    asyncio.get_running_loop().add_signal_handler(number, loop.stop)
                typer.echo("flowpg: scheduling; Ctrl-C stops it", err=True)
                await loop.run()

        asyncio.run(work())
