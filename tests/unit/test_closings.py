"""What a decision gives up, and the small facts it records."""

from typing import Any

import pytest

from flowpg.errors import InvalidArgument, InvalidTransition
from flowpg.model import events
from flowpg.model.retry import RetryPolicy
from flowpg.model.snapshot import HookStatus, RunStatus, StepStatus, WaitStatus
from tests.unit.histories import (
    SECOND,
    add,
    assert_refused,
    cancellation,
    context,
    event,
    plan,
    received,
    running,
    started,
    step,
    types,
)

SUSPENDED = (
    step("s"),
    started("s"),
    events.wait_created("t", delay=SECOND),
    events.hook_created("h", "token", None),
)


def test_what_lost_a_race_is_closed_beside_what_comes_next() -> None:
    run = running(*SUSPENDED)
    made = plan(
        run,
        lambda ctx: ctx.cancel_wait("t"),
        lambda ctx: ctx.dispose_hook("h"),
        lambda ctx: ctx.cancel_step("s"),
        lambda ctx: ctx.sleep("next", SECOND),
    )
    assert types(made) == ["wait_cancelled", "hook_disposed", "step_cancelled", "wait_created"]
    assert not made.news
    add(run, *made.events)
    assert run.waits["t"].status is WaitStatus.CANCELLED
    assert run.hooks["h"].status is HookStatus.DISPOSED
    assert run.steps["s"].status is StepStatus.CANCELLED
    assert not run.open.steps
    assert list(run.open.waits) == ["next"]
    assert not run.open.hooks
    ctx = context(run)
    assert ctx.wait_cancelled("t")
    assert ctx.step_cancelled("s")
    assert ctx.hook_disposed("h")
    assert not ctx.wait_cancelled("next")
    assert not ctx.step_cancelled("nope")


def test_the_end_of_a_run_may_stand_beside_what_it_gives_up() -> None:
    made = plan(
        running(*SUSPENDED),
        lambda ctx: ctx.cancel_step("s", "no longer needed"),
        lambda ctx: ctx.cancel_wait("t"),
        lambda ctx: ctx.complete(1),
    )
    assert types(made) == ["step_cancelled", "wait_cancelled", "run_completed"]
    assert made.events[0].data["reason"] == "no longer needed"
    assert made.ended


def test_a_step_that_waits_for_its_next_attempt_can_be_closed() -> None:
    run = running(step("s", RetryPolicy.fixed(3, SECOND)), started("s"))
    add(run, events.step_retrying("s", 1, "busy", SECOND))
    made = plan(run, lambda ctx: ctx.cancel_step("s"), lambda ctx: ctx.sleep("t", SECOND))
    add(run, *made.events)
    assert run.steps["s"].status is StepStatus.CANCELLED
    assert not run.open.delayed


def test_closing_what_has_its_outcome_or_is_closed_does_nothing() -> None:
    run = running(*SUSPENDED, events.step_completed("s", 1), events.wait_completed("t"))
    add(run, received("h", 1))
    closings = (
        lambda ctx: ctx.cancel_wait("t"),
        lambda ctx: ctx.dispose_hook("h"),
        lambda ctx: ctx.cancel_step("s"),
    )
    made = plan(run, *closings, lambda ctx: ctx.complete(1))
    assert types(made) == ["run_completed"]
    again = running(*SUSPENDED, cancellation())
    assert types(plan(again, *closings, lambda ctx: ctx.cancel())) == ["run_cancelled"]
    with pytest.raises(InvalidTransition, match="no progress: cancel_wait 't'"):
        plan(run, lambda ctx: ctx.cancel_wait("t"))


def test_a_decision_that_only_closes_leaves_the_question_what_is_next() -> None:
    assert plan(running(*SUSPENDED), lambda ctx: ctx.cancel_wait("t")).news


@pytest.mark.parametrize(
    "close",
    [
        lambda ctx: ctx.cancel_wait("nope"),
        lambda ctx: ctx.dispose_hook("nope"),
        lambda ctx: ctx.cancel_step("nope"),
    ],
)
def test_only_what_was_opened_before_can_be_closed(close: Any) -> None:
    with pytest.raises(InvalidTransition, match="'nope' cannot be closed"):
        plan(running(), close)


def test_a_decision_cannot_ask_for_a_thing_and_close_it() -> None:
    with pytest.raises(InvalidTransition, match="names wait 't' twice"):
        plan(
            running(*SUSPENDED),
            lambda ctx: ctx.sleep("t", SECOND),
            lambda ctx: ctx.cancel_wait("t"),
        )


def test_a_closed_id_stays_closed() -> None:
    run = running(*SUSPENDED, events.wait_cancelled("t"))
    with pytest.raises(InvalidTransition, match="wait 't' was cancelled and stays so"):
        plan(run, lambda ctx: ctx.sleep("t", SECOND))
    assert_refused(run, events.wait_completed("t"), "cancelled, not waiting")
    assert_refused(run, events.wait_cancelled("t"), "cancelled, not waiting")
    assert_refused(run, events.wait_cancelled("nope"), "never created")


def test_a_run_with_nothing_else_open_is_running_again() -> None:
    waiting = events.wait_created("t", delay=SECOND)
    assert running(waiting).status is RunStatus.SUSPENDED
    assert running(waiting, events.wait_cancelled("t")).status is RunStatus.RUNNING


def test_completing_despite_a_cancellation_must_be_said() -> None:
    run = running(cancellation())
    with pytest.raises(InvalidTransition, match="despite the cancellation"):
        plan(run, lambda ctx: ctx.complete(1))
    made = plan(run, lambda ctx: ctx.complete(1, despite_cancellation=True))
    assert types(made) == ["run_completed"]
    assert plan(running(), lambda ctx: ctx.complete(1, despite_cancellation=True)).ended


def test_a_patch_is_recorded_once() -> None:
    run = running()
    made = plan(run, lambda ctx: ctx.record_patch("p"), lambda ctx: ctx.sleep("t", SECOND))
    assert types(made) == ["patch_recorded", "wait_created"]
    assert made.news
    assert made.events[0].data == {"patch_id": "p"}
    assert not context(run).patched("p")
    add(run, *made.events)
    assert context(run).patched("p")
    assert_refused(run, events.patch_recorded("p"), "was recorded before")
    again = plan(run, lambda ctx: ctx.record_patch("p"), lambda ctx: ctx.sleep("t", SECOND))
    assert not again.events
    assert not again.news


def test_attributes_are_merged_and_null_takes_one_away() -> None:
    run = running()
    first: dict[str, Any] = {"a": 1, "b": "x"}
    for command in (
        lambda ctx: ctx.set_attributes(first),
        lambda ctx: ctx.set_attributes({"b": None, "c": True}),
    ):
        made = plan(run, command)
        assert types(made) == ["run_attributes_set"]
        assert made.news
        add(run, *made.events)
    assert run.attributes == context(run).attributes == {"a": 1, "c": True}
    assert run.wire()["attributes"] == {"a": 1, "c": True}


def test_attributes_that_change_nothing_are_not_recorded_again() -> None:
    run = running(event(events.RUN_ATTRIBUTES_SET, attributes={"a": 1}))
    made = plan(
        run,
        lambda ctx: ctx.set_attributes({"a": 1, "b": None}),
        lambda ctx: ctx.set_attributes({"a": 2}),
        lambda ctx: ctx.set_attributes({"a": 1}),
        lambda ctx: ctx.complete(),
    )
    assert [one.data for one in made.events[:-1]] == [
        {"attributes": {"a": 2}},
        {"attributes": {"a": 1}},
    ]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({}, "1 to 100 attributes"),
        ({str(n): n for n in range(101)}, "not 101"),
        ({"": 1}, "must not be blank"),
        ({"a": "x" * 2001}, "the limit is 2000"),
        ({"a": "x\x00"}, "NUL"),
        ({"a": "\ud800"}, "surrogate"),
        ({"a": [1]}, "'a' must be a text"),
        ({"a": float("nan")}, "finite"),
        ({"a": 2**63}, "64 bits"),
    ],
)
def test_attributes_that_a_column_cannot_hold_are_refused(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        plan(running(), lambda ctx: ctx.set_attributes(wrong))
    assert_refused(running(), event(events.RUN_ATTRIBUTES_SET, attributes=wrong), said)
