"""The inspection verbs of the store in memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime

from flowpg.model.events import FlowEventEnvelope
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
from flowpg.store.memory_state import Run, State, Wakeup

_ORDER = {SuspensionKind.WAIT: 0, SuspensionKind.HOOK: 1, SuspensionKind.RETRY: 2}


def load(
    state: State, run_ids: Sequence[str], after: Sequence[int] | None = None
) -> dict[str, LoadedRun]:
    """The histories of these runs, whole or after a sequence, unknown ones left out."""
    loaded, now = {}, state.now()
    for run_id, known in zip(run_ids, after or [0] * len(run_ids), strict=True):
        run = state.runs.get(run_id)
        if run is not None:
            task = state.tasks.get(run_id)
            wakes = task.wakes if task is not None else 0
            history = copies(run.history[known:])
            loaded[run_id] = LoadedRun(run_id, run.head, run.status, wakes, now, history, known)
    return loaded


def copies(history: Sequence[FlowEventEnvelope]) -> list[FlowEventEnvelope]:
    """The same envelopes, to be decoded anew: nobody outside shares values with the store."""
    return [
        FlowEventEnvelope(
            event.run_id,
            event.sequence,
            event.event_id,
            event.recorded_at,
            event.type,
            payload=event.payload,
            schema_version=event.schema_version,
        )
        for event in history
    ]


def row(run: Run) -> RunRow:
    """One run as the list page shows it."""
    spec = run.snapshot.spec
    return RunRow(
        run_id=run.run_id,
        workflow_name=spec.name,
        workflow_version=spec.version,
        runtime_build=spec.runtime_build,
        queue=run.queue,
        status=run.status,
        head_sequence=run.head,
        blocked_reason=run.blocked_reason,
        created_at=run.created_at,
        updated_at=run.updated_at,
        ended_at=run.ended_at,
        attributes=dict(run.snapshot.attributes),
    )


def list_runs(
    state: State,
    status: RunStatus | None,
    workflow_name: str | None,
    queue: str | None,
    blocked: bool | None,
    after: RunRow | None,
    limit: int,
) -> list[RunRow]:
    """Runs, newest first."""
    found = [
        item
        for item in map(row, state.runs.values())
        if (status is None or item.status is status)
        and (workflow_name is None or item.workflow_name == workflow_name)
        and (queue is None or item.queue == queue)
        and (blocked is None or (item.blocked_reason is not None) is blocked)
        and (after is None or _place(item) > _place(after))
    ]
    return sorted(found, key=_place)[:limit]


def summary(state: State) -> WorkflowRunSummary:
    """Counts over all runs."""
    runs = Counter(run.status for run in state.runs.values())
    rows = Counter(wakeup.kind for run in state.runs.values() for wakeup in run.wakeups.values())
    terminal = sum(count for status, count in runs.items() if status.terminal)
    return WorkflowRunSummary(
        total=len(state.runs),
        **{status.value: runs[status] for status in RunStatus},
        terminal=terminal,
        non_terminal=len(state.runs) - terminal,
        open_waits=rows[WakeupKind.WAIT],
        active_hooks=len(state.tokens),
        pending_retries=rows[WakeupKind.STEP_RETRY],
    )


def suspensions(
    state: State, run_id: str | None, as_of: datetime | None
) -> list[WorkflowRunSuspension]:
    """What runs wait for, ordered by run, kind, subject."""
    until = as_of or state.now()
    found: list[tuple[str, SuspensionKind, str, datetime | None]] = []
    for run in _selected(state, run_id):
        for wakeup in run.wakeups.values():
            if wakeup.kind is not WakeupKind.HOOK_EXPIRY:
                timer = wakeup.kind is WakeupKind.WAIT
                kind = SuspensionKind.WAIT if timer else SuspensionKind.RETRY
                found.append((run.run_id, kind, wakeup.subject_id, wakeup.due_at))
        found.extend(
            (run.run_id, SuspensionKind.HOOK, hook.hook_id, hook.expires_at)
            for hook in run.hooks.values()
        )
    found.sort(key=lambda item: (item[0], _ORDER[item[1]], item[2]))
    return [
        WorkflowRunSuspension(run, kind, subject, due_at, due_at <= until if due_at else None)
        for run, kind, subject, due_at in found
    ]


def active_hooks(state: State, run_id: str | None) -> list[ActiveHookSnapshot]:
    """Hooks that can be answered, ordered by run and hook."""
    found = [
        ActiveHookSnapshot(
            run_id=hook.run_id,
            hook_id=hook.hook_id,
            token=hook.token,
            metadata=run.snapshot.hooks[hook.hook_id].metadata,
            expires_at=hook.expires_at,
            created_at=hook.created_at,
            payload_schema=run.snapshot.hooks[hook.hook_id].payload_schema,
        )
        for run in _selected(state, run_id)
        for hook in run.hooks.values()
    ]
    return sorted(found, key=lambda hook: (hook.run_id, hook.hook_id))


def due_wakeups(
    state: State, as_of: datetime | None, kind: WakeupKind | None, limit: int
) -> list[ScheduledWakeup]:
    """The ``limit`` earliest deadlines that have passed, ordered by kind, run, subject."""
    until = as_of or state.now()
    due = [item for item in _wakeups(state) if item.due_at <= until and kind in (None, item.kind)]
    chosen = [_scheduled(state, item) for item in sorted(due, key=_earliest)[:limit]]
    return sorted(chosen, key=lambda item: (item.kind, item.run_id, item.subject_id))


def next_wakeup(state: State) -> ScheduledWakeup | None:
    """The earliest deadline."""
    first = min(_wakeups(state), key=_earliest, default=None)
    return None if first is None else _scheduled(state, first)


def _selected(state: State, run_id: str | None) -> list[Run]:
    return list(state.runs.values()) if run_id is None else [state.run(run_id)]


def _wakeups(state: State) -> list[Wakeup]:
    return [wakeup for run in state.runs.values() for wakeup in run.wakeups.values()]


def _scheduled(state: State, item: Wakeup) -> ScheduledWakeup:
    build = state.run(item.run_id).snapshot.spec.runtime_build
    return ScheduledWakeup(item.run_id, item.kind, item.subject_id, item.due_at, build)


def _earliest(item: Wakeup) -> tuple[datetime, str, str, str]:
    # Comparing by code points is comparing by UTF-8 bytes, as the database does.
    return item.due_at, item.run_id, item.kind.value, item.subject_id


def _place(item: RunRow) -> tuple[float, str]:
    return -item.created_at.timestamp(), item.run_id
