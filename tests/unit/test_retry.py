"""Retry policies: shape, bounds, delays."""

from datetime import timedelta

import pytest

from flowpg.errors import InvalidArgument, InvalidTransition
from flowpg.model.retry import MAX_DELAY_MS, Backoff, RetryPolicy
from tests.unit.histories import SECOND


def test_the_default_is_three_attempts_at_once() -> None:
    policy = RetryPolicy()
    assert (policy.attempts, policy.delay_ms, policy.continues_workflow) == (3, 0, False)
    assert policy.delay_after("r", "s", 1) == timedelta(0)


def test_defaults_that_came_later_are_left_out_on_the_wire() -> None:
    assert RetryPolicy().wire() == {"max_attempts": 3, "delay_ms": 0}
    assert RetryPolicy.none().continue_workflow_on_failure().wire() == {
        "max_attempts": 1,
        "delay_ms": 0,
        "on_exhausted": "continue_workflow",
    }
    assert RetryPolicy.exponential(5, SECOND).wire() == {
        "max_attempts": 5,
        "delay_ms": 1000,
        "backoff": "exponential",
        "max_delay_ms": 64_000,
    }


def test_a_policy_comes_back_from_its_wire_form() -> None:
    for policy in (
        RetryPolicy(),
        RetryPolicy.none().continue_workflow_on_failure(),
        RetryPolicy.fixed(7, 2 * SECOND),
        RetryPolicy.exponential(5, SECOND, 3 * SECOND),
    ):
        assert RetryPolicy.read(policy.wire()) == policy
    assert RetryPolicy.read(None) == RetryPolicy()
    assert RetryPolicy.read({}) == RetryPolicy()


def test_no_attempts_means_one_and_fewer_is_refused() -> None:
    assert RetryPolicy(max_attempts=0).attempts == 1
    assert RetryPolicy.fixed(0).attempts == 1
    for wrong in (RetryPolicy.fixed, lambda n: RetryPolicy.exponential(n, SECOND)):
        with pytest.raises(InvalidArgument, match="attempts"):
            wrong(-1)
    with pytest.raises(InvalidArgument, match="negative delay"):
        RetryPolicy.fixed(2, -SECOND)


def test_delays_are_rounded_up_to_milliseconds() -> None:
    assert RetryPolicy.fixed(2, timedelta(microseconds=1)).delay_ms == 1
    assert RetryPolicy.fixed(2, timedelta(microseconds=1001)).delay_ms == 2
    tiny = RetryPolicy.exponential(2, timedelta(0))
    assert (tiny.delay_ms, tiny.max_delay_ms) == (1, 64)
    assert RetryPolicy.exponential(2, 9 * SECOND, SECOND).max_delay_ms == 9000


def test_exponential_caps_double_up_to_the_maximum() -> None:
    policy = RetryPolicy.exponential(9, SECOND, 4 * SECOND)
    for attempt, cap in ((1, 1), (2, 2), (3, 4), (4, 4), (1000, 4)):
        longest = max(policy.delay_after("r", f"s{n}", attempt) for n in range(300))
        assert cap * SECOND * 0.9 < longest <= cap * SECOND


def test_jitter_is_the_same_on_every_host() -> None:
    policy = RetryPolicy.exponential(9, SECOND)
    delays = [policy.delay_after("run", "step", attempt) for attempt in (1, 2, 3)]
    assert [delay // timedelta(milliseconds=1) for delay in delays] == [923, 1222, 2675]
    assert policy.delay_after("ru", "nstep", 1) != delays[0]
    assert policy.delay_after("run", "\ud800", 1) > timedelta(0)


def test_contradicting_fields_are_refused() -> None:
    for policy in (
        RetryPolicy(max_attempts=-1),
        RetryPolicy(delay_ms=-1),
        RetryPolicy(max_delay_ms=-1),
        RetryPolicy(max_delay_ms=1),
        RetryPolicy(backoff=Backoff.EXPONENTIAL),
        RetryPolicy(backoff=Backoff.EXPONENTIAL, delay_ms=2, max_delay_ms=1),
        RetryPolicy(delay_ms=MAX_DELAY_MS + 1),
    ):
        with pytest.raises(InvalidTransition):
            policy.check()
    RetryPolicy(delay_ms=MAX_DELAY_MS).check()
