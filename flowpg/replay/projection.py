"""Folding a history into a snapshot, one event at a time and in place.

Every rule of the event stream is enforced here, also for histories that come from elsewhere: an
event that may not follow raises InvalidTransition and leaves the snapshot as it was. An event
costs the same however long the history is.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

from flowpg.errors import InvalidTransition, RunNotFound
from flowpg.model.events import (
    HOOK_CREATED,
    RUN_CANCELLATION_REQUESTED,
    RUN_CREATED,
    SCHEMA_VERSION,
    STEP_CREATED,
    STEP_RETRYING,
    STEP_STARTED,
    WAIT_CREATED,
    FlowEventEnvelope,
    NewEvent,
)
from flowpg.model.records import LoadedRun
from flowpg.model.snapshot import TERMINAL_STATUSES, RunStatus, StepStatus, WorkflowRunSnapshot
from flowpg.replay import (
    projection_notes,
    projection_run,
    projection_steps,
    projection_suspensions,
)
from flowpg.replay.fold import Fold

_FOLDS: dict[str, Fold] = {
    **projection_run.FOLDS,
    **projection_steps.FOLDS,
    **projection_suspensions.FOLDS,
    **projection_notes.FOLDS,
}


def apply(
    snapshot: WorkflowRunSnapshot | None,
    run_id: str,
    event_type: str,
    data: dict[str, Any],
    sequence: int,
    recorded_at: datetime,
    due_at: datetime | None = None,
) -> WorkflowRunSnapshot:
    """Fold one event into ``snapshot`` (None before the first) and return it.

    ``due_at`` is a deadline that the store computed and ``data`` does not hold yet. Payload values
    are referred to, not copied. Raises InvalidTransition (InvalidWorkflow for a spec that cannot
    be run) naming the run and the sequence; the snapshot is then unchanged.
    """
    try:
        if type(data) is not dict:
            raise InvalidTransition("its payload is not an object")
        if snapshot is None:
            return _first(run_id, event_type, data, sequence)
        if run_id != snapshot.run_id:
            raise InvalidTransition(f"it belongs to run {run_id!r}")
        if sequence != snapshot.last_sequence + 1:
            raise InvalidTransition(
                f"the stream is at {snapshot.last_sequence}, so the next must be "
                f"{snapshot.last_sequence + 1}"
            )
        _fold(snapshot, event_type, data, recorded_at, due_at)
    except InvalidTransition as error:
        run = snapshot.run_id if snapshot is not None else run_id
        raise _placed(error, run, event_type, sequence) from None
    return snapshot


def fold_new(snapshot: WorkflowRunSnapshot, events: Iterable[NewEvent], now: datetime) -> None:
    """Fold events that are not stored yet, as if they were recorded at ``now``, in place.

    ``restamp`` corrects their times once the store has recorded them. If it never does, the
    snapshot is useless and must be projected again. Raises as ``apply`` does; the events before the
    offending one are then folded in.
    """
    for event in events:
        due_at = event.due_at
        if event.due_in is not None:
            due_at = _due(event, now, snapshot.run_id)
        try:
            _fold(snapshot, event.type, event.data, now, due_at)
        except InvalidTransition as error:
            sequence = snapshot.last_sequence + 1
            raise _placed(error, snapshot.run_id, event.type, sequence) from None


def project(run_id: str, history: Iterable[FlowEventEnvelope]) -> WorkflowRunSnapshot:
    """The snapshot of a whole history. RunNotFound if it is empty, InvalidTransition if illegal,
    SerializationError if a payload is not JSON."""
    snapshot: WorkflowRunSnapshot | None = None
    for envelope in history:
        snapshot = _apply_envelope(snapshot, run_id, envelope)
    if snapshot is None:
        raise RunNotFound(run_id)
    return snapshot


def snapshot_of(loaded: LoadedRun) -> WorkflowRunSnapshot:
    """As ``project``, of a whole history that was loaded. Whether a step is in another queue than
    its run is not said there: a run that waits for one is suspended because its row says so."""
    snapshot = project(loaded.run_id, loaded.history)
    if loaded.status is RunStatus.SUSPENDED and snapshot.status is RunStatus.RUNNING:
        snapshot.status = RunStatus.SUSPENDED
    return snapshot


def fold_onto(
    snapshot: WorkflowRunSnapshot, envelopes: Iterable[FlowEventEnvelope]
) -> WorkflowRunSnapshot:
    """Fold further stored events into ``snapshot``, in place; raises as ``project`` does. After an
    error the events before the offending one are folded in."""
    run_id = snapshot.run_id
    for envelope in envelopes:
        snapshot = _apply_envelope(snapshot, run_id, envelope)
    return snapshot


def restamp(
    snapshot: WorkflowRunSnapshot, events: Iterable[NewEvent], recorded_at: datetime
) -> None:
    """Replace the provisional times of ``events``, folded by ``fold_new``, by those that follow
    from the time at which the store recorded them. All of them must be of one append."""
    for event in events:
        if event.type == RUN_CANCELLATION_REQUESTED and snapshot.cancellation is not None:
            snapshot.cancellation.requested_at = recorded_at
        if event.type == STEP_CREATED and "timeouts" in event.data:
            snapshot.steps[event.data["step_id"]].created_at = recorded_at
        if event.type == STEP_STARTED:
            started = snapshot.steps[event.data["step_id"]]
            if started.timeouts is not None and started.attempt == event.data["attempt"]:
                started.started_at = recorded_at
        if event.due_in is None:
            continue
        due_at = recorded_at + event.due_in
        if event.type == WAIT_CREATED:
            snapshot.waits[event.data["wait_id"]].resume_at = due_at
        elif event.type == HOOK_CREATED:
            snapshot.hooks[event.data["hook_id"]].expires_at = due_at
        elif event.type == STEP_RETRYING:
            step = snapshot.steps[event.data["step_id"]]
            # A later event of the same append may have started the next attempt already.
            if step.status is StepStatus.PENDING and step.attempt == event.data["attempt"]:
                step.retry_after = due_at


def concede_hook(snapshot: WorkflowRunSnapshot, conflict: dict[str, Any]) -> None:
    """Fold ``hook_conflicted`` (its payload) in place of the ``hook_created``, or other conflict,
    that was folded by ``fold_new`` and is not stored, with nothing about that hook after it."""
    projection_suspensions.concede(snapshot, conflict)
    if snapshot.status is RunStatus.SUSPENDED and not snapshot.open.suspends:
        snapshot.status = RunStatus.RUNNING


def _fold(
    snapshot: WorkflowRunSnapshot,
    event_type: str,
    data: dict[str, Any],
    at: datetime,
    due_at: datetime | None,
) -> None:
    """Fold the event that comes next. A refusal does not say yet of which event it is."""
    if snapshot.status in TERMINAL_STATUSES:
        raise InvalidTransition(f"the run has ended ({snapshot.status.value})")
    fold = _FOLDS.get(event_type)
    if fold is None:
        if event_type == RUN_CREATED:
            raise InvalidTransition("only the first event creates the run")
        raise InvalidTransition("this type of event is unsupported")
    fold(snapshot, data, at, due_at)
    snapshot.last_sequence += 1
    status = snapshot.status
    if status is RunStatus.RUNNING:
        work = snapshot.open
        if work.waits or work.hooks or work.delayed:
            snapshot.status = RunStatus.SUSPENDED
    elif status is RunStatus.SUSPENDED and not snapshot.open.suspends:
        snapshot.status = RunStatus.RUNNING


def _due(event: NewEvent, now: datetime, run_id: str) -> datetime:
    try:
        return now + (event.due_in or timedelta(0))
    except OverflowError:
        reason = f"{event.type}: its deadline would be after the year 9999"
        raise InvalidTransition(reason, run_id=run_id) from None


def _placed(
    error: InvalidTransition, run_id: str, event_type: object, sequence: int
) -> InvalidTransition:
    reason = f"{_shown(event_type)} cannot be event {sequence}: {error.reason}"
    return type(error)(reason, run_id=run_id)


def _first(
    run_id: str, event_type: str, data: dict[str, Any], sequence: int
) -> WorkflowRunSnapshot:
    if event_type != RUN_CREATED:
        raise InvalidTransition(f"a history begins with {RUN_CREATED}")
    if sequence != 1:
        raise InvalidTransition("a history begins at 1")
    return projection_run.created(run_id, data)


def _apply_envelope(
    snapshot: WorkflowRunSnapshot | None, run_id: str, envelope: FlowEventEnvelope
) -> WorkflowRunSnapshot:
    version = envelope.schema_version
    if version is not None and version != SCHEMA_VERSION:
        raise InvalidTransition(
            f"event {envelope.sequence} has schema version {version}, which is unsupported: this "
            f"release reads version {SCHEMA_VERSION}",
            run_id=run_id,
        )
    if envelope.run_id != run_id:
        raise InvalidTransition(
            f"event {envelope.sequence} belongs to run {envelope.run_id!r}", run_id=run_id
        )
    return apply(
        snapshot,
        run_id,
        envelope.type,
        envelope.data,
        envelope.sequence,
        envelope.recorded_at,
    )


def _shown(event_type: object) -> str:
    # The type of an event from elsewhere is a text of any length.
    return event_type[:60] if isinstance(event_type, str) else "an event without a type"
