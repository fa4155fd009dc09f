"""Which events may follow a run's history: what a worker could append next."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

from hypothesis import strategies as st

from flowpg.model import events
from flowpg.model.events import NewEvent
from flowpg.model.retry import RetryPolicy
from flowpg.model.snapshot import RunStatus, StepSnapshot, StepStatus, WorkflowRunSnapshot

START = datetime(2030, 5, 6, 7, 8, 9, 123456, tzinfo=UTC)
SUBJECTS = ["x", "y", "ü"]
TOKENS = ["t1", "t2", "t3"]
VALUES = [None, 0, 1, 1.0, True, "", "a\x00b", [1], {"a": {"b": "ü"}}, "\ud800"]
RETRY = RetryPolicy.fixed(3, timedelta(seconds=7))

values = st.sampled_from(VALUES)
names = st.sampled_from(["customer", "ü"])
attributes = st.sampled_from([None, "acme", 1, 2.5, True])
durations = st.sampled_from([timedelta(0), timedelta(seconds=7), timedelta(minutes=2)])


def next_event(run: WorkflowRunSnapshot) -> st.SearchStrategy[NewEvent]:
    """An event that may follow."""
    if run.status is RunStatus.PENDING:
        return st.just(events.run_started())
    moves: list[st.SearchStrategy[NewEvent]] = []
    if run.last_sequence > 10:  # a run that has ended is of little interest
        moves.append(st.just(events.run_failed("no")))
    if free := _unused(run.waits):
        subject = st.sampled_from(free)
        moves.append(st.builds(events.wait_created, subject, delay=durations))
        moves.append(st.builds(events.wait_created, subject, resume_at=st.just(START)))
    if free := _unused(run.hooks):
        subject = st.sampled_from(free)
        expiry = st.none() | durations
        token = st.sampled_from(TOKENS)
        moves.append(st.builds(events.hook_created, subject, token, values, expires_in=expiry))
        owner = st.sampled_from(SUBJECTS)
        moves.append(st.builds(events.hook_conflicted, subject, st.just("owner"), owner))
    if free := _unused(run.steps):
        subject = st.sampled_from(free)
        created = st.builds(
            events.step_created, subject, st.just("charge"), values, st.just(RETRY.wire())
        )
        moves.append(created)
    if run.open.waits:
        moves.append(st.builds(events.wait_completed, st.sampled_from([*run.open.waits])))
        moves.append(st.builds(events.wait_cancelled, st.sampled_from([*run.open.waits])))
    if run.open.hooks:
        moves.append(st.builds(events.hook_disposed, st.sampled_from([*run.open.hooks])))
    for step in run.open.steps.values():
        moves += _of_step(step)
        moves.append(st.just(events.step_cancelled(step.step_id, step.attempt, "given up")))
    moves.append(st.builds(_attributes, st.dictionaries(names, attributes, min_size=1)))
    if free := _unused(run.patches):
        moves.append(st.builds(events.patch_recorded, st.sampled_from(free)))
    return st.one_of(moves) if moves else st.just(events.run_failed("no"))


def _unused(known: Mapping[str, object]) -> list[str]:
    return [subject for subject in SUBJECTS if subject not in known]


def _attributes(changes: dict[str, object]) -> NewEvent:
    return NewEvent(events.RUN_ATTRIBUTES_SET, {"attributes": changes})


def _of_step(step: StepSnapshot) -> list[st.SearchStrategy[NewEvent]]:
    name, attempt = step.step_id, step.attempt
    if step.status is StepStatus.PENDING:
        return [st.just(events.step_started(name, attempt + 1))]
    if attempt < RETRY.attempts:
        delay = RETRY.delay_after("", name, attempt)
        failed = events.step_retrying(name, attempt, "busy", delay)
    else:
        failed = events.step_failed(name, attempt, "busy")
    return [st.just(failed), st.builds(events.step_completed, st.just(name), values)]
