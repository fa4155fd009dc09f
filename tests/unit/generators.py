"""Hypothesis strategies: JSON values, legal histories, and histories that someone broke."""

import os
from collections.abc import Callable
from copy import deepcopy
from datetime import timedelta
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st

from flowpg.model import events
from flowpg.model.events import NewEvent
from flowpg.model.operations import ChildOperationReference, WorkflowProgress
from flowpg.model.retry import RetryPolicy
from flowpg.model.snapshot import RunStatus, StepSnapshot, StepStatus, WorkflowRunSnapshot
from tests.unit.histories import NOW, RUN, add, begun, cancellation, created, event, received, step


def examples(number: int) -> settings:
    """So many examples of a property, and thirty times as many in a storm."""
    many = 30 if os.environ.get("FLOWPG_STORM") else 1
    return settings(max_examples=number * many, deadline=None)


# Any code point, lone surrogates and NUL included.
any_text = st.text(st.characters(exclude_categories=()), max_size=12)
plain_text = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=8)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(min_value=2**53, max_value=2**70),
    st.floats(allow_nan=False, allow_infinity=False),
    any_text,
)
json_values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(any_text, inner, max_size=4)
    ),
    max_leaves=8,
)

policies = st.one_of(
    st.sampled_from([RetryPolicy(), RetryPolicy.none(), RetryPolicy(max_attempts=0)]),
    st.builds(
        RetryPolicy.fixed,
        st.integers(0, 4),
        st.timedeltas(min_value=timedelta(0), max_value=timedelta(days=9)),
    ),
    st.builds(
        RetryPolicy.exponential,
        st.integers(0, 4),
        st.timedeltas(min_value=timedelta(0), max_value=timedelta(hours=1)),
        st.timedeltas(min_value=timedelta(0), max_value=timedelta(days=3)),
    ),
).flatmap(lambda one: st.sampled_from([one, one.continue_workflow_on_failure()]))

delays = st.timedeltas(min_value=timedelta(0), max_value=timedelta(days=30))
_ids = st.sampled_from(["a", "b", "c", "d", "é😀", "e" * 40])
_Draw = Callable[[st.SearchStrategy[Any]], Any]


@st.composite
def legal_histories(draw: _Draw, max_events: int = 25) -> list[NewEvent]:
    """Events that may follow one another, deadlines left for the store to compute included."""
    made = [created(draw(json_values))]
    run = begun(made[0])
    for _ in range(draw(st.integers(0, max_events))):
        choices = _choices(run)
        if not choices:
            break
        following = draw(st.sampled_from(choices))(draw)
        made.append(following)
        add(run, following)
    return made


@st.composite
def broken_histories(draw: _Draw) -> list[tuple[str, Any, int]]:
    """Type, payload and sequence of events that were legal until one to three things happened."""
    history = [
        (one.type, deepcopy(one.data), number)
        for number, one in enumerate(draw(legal_histories(12)), 1)
    ]
    for _ in range(draw(st.integers(1, 3))):
        if not history:
            break
        place = draw(st.integers(0, len(history) - 1))
        draw(st.sampled_from(_DAMAGES))(draw, history, place)
    return history


def _choices(run: WorkflowRunSnapshot) -> list[Callable[[_Draw], NewEvent]]:
    """What may come next, as functions that draw the details."""
    if run.terminal:
        return []
    if run.status is RunStatus.PENDING:
        return [lambda draw: events.run_started()] * 4 + [
            lambda draw: cancellation(draw(st.none() | any_text)),
            lambda draw: events.run_cancelled(draw(st.none() | any_text)),
        ]
    # Ends are rare, or histories would be short.
    choices: list[Callable[[_Draw], NewEvent]] = [_ends(run)] if run.last_sequence > 8 else []
    if run.cancellation is None and run.last_sequence > 5:
        choices.append(lambda draw: cancellation(draw(st.none() | any_text)))
    choices += [_new_step(run), _new_wait(run), _new_hook(run), _refused_hook(run), _note(run)]
    for one in run.open.steps.values():
        choices.append(_step_event(one))
        choices.append(_step_event(one))
    choices += [_of(events.wait_completed, wait) for wait in run.open.waits]
    choices += [_of(events.wait_cancelled, wait) for wait in run.open.waits]
    choices += [_of(events.hook_disposed, hook) for hook in run.open.hooks]
    choices += [_answer(hook) for hook in run.open.hooks]
    return choices


def _unused(draw: _Draw, used: Any) -> str:
    name = str(draw(_ids))
    return name if name not in used else f"{name}-{len(used)}"


def _new_step(run: WorkflowRunSnapshot) -> Callable[[_Draw], NewEvent]:
    return lambda draw: step(_unused(draw, run.steps), draw(policies), draw(json_values))


def _new_wait(run: WorkflowRunSnapshot) -> Callable[[_Draw], NewEvent]:
    def make(draw: _Draw) -> NewEvent:
        wait_id = _unused(draw, run.waits)
        if draw(st.booleans()):
            return events.wait_created(wait_id, resume_at=NOW + draw(delays))
        return events.wait_created(wait_id, delay=draw(delays))

    return make


def _new_hook(run: WorkflowRunSnapshot) -> Callable[[_Draw], NewEvent]:
    return lambda draw: events.hook_created(
        _unused(draw, run.hooks),
        draw(plain_text),
        draw(json_values),
        expires_in=draw(st.none() | delays),
        on_conflict=draw(st.sampled_from(["wait", "raise"])),
    )


def _refused_hook(run: WorkflowRunSnapshot) -> Callable[[_Draw], NewEvent]:
    return lambda draw: events.hook_conflicted(
        _unused(draw, run.hooks), draw(st.sampled_from(["r", RUN])), draw(_ids)
    )


def _note(run: WorkflowRunSnapshot) -> Callable[[_Draw], NewEvent]:
    def make(draw: _Draw) -> NewEvent:
        if draw(st.booleans()):
            progress = WorkflowProgress(
                progress_id=f"p-{len(run.progress)}",
                completed=draw(st.integers(0, 5)),
                total=draw(st.none() | st.integers(5, 9)),
                message=draw(st.none() | any_text),
                details=draw(json_values),
            )
            return event(events.RUN_PROGRESS_RECORDED, progress=progress.wire())
        child = ChildOperationReference(
            reference_id=f"r-{len(run.child_operations)}",
            kind="batch",
            operation_id="77",
            flow_run_id=draw(st.none() | st.just("run-2")),
            metadata=draw(json_values),
        )
        return event(events.CHILD_OPERATION_LINKED, child=child.wire())

    return make


def _step_event(one: StepSnapshot) -> Callable[[_Draw], NewEvent]:
    def make(draw: _Draw) -> NewEvent:
        step_id, attempt, error = one.step_id, one.attempt, draw(any_text)
        if draw(st.integers(0, 9)) == 0:
            return events.step_cancelled(step_id, attempt, error)
        if one.status is StepStatus.PENDING:
            return events.step_started(step_id, attempt + 1)
        if draw(st.integers(0, 5)) == 0:
            return events.step_non_retryable(step_id, attempt, error)
        if draw(st.booleans()):
            return events.step_completed(step_id, draw(json_values))
        if attempt >= one.retry.attempts:
            return events.step_failed(step_id, attempt, error)
        delay = one.retry.delay_after(RUN, step_id, attempt)
        if draw(st.booleans()):
            return events.step_retrying(step_id, attempt, error, draw(delays), requested=True)
        return events.step_retrying(step_id, attempt, error, delay)

    return make


def _ends(run: WorkflowRunSnapshot) -> Callable[[_Draw], NewEvent]:
    def make(draw: _Draw) -> NewEvent:
        ends = [
            events.run_failed(draw(any_text)),
            events.run_cancelled(draw(st.none() | any_text)),
            events.run_timed_out(NOW + draw(delays), draw(st.none() | any_text)),
            event(events.RUN_HOST_SHUTDOWN, reason=draw(st.none() | any_text)),
        ]
        if not run.open.steps:
            ends += [events.run_completed(draw(json_values))] * 3
        fatal = run.steps.get(run.open.fatal_step or "")
        if fatal is not None and fatal.error is not None:
            ends += [events.run_retry_exhausted(fatal.step_id, fatal.attempt, fatal.error)] * 3
        made: NewEvent = draw(st.sampled_from(ends))
        return made

    return make


def _of(make: Callable[[str], NewEvent], subject: str) -> Callable[[_Draw], NewEvent]:
    return lambda draw: make(subject)


def _answer(hook_id: str) -> Callable[[_Draw], NewEvent]:
    return lambda draw: received(hook_id, draw(json_values))


# -- damages --------------------------------------------------------------------------------------

_History = list[tuple[str, Any, int]]
_event_types = st.sampled_from([*events.EVENT_KEYS, "signal_received", ""])


def _drop(draw: _Draw, history: _History, place: int) -> None:
    del history[place]


def _repeat(draw: _Draw, history: _History, place: int) -> None:
    history.insert(place, deepcopy(history[place]))


def _swap(draw: _Draw, history: _History, place: int) -> None:
    other = draw(st.integers(0, len(history) - 1))
    history[place], history[other] = history[other], history[place]


def _renumber(draw: _Draw, history: _History, place: int) -> None:
    # What remains is numbered without a gap, so that the other rules are what refuses it.
    history[:] = [(kind, data, number) for number, (kind, data, _) in enumerate(history, 1)]


def _number(draw: _Draw, history: _History, place: int) -> None:
    kind, data, _ = history[place]
    history[place] = (kind, data, draw(st.integers(-1, 30)))


def _retype(draw: _Draw, history: _History, place: int) -> None:
    _, data, number = history[place]
    history[place] = (draw(_event_types), data, number)


def _payload(draw: _Draw, history: _History, place: int) -> None:
    kind, _, number = history[place]
    history[place] = (kind, draw(json_values), number)


def _member(draw: _Draw, history: _History, place: int) -> None:
    _, data, _ = history[place]
    while isinstance(data, dict) and data:
        name = draw(st.sampled_from(list(data)))
        inner = data[name]
        if isinstance(inner, dict) and inner and draw(st.booleans()):
            data = inner
            continue
        if draw(st.booleans()):
            del data[name]
        else:
            data[name] = draw(st.one_of(json_values, st.sampled_from(_ODD)))
        return


_ODD: list[Any] = ["", " ", -1, 0, 1.0, True, 2**70, "9999-12-31T23:59:59.9999999Z", {}, [], "a"]
_DAMAGES = [_drop, _repeat, _swap, _renumber, _number, _retype, _payload, _member, _member]
