"""Properties of folding that hold for every history."""

from copy import deepcopy
from datetime import datetime, timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from flowpg.errors import InvalidTransition
from flowpg.model import jsontext
from flowpg.model.events import DEADLINE_FIELDS, FlowEventEnvelope, NewEvent
from flowpg.model.snapshot import (
    HookStatus,
    OpenWork,
    RunStatus,
    StepStatus,
    WaitStatus,
    WorkflowRunSnapshot,
)
from flowpg.model.times import format_time
from flowpg.model.typed import typed
from flowpg.replay import projection
from flowpg.replay.repair import due_events, due_retries, next_deadline, repair_events
from tests.unit.generators import broken_histories, examples, legal_histories
from tests.unit.histories import NOW, RUN, SECOND, add, begun, fold

HOUR = timedelta(hours=1)


def as_stored(history: list[NewEvent], recorded_at: datetime) -> list[FlowEventEnvelope]:
    """What a store keeps of these events when it records all of them at one time."""
    stored = []
    for number, one in enumerate(history, 1):
        data = dict(one.data)
        if one.due_in is not None:
            data[DEADLINE_FIELDS[one.type]] = format_time(recorded_at + one.due_in)
        payload = jsontext.encode(data)
        stored.append(FlowEventEnvelope(RUN, number, "id", recorded_at, one.type, payload=payload))
    return stored


def scanned(run: WorkflowRunSnapshot) -> OpenWork:
    """The open work of a run, found the slow way."""
    steps = {key: one for key, one in run.steps.items() if one.status.open}
    hooks = {key: one for key, one in run.hooks.items() if one.status is HookStatus.ACTIVE}
    return OpenWork(
        steps=steps,
        delayed={key: one for key, one in steps.items() if one.retry_after is not None},
        waits={key: one for key, one in run.waits.items() if one.status is WaitStatus.WAITING},
        hooks=hooks,
        timed_hooks={key: one for key, one in hooks.items() if one.expires_at is not None},
        progress={one.progress_id: one for one in run.progress},
        fatal_step=run.open.fatal_step,
        exhausted=run.open.exhausted,
    )


@examples(75)
@given(legal_histories(), st.data())
def test_folding_forward_from_any_point_equals_projecting_anew(
    history: list[NewEvent], data: st.DataObject
) -> None:
    stored = as_stored(history, NOW)
    whole = projection.project(RUN, stored)
    cut = data.draw(st.integers(1, len(stored)))
    forward = projection.project(RUN, stored[:cut])
    projection.fold_onto(forward, stored[cut:])
    assert forward == whole
    assert forward.open == whole.open
    assert jsontext.encode(forward.wire()) == jsontext.encode(whole.wire())


@examples(75)
@given(legal_histories())
def test_events_folded_ahead_of_the_store_equal_those_it_recorded(history: list[NewEvent]) -> None:
    provisional = fold(*history, now=NOW)
    projection.restamp(provisional, history, NOW + HOUR)
    recorded = projection.project(RUN, as_stored(history, NOW + HOUR))
    assert provisional == recorded
    assert provisional.open == recorded.open


@examples(75)
@given(legal_histories())
def test_what_is_open_is_known_without_a_scan_and_decides_what_is_suspended(
    history: list[NewEvent],
) -> None:
    first, *others = history
    run = begun(first)
    for one in others:
        add(run, one)
        assert run.open == scanned(run)
        if run.status in (RunStatus.RUNNING, RunStatus.SUSPENDED):
            assert (run.status is RunStatus.SUSPENDED) == run.open.suspends


@examples(200)
@given(broken_histories())
def test_an_event_that_may_not_follow_is_an_invalid_transition_and_changes_nothing(
    history: list[tuple[str, Any, int]],
) -> None:
    run: WorkflowRunSnapshot | None = None
    for kind, data, sequence in history:
        before = deepcopy(run)
        refused: InvalidTransition | None = None
        try:
            run = projection.apply(run, RUN, kind, data, sequence, NOW)
        except InvalidTransition as error:
            refused = error
        if refused is None:
            assert run is not None
            assert run.last_sequence == sequence
        else:
            assert refused.run_id == RUN
            assert run == before
            assert run is None or before is None or run.open == before.open


@examples(50)
@given(legal_histories())
def test_every_legal_event_is_read_as_its_model(history: list[NewEvent]) -> None:
    for envelope in as_stored(history, NOW):
        assert typed(envelope).type == envelope.type


@examples(75)
@given(legal_histories(), st.integers(0, 40))
def test_what_a_run_is_owed_may_always_be_folded(history: list[NewEvent], days: int) -> None:
    run = fold(*history)
    later = NOW + timedelta(days=days)
    deadline = next_deadline(run)
    due = due_events(run, later)
    retries = due_retries(run, later)
    if run.status is not RunStatus.PENDING:
        assert bool(due or retries.events) == (deadline is not None and deadline <= later)
    add(run, *due, *retries.events)
    assert due_events(run, later) == []
    assert due_retries(run, later).events == []
    repairs = repair_events(run)
    add(run, *repairs)
    assert repair_events(run) == []
    if repairs:
        assert run.terminal
        assert not run.open.steps


@examples(50)
@given(legal_histories())
def test_folding_never_changes_the_payloads_it_refers_to(history: list[NewEvent]) -> None:
    before = deepcopy([one.data for one in history])
    run = fold(*history)
    projection.restamp(run, history, NOW + SECOND)
    run.wire()
    assert [one.data for one in history] == before


@examples(50)
@given(legal_histories())
def test_no_step_has_more_attempts_than_its_policy_allows(history: list[NewEvent]) -> None:
    for one in fold(*history).steps.values():
        assert 0 <= one.attempt <= one.retry.attempts
        if one.status is StepStatus.COMPLETED:
            assert one.error is None
