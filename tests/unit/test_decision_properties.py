"""Properties of decisions and outcomes that hold for every run."""

from copy import deepcopy
from datetime import timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from flowpg.errors import (
    InvalidTransition,
    NonDeterministic,
    PayloadTooLarge,
    SerializationError,
)
from flowpg.model import jsontext
from flowpg.model.commands import (
    Cancel,
    Complete,
    CreateHook,
    Fail,
    LinkChildOperation,
    RecordProgress,
    RuntimeCommand,
    ScheduleStep,
    ScheduleSteps,
    StepCommand,
    Timeout,
    WaitUntil,
)
from flowpg.model.events import NewEvent
from flowpg.model.operations import ChildOperationReference, WorkflowProgress
from flowpg.model.snapshot import StepStatus, WorkflowRunSnapshot
from flowpg.replay.decision import decide
from flowpg.replay.outcomes import Failure, Success, settle
from flowpg.replay.plan import Plan
from tests.unit.generators import any_text, delays, examples, json_values, legal_histories, policies
from tests.unit.histories import NOW, add, fold

_ids = st.sampled_from(["a", "b", "c", "a-1", "b-1", "c-2", "new", "", "x" * 600, "\ud800"])
_odd_values: list[Any] = [{1, 2}, float("nan"), (1, (2,)), {1: 2}, object()]
_values = st.one_of(json_values, st.sampled_from(_odd_values))


def _steps(kind: type[Any]) -> st.SearchStrategy[Any]:
    return st.builds(
        kind, step_id=_ids, step_name=st.sampled_from(["work", "other", " "]), input=_values,
        retry=policies,
    )  # fmt: skip


commands: st.SearchStrategy[RuntimeCommand] = st.one_of(
    _steps(ScheduleStep),
    st.builds(ScheduleSteps, steps=st.lists(_steps(StepCommand), max_size=3).map(tuple)),
    st.builds(
        WaitUntil,
        wait_id=_ids,
        resume_at=st.none() | st.datetimes() | st.datetimes(timezones=st.timezones()),
        delay=st.none() | st.timedeltas(),
    ),
    st.builds(
        CreateHook,
        hook_id=_ids,
        token=any_text,
        metadata=_values,
        expires_in=st.none() | st.timedeltas(),
    ),
    st.builds(
        RecordProgress,
        progress=st.builds(
            WorkflowProgress,
            progress_id=st.sampled_from(["p-0", "p-1", ""]),
            completed=st.integers(-1, 3),
            total=st.none() | st.integers(-1, 3),
            details=_values,
        ),
    ),
    st.builds(
        LinkChildOperation,
        child=st.builds(
            ChildOperationReference,
            reference_id=st.sampled_from(["r-0", "r-1", ""]),
            kind=st.just("batch"),
            operation_id=st.just("77"),
            flow_run_id=st.sampled_from([None, "run-2", "no good"]),
            metadata=_values,
        ),
    ),
    st.builds(Complete, output=_values),
    st.builds(Fail, error=any_text),
    st.builds(Cancel),
    st.builds(Timeout, deadline=st.datetimes() | st.datetimes(timezones=st.timezones())),
)


def same_again(run: WorkflowRunSnapshot) -> list[RuntimeCommand]:
    """The commands that would have made everything that is open in a run."""
    again: list[RuntimeCommand] = [
        ScheduleStep(step_id=key, step_name=one.step_name, input=one.input, retry=one.retry)
        for key, one in run.open.steps.items()
    ]
    again += [WaitUntil(wait_id=key, delay=timedelta(days=9)) for key in run.open.waits]
    again += [
        CreateHook(hook_id=key, token=one.token, metadata=one.metadata)
        for key, one in run.open.hooks.items()
    ]
    return again


@examples(200)
@given(legal_histories(12), st.lists(commands, max_size=4))
def test_a_decision_is_refused_with_a_known_error_or_becomes_events_that_may_be_folded(
    history: list[NewEvent], decided: list[RuntimeCommand]
) -> None:
    run = fold(*history)
    before = deepcopy(run)
    made: Plan | None
    try:
        made = decide(run, tuple(decided), NOW)
    except (InvalidTransition, NonDeterministic, PayloadTooLarge, SerializationError) as error:
        message, made = str(error), None
    if made is None:
        assert run == before
        assert run.open == before.open
        tokens = [one.token for one in decided if isinstance(one, CreateHook)]
        assert not any(token in message for token in tokens if len(token) > 3)
        return
    assert run == before
    for one in made.events:
        assert jsontext.equal(jsontext.decode(one.payload()), one.data)
        one.payload().encode()
    add(run, *made.events)
    assert made.ended == run.terminal
    for launch in made.launches:
        started = run.steps[launch.step_id]
        assert (started.status, started.attempt) == (StepStatus.RUNNING, launch.attempt)
        assert (started.step_name, started.input) == (launch.step_name, launch.input)
    named = [launch.step_id for launch in made.launches]
    assert len(named) == len(set(named))


@examples(100)
@given(legal_histories(15))
def test_a_decision_that_names_all_open_work_again_repeats_no_event_of_its_making(
    history: list[NewEvent],
) -> None:
    run = fold(*history)
    again = same_again(run)
    if run.terminal or run.status.value == "pending" or not again:
        return
    made = decide(run, tuple(again), NOW)
    assert {one.type for one in made.events} <= {"step_started"}
    add(run, *made.events)
    # Once more, nothing is left to start: what runs is delivered again, what waits is waited for.
    second = decide(run, tuple(same_again(run)), NOW)
    assert second.events == []
    assert {one.step_id for one in second.launches} == {
        key for key, one in run.open.steps.items() if one.status is StepStatus.RUNNING
    }


@examples(100)
@given(
    legal_histories(15),
    st.one_of(
        st.builds(Success, json_values),
        st.builds(Failure, any_text, st.booleans(), st.none() | delays | st.timedeltas()),
    ),
)
def test_an_outcome_of_any_running_step_becomes_events_that_may_be_folded(
    history: list[NewEvent], outcome: Success | Failure
) -> None:
    run = fold(*history)
    for key, one in list(run.open.steps.items()):
        stale = settle(run, key, one.attempt + 1, outcome)
        assert stale.events == []
        made = settle(run, key, one.attempt, outcome)
        if run.terminal or one.status is not StepStatus.RUNNING:
            assert made.events == []
            continue
        assert made.events
        add(run, *made.events)
        assert made.ended == run.terminal
        assert settle(run, key, one.attempt, outcome).events == [] or made.launches
        if isinstance(outcome, Success):
            assert run.steps[key].output == outcome.output
        else:
            assert run.steps[key].error == outcome.error
