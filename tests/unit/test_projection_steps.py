"""What a history says about its steps."""

from datetime import UTC, datetime, timedelta

import pytest

from flowpg.errors import InvalidTransition
from flowpg.model import events
from flowpg.model.retry import DEFAULT_RETRY, RetryPolicy
from flowpg.model.snapshot import RunStatus, StepStatus
from tests.unit.histories import (
    CONTINUE,
    NOW,
    SECOND,
    add,
    assert_refused,
    event,
    retrying,
    running,
    started,
    step,
)

DELAYED = RetryPolicy.fixed(3, SECOND)


def test_a_step_goes_from_pending_over_running_to_completed() -> None:
    run = running(step("a", input={"x": 1}))
    assert (run.steps["a"].status, run.steps["a"].attempt) == (StepStatus.PENDING, 0)
    add(run, started("a"))
    assert (run.steps["a"].status, run.steps["a"].attempt) == (StepStatus.RUNNING, 1)
    add(run, events.step_completed("a", {"y": 2}))
    assert run.steps["a"].status is StepStatus.COMPLETED
    assert run.steps["a"].output == {"y": 2}
    assert not run.open.steps


def test_a_step_is_created_once() -> None:
    assert_refused(running(step("a")), step("a"), "step 'a' exists already")


def test_a_step_without_a_policy_has_the_default_one() -> None:
    run = running(event(events.STEP_CREATED, step_id="a", step_name="work", input=None))
    assert run.steps["a"].retry is DEFAULT_RETRY


@pytest.mark.parametrize(
    "retry",
    [
        "fast",
        [],
        {"max_attempts": "3"},
        {"max_attempts": True},
        {"max_attempts": 1.0},
        {"max_attempts": -1},
        {"delay_ms": -1},
        {"delay_ms": [1]},
        {"delay_ms": 10**30},
        {"backoff": "sideways"},
        {"backoff": 3},
        {"on_exhausted": "explode"},
        {"max_delay_ms": 5},
        {"backoff": "exponential"},
        {"backoff": "exponential", "delay_ms": 5, "max_delay_ms": 4},
        {"jitter": 4},
    ],
)
def test_a_policy_that_cannot_be_followed_is_refused(retry: object) -> None:
    made = event(events.STEP_CREATED, step_id="a", step_name="w", input=1, retry=retry)
    assert_refused(running(), made, "retry")


def test_a_policy_of_true_is_not_the_policy_of_one() -> None:
    run = running(step("a", RetryPolicy(max_attempts=1)))
    retry = {"max_attempts": True, "delay_ms": 0}
    made = event(events.STEP_CREATED, step_id="b", step_name="w", input=1, retry=retry)
    assert_refused(run, made, "retry")


def test_a_delay_whose_deadline_would_be_no_time_is_refused() -> None:
    late = datetime(9990, 1, 1, tzinfo=UTC)
    decades = RetryPolicy.fixed(3, timedelta(days=365 * 50))
    run = running()
    with pytest.raises(InvalidTransition, match="no valid deadline"):
        add(run, step("a", decades), now=late)
    add(run, step("a", DELAYED), now=late)


@pytest.mark.parametrize("attempt", [0, 2, -1])
def test_an_attempt_that_skips_the_next_number_is_refused(attempt: int) -> None:
    assert_refused(running(step("a")), started("a", attempt), "the next attempt of step 'a' is 1")


def test_a_step_starts_only_while_pending() -> None:
    run = running(step("a"), started("a"))
    assert_refused(run, started("a", 2), "running, not pending")
    add(run, events.step_completed("a", None))
    assert_refused(run, started("a", 2), "completed, not pending")


def test_only_a_running_step_completes() -> None:
    run = running(step("a"))
    assert_refused(run, events.step_completed("a", 1), "pending, not running")
    add(run, started("a"), events.step_completed("a", 1))
    assert_refused(run, events.step_completed("a", 1), "completed, not running")


def test_events_of_an_unknown_step_are_refused_without_showing_its_id() -> None:
    for unknown in (
        started("nope"),
        events.step_completed("nope", 1),
        events.step_failed("nope", 1, "x"),
        events.step_non_retryable("nope", 1, "x"),
        events.step_cancelled("nope", 0, "x"),
        retrying("nope", 1),
    ):
        assert_refused(running(), unknown, "never created")


def test_a_retry_at_once_is_pending_without_a_deadline_and_suspends_nothing() -> None:
    run = running(step("a"), started("a"), retrying("a", 1))
    assert run.steps["a"].status is StepStatus.PENDING
    assert (run.steps["a"].error, run.steps["a"].retry_after) == ("boom", None)
    assert run.status is RunStatus.RUNNING


def test_a_delayed_retry_suspends_the_run_until_its_next_attempt() -> None:
    run = running(step("a", DELAYED), started("a"), retrying("a", 1, NOW + SECOND))
    assert run.steps["a"].retry_after == NOW + SECOND
    assert run.status is RunStatus.SUSPENDED
    add(run, started("a", 2))
    assert run.steps["a"].retry_after is None
    assert run.steps["a"].error == "boom"
    assert run.status.value == "running"


def test_a_consistent_exhausted_history_is_accepted() -> None:
    run = running(
        step("a", DELAYED),
        started("a"),
        retrying("a", 1, NOW),
        started("a", 2),
        retrying("a", 2, NOW),
        started("a", 3),
        events.step_failed("a", 3, "boom"),
        events.run_retry_exhausted("a", 3, "boom"),
    )
    assert run.status is RunStatus.FAILED


def test_a_delayed_retry_needs_a_deadline() -> None:
    run = running(step("a", DELAYED), started("a"))
    assert_refused(run, retrying("a", 1), "retry_after is needed")


def test_a_retry_at_once_has_no_deadline() -> None:
    run = running(step("a"), started("a"))
    assert_refused(run, retrying("a", 1, NOW), "retry_after is forbidden")


def test_a_step_may_ask_for_a_delay_of_its_own() -> None:
    run = running(step("a"), started("a"), retrying("a", 1, NOW + SECOND, retry_requested=True))
    assert run.steps["a"].retry_after == NOW + SECOND
    run = running(step("a", DELAYED), started("a"), retrying("a", 1, retry_requested=True))
    assert run.steps["a"].retry_after is None
    for wrong in (1, "yes", None):
        refused = retrying("a", 1, NOW, retry_requested=wrong)
        assert_refused(running(step("a"), started("a")), refused, "retry_requested")


def test_outcomes_of_another_attempt_are_refused() -> None:
    run = running(step("a"), started("a"), retrying("a", 1), started("a", 2))
    for attempt in (1, 3):
        message = f"runs attempt 2, not {attempt}"
        assert_refused(run, retrying("a", attempt), message)
        assert_refused(run, events.step_failed("a", attempt, "x"), message)
        assert_refused(run, events.step_non_retryable("a", attempt, "x"), message)


def test_no_retry_follows_the_last_attempt() -> None:
    run = running(step("a", RetryPolicy.none()), started("a"))
    assert_refused(run, retrying("a", 1), "used all of its 1 attempts")


def test_no_attempts_at_all_means_one() -> None:
    run = running(step("a", RetryPolicy(max_attempts=0)), started("a"))
    assert_refused(run, retrying("a", 1), "used all of its 1 attempts")
    add(run, events.step_failed("a", 1, "boom"))
    assert run.steps["a"].status is StepStatus.FAILED


def test_a_step_does_not_fail_while_attempts_are_left_unless_it_cannot_be_retried() -> None:
    run = running(step("a"), started("a"))
    assert_refused(run, events.step_failed("a", 1, "x"), "2 attempts left")
    add(run, events.step_non_retryable("a", 1, "x"))
    assert (run.steps["a"].status, run.steps["a"].error) == (StepStatus.FAILED, "x")


def test_a_failed_step_fails_its_run_only_if_its_policy_says_so() -> None:
    failed = events.step_failed("a", 1, "x")
    assert running(step("a", CONTINUE), started("a"), failed).open.fatal_step is None
    run = running(step("a", RetryPolicy.none()), started("a"), failed)
    assert (run.open.fatal_step, run.open.exhausted) == ("a", True)
    run = running(step("a"), started("a"), events.step_non_retryable("a", 1, "x"))
    assert (run.open.fatal_step, run.open.exhausted) == ("a", False)


def test_an_open_step_can_be_cancelled_at_its_attempt() -> None:
    run = running(step("a"), step("b"), started("b"), step("c", DELAYED), started("c"))
    add(run, retrying("c", 1, NOW))
    assert_refused(run, events.step_cancelled("a", 1, "x"), "at attempt 0, not 1")
    add(
        run,
        events.step_cancelled("a", 0, "over"),
        events.step_cancelled("b", 1, "over"),
        events.step_cancelled("c", 1, "over"),
    )
    assert {one.status for one in run.steps.values()} == {StepStatus.CANCELLED}
    assert {one.error for one in run.steps.values()} == {"over"}
    assert run.steps["c"].retry_after is None
    assert run.status is RunStatus.RUNNING
    assert_refused(run, events.step_cancelled("a", 0, "x"), "cancelled, not open")
