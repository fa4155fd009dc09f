"""What the commands about runs print: plain lines in columns, which never cut an id, and JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Annotated, Any

import typer

from flowpg.console.expected import in_short
from flowpg.model import events, jsontext
from flowpg.model.codecs import error_label_of, is_sealed, label_of
from flowpg.model.errortext import human_text
from flowpg.model.events import FlowEventEnvelope
from flowpg.model.inspection import (
    RunRow,
    SuspensionKind,
    WorkflowRunSummary,
    WorkflowRunSuspension,
)
from flowpg.model.snapshot import HookSnapshot, HookStatus, WorkflowRunSnapshot
from flowpg.model.times import format_time
from flowpg.postgres.fleet_verbs import HealthFact

JsonOption = Annotated[bool, typer.Option("--json", help="Print it as one JSON object.")]
"""The ``--json`` option of the commands that print either."""

_COUNTED = ("pending", "running", "suspended", "cancelling", "completed", "failed", "cancelled")


def columns(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A line for the head and one for each row, aligned with spaces; the last column is as long
    as it is."""
    table = [head, *(tuple(_line(cell) for cell in row) for row in rows)]
    widths = [max(len(row[at]) for row in table) for at in range(len(head))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in table
    ]


def run_list(rows: Sequence[RunRow]) -> Iterator[str]:
    """A line for each run, and one more below it for what it is blocked on or waits for."""
    cells = [
        (row.run_id, row.workflow_name, row.status, str(row.head_sequence), moment(row.created_at))
        for row in rows
    ]
    head, *lines = columns(("run", "workflow", "status", "events", "created"), cells)
    yield head
    for row, line in zip(rows, lines, strict=True):
        yield line
        if row.blocked_reason:
            yield f"    blocked: {_line(row.blocked_reason)}"
        if row.waiting_for:
            yield f"    waiting: {_line(row.waiting_for)}"


def health(facts: Sequence[HealthFact]) -> Iterator[str]:
    """A line for each fact of ``flow_health``."""
    for fact in facts:
        since = "" if fact.age is None else f", for {fact.age.total_seconds():.0f} s"
        if fact.kind == "queue":
            more = (f"{value} {name}" for name, value in fact.detail.items() if name != "paused")
            paused = ", paused" if fact.detail.get("paused") else ""
            yield f"queue {fact.name}: {fact.count} ready{since}; {', '.join(more)}{paused}"
        elif fact.kind == "unserved":
            build = fact.detail.get("build")
            of = "" if build is None else f" of build {build}"
            yield f"no worker for {fact.name}{of}: {counted(fact.count, 'task')}{since}"
        elif fact.kind == "wakeups":
            yield f"deadlines passed and not dispatched: {fact.count}{since}"
        elif fact.kind == "snapshot":
            behind = counted(fact.count, "transaction")
            yield f"oldest snapshot: {fact.name}, {behind} behind{since}"
        else:
            yield f"live {fact.kind}: {fact.count}"


def counts(summary: WorkflowRunSummary) -> str:
    """How many runs there are, and how many stand where."""
    found = ", ".join(f"{getattr(summary, name)} {name}" for name in _COUNTED)
    return f"{counted(summary.total, 'run')}: {found}"


def counted(number: int, noun: str) -> str:
    """So many of something."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def driver(row: RunRow, now: datetime) -> str:
    """Who drives a run, or what keeps it from being driven; empty where that is nobody's turn."""
    if row.status.terminal:
        return ""
    if row.lease_owner and row.lease_expires_at:
        until = moment(row.lease_expires_at)
        if row.lease_expires_at > now:
            return f"driven by {row.lease_owner}, lease until {until}"
        return f"waiting for a worker: the last lease, of {row.lease_owner}, ran out at {until}"
    if row.available_at is None:
        return ""
    if row.available_at > now:
        return f"left alone until {moment(row.available_at)}"
    return f"waiting for a worker since {moment(row.available_at)}"


def wait_line(item: WorkflowRunSuspension, now: datetime, hook: HookSnapshot | None = None) -> str:
    """What a run waits for, and until when; ``hook`` is the one that ``item`` is about."""
    name = "timer" if item.kind == "wait" else item.kind
    parts = [f"{name} {item.subject_id}"]
    if item.due_at is not None:
        seconds = (item.due_at - now).total_seconds()
        due = f"due in {_in_words(seconds)}" if seconds > 0 else "due now"
        parts.append(f"{due} ({moment(item.due_at)})")
    schema = None if hook is None else hook.payload_schema
    if hook is not None and holds_token(hook):
        # Whether a block stands around the hook, or an `await`, no history tells.
        parts.append("has its token" + (" as a lock or for an answer" if schema is None else ""))
    if schema is not None:
        parts.append(f"answered with {in_short(schema)}")
    return ", ".join(parts)


def holds_token(hook: HookSnapshot) -> bool:
    """Whether a hook keeps others from a token that its workflow named."""
    return hook.on_conflict == "raise"


def _in_words(seconds: float) -> str:
    """A duration in the largest unit of which there are two or more."""
    for unit, length in (("days", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length:.0f} {unit}"
    return f"{seconds:.0f} s"


def held_by(run_id: str | None, hook_id: str | None) -> str:
    """Whose a token was that a hook was refused for."""
    return f"token held by hook {hook_id} of run {run_id}"


def refused(run: WorkflowRunSnapshot) -> list[HookSnapshot]:
    """The hooks that were not opened, for another one held their token."""
    return [hook for hook in run.hooks.values() if hook.status is HookStatus.CONFLICTED]


def refused_line(hook: HookSnapshot) -> str:
    """A hook that was not opened, and which one held its token then."""
    return f"hook {hook.hook_id}, {held_by(hook.owner_run_id, hook.owner_hook_id)}"


def detail(event: FlowEventEnvelope) -> str:
    """What an event says beside its subject, on one line: never a payload or a token."""
    data, parts = event.data, []
    if event.type == events.STEP_CREATED:
        parts.append(str(data.get("step_name")))
    if event.type.startswith("step_") and "attempt" in data:
        parts.append(f"attempt {data['attempt']}")
    deadline = events.deadline_of(event)
    if deadline is not None:
        verb = {events.STEP_RETRYING: "again at", events.HOOK_CREATED: "expires"}
        parts.append(f"{verb.get(event.type, 'due')} {moment(deadline)}")
    if event.type == events.HOOK_CONFLICTED:
        parts.append(held_by(data.get("owner_run_id"), data.get("owner_hook_id")))
    if event.type == events.RUN_TIMED_OUT:
        parts.append(f"deadline {data.get('deadline')}")
    parts += [_line(legible(str(data[name]))) for name in ("error", "reason") if data.get(name)]
    return ", ".join(parts)


def run_json(row: RunRow) -> dict[str, Any]:
    """The members of a run's row."""
    return {
        "run_id": row.run_id,
        "workflow_name": row.workflow_name,
        "workflow_version": row.workflow_version,
        "runtime_build": row.runtime_build,
        "queue": row.queue,
        "status": row.status.value,
        "events": row.head_sequence,
        "blocked_reason": row.blocked_reason,
        "attributes": row.attributes,
        "waiting_for": row.waiting_for,
        "created_at": format_time(row.created_at),
        "updated_at": format_time(row.updated_at),
        "ended_at": None if row.ended_at is None else format_time(row.ended_at),
    }


def show_json(
    row: RunRow, run: WorkflowRunSnapshot, waiting: Sequence[WorkflowRunSuspension], driven: str
) -> dict[str, Any]:
    """All that ``flowpg show`` prints, by name."""
    return {
        **run_json(row),
        "driver": driven or None,
        "lease_owner": row.lease_owner,
        "lease_expires_at": row.lease_expires_at and format_time(row.lease_expires_at),
        "waits_for": [
            {
                "kind": item.kind.value,
                "id": item.subject_id,
                "due_at": None if item.due_at is None else format_time(item.due_at),
                **_hook_members(hook_of(item, run)),
            }
            for item in waiting
        ],
        "steps": [
            {
                "step_id": step.step_id,
                "step_name": step.step_name,
                "status": step.status.value,
                "attempt": step.attempt,
                "attempts": step.retry.attempts,
                "error": step.error,
            }
            for step in run.steps.values()
        ],
        "refused_hooks": [
            {
                "hook_id": hook.hook_id,
                "owner_run_id": hook.owner_run_id,
                "owner_hook_id": hook.owner_hook_id,
            }
            for hook in refused(run)
        ],
        "error": run.error,
        "output": run.output,
        "cancellation_reason": run.cancellation.reason if run.cancellation else None,
    }


def hook_of(item: WorkflowRunSuspension, run: WorkflowRunSnapshot) -> HookSnapshot | None:
    """The hook that a run waits for, None if it waits for something else."""
    return run.hooks.get(item.subject_id) if item.kind is SuspensionKind.HOOK else None


def _hook_members(hook: HookSnapshot | None) -> dict[str, Any]:
    if hook is None:
        return {}
    schema = {} if hook.payload_schema is None else {"payload_schema": hook.payload_schema}
    return {"holds_token": holds_token(hook), **schema}


def moment(when: datetime) -> str:
    """A time of the database, to the second."""
    return f"{when:%Y-%m-%d %H:%M:%S}Z"


def shown(value: Any) -> str:
    """A value as JSON, or that it is sealed, and how."""
    return label_of(value) if is_sealed(value) else jsontext.encode(value)


def legible(error: str | None) -> str:
    """An error text without the record below it, which is for programs: ``--json`` has it."""
    text = error or ""
    sealed = error_label_of(text)
    return human_text(text) if sealed is None else sealed


def _line(text: str) -> str:
    return " | ".join(part.strip() for part in text.splitlines() if part.strip())
