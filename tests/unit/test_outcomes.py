"""What the outcome of an attempt becomes, and what a run is owed without a decision."""

from datetime import timedelta

import pytest

from flowpg.errors import SerializationError
from flowpg.model import events, jsontext
from flowpg.model.retry import RetryPolicy
from flowpg.model.snapshot import RunStatus, StepStatus, WorkflowRunSnapshot
from flowpg.replay.outcomes import (
    MAX_ERROR_CHARACTERS,
    Failure,
    Outcome,
    Success,
    settle,
)
from flowpg.replay.plan import Plan, StepLaunch
from flowpg.replay.repair import due_events, due_retries, next_deadline, repair_events
from tests.unit.histories import (
    CONTINUE,
    NOW,
    SECOND,
    add,
    cancellation,
    created,
    fold,
    retrying,
    running,
    started,
    step,
    types,
)

DELAYED = RetryPolicy.fixed(3, SECOND)


def settled(run: WorkflowRunSnapshot, step_id: str, attempt: int, outcome: Outcome) -> Plan:
    """The plan of an outcome, folded."""
    made = settle(run, step_id, attempt, outcome)
    add(run, *made.events)
    return made


# -- outcomes -------------------------------------------------------------------------------------


@pytest.mark.parametrize("output", [None, 0, "", [], False, {}, {"a": [1]}, "x"])
def test_a_returned_value_completes_the_step_falsy_or_not(output: object) -> None:
    run = running(step("a"), started("a"))
    made = settled(run, "a", 1, Success(output))
    assert types(made) == ["step_completed"]
    assert run.steps["a"].status is StepStatus.COMPLETED
    assert run.steps["a"].output == output


def test_an_output_goes_through_json_once_and_keeps_its_text() -> None:
    run = running(step('a"é'), started('a"é'))
    outcome = Success.of({"pair": (1, 2)})
    assert outcome.output == {"pair": [1, 2]}
    made = settle(run, 'a"é', 1, outcome)
    assert jsontext.decode(made.events[0].payload()) == made.events[0].data
    assert outcome == Success({"pair": [1, 2]})
    with pytest.raises(SerializationError, match="the output of the step"):
        Success.of({1, 2})


def test_a_failure_with_attempts_left_is_retried_at_once() -> None:
    run = running(step("a", input=[1]), started("a"))
    made = settled(run, "a", 1, Failure("boom"))
    assert types(made) == ["step_retrying", "step_started"]
    assert made.launches == [StepLaunch("a", "work", [1], 2)]
    assert run.status is RunStatus.RUNNING


def test_a_failure_with_a_delay_waits_for_its_deadline() -> None:
    run = running(step("a", DELAYED), started("a"))
    made = settled(run, "a", 1, Failure("boom"))
    assert types(made) == ["step_retrying"]
    assert made.events[0].due_in == SECOND
    assert made.launches == []
    assert run.status is RunStatus.SUSPENDED


def test_an_exponential_delay_is_the_same_wherever_it_is_computed() -> None:
    policy = RetryPolicy.exponential(5, SECOND)
    runs = [running(step("a", policy), started("a")) for _ in range(2)]
    delays = {settled(run, "a", 1, Failure("boom")).events[0].due_in for run in runs}
    assert delays == {policy.delay_after("run-1", "a", 1)}


def test_a_step_may_ask_when_to_be_tried_again() -> None:
    run = running(step("a"), started("a"))
    made = settled(run, "a", 1, Failure("busy", delay=7 * SECOND))
    assert made.events[0].due_in == 7 * SECOND
    assert made.events[0].data["retry_requested"] is True
    assert run.steps["a"].retry_after == NOW + 7 * SECOND
    run = running(step("a", DELAYED), started("a"))
    made = settled(run, "a", 1, Failure("busy", delay=timedelta(0)))
    assert types(made) == ["step_retrying", "step_started"]


@pytest.mark.parametrize("asked", [timedelta.max, timedelta(days=365 * 200), -SECOND])
def test_a_delay_that_makes_no_sense_is_brought_into_bounds(asked: timedelta) -> None:
    run = running(step("a"), started("a"))
    settled(run, "a", 1, Failure("busy", delay=asked))
    assert run.steps["a"].status in (StepStatus.PENDING, StepStatus.RUNNING)


def test_the_last_failure_fails_the_run_and_settles_every_other_step() -> None:
    run = running(
        step("a", RetryPolicy.none()),
        step("busy"),
        step("waiting", DELAYED),
        step("new"),
        started("a"),
        started("busy"),
        started("waiting"),
        retrying("waiting", 1, NOW + SECOND),
    )
    made = settled(run, "a", 1, Failure("boom"))
    assert [(one.type, one.subject) for one in made.events] == [
        ("step_failed", "a"),
        ("step_cancelled", "busy"),
        ("step_cancelled", "waiting"),
        ("step_cancelled", "new"),
        ("run_retry_exhausted", "a"),
    ]
    assert made.ended
    assert (run.status, run.error) == (RunStatus.FAILED, "boom")
    assert not run.open.steps


def test_a_failure_that_no_retry_mends_fails_the_run_at_the_first_attempt() -> None:
    run = running(step("a"), step("b"), started("a"), started("b"))
    made = settled(run, "a", 1, Failure("bad card", retryable=False))
    assert types(made) == ["step_non_retryable", "step_cancelled", "run_failed"]
    assert (run.status, run.error) == (RunStatus.FAILED, "bad card")


def test_a_failure_left_to_the_workflow_fails_only_the_step() -> None:
    for retryable, event in ((True, "step_failed"), (False, "step_non_retryable")):
        run = running(step("a", CONTINUE), step("b"), started("a"), started("b"))
        made = settled(run, "a", 1, Failure("boom", retryable=retryable))
        assert types(made) == [event]
        assert not made.ended
        assert run.steps["b"].status is StepStatus.RUNNING


def test_a_stale_outcome_comes_to_nothing() -> None:
    run = running(step("a"), started("a"), retrying("a", 1), started("a", 2))
    for outcome in (Success(1), Failure("x")):
        assert settle(run, "a", 1, outcome) == Plan()
        assert settle(run, "a", 3, outcome) == Plan()
        assert settle(run, "unknown", 1, outcome) == Plan()
    add(run, cancellation())
    assert settle(run, "a", 2, Success(1)) == Plan()
    add(run, events.run_cancelled(None))
    assert settle(run, "a", 2, Success(1)) == Plan()


def test_an_outcome_of_a_cleanup_step_counts_while_the_run_is_cancelling() -> None:
    run = running(cancellation(), step("cleanup"), started("cleanup"))
    assert types(settled(run, "cleanup", 1, Success(1))) == ["step_completed"]
    assert run.status is RunStatus.CANCELLING


def test_an_output_that_is_too_large_fails_the_step_for_good() -> None:
    run = running(step("a", CONTINUE.model_copy(update={"max_attempts": 5})), started("a"))
    made = settled(run, "a", 1, Success("é" * 600_000))
    assert types(made) == ["step_non_retryable"]
    assert run.steps["a"].error == (
        "PayloadTooLarge: with the output of step 'a' the event takes 1200027 bytes, "
        "the limit is 1048576; "
        "store it elsewhere and return a reference"
    )


def test_an_error_text_is_cut_to_what_an_event_can_hold() -> None:
    run = running(step("a", RetryPolicy.none()), started("a"))
    made = settled(run, "a", 1, Failure("\U0001f600" * 5_000_000))
    assert run.status is RunStatus.FAILED
    assert run.error is not None
    assert run.error.endswith("... (5000000 characters)")
    assert len(run.error) < MAX_ERROR_CHARACTERS + 50
    assert max(len(one.payload().encode()) for one in made.events) < events.MAX_PAYLOAD_BYTES


def test_outcomes_do_not_show_values_in_their_text_form() -> None:
    assert "s3cret" not in repr([Success("s3cret"), Failure("s3cret"), Success.of("s3cret")])


# -- repair ---------------------------------------------------------------------------------------


def test_an_interrupted_exhaustion_is_finished() -> None:
    run = running(step("a", RetryPolicy.none()), step("b"), started("a"), started("b"))
    add(run, events.step_failed("a", 1, "boom"))
    add(run, *repair_events(run))
    assert (run.status, run.error) == (RunStatus.FAILED, "boom")
    assert run.terminal_outcome is not None
    assert run.terminal_outcome.type == "retry_exhausted"
    assert run.steps["b"].status is StepStatus.CANCELLED
    assert repair_events(run) == []


def test_an_interrupted_failure_that_no_retry_mends_is_finished() -> None:
    run = running(step("a"), step("b"), started("a"), started("b"))
    add(run, events.step_non_retryable("a", 1, "boom"), events.step_cancelled("b", 1, "x"))
    assert [one.type for one in repair_events(run)] == ["run_failed"]
    add(run, *repair_events(run))
    assert run.terminal_outcome is not None
    assert run.terminal_outcome.type == "failed"


def test_an_interrupted_exhaustion_wins_over_a_cancellation_that_came_in_between() -> None:
    run = running(step("a", RetryPolicy.none()), step("b"), started("a"), started("b"))
    add(run, events.step_failed("a", 1, "boom"), cancellation(), step("late"), started("late"))
    assert [(one.type, one.subject) for one in repair_events(run)] == [
        ("step_cancelled", "late"),
        ("run_retry_exhausted", "a"),
    ]
    add(run, *repair_events(run))
    assert run.status is RunStatus.FAILED


def test_a_sound_run_needs_no_repair() -> None:
    assert repair_events(running(step("a", CONTINUE), started("a"))) == []
    run = running(step("a", CONTINUE), started("a"), events.step_failed("a", 1, "x"))
    assert repair_events(run) == []


# -- what is due ----------------------------------------------------------------------------------


def test_due_timers_and_expired_hooks_are_resolved_the_earliest_first() -> None:
    run = running(
        events.wait_created("third", delay=3 * SECOND),
        events.hook_created("second", "t1", None, expires_in=2 * SECOND),
        events.wait_created("first", delay=SECOND),
        events.wait_created("later", delay=9 * SECOND),
        events.hook_created("endless", "t2", None),
    )
    assert due_events(run, NOW) == []
    due = due_events(run, NOW + 3 * SECOND)
    assert [(one.type, one.subject) for one in due] == [
        ("wait_completed", "first"),
        ("hook_disposed", "second"),
        ("wait_completed", "third"),
    ]
    add(run, *due)
    assert due_events(run, NOW + 3 * SECOND) == []


def test_a_timer_is_due_at_its_deadline_and_not_a_microsecond_earlier() -> None:
    run = running(events.wait_created("t", delay=SECOND))
    assert due_events(run, NOW + SECOND - timedelta(microseconds=1)) == []
    assert len(due_events(run, NOW + SECOND)) == 1


def test_a_hook_expires_at_its_deadline_and_not_a_microsecond_earlier() -> None:
    run = running(events.hook_created("h", "t", None, expires_in=SECOND))
    assert due_events(run, NOW + SECOND - timedelta(microseconds=1)) == []
    assert len(due_events(run, NOW + SECOND)) == 1


def test_due_retries_start_their_next_attempt_and_others_wait_on() -> None:
    run = running(
        step("a", DELAYED, input=[1]),
        step("b", DELAYED),
        started("a"),
        started("b"),
        retrying("a", 1, NOW + SECOND),
        retrying("b", 1, NOW + 2 * SECOND),
    )
    assert due_retries(run, NOW) == Plan()
    made = due_retries(run, NOW + SECOND)
    assert types(made) == ["step_started"]
    assert made.launches == [StepLaunch("a", "work", [1], 2)]
    add(run, *made.events)
    assert next_deadline(run) == NOW + 2 * SECOND


def test_the_next_deadline_is_the_earliest_of_all_kinds() -> None:
    run = running()
    assert next_deadline(run) is None
    add(run, events.hook_created("h", "t", None, expires_in=3 * SECOND))
    assert next_deadline(run) == NOW + 3 * SECOND
    add(run, events.wait_created("t", delay=2 * SECOND))
    assert next_deadline(run) == NOW + 2 * SECOND
    add(run, step("a", DELAYED), started("a"), retrying("a", 1, NOW + SECOND))
    assert next_deadline(run) == NOW + SECOND


def test_nothing_is_due_in_a_run_that_has_ended_or_not_begun() -> None:
    ended = running(
        events.wait_created("t", delay=SECOND),
        step("a", DELAYED),
        started("a"),
        retrying("a", 1, NOW),
        events.run_failed("x"),
    )
    assert due_events(ended, NOW + 9 * SECOND) == []
    assert due_retries(ended, NOW + 9 * SECOND) == Plan()
    assert next_deadline(ended) is None
    assert due_retries(fold(created()), NOW) == Plan()
