"""What a history says about timers, hooks, progress and links, and folding forward."""

from datetime import timedelta
from typing import Any

import pytest

from flowpg.errors import InvalidTransition
from flowpg.model import events
from flowpg.model.events import NewEvent
from flowpg.model.operations import ChildOperationReference, WorkflowProgress
from flowpg.model.retry import RetryPolicy
from flowpg.model.snapshot import HookStatus, WaitStatus
from flowpg.replay import projection
from tests.unit.histories import (
    NOW,
    RUN,
    SECOND,
    add,
    assert_refused,
    cancellation,
    created,
    envelopes,
    event,
    received,
    retrying,
    running,
    started,
    step,
)

DELAYED = RetryPolicy.fixed(3, SECOND)


# -- timers and hooks -----------------------------------------------------------------------------


def test_a_wait_is_created_once_and_completes_once() -> None:
    run = running(events.wait_created("t", resume_at=NOW + SECOND))
    assert run.waits["t"].resume_at == NOW + SECOND
    assert_refused(run, events.wait_created("t", resume_at=NOW), "wait 't' exists already")
    add(run, events.wait_completed("t"))
    assert run.waits["t"].status is WaitStatus.COMPLETED
    assert_refused(run, events.wait_completed("t"), "completed, not waiting")
    assert_refused(run, events.wait_completed("u"), "never created")


def test_digits_beyond_microseconds_round_up_so_that_a_wait_is_never_early() -> None:
    exact = "2026-01-01T00:00:00.000000100Z"
    run = running(event(events.WAIT_CREATED, wait_id="t", resume_at=exact))
    assert run.waits["t"].resume_at.microsecond == 1


def test_a_wait_needs_a_deadline() -> None:
    for data in ({}, {"resume_at": None}, {"resume_at": "soon"}, {"resume_at": 12}):
        assert_refused(running(), event(events.WAIT_CREATED, wait_id="t", **data), "'resume_at'")


def test_a_hook_is_created_once_and_resolved_once() -> None:
    run = running(events.hook_created("h", "token", {"kind": "approval"}))
    assert_refused(run, events.hook_created("h", "other", None), "hook 'h' exists already")
    add(run, received("h", None))
    assert (run.hooks["h"].status, run.hooks["h"].payload) == (HookStatus.RECEIVED, None)
    assert_refused(run, received("h", 1), "received, not active")
    assert_refused(run, events.hook_disposed("h"), "received, not active")
    assert_refused(run, received("g", 1), "never created")
    assert_refused(run, event(events.HOOK_RECEIVED, hook_id="h"), "'payload'")


def test_an_expiring_hook_keeps_its_deadline() -> None:
    run = running(events.hook_created("h", "token", None, expires_in=SECOND))
    assert run.hooks["h"].expires_at == NOW + SECOND
    assert list(run.open.timed_hooks) == ["h"]
    add(run, events.hook_disposed("h"))
    assert not run.open.timed_hooks
    assert not run.open.hooks


def test_a_hook_that_is_refused_its_token_is_there_under_its_id_and_suspends_nothing() -> None:
    run = running(events.hook_conflicted("h", "owner", "theirs"))
    hook = run.hooks["h"]
    assert (hook.status, hook.token, hook.on_conflict) == (HookStatus.CONFLICTED, "", "raise")
    assert (hook.owner_run_id, hook.owner_hook_id) == ("owner", "theirs")
    assert not run.open.suspends
    for again in (events.hook_created("h", "t", None), events.hook_conflicted("h", "o", "t")):
        assert_refused(run, again, "hook 'h' exists already")
    assert_refused(run, received("h", 1), "conflicted, not active")
    for member in ("hook_id", "owner_run_id", "owner_hook_id"):
        data = {"hook_id": "g", "owner_run_id": "o", "owner_hook_id": "t"}
        del data[member]
        assert_refused(run, event(events.HOOK_CONFLICTED, **data), member)


def test_a_hook_that_exists_cannot_be_refused_its_token() -> None:
    for settled in ([], [received("h", 1)], [events.hook_disposed("h")]):
        run = running(events.hook_created("h", "token", None), *settled)
        assert_refused(run, events.hook_conflicted("h", "o", "t"), "hook 'h' exists already")


def test_the_policy_of_a_hook_is_one_of_two() -> None:
    run = running(events.hook_created("h", "token", None, on_conflict="raise"))
    assert run.hooks["h"].on_conflict == "raise"
    wrong = event(events.HOOK_CREATED, hook_id="g", token="t", metadata=None, on_conflict=None)
    assert_refused(run, wrong, "'on_conflict'")


def test_a_folded_hook_that_is_refused_after_all_leaves_the_run_as_if_it_had_been() -> None:
    asked = [events.hook_created(name, name, None, expires_in=SECOND) for name in "abc"]
    conflict = events.hook_conflicted("b", "owner", "theirs")
    for others in ((asked[0], asked[2]), ()):
        before = [*others[:1], asked[1], *others[1:]]
        run = running(*before)
        projection.concede_hook(run, conflict.data)
        known = running(*[conflict if one is asked[1] else one for one in before])
        assert run == known
        assert run.open == known.open
        assert list(run.hooks) == list(known.hooks)


def test_a_refused_hook_never_shows_its_token() -> None:
    run = running(events.hook_created("h", "s3cret-token", None))
    with pytest.raises(InvalidTransition) as caught:
        add(run, events.hook_created("h", "s3cret-token", None))
    assert "s3cret" not in str(caught.value)
    assert "s3cret" not in repr(run)


# -- progress and links ---------------------------------------------------------------------------


def test_progress_is_kept_in_order_and_refused_twice() -> None:
    first = WorkflowProgress(progress_id="one", completed=1, total=2, details={"a": 1})
    second = WorkflowProgress(progress_id="two", completed=2, message="half")
    made = [event(events.RUN_PROGRESS_RECORDED, progress=one.wire()) for one in (second, first)]
    run = running(*made)
    assert run.progress == [second, first]
    assert_refused(run, made[0], "recorded before")
    add(run, cancellation())
    assert_refused(run, made[0], "recorded before")


@pytest.mark.parametrize(
    "progress",
    [
        None,
        [],
        {"completed": 1},
        {"progress_id": "", "completed": 1},
        {"progress_id": " ", "completed": 1},
        {"progress_id": "a"},
        {"progress_id": "a", "completed": "1"},
        {"progress_id": "a", "completed": True},
        {"progress_id": "a", "completed": -1},
        {"progress_id": "a", "completed": 0, "total": 0},
        {"progress_id": "a", "completed": 3, "total": 2},
        {"progress_id": "a", "completed": 1, "message": 5},
        {"progress_id": 5, "completed": 1},
    ],
)
def test_progress_that_makes_no_sense_is_refused(progress: Any) -> None:
    assert_refused(running(), event(events.RUN_PROGRESS_RECORDED, progress=progress), "progress")


def test_a_link_is_kept_by_its_reference_and_refused_twice() -> None:
    child = ChildOperationReference(reference_id="r", kind="batch", operation_id="77")
    made = event(events.CHILD_OPERATION_LINKED, child=child.wire())
    run = running(made)
    assert run.child_operations == {"r": child}
    assert_refused(run, made, "linked before")


@pytest.mark.parametrize(
    "change",
    [
        {"reference_id": ""},
        {"kind": " "},
        {"operation_id": None},
        {"flow_run_id": ""},
        {"flow_run_id": "no spaces allowed"},
        {"flow_run_id": 5},
    ],
)
def test_a_link_that_makes_no_sense_is_refused(change: dict[str, Any]) -> None:
    child = {"reference_id": "r", "kind": "batch", "operation_id": "77", **change}
    assert_refused(running(), event(events.CHILD_OPERATION_LINKED, child=child), "child|kind|id")


# -- folding forward ------------------------------------------------------------------------------


def test_a_snapshot_folded_forward_equals_one_projected_anew() -> None:
    history = envelopes(
        created({"n": 1}),
        events.run_started(),
        step("a", DELAYED),
        started("a"),
        retrying("a", 1, NOW + SECOND),
        events.wait_created("t", resume_at=NOW),
        events.wait_completed("t"),
        started("a", 2),
        events.step_completed("a", [1]),
    )
    for cut in range(1, len(history)):
        forward = projection.project(RUN, history[:cut])
        projection.fold_onto(forward, history[cut:])
        assert forward == projection.project(RUN, history)


def test_provisional_times_become_those_the_store_recorded() -> None:
    new = [
        events.wait_created("t", delay=SECOND),
        events.wait_created("fixed", resume_at=NOW),
        events.hook_created("h", "token", None, expires_in=2 * SECOND),
        step("a", DELAYED),
        started("a"),
        events.step_retrying("a", 1, "x", 3 * SECOND),
        step("b", DELAYED),
        started("b"),
        events.step_retrying("b", 1, "x", 3 * SECOND),
        started("b", 2),
        cancellation(),
    ]
    recorded = NOW + timedelta(hours=1)
    run = running(*new[:-1])
    projection.restamp(run, new[:-1], recorded)
    assert run.waits["t"].resume_at == recorded + SECOND
    assert run.waits["fixed"].resume_at == NOW
    assert run.hooks["h"].expires_at == recorded + 2 * SECOND
    assert run.steps["a"].retry_after == recorded + 3 * SECOND
    assert run.steps["b"].retry_after is None
    add(run, new[-1])
    projection.restamp(run, new[-1:], recorded)
    assert run.cancellation is not None
    assert run.cancellation.requested_at == recorded


def test_only_the_events_of_the_append_get_its_time() -> None:
    run = running(cancellation(), now=NOW)
    new = [step("a", DELAYED), started("a"), events.step_retrying("a", 1, "x", SECOND)]
    cancel = events.step_cancelled("a", 1, "over")
    add(run, *new, cancel)
    projection.restamp(run, [*new, cancel], NOW + 9 * SECOND)
    assert run.cancellation is not None
    assert run.cancellation.requested_at == NOW
    assert run.steps["a"].retry_after is None


def test_a_deadline_after_the_year_9999_is_refused() -> None:
    with pytest.raises(InvalidTransition, match="year 9999"):
        add(running(), NewEvent(events.WAIT_CREATED, {"wait_id": "t"}, due_in=timedelta.max))
