"""The commands about runs: start one, list them, show one, its history, cancel, approve, import.

They are thin callers of the same SQL functions that psql can call.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from flowpg.client import FlowClient
from flowpg.console import lines
from flowpg.console.sealed import (
    AppOption,
    PlainOption,
    check_answer,
    codecs_in,
    codecs_of,
    opened_events,
    opened_run,
)
from flowpg.console.starting import declared
from flowpg.console.target import DsnOption, SchemaOption, open_target
from flowpg.console.usercode import load_runtime
from flowpg.errors import InvalidArgument, InvalidTransition, SerializationError
from flowpg.model import jsontext
from flowpg.model.codecs import CodecChain
from flowpg.model.inspection import SuspensionKind
from flowpg.model.jsonl import dump_history, load_history
from flowpg.model.snapshot import RunStatus
from flowpg.postgres.revisions import DEFAULT_SCHEMA
from flowpg.postgres.schema_check import verify

RunArgument = Annotated[str, typer.Argument(help="The run's id.", show_default=False)]
JsonlOption = Annotated[bool, typer.Option("--jsonl", help="Print JSON lines, to keep or import.")]
_FILE = "JSON lines of one run; - is standard input."
ReasonOption = Annotated[str | None, typer.Option(help="Why; the workflow sees it.")]


def register(app: typer.Typer) -> None:
    """Add the commands to ``app``."""
    app.command()(start)
    app.command()(runs)
    app.command()(show)
    app.command()(history)
    app.command()(cancel)
    app.command()(answer)
    app.command(name="import")(import_history)


def start(
    workflow: Annotated[str, typer.Argument(help="The workflow's name.", show_default=False)],
    input: Annotated[str, typer.Option(help="The input, as JSON.")] = "null",
    id: Annotated[str | None, typer.Option(help="The run's id; without one, a new one.")] = None,
    version: Annotated[
        str | None,
        typer.Option(help="The workflow's version; as --app declares it, else 1."),
    ] = None,
    queue: Annotated[
        str | None,
        typer.Option(help="The queue whose workers drive it; as --app declares it, else default."),
    ] = None,
    application: AppOption = None,
    plain: PlainOption = False,
    dsn: DsnOption = None,
    schema: SchemaOption = DEFAULT_SCHEMA,
) -> None:
    """Start a run and print its id. The same id with the same input again changes nothing.

    With --app, a workflow that the app does not have and an input that does not fit are refused.
    """
    value = _json_option(input, "--input")
    runtime = None if application is None else load_runtime(application)
    spec, on_queue = declared(runtime, workflow, value, version, queue)
    codecs = codecs_in(runtime, plain=plain)
    # None where plain values are not said to be meant: the client looks at the newest run then.
    with _client(dsn, schema, codecs if codecs or plain else None) as client:
        started = client.start(spec, value, run_id=id, queue=on_queue)
        typer.echo(started.run_id)
        if not started.applied:
            typer.echo("flowpg: it was started before; nothing was changed", err=True)


def runs(
    status: Annotated[RunStatus | None, typer.Option(help="Only runs of this status.")] = None,
    workflow: Annotated[str | None, typer.Option(help="Only runs of this workflow.")] = None,
    blocked: Annotated[bool, typer.Option("--blocked", help="Only runs that are blocked.")] = False,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many, newest first.")] = 20,
    as_json: lines.JsonOption = False,
    dsn: DsnOption = None,
    schema: SchemaOption = DEFAULT_SCHEMA,
) -> None:
    """List runs, newest first, and count them all."""
    with _client(dsn, schema) as client:
        rows = client.list_runs(
            status=status, workflow_name=workflow, blocked=blocked or None, limit=limit
        )
        summary = client.summary()
    if as_json:
        found = {"runs": [lines.run_json(row) for row in rows], "summary": asdict(summary)}
        typer.echo(jsontext.encode(found).encode())
        return
    if rows:
        _print(lines.run_list(rows))
    typer.echo(lines.counts(summary))


def show(
    run_id: RunArgument,
    as_json: lines.JsonOption = False,
    application: AppOption = None,
    dsn: DsnOption = None,
    schema: SchemaOption = DEFAULT_SCHEMA,
) -> None:
    """Show where a run stands, who drives it, what it waits for, and how its steps went."""
    codecs = codecs_of(application)
    with _client(dsn, schema) as client:
        row = client.run_info(run_id)
        snapshot = opened_run(codecs, client.snapshot(run_id))
        waiting = client.list_open_suspensions(run_id)
        now = client.now()
    driven = lines.driver(row, now)
    if as_json:
        typer.echo(jsontext.encode(lines.show_json(row, snapshot, waiting, driven)).encode())
        return
    reason = snapshot.cancellation.reason if snapshot.cancellation else None
    said = [
        ("status", f"{row.status}, {lines.counted(row.head_sequence, 'event')}, queue {row.queue}"),
        ("blocked", row.blocked_reason),
        ("driver", driven),
        ("waiting", row.waiting_for),
        *(
            ("waits for", lines.wait_line(item, now, lines.hook_of(item, snapshot)))
            for item in waiting
        ),
        *(("gave way", lines.refused_line(hook)) for hook in lines.refused(snapshot)),
        *((f"{name} =", jsontext.encode(value)) for name, value in row.attributes.items()),
        ("reason", reason),
        ("error", lines.legible(snapshot.error)),
    ]
    if snapshot.status is RunStatus.COMPLETED:
        said.append(("output", lines.shown(snapshot.output)))
    typer.echo(f"{row.run_id}  {row.workflow_name} version {row.workflow_version}")
    _print(f"{name:<9} {text}" for name, text in said if text)
    if snapshot.steps:
        cells = [
            (
                step.step_id,
                step.step_name,
                step.status,
                f"{step.attempt} of {step.retry.attempts}",
                lines.legible(step.error),
            )
            for step in snapshot.steps.values()
        ]
        _print(lines.columns(("step", "name", "status", "attempt", "last error"), cells))


def history(
    run_id: RunArgument,
    jsonl: JsonlOption = False,
    application: AppOption = None,
    dsn: DsnOption = None,
    schema: SchemaOption = DEFAULT_SCHEMA,
) -> None:
    """Print a run's events. With --jsonl the payloads too, hook tokens among them."""
    codecs = codecs_of(application)
    with _client(dsn, schema) as client:
        events = opened_events(codecs, client.history(run_id))
    if jsonl:
        # As bytes: JSON is UTF-8, whatever the terminal is.
        typer.echo(dump_history(events).encode(), nl=False)
        return
    cells = [
        (
            str(event.sequence),
            event.key,
            event.subject or "",
            event.recorded_at.strftime("%Y-%m-%d %H:%M:%S.%f")[:-3],
            lines.detail(event),
        )
        for event in events
    ]
    _print(lines.columns(("#", "event", "about", "recorded", "detail"), cells))


def cancel(
    run_id: RunArgument,
    reason: ReasonOption = None,
    force: Annotated[bool, typer.Option("--force", help="End it at once, no cleanup.")] = False,
    dsn: DsnOption = None,
    schema: SchemaOption = DEFAULT_SCHEMA,
) -> None:
    """Ask a run to clean up and end, or with --force end it at once."""
    with _client(dsn, schema) as client:
        verb = client.force_cancel if force else client.request_cancellation
        done = verb(run_id, reason)
        status = client.run_info(run_id).status
    said = "it is" if done.applied else "nothing was changed, it is"
    typer.echo(f"{run_id}: {said} {status}")


def answer(
    run_id: RunArgument,
    hook_id: Annotated[str, typer.Argument(help="The hook's id.", show_default=False)],
    payload: Annotated[
        str, typer.Option(help="The answer, as JSON; null for none.", show_default=False)
    ],
    application: AppOption = None,
    plain: PlainOption = False,
    dsn: DsnOption = None,
    schema: SchemaOption = DEFAULT_SCHEMA,
) -> None:
    """Answer a hook by run and hook id, with what `flowpg show` says that it is answered with. The
    same answer again changes nothing."""
    value = _json_option(payload, "--payload")
    codecs = codecs_of(application, plain=plain)
    with _client(dsn, schema, codecs) as client:
        if not codecs and not plain:
            check_answer(client, run_id)
        try:
            done = client.resume_hook(run_id, hook_id, value)
        except InvalidArgument:
            raise
        except InvalidTransition as error:
            raise InvalidTransition(f"{error}; {_hooks_of(client, run_id)}") from None
    said = "answered" if done.applied else "was answered so before; nothing was changed"
    typer.echo(f"{run_id}: hook {hook_id} {said}")


def _hooks_of(client: FlowClient, run_id: str) -> str:
    waits = client.list_open_suspensions(run_id)
    hooks = [repr(item.subject_id) for item in waits if item.kind is SuspensionKind.HOOK]
    return f"it waits for {', '.join(hooks)}" if hooks else "it waits for no hook now"


def import_history(
    file: Annotated[Path, typer.Argument(help=_FILE, show_default=False)],
    queue: Annotated[str, typer.Option(help="The queue whose workers drive it.")] = "default",
    dsn: DsnOption = None,
    schema: SchemaOption = DEFAULT_SCHEMA,
) -> None:
    """Store a run from `flowpg history --jsonl`, under its own id, event ids and times."""
    try:
        raw = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
        text = raw.decode()
    except OSError as error:
        raise InvalidArgument(f"cannot read {file}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InvalidArgument(f"{file} is not UTF-8 text") from None
    events = load_history(text)
    with _client(dsn, schema) as client:
        client.import_history(events, queue=queue)
    typer.echo(f"{events[0].run_id}: {lines.counted(len(events), 'event')}")


def _json_option(text: str, name: str) -> Any:
    try:
        return jsontext.decode(text, name)
    except SerializationError:
        try:
            json.loads(text)
        except json.JSONDecodeError as error:
            # Where, and never what: the value may be a secret.
            raise InvalidArgument(
                f"{name} is not valid JSON from line {error.lineno}, column {error.colno} on; "
                f"quote it for the shell, as in {name} '{{\"amount\": 5}}' or {name} '\"text\"'"
            ) from None
        raise


@contextmanager
def _client(dsn: str | None, schema: str, codecs: CodecChain | None = None) -> Iterator[FlowClient]:
    with open_target(dsn, schema=schema) as target:
        verify(target.dsn, schema)
        with FlowClient(target.dsn, schema=schema, max_size=1, codecs=codecs) as client:
            yield client


def _print(found: Iterable[str]) -> None:
    for line in found:
        typer.echo(line)
