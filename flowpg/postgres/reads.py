"""The verbs that only read, as calls: the one place that knows their SQL signatures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from flowpg.errors import RunNotFound
from flowpg.model import jsontext
from flowpg.model.arguments import MAX_PAGE, check_limit, check_run_ids, check_time
from flowpg.model.events import FlowEventEnvelope
from flowpg.model.ids import check_id, check_run_id
from flowpg.model.inspection import (
    ActiveHookSnapshot,
    RunRow,
    ScheduledWakeup,
    SuspensionKind,
    WakeupKind,
    WorkflowRunSummary,
    WorkflowRunSuspension,
)
from flowpg.model.records import LoadedRun
from flowpg.model.snapshot import RunStatus
from flowpg.postgres.calls import (
    Call,
    Function,
    Row,
    array_text,
    bool_text,
    time_text,
    utc,
    utc_or_none,
)

STATUSES = {status.value: status for status in RunStatus}
"""The status of a run by its name in the database."""

_RUN = (
    "run_id",
    "workflow_name",
    "workflow_version",
    "runtime_build",
    "queue",
    "status",
    "head_sequence",
    "blocked_reason",
    "created_at",
    "updated_at",
    "ended_at",
    "waiting_for",
    "attributes:text",
)

_LOAD_RUNS = Function(
    "flow_load_runs",
    ("text[]", "bigint[]"),
    ("run_id", "head_sequence", "status", "wakes", "db_now", "events:text"),
)
_HISTORY = Function(
    "flow_history",
    ("text", "bigint", "integer"),
    ("sequence", "event_id:text", "event_type", "payload:text", "recorded_at", "schema_version"),
)
_RUN_BUILDS = Function("flow_run_builds", ("text[]",), ("run_id", "runtime_build"))
_LIST_RUN_IDS = Function("flow_list_run_ids", ("text", "integer"), ("run_id",))
_LIST_RUNS = Function(
    "flow_list_runs",
    ("text", "text", "text", "boolean", "timestamptz", "text", "integer"),
    _RUN,
)
_RUN_INFO = Function(
    "flow_run_info", ("text",), (*_RUN, "lease_owner", "lease_expires_at", "available_at")
)
_SUMMARY = Function("flow_run_summary", (), tuple(WorkflowRunSummary.__dataclass_fields__))
_SUSPENSIONS = Function(
    "flow_open_suspensions",
    ("text", "text", "text", "text", "integer", "timestamptz"),
    ("run_id", "kind", "subject_id", "due_at", "due"),
)
_ACTIVE_HOOKS = Function(
    "flow_list_active_hooks",
    ("text", "text", "text", "integer"),
    (
        *("run_id", "hook_id", "token", "metadata:text", "expires_at", "created_at"),
        "payload_schema:text",
    ),
)
_WAKEUP = ("run_id", "kind", "subject_id", "due_at", "runtime_build")
_DUE_WAKEUPS = Function("flow_due_wakeups", ("timestamptz", "integer", "text"), _WAKEUP)
_NEXT_WAKEUP = Function("flow_next_wakeup", (), _WAKEUP)
_NOW = Function("flow_now", ())


def load_runs(
    run_ids: Sequence[str], after: Sequence[int] | None = None
) -> Call[dict[str, LoadedRun]]:
    """The histories of these runs, whole or after the sequences of ``after``, one a run."""
    check_run_ids(run_ids)
    known = dict(zip(run_ids, after, strict=True)) if after is not None else {}

    def read(rows: Sequence[Row]) -> dict[str, LoadedRun]:
        return {
            run_id: LoadedRun(
                run_id,
                head,
                STATUSES[status],
                wakes or 0,
                utc(now),
                history_of(run_id, events),
                known.get(run_id, 0),
            )
            for run_id, head, status, wakes, now, events in rows
        }

    sequences = None if after is None else array_text([str(known[run_id]) for run_id in run_ids])
    return Call(_LOAD_RUNS, (array_text(run_ids), sequences), read)


def history_of(run_id: str, events: str) -> list[FlowEventEnvelope]:
    """The events in a text of ``flow_load_runs``. SerializationError if it cannot be read."""
    decoded: list[list[Any]] = jsontext.decode(events, f"the history of run {run_id!r}")
    moment = datetime.fromisoformat
    return [
        FlowEventEnvelope(
            run_id,
            sequence,
            event_id,
            moment(recorded_at),
            event_type,
            data=data,
            schema_version=version[0] if version else None,
        )
        for sequence, event_type, event_id, recorded_at, data, *version in decoded
    ]


def history_page(run_id: str, after: int, limit: int) -> Call[list[FlowEventEnvelope]]:
    """Events after a sequence."""

    def read(rows: Sequence[Row]) -> list[FlowEventEnvelope]:
        return [
            FlowEventEnvelope(
                run_id,
                sequence,
                event_id,
                utc(recorded_at),
                event_type,
                payload=payload,
                schema_version=version,
            )
            for sequence, event_id, event_type, payload, recorded_at, version in rows
        ]

    return Call(_HISTORY, (check_run_id(run_id), str(after), str(check_limit(limit))), read)


def list_run_ids(after: str, limit: int) -> Call[list[str]]:
    """Run ids above ``after`` in byte order."""
    values = (check_run_id(after) if after else "", str(check_limit(limit)))
    return Call(_LIST_RUN_IDS, values, lambda rows: [row[0] for row in rows])


def run_builds(run_ids: Sequence[str]) -> Call[dict[str, str | None]]:
    """The builds that these runs are pinned to."""
    check_run_ids(run_ids)
    return Call(_RUN_BUILDS, (array_text(run_ids),), lambda rows: {row[0]: row[1] for row in rows})


def list_runs(
    status: RunStatus | None,
    workflow_name: str | None,
    queue: str | None,
    blocked: bool | None,
    after: RunRow | None,
    limit: int,
) -> Call[list[RunRow]]:
    """Runs, newest first."""
    values = (
        None if status is None else RunStatus(status).value,
        None if workflow_name is None else check_id(workflow_name, "workflow name"),
        None if queue is None else check_id(queue, "queue name"),
        bool_text(blocked),
        None if after is None else time_text(after.created_at),
        None if after is None else after.run_id,
        str(check_limit(limit)),
    )
    return Call(_LIST_RUNS, values, lambda rows: [_run_row(row) for row in rows])


def run_info(run_id: str) -> Call[RunRow]:
    """One run's row."""

    def read(rows: Sequence[Row]) -> RunRow:
        if not rows:
            raise RunNotFound(run_id)
        *row, owner, expires, available = rows[0]
        return replace(
            _run_row(row),
            lease_owner=owner,
            lease_expires_at=utc_or_none(expires),
            available_at=utc_or_none(available),
        )

    return Call(_RUN_INFO, (check_run_id(run_id),), read)


def run_summary() -> Call[WorkflowRunSummary]:
    """Counts over all runs."""
    return Call(_SUMMARY, (), lambda rows: WorkflowRunSummary(*rows[0]))


def open_suspensions(
    run_id: str | None, after: WorkflowRunSuspension | None, as_of: datetime | None
) -> Call[list[WorkflowRunSuspension]]:
    """What non-terminal runs wait for: the page of ``MAX_PAGE`` rows that follows ``after``."""

    def read(rows: Sequence[Row]) -> list[WorkflowRunSuspension]:
        return [
            WorkflowRunSuspension(run, SuspensionKind(kind), subject, utc_or_none(due_at), due)
            for run, kind, subject, due_at, due in rows
        ]

    if run_id is not None:
        check_run_id(run_id)
    place = (after.run_id, after.kind.value, after.subject_id) if after else ("", "", "")
    moment = time_text(check_time(as_of, "as_of"))
    return Call(_SUSPENSIONS, (run_id, *place, str(MAX_PAGE), moment), read)


def active_hooks(
    run_id: str | None, after: ActiveHookSnapshot | None
) -> Call[list[ActiveHookSnapshot]]:
    """Hooks that can be answered: the page of ``MAX_PAGE`` rows that follows ``after``."""

    def read(rows: Sequence[Row]) -> list[ActiveHookSnapshot]:
        return [
            ActiveHookSnapshot(
                run,
                hook,
                token,
                jsontext.decode(metadata or "null", f"the metadata of hook {hook!r}"),
                utc_or_none(expires_at),
                utc(created_at),
                jsontext.decode(schema or "null", f"the payload schema of hook {hook!r}"),
            )
            for run, hook, token, metadata, expires_at, created_at, schema in rows
        ]

    if run_id is not None:
        check_run_id(run_id)
    place = (after.run_id, after.hook_id) if after else ("", "")
    return Call(_ACTIVE_HOOKS, (run_id, *place, str(MAX_PAGE)), read)


def due_wakeups(
    as_of: datetime | None, kind: WakeupKind | None, limit: int
) -> Call[list[ScheduledWakeup]]:
    """Deadlines that have passed."""
    only = None if kind is None else WakeupKind(kind).value
    values = (time_text(check_time(as_of, "as_of")), str(check_limit(limit)), only)
    return Call(_DUE_WAKEUPS, values, lambda rows: [_wakeup(row) for row in rows])


def next_wakeup() -> Call[ScheduledWakeup | None]:
    """The earliest deadline."""
    return Call(_NEXT_WAKEUP, (), lambda rows: _wakeup(rows[0]) if rows else None)


def now() -> Call[datetime]:
    """The database's clock."""
    return Call(_NOW, (), lambda rows: utc(rows[0][0]))


def _run_row(row: Row) -> RunRow:
    run_id, name, version, build, queue, status, head, blocked, *rest = row
    created, updated, ended, waits, attributes = rest
    return RunRow(
        run_id=run_id,
        workflow_name=name,
        workflow_version=version,
        runtime_build=build,
        queue=queue,
        status=RunStatus(status),
        head_sequence=head,
        blocked_reason=blocked,
        created_at=utc(created),
        updated_at=utc(updated),
        ended_at=utc_or_none(ended),
        attributes={} if attributes is None else jsontext.decode(attributes, "attributes"),
        waiting_for=waits,
    )


def _wakeup(row: Row) -> ScheduledWakeup:
    run_id, kind, subject, due_at, build = row
    return ScheduledWakeup(run_id, WakeupKind(kind), subject, utc(due_at), build)
