"""What decisions about timers, hooks, progress, links and the end of a run become."""

from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from flowpg.errors import InvalidArgument, InvalidTransition, NonDeterministic
from flowpg.model import events, jsontext
from flowpg.model.commands import (
    Complete,
    LinkChildOperation,
    RecordProgress,
    RuntimeCommand,
    WaitUntil,
)
from flowpg.model.hooks import HookMetadata
from flowpg.model.operations import ChildOperationReference, WorkflowProgress
from flowpg.replay.decision import commands_of, decide
from tests.unit.histories import (
    NOW,
    SECOND,
    add,
    cancellation,
    context,
    created,
    event,
    fold,
    plan,
    received,
    running,
    started,
    step,
    types,
)

PROGRESS = WorkflowProgress(progress_id="p", completed=1, total=2, details={"a": [1]})
CHILD = ChildOperationReference(reference_id="r", kind="batch", operation_id="77", metadata=[1])


# -- timers ---------------------------------------------------------------------------------------


def test_a_timer_starts_with_a_time_or_with_a_delay() -> None:
    made = plan(running(), lambda ctx: ctx.wait_until("t", NOW + SECOND))
    assert made.events[0].data == {"wait_id": "t", "resume_at": "2026-03-01T12:00:01Z"}
    assert (made.events[0].due_at, made.events[0].due_in) == (NOW + SECOND, None)
    made = plan(running(), lambda ctx: ctx.sleep("t", SECOND))
    assert made.events[0].data == {"wait_id": "t"}
    assert (made.events[0].due_at, made.events[0].due_in) == (None, SECOND)


def test_a_delay_below_zero_is_over_at_once() -> None:
    made = plan(running(), lambda ctx: ctx.sleep("t", -SECOND))
    assert made.events[0].due_in == timedelta(0)


def test_a_timer_needs_exactly_one_of_time_and_delay() -> None:
    for command in (WaitUntil(wait_id="t"), WaitUntil(wait_id="t", resume_at=NOW, delay=SECOND)):
        with pytest.raises(InvalidTransition, match="either a time or a delay"):
            decide(running(), (command,), NOW)


def test_a_time_without_a_zone_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="time zone"):
        plan(running(), lambda ctx: ctx.wait_until("t", datetime(2026, 1, 1)))  # noqa: DTZ001
    with pytest.raises(InvalidArgument, match="time zone"):
        plan(running(), lambda ctx: ctx.timeout(datetime(2026, 1, 1)))  # noqa: DTZ001


def test_a_deadline_after_the_year_9999_is_refused_before_any_event() -> None:
    with pytest.raises(InvalidArgument, match="wait 't' would be after the year 9999"):
        plan(running(), lambda ctx: ctx.sleep("t", timedelta.max))
    with pytest.raises(InvalidArgument, match="hook 'h' would be after the year 9999"):
        plan(running(), lambda ctx: ctx.create_hook("h", "token", None, timedelta.max))


def test_an_open_timer_ignores_a_recomputed_deadline() -> None:
    run = running(events.wait_created("t", resume_at=NOW + SECOND))
    assert plan(run, lambda ctx: ctx.wait_until("t", NOW + 9 * SECOND)).events == []
    assert plan(run, lambda ctx: ctx.sleep("t", SECOND)).events == []
    assert run.waits["t"].resume_at == NOW + SECOND


def test_a_fired_timer_makes_no_progress_alone_and_is_no_obstacle_beside_others() -> None:
    run = running(events.wait_created("t", resume_at=NOW), events.wait_completed("t"))
    with pytest.raises(InvalidTransition, match="no progress: wait_until 't'"):
        plan(run, lambda ctx: ctx.sleep("t", SECOND))
    made = plan(run, lambda ctx: ctx.sleep("t", SECOND), lambda ctx: ctx.sleep("u", SECOND))
    assert [one.data["wait_id"] for one in made.events] == ["u"]


def test_a_cancelled_timer_or_hook_stays_cancelled() -> None:
    run = running(
        events.wait_created("t", resume_at=NOW),
        events.hook_created("h", "token", None),
        cancellation(),
    )
    with pytest.raises(InvalidTransition, match="wait 't' was cancelled"):
        plan(run, lambda ctx: ctx.sleep("t", SECOND))
    with pytest.raises(InvalidTransition, match="hook 'h' was cancelled"):
        plan(run, lambda ctx: ctx.create_hook("h", "token"))


# -- hooks ----------------------------------------------------------------------------------------


def test_a_hook_is_created_with_its_metadata_and_expiry() -> None:
    metadata = HookMetadata.human_approval("invoice 7")
    made = plan(running(), lambda ctx: ctx.create_hook("h", "token", metadata, SECOND))
    assert made.events[0].data == {
        "hook_id": "h",
        "token": "token",
        "metadata": {"kind": "human_approval", "label": "invoice 7", "data": {}},
    }
    assert made.events[0].due_in == SECOND


@pytest.mark.parametrize("token", ["", "  ", "x" * 16_385, "a\x00b", "\ud800"])
def test_a_bad_token_is_refused_without_showing_it(token: str) -> None:
    with pytest.raises(InvalidArgument, match="hook token") as caught:
        plan(running(), lambda ctx: ctx.create_hook("h", token))
    assert "xxxx" not in str(caught.value)


def test_a_hook_says_what_it_waits_for_and_may_say_it_otherwise_later() -> None:
    made = plan(running(), lambda ctx: ctx.create_hook("h", "token", kind=int))
    assert made.events[0].data["payload_schema"] == {"type": "integer"}
    assert jsontext.decode(made.events[0].payload())["payload_schema"] == {"type": "integer"}
    untyped = plan(running(), lambda ctx: ctx.create_hook("h", "token"))
    assert "payload_schema" not in untyped.events[0].data
    for recorded in (None, {"type": "integer"}, {"type": "string"}):
        run = running(events.hook_created("h", "token", None, payload_schema=recorded))
        for kind in (Any, int, list[int]):
            assert plan(run, lambda ctx, k=kind: ctx.create_hook("h", "token", kind=k)).events == []  # type: ignore[misc]


def test_a_schema_is_left_out_where_its_hook_would_be_too_large_with_it() -> None:
    full = "x" * (events.MAX_PAYLOAD_BYTES - len('{"hook_id":"h","token":"token","metadata":""}'))
    made = plan(running(), lambda ctx: ctx.create_hook("h", "token", full, kind=int))
    assert made.events[0].data == {"hook_id": "h", "token": "token", "metadata": full}


def test_an_active_hook_comes_back_whatever_its_expiry_now_is() -> None:
    run = running(events.hook_created("h", "token", {"a": 1}, expires_in=SECOND))
    assert plan(run, lambda ctx: ctx.create_hook("h", "token", {"a": 1})).events == []
    assert plan(run, lambda ctx: ctx.create_hook("h", "token", {"a": 1.0}, 9 * SECOND)).events == []


@pytest.mark.parametrize("resolved", [False, True])
def test_another_token_is_not_deterministic_and_neither_one_is_shown(resolved: bool) -> None:
    run = running(events.hook_created("h", "s3cret-old", None))
    if resolved:
        add(run, received("h", 1))
    with pytest.raises(NonDeterministic) as caught:
        plan(run, lambda ctx: ctx.create_hook("h", "s3cret-new"))
    assert "history=<redacted>; replay=<redacted>" in str(caught.value)
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("resolved", [False, True])
def test_other_metadata_is_not_deterministic(resolved: bool) -> None:
    run = running(events.hook_created("h", "token", {"a": 1}))
    if resolved:
        add(run, events.hook_disposed("h"))
    with pytest.raises(
        NonDeterministic, match=r"differs at \$\.a \(history: number; replay: number\)"
    ):
        plan(run, lambda ctx: ctx.create_hook("h", "token", {"a": 2}))


@pytest.mark.parametrize("padding", [1, 380, 390, 395, 400, 3000])
def test_a_token_inside_metadata_is_redacted_even_where_the_text_is_cut(padding: int) -> None:
    token = 's3cret"tok\\en'
    metadata = {"p": "x" * padding + token}
    run = running(events.hook_created("h", token, metadata))
    with pytest.raises(NonDeterministic) as caught:
        plan(run, lambda ctx: ctx.create_hook("h", token, {"p": "y" * padding + token}))
    assert "s3c" not in str(caught.value)
    with pytest.raises(NonDeterministic) as caught:
        plan(run, lambda ctx: ctx.create_hook("h", token, {token: metadata["p"]}))
    assert "s3c" not in str(caught.value)


def test_a_resolved_hook_makes_no_progress_alone_and_is_no_obstacle_beside_others() -> None:
    for resolution in (received("h", None), events.hook_disposed("h")):
        run = running(events.hook_created("h", "token", None), resolution)
        with pytest.raises(InvalidTransition, match="no progress: create_hook 'h'") as caught:
            plan(run, lambda ctx: ctx.create_hook("h", "token"))
        assert "token" not in str(caught.value)
        made = plan(
            run,
            lambda ctx: ctx.create_hook("h", "token"),
            lambda ctx: ctx.create_hook("g", "token-2"),
        )
        assert types(made) == ["hook_created"]


def test_a_hook_that_acquires_has_the_workflow_asked_again_once_it_is_recorded() -> None:
    def asks(**options: Any) -> Any:
        return lambda ctx: ctx.create_hook("h", "token", on_conflict="raise", **options)

    made = plan(running(), asks(acquire=True))
    assert made.news
    assert made.events[0].data["on_conflict"] == "raise"
    assert not plan(running(), asks()).news
    assert (
        "on_conflict" not in plan(running(), lambda ctx: ctx.create_hook("h", "t")).events[0].data
    )
    # Whoever asks under another policy for what is open changes nothing.
    for policy in ("wait", "raise"):
        run = running(events.hook_created("h", "token", None, on_conflict=policy))
        again = plan(run, asks(acquire=True))
        assert (again.events, again.news) == ([], False)


def test_a_hook_that_was_refused_is_an_outcome_and_its_policy_stays() -> None:
    run = running(events.hook_conflicted("h", "owner", "theirs"))
    made = plan(
        run,
        lambda ctx: ctx.create_hook("h", "s3cret", on_conflict="raise"),
        lambda ctx: ctx.sleep("w", SECOND),
    )
    assert types(made) == ["wait_created"]
    with pytest.raises(NonDeterministic, match="hook 'h' has another on_conflict") as caught:
        plan(run, lambda ctx: ctx.create_hook("h", "s3cret"))
    assert 'history="raise"; replay="wait"' in str(caught.value)
    assert "s3cret" not in str(caught.value)


# -- progress and links ---------------------------------------------------------------------------


def test_progress_is_recorded_once() -> None:
    made = plan(running(), lambda ctx: ctx.record_progress(PROGRESS))
    assert made.events[0].data == {"progress": PROGRESS.wire()}
    run = running(*made.events)
    with pytest.raises(InvalidTransition, match="no progress: record_progress 'p'"):
        plan(run, lambda ctx: ctx.record_progress(PROGRESS))
    other = PROGRESS.model_copy(update={"completed": 2})
    with pytest.raises(NonDeterministic, match=r"'p' has another value: differs at \$\."):
        plan(run, lambda ctx: ctx.record_progress(other))


def test_a_link_is_recorded_once() -> None:
    made = plan(running(), lambda ctx: ctx.link_child_operation(CHILD))
    assert made.events[0].data == {"child": CHILD.wire()}
    run = running(*made.events)
    with pytest.raises(InvalidTransition, match="no progress: link_child_operation 'r'"):
        plan(run, lambda ctx: ctx.link_child_operation(CHILD))
    other = CHILD.model_copy(update={"kind": "other"})
    with pytest.raises(NonDeterministic, match="links something else"):
        plan(run, lambda ctx: ctx.link_child_operation(other))


def test_progress_and_links_that_make_no_sense_are_refused_before_any_event() -> None:
    changes: list[dict[str, Any]] = [{"total": 0}, {"completed": 9}, {"progress_id": " "}]
    for change in changes:
        bad = RecordProgress(progress=PROGRESS.model_copy(update=change))
        with pytest.raises(InvalidTransition):
            decide(running(), (bad,), NOW)
    for field in ("reference_id", "kind", "operation_id", "flow_run_id"):
        link = LinkChildOperation(child=CHILD.model_copy(update={field: ""}))
        with pytest.raises(InvalidTransition):
            decide(running(), (link,), NOW)


def test_progress_beside_an_open_step_may_come_back() -> None:
    run = running(event(events.RUN_PROGRESS_RECORDED, progress=PROGRESS.wire()))
    add(run, step("a"), started("a"))
    made = plan(
        run, lambda ctx: ctx.record_progress(PROGRESS), lambda ctx: ctx.schedule_step("a", "work")
    )
    assert made.events == []


# -- ends -----------------------------------------------------------------------------------------


def test_every_end_is_planned() -> None:
    assert plan(running(), lambda ctx: ctx.complete({"ok": (1,)})).events[0].data == {
        "output": {"ok": [1]}
    }
    assert plan(running(), lambda ctx: ctx.fail("no")).events[0].data == {"error": "no"}
    assert plan(running(), lambda ctx: ctx.timeout(NOW, "slow")).events[0].data == {
        "deadline": "2026-03-01T12:00:00Z",
        "reason": "slow",
    }
    assert plan(running(cancellation("why")), lambda ctx: ctx.cancel()).events[0].data == {
        "reason": "why"
    }
    assert plan(running(), lambda ctx: ctx.complete()).ended


def test_a_cancelling_run_cleans_up_and_then_cancels_fails_or_times_out() -> None:
    run = running(cancellation(None))
    with pytest.raises(InvalidTransition, match="complete is not allowed once cancellation"):
        plan(run, lambda ctx: ctx.complete(1))
    assert types(plan(run, lambda ctx: ctx.cancel())) == ["run_cancelled"]
    assert types(plan(run, lambda ctx: ctx.fail("x"))) == ["run_failed"]
    assert types(plan(run, lambda ctx: ctx.timeout(NOW))) == ["run_timed_out"]


def test_cancel_needs_a_request() -> None:
    with pytest.raises(InvalidTransition, match="cancel without a cancellation request"):
        plan(running(), lambda ctx: ctx.cancel())


def test_completing_while_a_step_is_open_is_refused() -> None:
    with pytest.raises(InvalidTransition, match="complete while step 'a' is open"):
        plan(running(step("a"), started("a")), lambda ctx: ctx.complete(1))


def test_the_end_of_a_run_stands_last_and_beside_no_open_work() -> None:
    with pytest.raises(InvalidTransition, match="must be the last"):
        plan(running(), lambda ctx: ctx.complete(1), lambda ctx: ctx.record_progress(PROGRESS))
    with pytest.raises(InvalidTransition, match="must be the last"):
        plan(running(), lambda ctx: ctx.fail("x"), lambda ctx: ctx.fail("x"))
    for open_work in (
        lambda ctx: ctx.schedule_step("a", "w"),
        lambda ctx: ctx.sleep("t", SECOND),
        lambda ctx: ctx.create_hook("h", "token"),
    ):
        with pytest.raises(InvalidTransition, match="beside open"):
            plan(running(), open_work, lambda ctx: ctx.fail("x"))
        run = running(*plan(running(), open_work).events)
        with pytest.raises(InvalidTransition, match="beside open"):
            plan(run, open_work, lambda ctx: ctx.fail("x"))
        assert plan(run, lambda ctx: ctx.fail("x")).ended
    made = plan(running(), lambda ctx: ctx.record_progress(PROGRESS), lambda ctx: ctx.complete(1))
    assert types(made) == ["run_progress_recorded", "run_completed"]


def test_the_end_may_stand_beside_what_has_its_outcome() -> None:
    run = running(events.wait_created("t", resume_at=NOW), events.wait_completed("t"))
    made = plan(run, lambda ctx: ctx.sleep("t", SECOND), lambda ctx: ctx.complete(1))
    assert types(made) == ["run_completed"]


# -- decisions as such ----------------------------------------------------------------------------


def test_nothing_is_decided_for_a_run_that_has_not_started_or_has_ended() -> None:
    for run in (fold(created()), running(events.run_failed("x"))):
        with pytest.raises(InvalidTransition, match="nothing can be decided"):
            plan(run, lambda ctx: ctx.complete(1))


def test_what_is_not_a_command_is_told_apart() -> None:
    command = Complete(output=1)
    assert commands_of(command) == (command,)
    assert commands_of((command,)) == (command,)
    assert commands_of([command]) == (command,)
    assert commands_of(()) == ()
    for wrong in (None, 5, "complete", {"type": "complete"}, (command, None), Complete):
        with pytest.raises(TypeError, match="command"):
            commands_of(wrong)
    with pytest.raises(InvalidTransition, match="is not a command"):
        decide(running(), cast("tuple[RuntimeCommand, ...]", (5,)), NOW)


def test_planned_events_may_be_folded() -> None:
    run = running()
    made = plan(
        run,
        lambda ctx: ctx.schedule_steps([ctx.step("a", "w"), ctx.step("b", "w")]),
        lambda ctx: ctx.sleep("t", SECOND),
        lambda ctx: ctx.wait_until("u", datetime(2030, 1, 1, tzinfo=UTC)),
        lambda ctx: ctx.create_hook("h", "token", [1], SECOND),
        lambda ctx: ctx.record_progress(PROGRESS),
        lambda ctx: ctx.link_child_operation(CHILD),
    )
    add(run, *made.events)
    assert run.last_sequence == 2 + len(made.events)


def test_commands_never_show_a_token() -> None:
    command = context(running()).create_hook("h", "s3cret")
    assert "s3cret" not in repr([command]) + str(command)
