"""The verbs that change something, as calls: the one place that knows their SQL signatures.

Every builder checks its arguments first and raises what ``flowpg.model.arguments`` raises.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, TypeVar

from flowpg.errors import SchemaBehind
from flowpg.model import jsontext
from flowpg.model.arguments import (
    check_batch,
    check_child,
    check_hook_payload,
    check_lease,
    check_limit,
    check_progress,
    check_start,
    check_text,
    check_time,
)
from flowpg.model.events import FlowEventEnvelope, deadline_of
from flowpg.model.ids import check_id, check_run_id, check_token
from flowpg.model.inspection import ScheduledWakeup, WakeupKind
from flowpg.model.operations import ChildOperationReference, WorkflowProgress
from flowpg.model.records import (
    Heartbeat,
    RunLease,
    StartOutcome,
    StartRequest,
    StartResult,
    VerbResult,
)
from flowpg.postgres.calls import (
    Call,
    Function,
    Row,
    bool_text,
    interval_text,
    nothing,
    time_text,
    utc,
)

R = TypeVar("R")

_VERB = ("run_id", "subject_id", "applied", "head_sequence")

_START = Function("flow_start", ("json", "json", "text", "text"), _VERB)
_START_MANY = Function(
    "flow_start_many", ("json",), ("ordinal", "run_id", "outcome", "detail:text")
)
_RESUME_WAIT = Function("flow_resume_wait", ("text", "text"), _VERB)
_RESUME_DUE_WAITS = Function(
    "flow_resume_due_waits", ("timestamptz", "integer", "text"), ("run_id", "wait_id", "due_at")
)
_DISPOSE_EXPIRED_HOOKS = Function(
    "flow_dispose_expired_hooks",
    ("timestamptz", "integer", "text"),
    ("run_id", "hook_id", "due_at"),
)
_ANSWER = (*_VERB, "payload_schema:text")
_RESUME_HOOK = Function("flow_resume_hook", ("text", "text", "json", "text"), _ANSWER)
_RESUME_HOOK_BY_TOKEN = Function("flow_resume_hook_by_token", ("text", "json", "text"), _ANSWER)
_DISPOSE_HOOK = Function("flow_dispose_hook", ("text", "text"), _VERB)
_DISPOSE_HOOK_BY_TOKEN = Function("flow_dispose_hook_by_token", ("text",), _VERB)
_REQUEST_CANCELLATION = Function("flow_request_cancellation", ("text", "text"), _VERB)
_FORCE_CANCEL = Function("flow_force_cancel", ("text", "text"), _VERB)
_TIMEOUT = Function("flow_terminate_for_timeout", ("text", "timestamptz", "text"), _VERB)
_HOST_SHUTDOWN = Function("flow_terminate_for_host_shutdown", ("text", "text"), _VERB)
_RECORD_PROGRESS = Function("flow_record_progress", ("text", "json"), _VERB)
_LINK_CHILD = Function("flow_link_child_operation", ("text", "json"), _VERB)
_WAKE_RUN = Function("flow_wake_run", ("text",), ("1",))
_ACQUIRE_RUN = Function(
    "flow_acquire_run", ("text", "text", "interval"), ("epoch", "wakes", "head_sequence", "db_now")
)
_HEARTBEAT = Function(
    "flow_heartbeat", ("json", "interval"), ("run_id", "held", "wakes", "head_sequence")
)
_RELEASE_RUN = Function("flow_release_run", ("text", "bigint", "bigint"))
_GIVE_BACK = Function("flow_give_back", ("text", "bigint", "interval", "text", "text", "boolean"))
_ENQUEUE_DUE = Function(
    "flow_enqueue_due", ("integer", "timestamptz"), ("run_id", "kind", "subject_id", "due_at")
)
_IMPORT = Function("flow_import_history", ("text", "json", "text"), ("1",))


def start(request: StartRequest) -> Call[VerbResult]:
    """Create one run."""
    spec, text = check_start(request)
    return Call(_START, (spec, text, request.run_id, request.queue), _verb)


def start_many(requests: Sequence[StartRequest]) -> Call[list[StartResult]]:
    """Create many runs, each on its own merits."""
    check_batch(requests)
    specs: dict[int, str] = {}

    def element(request: StartRequest) -> str:
        spec, text = check_start(request, specs)
        run = f'"run_id":{jsontext.quote(request.run_id)},' if request.run_id is not None else ""
        return f'{{{run}"spec":{spec},"input":{text},"queue":{jsontext.quote(request.queue)}}}'

    def read(rows: Sequence[Row]) -> list[StartResult]:
        results = [
            StartResult(run_id, StartOutcome(outcome), _json(detail).get("reason"))
            for _, run_id, outcome, detail in sorted(rows, key=_ordinal)
        ]
        return _complete(results, len(requests), _START_MANY)

    return Call(_START_MANY, ("[" + ",".join(map(element, requests)) + "]",), read)


def resume_wait(run_id: str, wait_id: str) -> Call[VerbResult]:
    """Complete a due timer."""
    values = (check_run_id(run_id), check_id(wait_id, "wait id"))
    return Call(_RESUME_WAIT, values, _verb)


def resume_due_waits(
    as_of: datetime | None, limit: int, run_id: str | None
) -> Call[list[ScheduledWakeup]]:
    """Complete every due timer."""
    values = _sweep(as_of, limit, run_id)
    return Call(_RESUME_DUE_WAITS, values, _wakeups(WakeupKind.WAIT))


def dispose_expired_hooks(
    as_of: datetime | None, limit: int, run_id: str | None
) -> Call[list[ScheduledWakeup]]:
    """Dispose every expired hook."""
    values = _sweep(as_of, limit, run_id)
    return Call(_DISPOSE_EXPIRED_HOOKS, values, _wakeups(WakeupKind.HOOK_EXPIRY))


def resume_hook(
    run_id: str, hook_id: str, payload: Any, checked: str | None = None
) -> Call[VerbResult]:
    """Answer a hook, if its schema is the one that the payload was ``checked`` against."""
    check_run_id(run_id)
    check_id(hook_id, "hook id")
    text = check_hook_payload(run_id, payload)
    return Call(_RESUME_HOOK, (run_id, hook_id, text, checked), _verb)


def resume_hook_by_token(token: str, payload: Any, checked: str | None = None) -> Call[VerbResult]:
    """Answer the active hook with this token, as ``resume_hook`` does."""
    check_token(token)
    text = check_hook_payload("", payload)
    return Call(_RESUME_HOOK_BY_TOKEN, (token, text, checked), _verb, token)


def dispose_hook(run_id: str, hook_id: str) -> Call[VerbResult]:
    """Withdraw a hook."""
    return Call(_DISPOSE_HOOK, (check_run_id(run_id), check_id(hook_id, "hook id")), _verb)


def dispose_hook_by_token(token: str) -> Call[VerbResult]:
    """Withdraw the active hook with this token."""
    return Call(_DISPOSE_HOOK_BY_TOKEN, (check_token(token),), _verb, token)


def request_cancellation(run_id: str, reason: str | None) -> Call[VerbResult]:
    """Ask a run to clean up and end."""
    return Call(_REQUEST_CANCELLATION, (check_run_id(run_id), check_text(reason, "reason")), _verb)


def force_cancel(run_id: str, reason: str | None) -> Call[VerbResult]:
    """End a run at once."""
    return Call(_FORCE_CANCEL, (check_run_id(run_id), check_text(reason, "reason")), _verb)


def terminate_for_timeout(run_id: str, deadline: datetime, reason: str | None) -> Call[VerbResult]:
    """End a run at once because its deadline passed."""
    check_run_id(run_id)
    due = time_text(check_time(deadline, "the deadline"))
    return Call(_TIMEOUT, (run_id, due, check_text(reason, "reason")), _verb)


def terminate_for_host_shutdown(run_id: str, reason: str | None) -> Call[VerbResult]:
    """End a run at once because its host will never resume it."""
    return Call(_HOST_SHUTDOWN, (check_run_id(run_id), check_text(reason, "reason")), _verb)


def record_progress(run_id: str, progress: WorkflowProgress) -> Call[VerbResult]:
    """Record a progress report."""
    return Call(_RECORD_PROGRESS, (run_id, check_progress(run_id, progress)), _verb)


def link_child_operation(run_id: str, child: ChildOperationReference) -> Call[VerbResult]:
    """Record a link."""
    return Call(_LINK_CHILD, (run_id, check_child(run_id, child)), _verb)


def wake_run(run_id: str) -> Call[None]:
    """Enqueue the run to be driven."""
    return Call(_WAKE_RUN, (check_run_id(run_id),), nothing)


def acquire_run(run_id: str, owner: str, lease: timedelta) -> Call[RunLease | None]:
    """Take the lease of one run."""

    def read(rows: Sequence[Row]) -> RunLease | None:
        for epoch, wakes, head, now in rows:
            return RunLease(run_id, epoch, wakes, head, utc(now))
        return None

    check_run_id(run_id)
    values = (run_id, check_id(owner, "lease owner"), interval_text(check_lease(lease)))
    return Call(_ACQUIRE_RUN, values, read)


def heartbeat(leases: Sequence[RunLease], lease: timedelta) -> Call[list[Heartbeat]]:
    """Extend leases."""
    held = json.dumps([{"run_id": item.run_id, "epoch": item.epoch} for item in leases])
    values = (held, interval_text(check_lease(lease)))
    return Call(_HEARTBEAT, values, lambda rows: [Heartbeat(*row) for row in rows])


def release_run(lease: RunLease) -> Call[bool]:
    """Give a lease back."""
    return Call(_RELEASE_RUN, (lease.run_id, str(lease.epoch), str(lease.wakes)), _bool)


def give_back(
    lease: RunLease,
    delay: timedelta,
    blocked_reason: str | None,
    missing_step: str | None = None,
) -> Call[bool]:
    """Give up a lease with work left. The claim of one that was not used is not counted."""
    reason = check_text(blocked_reason, "blocked reason")
    rest = interval_text(max(delay, timedelta(0)))
    unused = bool_text(bool(lease.task_id) and not delay and reason is None)
    values = (lease.run_id, str(lease.epoch), rest, reason, missing_step, unused)
    return Call(_GIVE_BACK, values, _bool)


def enqueue_due(as_of: datetime | None, limit: int) -> Call[list[ScheduledWakeup]]:
    """Turn due wake-ups into drive tasks."""

    def read(rows: Sequence[Row]) -> list[ScheduledWakeup]:
        return [
            ScheduledWakeup(run_id, WakeupKind(kind), subject, utc(due))
            for run_id, kind, subject, due in rows
        ]

    values = (str(check_limit(limit)), time_text(check_time(as_of, "as_of")))
    return Call(_ENQUEUE_DUE, values, read)


def import_history(run_id: str, history: Sequence[FlowEventEnvelope], queue: str) -> Call[None]:
    """Store a complete history of a new run."""
    events = "[" + ",".join(map(_stored_json, history)) + "]"
    return Call(_IMPORT, (check_run_id(run_id), events, queue), nothing)


def _stored_json(event: FlowEventEnvelope) -> str:
    parts = [
        f'{{"sequence":{event.sequence}',
        f'"type":{jsontext.quote(event.type)}',
        f'"event_id":{jsontext.quote(event.event_id)}',
        f'"recorded_at":"{time_text(event.recorded_at)}"',
    ]
    subject, due = event.subject, deadline_of(event)
    if subject is not None:
        parts.append(f'"subject":{jsontext.quote(subject)}')
    if due is not None:
        parts.append(f'"due_at":"{time_text(due)}"')
    if event.schema_version is not None:
        parts.append(f'"schema_version":{event.schema_version}')
    parts.append(f'"payload":{event.payload}}}')
    return ",".join(parts)


def _sweep(as_of: datetime | None, limit: int, run_id: str | None) -> tuple[str | None, ...]:
    if run_id is not None:
        check_run_id(run_id)
    return (time_text(check_time(as_of, "as_of")), str(check_limit(limit)), run_id)


def _verb(rows: Sequence[Row]) -> VerbResult:
    run_id, subject, applied, head, *schema = rows[0]
    return VerbResult(run_id, applied, head, subject, *schema)


def _bool(rows: Sequence[Row]) -> bool:
    return bool(rows[0][0])


def _ordinal(row: Row) -> int:
    return int(row[0])


def _json(text: str | None) -> dict[str, Any]:
    return json.loads(text) if text else {}


def _wakeups(kind: WakeupKind) -> Any:
    def read(rows: Sequence[Row]) -> list[ScheduledWakeup]:
        return [ScheduledWakeup(run_id, kind, subject, utc(due)) for run_id, subject, due in rows]

    return read


def _complete(results: list[R], expected: int, function: Function) -> list[R]:
    if len(results) != expected:
        raise SchemaBehind(
            f"{function.name} answered {len(results)} rows for {expected} elements: the schema is "
            "of another release; run `flowpg migrate --check`"
        )
    return results
