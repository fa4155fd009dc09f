"""``flowpg check-deploy``: would this code go on with the runs that are open now?

It replays their histories over the code at hand, or histories that were exported, and writes
nothing: a read-only role on a standby will do.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from flowpg.console import lines
from flowpg.console.target import DsnOption, SchemaOption, open_target
from flowpg.console.usercode import load_runtime
from flowpg.engine.errortext import blocked_reason
from flowpg.engine.rehearsal import Rehearsal, Verdict, rehearse
from flowpg.errors import FlowError, InvalidArgument, SerializationError
from flowpg.model import jsontext
from flowpg.model.jsonl import load_history
from flowpg.model.records import LoadedRun
from flowpg.model.snapshot import RunStatus
from flowpg.postgres.revisions import DEFAULT_SCHEMA
from flowpg.replay.runtime import FlowRuntime
from flowpg.store.postgres import PostgresEventStore

_OPEN = tuple(status for status in RunStatus if not status.terminal)
_PAGE = 1000
_BATCH = 20
"""Histories read and kept at once: one may have ten thousand events."""

_SHOWN = 50
"""Runs named one by one for each verdict; all of them are in the JSON."""


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command(name="check-deploy")(check_deploy)


def check_deploy(
    application: Annotated[
        str,
        typer.Option("--app", help="module:attribute, what the workers would be started with."),
    ],
    workflow: Annotated[
        str | None, typer.Option(help="Only runs of this workflow.", show_default=False)
    ] = None,
    sample: Annotated[
        int | None,
        typer.Option(min=1, help="Only so many of the open runs, picked at random."),
    ] = None,
    history: Annotated[
        list[Path] | None,
        typer.Option(
            help="Histories exported with `flowpg history RUN --jsonl`, in place of a database.",
            exists=True,
            dir_okay=False,
        ),
    ] = None,
    every_workflow: Annotated[
        bool,
        typer.Option(
            "--every-workflow", help="A run whose workflow the app does not have counts as well."
        ),
    ] = False,
    as_json: lines.JsonOption = False,
    dsn: DsnOption = None,
    schema: SchemaOption = DEFAULT_SCHEMA,
) -> None:
    """Replay open runs over the code at hand and say which it would not go on with, and where.

    Nothing is written and no step runs. Runs of workflows that the app does not have are listed.
    Exit code 0: all others go on; 1: some do not; 2: it could not be found out.
    """
    try:
        found = _rehearsed(application, workflow, sample, history, dsn, schema)
    except FlowError as error:
        typer.echo(f"flowpg: {error}", err=True)
        raise typer.Exit(2) from error
    if as_json:
        typer.echo(jsontext.encode(_json(found)).encode())
    else:
        for line in _report(found):
            typer.echo(line)
    fine = {Verdict.FITS} if every_workflow else {Verdict.FITS, Verdict.UNSERVED}
    if any(one.verdict not in fine for one in found):
        raise typer.Exit(1)


def _rehearsed(
    application: str,
    workflow: str | None,
    sample: int | None,
    exported: Sequence[Path] | None,
    dsn: str | None,
    schema: str,
) -> list[Rehearsal]:
    runtime = load_runtime(application)
    if exported:
        if workflow is not None or sample is not None:
            raise InvalidArgument("--workflow and --sample choose runs of a database, not files")
        return asyncio.run(_all(runtime, _files(exported)))
    with open_target(dsn, schema=schema, migrate=False) as target:

        async def look() -> list[Rehearsal]:
            async with await PostgresEventStore.connect(target.dsn, schema=schema) as store:
                ids = await _open_runs(store, workflow)
                if sample is not None and sample < len(ids):
                    ids = random.sample(ids, sample)
                return await _all(runtime, _stored(store, ids))

        return asyncio.run(look())


async def _all(
    runtime: FlowRuntime, histories: AsyncIterator[LoadedRun | Rehearsal]
) -> list[Rehearsal]:
    found = [
        one if isinstance(one, Rehearsal) else await rehearse(runtime, one)
        async for one in histories
    ]
    close = getattr(runtime, "close", None)
    if callable(close):
        close()  # lets go of the coroutines that were replayed
    return found


async def _open_runs(store: PostgresEventStore, workflow: str | None) -> list[str]:
    ids: list[str] = []
    for status in _OPEN:
        page = await store.list_runs(status=status, workflow_name=workflow, limit=_PAGE)
        while page:
            ids += [row.run_id for row in page]
            page = await store.list_runs(
                status=status, workflow_name=workflow, after=page[-1], limit=_PAGE
            )
    # One that changed its status in between was seen twice.
    return list(dict.fromkeys(ids))


async def _stored(
    store: PostgresEventStore, ids: Sequence[str], batch: int = _BATCH
) -> AsyncIterator[LoadedRun | Rehearsal]:
    for start in range(0, len(ids), batch):
        asked = ids[start : start + batch]
        try:
            loaded = await store.load_runs(asked)
        except SerializationError as error:
            # One that cannot be read says nothing of the others.
            if len(asked) == 1:
                yield Rehearsal(asked[0], "", Verdict.BLOCKED, blocked_reason(error))
            else:
                async for one in _stored(store, asked, 1):
                    yield one
            continue
        for run in loaded.values():
            # Read by now, it may have ended: then its end is compared.
            yield run


async def _files(paths: Sequence[Path]) -> AsyncIterator[LoadedRun | Rehearsal]:
    for path in paths:
        try:
            history = load_history(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, SerializationError) as error:
            raise InvalidArgument(f"--history {path}: {error}") from error
        if not history:
            raise InvalidArgument(f"--history {path} holds no event")
        last = history[-1]
        now = max(last.recorded_at, datetime.fromtimestamp(0, UTC))
        yield LoadedRun(last.run_id, last.sequence, RunStatus.RUNNING, 0, now, history)


def _report(found: Sequence[Rehearsal]) -> Iterator[str]:
    for verdict in Verdict:
        bad = [one for one in found if one.verdict is verdict is not Verdict.FITS]
        for one in bad[:_SHOWN]:
            yield f"{one.run_id}  {one.workflow}  {verdict}"
            yield f"    {one.reason}"
        if len(bad) > _SHOWN:
            yield f"and {len(bad) - _SHOWN} more that {verdict}; --json has them all"
    counts = Counter(one.verdict for one in found)
    said = ", ".join(f"{counts[verdict]} {verdict}" for verdict in Verdict if counts[verdict])
    yield f"{lines.counted(len(found), 'run')} replayed" + (f": {said}" if said else "")


def _json(found: Sequence[Rehearsal]) -> dict[str, Any]:
    counts = Counter(one.verdict for one in found)
    return {
        "replayed": len(found),
        "verdicts": {verdict.value: counts[verdict] for verdict in Verdict},
        "runs": [
            {
                "run_id": one.run_id,
                "workflow": one.workflow,
                "verdict": one.verdict.value,
                "reason": one.reason,
            }
            for one in found
            if one.verdict is not Verdict.FITS
        ],
    }
