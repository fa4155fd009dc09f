"""What a history says about its run: order, lifecycle, ends, cancellation."""

from datetime import timedelta

import pytest

from flowpg.errors import InvalidTransition, InvalidWorkflow, RunNotFound
from flowpg.model import events
from flowpg.model.events import FlowEventEnvelope, NewEvent
from flowpg.model.retry import RetryPolicy
from flowpg.model.snapshot import (
    CancelledOutcome,
    CompletedOutcome,
    FailedOutcome,
    HookStatus,
    HostShutdownOutcome,
    RetryExhaustedOutcome,
    RunStatus,
    StepStatus,
    TimedOutOutcome,
    WaitStatus,
)
from flowpg.replay import projection
from tests.unit.histories import (
    CONTINUE,
    NOW,
    RUN,
    SECOND,
    SPEC,
    add,
    assert_refused,
    cancellation,
    created,
    envelopes,
    event,
    fold,
    received,
    running,
    started,
    step,
)


def test_an_empty_history_is_a_run_that_does_not_exist() -> None:
    with pytest.raises(RunNotFound):
        projection.project(RUN, [])


def test_a_created_run_is_pending_and_holds_its_spec_and_input() -> None:
    run = fold(created({"order": 7}))
    assert (run.run_id, run.status, run.last_sequence) == (RUN, RunStatus.PENDING, 1)
    assert run.spec == SPEC
    assert run.input == {"order": 7}


def test_a_history_begins_with_run_created_at_sequence_one() -> None:
    with pytest.raises(InvalidTransition, match="begins with run_created"):
        fold(events.run_started())
    with pytest.raises(InvalidTransition, match="begins at 1"):
        projection.apply(None, RUN, events.RUN_CREATED, created().data, 2, NOW)


def test_a_run_is_created_once() -> None:
    assert_refused(running(), created(), "only the first event creates the run")


@pytest.mark.parametrize("sequence", [1, 2, 4, 0, -1])
def test_a_sequence_that_is_not_the_next_one_is_refused(sequence: int) -> None:
    run = running()
    with pytest.raises(InvalidTransition, match=r"the stream is at 2, so the next must be 3"):
        projection.apply(run, RUN, events.RUN_FAILED, {"error": "x"}, sequence, NOW)
    assert run.status is RunStatus.RUNNING


def test_an_event_of_another_run_is_refused() -> None:
    with pytest.raises(InvalidTransition, match="belongs to run 'other'"):
        projection.apply(running(), "other", events.RUN_FAILED, {"error": "x"}, 3, NOW)
    history = [*envelopes(created()), envelopes(created(), events.run_started(), run_id="other")[1]]
    with pytest.raises(InvalidTransition, match="belongs to run 'other'"):
        projection.project(RUN, history)


@pytest.mark.parametrize("version", [0, 2, -1, 65535])
def test_a_schema_version_this_release_does_not_know_is_refused(version: int) -> None:
    first, second = envelopes(created(), events.run_started())
    second.schema_version = version
    with pytest.raises(InvalidTransition, match="unsupported"):
        projection.project(RUN, [first, second])


def test_an_absent_schema_version_reads_as_one() -> None:
    first, second = envelopes(created(), events.run_started())
    first.schema_version, second.schema_version = None, 1
    assert projection.project(RUN, [first, second]).status is RunStatus.RUNNING


@pytest.mark.parametrize("unknown", ["signal_received", "activity_created", "", "run_paused"])
def test_an_event_type_this_release_does_not_know_is_refused(unknown: str) -> None:
    assert_refused(running(), event(unknown, step_id="a"), "unsupported")


@pytest.mark.parametrize(
    "spec",
    [
        None,
        "orders",
        {},
        {"name": "", "version": "1", "runtime": {"entrypoint": "a"}},
        {"name": "a", "version": " ", "runtime": {"entrypoint": "a"}},
        {"name": "a", "version": "1", "runtime": {"entrypoint": ""}},
        {"name": "a", "version": "1", "runtime": {"type": "cobol", "entrypoint": "a"}},
        {"name": 7, "version": "1", "runtime": {"entrypoint": "a"}},
        {"name": "a\x00", "version": "1", "runtime": {"entrypoint": "a"}},
    ],
)
def test_a_spec_that_cannot_be_run_is_an_invalid_workflow(spec: object) -> None:
    with pytest.raises(InvalidWorkflow) as caught:
        fold(event(events.RUN_CREATED, spec=spec, input=None))
    assert caught.value.run_id == RUN


def test_a_spec_is_refused_by_the_names_of_what_it_lacks() -> None:
    with pytest.raises(InvalidWorkflow, match=r"check runtime\.entrypoint, version$"):
        fold(event(events.RUN_CREATED, spec={"name": "a", "runtime": {}}, input=None))
    with pytest.raises(InvalidWorkflow, match=r"check its type$"):
        fold(event(events.RUN_CREATED, spec=[], input=None))


def test_an_input_is_needed_but_may_be_null() -> None:
    assert fold(event(events.RUN_CREATED, spec=SPEC.wire(), input=None)).input is None
    with pytest.raises(InvalidTransition, match="'input'"):
        fold(event(events.RUN_CREATED, spec=SPEC.wire()))


def test_a_run_starts_once_and_only_while_pending() -> None:
    assert_refused(running(), events.run_started(), "running, not pending")
    assert_refused(fold(created(), cancellation()), events.run_started(), "cancelling, not pending")


ENDS: list[tuple[NewEvent, RunStatus, str | None]] = [
    (events.run_completed({"ok": 1}), RunStatus.COMPLETED, None),
    (events.run_failed("no stock"), RunStatus.FAILED, "no stock"),
    (events.run_cancelled("stop"), RunStatus.CANCELLED, "stop"),
    (events.run_cancelled(None), RunStatus.CANCELLED, None),
    (events.run_timed_out(NOW, "too slow"), RunStatus.FAILED, "too slow"),
    (events.run_timed_out(NOW, None), RunStatus.FAILED, "timed out at 2026-03-01T12:00:00Z"),
    (event(events.RUN_HOST_SHUTDOWN, reason="gone"), RunStatus.FAILED, "gone"),
    (event(events.RUN_HOST_SHUTDOWN), RunStatus.FAILED, "the host shut down for good"),
]


@pytest.mark.parametrize(("end", "status", "error"), ENDS)
def test_every_end_has_its_status_and_error(
    end: NewEvent, status: RunStatus, error: str | None
) -> None:
    run = running(end)
    assert (run.status, run.error, run.terminal) == (status, error, True)


def test_every_end_has_a_typed_outcome() -> None:
    outcomes = [running(end).terminal_outcome for end, _, _ in ENDS]
    assert outcomes == [
        CompletedOutcome(output={"ok": 1}),
        FailedOutcome(error="no stock"),
        CancelledOutcome(reason="stop"),
        CancelledOutcome(reason=None),
        TimedOutOutcome(deadline=NOW, reason="too slow"),
        TimedOutOutcome(deadline=NOW, reason=None),
        HostShutdownOutcome(reason="gone"),
        HostShutdownOutcome(reason=None),
    ]


@pytest.mark.parametrize("end", [end for end, _, _ in ENDS])
def test_nothing_follows_the_end_of_a_run(end: NewEvent) -> None:
    run = running(step("a"), started("a"), events.step_completed("a", 1), end)
    for late in (events.run_failed("x"), step("b"), cancellation(), events.run_cancelled(None)):
        assert_refused(run, late, "has ended")


def test_a_pending_run_can_be_ended_and_is_never_started_afterwards() -> None:
    run = fold(created(), events.run_cancelled("never mind"))
    assert run.status is RunStatus.CANCELLED
    assert_refused(run, events.run_started(), "has ended")


def test_a_run_does_not_complete_while_a_step_is_open() -> None:
    done = events.run_completed(None)
    assert_refused(running(step("a")), done, "step 'a' is still open")
    assert_refused(running(step("a"), started("a")), done, "step 'a' is still open")
    run = running(step("a"), started("a"), events.step_completed("a", 0))
    add(run, done)
    assert run.status is RunStatus.COMPLETED


def test_a_run_may_complete_while_timers_and_hooks_are_open() -> None:
    run = running(
        events.wait_created("t", resume_at=NOW),
        events.hook_created("h", "secret", None),
        events.run_completed("done"),
    )
    assert run.status is RunStatus.COMPLETED
    assert run.waits["t"].status is WaitStatus.WAITING
    assert run.hooks["h"].status is HookStatus.ACTIVE


def test_a_cancelling_run_fails_is_cancelled_or_completes_all_the_same() -> None:
    done = running(cancellation(), events.run_completed(1))
    assert (done.status, done.output) == (RunStatus.COMPLETED, 1)
    assert running(cancellation(), events.run_failed("x")).status is RunStatus.FAILED
    assert running(cancellation(), events.run_cancelled("stop")).status is RunStatus.CANCELLED


def test_a_cancellation_request_is_kept_with_its_time_and_place() -> None:
    run = projection.project(RUN, envelopes(created(), events.run_started(), cancellation("why")))
    assert run.cancellation is not None
    assert (run.cancellation.reason, run.cancellation.sequence) == ("why", 3)
    assert run.cancellation.requested_at == NOW + 3 * SECOND
    assert run.status is RunStatus.CANCELLING


def test_a_run_is_asked_to_cancel_once() -> None:
    assert_refused(running(cancellation()), cancellation(), "requested before")


def test_a_cancellation_request_cancels_what_is_open_and_nothing_else() -> None:
    run = running(
        step("done"),
        started("done"),
        events.step_completed("done", 1),
        step("new"),
        step("at-work"),
        started("at-work"),
        step("delayed", RetryPolicy.fixed(3, SECOND)),
        started("delayed"),
        events.step_retrying("delayed", 1, "boom", SECOND),
        events.wait_created("fired", resume_at=NOW),
        events.wait_completed("fired"),
        events.wait_created("open", delay=SECOND),
        events.hook_created("answered", "t1", None),
        received("answered", 5),
        events.hook_created("open", "t2", None, expires_in=SECOND),
    )
    assert run.status is RunStatus.SUSPENDED
    add(run, cancellation())
    assert run.status.value == "cancelling"
    assert {key: one.status for key, one in run.steps.items()} == {
        "done": StepStatus.COMPLETED,
        "new": StepStatus.CANCELLED,
        "at-work": StepStatus.CANCELLED,
        "delayed": StepStatus.CANCELLED,
    }
    assert run.steps["delayed"].retry_after is None
    assert run.waits["fired"].status is WaitStatus.COMPLETED
    assert run.waits["open"].status is WaitStatus.CANCELLED
    assert run.hooks["answered"].status is HookStatus.RECEIVED
    assert run.hooks["open"].status is HookStatus.CANCELLED
    assert not run.open.steps
    assert not run.open.suspends


def test_cleanup_uses_new_ids_and_never_looks_suspended() -> None:
    run = running(step("a"), cancellation())
    assert_refused(run, step("a"), "exists already")
    assert_refused(run, started("a"), "cancelled, not pending")
    add(run, step("cleanup"), started("cleanup"), events.wait_created("pause", delay=SECOND))
    assert run.status is RunStatus.CANCELLING


def test_retry_exhaustion_ends_a_run_whose_step_used_up_its_attempts() -> None:
    run = running(step("a", RetryPolicy.none()), started("a"), events.step_failed("a", 1, "boom"))
    add(run, events.run_retry_exhausted("a", 1, "boom"))
    assert (run.status, run.error) == (RunStatus.FAILED, "boom")
    assert run.terminal_outcome == RetryExhaustedOutcome(step_id="a", attempt=1, error="boom")


def test_retry_exhaustion_must_match_the_failed_step() -> None:
    run = running(
        step("a", RetryPolicy.none()),
        started("a"),
        events.step_failed("a", 1, "boom"),
        step("b", CONTINUE),
        started("b"),
        events.step_failed("b", 1, "boom"),
        step("c"),
        started("c"),
    )
    assert_refused(run, events.run_retry_exhausted("a", 2, "boom"), "failed at attempt 1")
    assert_refused(run, events.run_retry_exhausted("a", 1, "bang"), "another error")
    assert_refused(run, events.run_retry_exhausted("b", 1, "boom"), "left to the workflow")
    assert_refused(run, events.run_retry_exhausted("c", 1, "boom"), "running, not failed")
    assert_refused(run, events.run_retry_exhausted("d", 1, "boom"), "does not exist")


def test_an_exhausted_step_still_ends_the_run_when_cancellation_came_in_between() -> None:
    run = running(
        step("a", RetryPolicy.none()),
        started("a"),
        events.step_failed("a", 1, "boom"),
        cancellation(),
        events.run_retry_exhausted("a", 1, "boom"),
    )
    assert run.status is RunStatus.FAILED


MALFORMED = [
    (events.RUN_COMPLETED, {}),
    (events.RUN_FAILED, {}),
    (events.RUN_FAILED, {"error": None}),
    (events.RUN_FAILED, {"error": ["x"]}),
    (events.RUN_CANCELLED, {"reason": 5}),
    (events.RUN_TIMED_OUT, {"reason": "x"}),
    (events.RUN_TIMED_OUT, {"deadline": "tomorrow"}),
    (events.RUN_TIMED_OUT, {"deadline": 5}),
    (events.RUN_TIMED_OUT, {"deadline": "2026-13-01T00:00:00Z"}),
    (events.RUN_TIMED_OUT, {"deadline": "2026-01-01T00:00:00"}),
    (events.RUN_HOST_SHUTDOWN, {"reason": {}}),
    (events.RUN_CANCELLATION_REQUESTED, {}),
    (events.RUN_CANCELLATION_REQUESTED, {"request": "stop"}),
    (events.RUN_CANCELLATION_REQUESTED, {"request": {"reason": 1}}),
    (events.RUN_RETRY_EXHAUSTED, {"step_id": "a", "attempt": "1", "error": "x"}),
]


@pytest.mark.parametrize(("type", "data"), MALFORMED)
def test_a_malformed_payload_is_refused_by_the_name_of_its_member(
    type: str, data: dict[str, object]
) -> None:
    assert_refused(running(), NewEvent(type, data), "its payload needs a member")


def test_a_payload_that_is_no_object_is_refused() -> None:
    first = envelopes(created())[0]
    broken = FlowEventEnvelope(RUN, 2, "id", NOW, events.RUN_STARTED, payload="[1]")
    with pytest.raises(InvalidTransition, match="not an object"):
        projection.project(RUN, [first, broken])


def test_errors_never_show_a_value_of_the_payload() -> None:
    secret = "s3cret-value"
    run = running()
    for data in ({"error": [secret]}, {"error": {secret: secret}}):
        with pytest.raises(InvalidTransition) as caught:
            add(run, NewEvent(events.RUN_FAILED, data))
        assert secret not in str(caught.value)
    with pytest.raises(InvalidWorkflow) as refused:
        fold(event(events.RUN_CREATED, spec={"name": [secret], "version": secret}, input=secret))
    assert secret not in str(refused.value)


def test_a_run_with_something_awaited_is_suspended_and_running_again_without() -> None:
    run = running(events.wait_created("t", delay=timedelta(0)))
    assert run.status is RunStatus.SUSPENDED
    add(run, step("a"), started("a"))
    assert run.status is RunStatus.SUSPENDED
    add(run, events.wait_completed("t"))
    assert run.status.value == "running"
    add(run, events.hook_created("h", "t", None))
    assert run.status is RunStatus.SUSPENDED
    add(run, events.hook_disposed("h"))
    assert run.status.value == "running"
