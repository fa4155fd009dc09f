"""The client verbs of the store in memory: each decides by the folded snapshot of its run.

All are idempotent: a redelivery of what is recorded already is not applied again, but wakes a run
that has not ended, in case the first delivery's drive was lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from flowpg.errors import (
    HookConflict,
    HookTokenNotFound,
    InvalidTransition,
    NonDeterministic,
    RunConflict,
    RunNotFound,
    RunTerminal,
)
from flowpg.model import jsontext
from flowpg.model.arguments import check_size, check_start, created_payload
from flowpg.model.events import (
    CHILD_OPERATION_LINKED,
    HOOK_DISPOSED,
    HOOK_RECEIVED,
    RUN_CANCELLATION_REQUESTED,
    RUN_CREATED,
    RUN_PROGRESS_RECORDED,
    WAIT_COMPLETED,
    FlowEventEnvelope,
    NewEvent,
)
from flowpg.model.ids import new_run_id
from flowpg.model.inspection import ScheduledWakeup, WakeupKind
from flowpg.model.operations import ChildOperationReference, WorkflowProgress
from flowpg.model.records import StartRequest, VerbResult
from flowpg.model.snapshot import HookSnapshot, HookStatus, WaitStatus
from flowpg.store.memory_state import Run, State, stored, time_text


def start(state: State, request: StartRequest, woken: set[str] | None = None) -> VerbResult:
    """Create the run, or recognise it: RunConflict if its spec or input is another.

    ``woken`` are the runs that this call has woken already: starting many wakes each once.
    """
    spec, text = check_start(request)
    now = state.now()
    run_id = request.run_id or new_run_id(int(now.timestamp() * 1000))
    run = state.runs.get(run_id)
    if run is not None:
        recorded = run.history[0].data
        if not jsontext.equal(recorded["spec"], jsontext.decode(spec)):
            raise RunConflict(run_id, "workflow spec differs")
        if not jsontext.equal(recorded["input"], jsontext.decode(text)):
            raise RunConflict(run_id, "workflow input differs")
        if woken is None or run_id not in woken:
            wake(state, run_id)
    else:
        event = NewEvent(RUN_CREATED, {}, text=created_payload(spec, text))
        state.fold_in(run_id, [stored(event)], now, request.queue)
        state.enqueue(run_id)
    if woken is not None:
        woken.add(run_id)
    return VerbResult(run_id, run is None, state.run(run_id).head)


def resume_wait(state: State, run_id: str, wait_id: str) -> VerbResult:
    """Complete a timer that is due."""
    run, now = state.run(run_id), state.now()
    wait = run.snapshot.waits.get(wait_id)
    if wait is None:
        raise _unknown(run, f"wait {wait_id} does not exist")
    if run.terminal or wait.status is not WaitStatus.WAITING:
        return _redelivered(state, run, wait_id)
    if now < wait.resume_at:
        due = time_text(wait.resume_at)
        raise InvalidTransition(f"wait {wait_id} is not due before {due}", run_id=run_id)
    return _applied(state, run, WAIT_COMPLETED, {"wait_id": wait_id}, wait_id)


def sweep(
    state: State, kind: WakeupKind, as_of: datetime | None, limit: int, run_id: str | None
) -> list[ScheduledWakeup]:
    """Complete every due timer, or dispose every expired hook; returns what this call did."""
    now = state.now()
    until = as_of or now
    runs = state.runs.values() if run_id is None else [state.run(run_id)]
    rows = [row for run in runs for row in run.wakeups.values()]
    due = [row for row in rows if row.kind is kind and row.due_at <= until]
    due.sort(key=lambda row: (row.due_at, row.run_id, row.subject_id))
    for row in due[:limit]:
        subject = row.subject_id
        if kind is WakeupKind.WAIT:
            event = NewEvent(WAIT_COMPLETED, {"wait_id": subject})
        else:
            event = NewEvent(HOOK_DISPOSED, {"hook_id": subject})
        state.fold_in(row.run_id, [stored(event)], now)
    for woken in dict.fromkeys(row.run_id for row in due[:limit]):
        state.enqueue(woken)  # once a run, however much of it was due
    return [ScheduledWakeup(row.run_id, kind, row.subject_id, row.due_at) for row in due[:limit]]


def resume_hook(
    state: State, run_id: str, hook_id: str, payload: str, checked: str | None
) -> VerbResult:
    """Answer a hook; ``payload`` is JSON text, ``checked`` that of the schema that it fits."""
    run = state.run(run_id)
    hook = _hook(run, hook_id)
    if hook.status is HookStatus.RECEIVED:
        if jsontext.equal(hook.payload, jsontext.decode(payload)):
            return _redelivered(state, run, hook_id)
        raise HookConflict(run_id, hook_id, "it was answered with another payload")
    if hook.status is HookStatus.DISPOSED:
        raise HookConflict(run_id, hook_id, "it was disposed")
    _refuse_closed(run, hook)
    if checked is not None and hook.payload_schema is not None:
        schema = jsontext.encode(hook.payload_schema)
        if schema != checked:
            return VerbResult(run_id, False, run.head, hook_id, schema)
    text = f'{{"hook_id":{jsontext.encode(hook_id)},"payload":{payload}}}'
    check_size(run_id, HOOK_RECEIVED, text)
    return _applied(state, run, HOOK_RECEIVED, {"hook_id": hook_id}, hook_id, text)


def dispose_hook(state: State, run_id: str, hook_id: str) -> VerbResult:
    """Withdraw a hook."""
    run = state.run(run_id)
    hook = _hook(run, hook_id)
    if hook.status is HookStatus.DISPOSED:
        return _redelivered(state, run, hook_id)
    if hook.status is HookStatus.RECEIVED:
        raise HookConflict(run_id, hook_id, "it was answered")
    _refuse_closed(run, hook)
    return _applied(state, run, HOOK_DISPOSED, {"hook_id": hook_id}, hook_id)


def owner_of(state: State, token: str) -> tuple[str, str]:
    """Run and hook of the active hook with this token, or HookTokenNotFound."""
    owner = state.tokens.get(token)
    if owner is None:
        raise HookTokenNotFound(token)
    return owner


def request_cancellation(state: State, run_id: str, reason: str | None) -> VerbResult:
    """Ask a run to clean up and end."""
    run = state.run(run_id)
    recorded = run.snapshot.cancellation
    if recorded is not None and not run.terminal and recorded.reason != reason:
        raise RunConflict(run_id, "cancellation was requested with another reason")
    if run.terminal or recorded is not None:
        return _redelivered(state, run, None)
    request = {} if reason is None else {"reason": reason}
    return _applied(state, run, RUN_CANCELLATION_REQUESTED, {"request": request})


def end(state: State, run_id: str, event: NewEvent) -> VerbResult:
    """End a run at once with a terminal event; nothing happens if it has ended already."""
    run = state.run(run_id)
    if run.terminal:
        return _redelivered(state, run, None)
    return _applied(state, run, event.type, event.data)


def record_progress(state: State, run_id: str, progress: WorkflowProgress) -> VerbResult:
    """Record a progress report."""
    run, subject = state.run(run_id), progress.progress_id
    for recorded in run.snapshot.progress:
        if recorded.progress_id == subject:
            same = jsontext.equal(recorded.wire(), progress.wire())
            return _repeated(state, run, subject, same, "progress")
    if run.terminal:
        raise RunTerminal(run_id, run.status.value)
    data = {"progress": progress.wire()}
    return _applied(state, run, RUN_PROGRESS_RECORDED, data, subject)


def link_child_operation(state: State, run_id: str, child: ChildOperationReference) -> VerbResult:
    """Record a link to work that something else owns."""
    run, subject = state.run(run_id), child.reference_id
    recorded = run.snapshot.child_operations.get(subject)
    if recorded is not None:
        same = jsontext.equal(recorded.wire(), child.wire())
        return _repeated(state, run, subject, same, "child operation")
    if run.terminal:
        raise RunTerminal(run_id, run.status.value)
    if child.flow_run_id is not None and child.flow_run_id not in state.runs:
        raise RunNotFound(child.flow_run_id)
    data = {"child": child.wire()}
    return _applied(state, run, CHILD_OPERATION_LINKED, data, subject)


def import_history(
    state: State, run_id: str, history: Sequence[FlowEventEnvelope], queue: str
) -> None:
    """Store a legal history of a new run as it is."""
    if run_id in state.runs:
        raise RunConflict(run_id, "the run exists already")
    as_is = [lambda _run, _sequence, _now, event=event: event for event in history]
    state.fold_in(run_id, as_is, state.now(), queue)
    wake(state, run_id)


def wake(state: State, run_id: str) -> None:
    """Enqueue the run, unless it has ended."""
    if not state.run(run_id).terminal:
        state.enqueue(run_id)


def _applied(
    state: State,
    run: Run,
    event_type: str,
    data: dict[str, Any],
    subject: str | None = None,
    text: str | None = None,
) -> VerbResult:
    event = NewEvent(event_type, data, text=text)
    state.fold_in(run.run_id, [stored(event)], state.now())
    state.enqueue(run.run_id)
    return VerbResult(run.run_id, True, run.head, subject)


def _redelivered(state: State, run: Run, subject: str | None) -> VerbResult:
    wake(state, run.run_id)
    return VerbResult(run.run_id, False, run.head, subject)


def _repeated(state: State, run: Run, subject: str, same: bool, what: str) -> VerbResult:
    if not same:
        raise NonDeterministic(run.run_id, f"{what} {subject} was recorded with another value")
    return _redelivered(state, run, subject)


def _hook(run: Run, hook_id: str) -> HookSnapshot:
    hook = run.snapshot.hooks.get(hook_id)
    if hook is None:
        raise _unknown(run, f"hook {hook_id} does not exist")
    return hook


def _refuse_closed(run: Run, hook: HookSnapshot) -> None:
    if hook.status is HookStatus.CONFLICTED:
        raise HookConflict(run.run_id, hook.hook_id, "its token belonged to another hook")
    if run.terminal:
        raise RunTerminal(run.run_id, run.status.value)
    if hook.status is HookStatus.CANCELLED:
        raise HookConflict(run.run_id, hook.hook_id, "it was cancelled")


def _unknown(run: Run, reason: str) -> RunTerminal | InvalidTransition:
    if run.terminal:
        return RunTerminal(run.run_id, run.status.value)
    return InvalidTransition(reason, run_id=run.run_id)
