"""What workflow and step code is given."""

from copy import deepcopy
from dataclasses import dataclass
from typing import Any, assert_type

import pytest
from pydantic import BaseModel

from flowpg.errors import InvalidTransition, SerializationError
from flowpg.model import events
from flowpg.model.commands import ScheduleSteps
from flowpg.model.operations import ChildOperationReference, WorkflowProgress
from flowpg.model.retry import DEFAULT_RETRY, RetryPolicy
from flowpg.replay.context import MISSING
from flowpg.replay.runtime import StepInvocation, WorkflowInvocation, idempotency_key
from tests.unit.histories import (
    CONTINUE,
    NOW,
    RUN,
    SECOND,
    SPEC,
    cancellation,
    context,
    created,
    envelopes,
    event,
    fold,
    plan,
    received,
    running,
    started,
    step,
)


class Order(BaseModel):
    id: str
    cents: int = 0


@dataclass
class Pair:
    left: int
    right: int


def test_the_run_is_readable() -> None:
    history = envelopes(created({"id": "7"}), events.run_started())
    run = fold(created({"id": "7"}), events.run_started())
    ctx = WorkflowInvocation(RUN, SPEC, run.input, run, history).context()
    assert (ctx.run_id, ctx.spec, ctx.input) == (RUN, SPEC, {"id": "7"})
    assert ctx.input_as(Order) == Order(id="7")
    assert list(ctx.history) == history
    assert ctx.cancellation_request() is None


def test_a_cancellation_request_is_readable() -> None:
    request = context(running(cancellation("why"))).cancellation_request()
    assert request is not None
    assert request.reason == "why"


@pytest.mark.parametrize("output", [None, 0, "", [], False, {}])
def test_a_falsy_outcome_is_not_an_absent_one(output: Any) -> None:
    run = running(
        step("a"),
        started("a"),
        events.step_completed("a", output),
        events.hook_created("h", "token", None),
        received("h", output),
    )
    ctx = context(run)
    assert ctx.step_completed("a")
    assert ctx.step_output("a", MISSING) == output
    assert ctx.step_output_as("a", object, MISSING) == output
    assert ctx.hook_received("h")
    assert ctx.hook_payload("h", MISSING) == output
    assert ctx.hook_payload_as("h", object, MISSING) == output


def test_whose_a_token_is() -> None:
    run = running(
        events.hook_created("mine", "token", None), events.hook_conflicted("not mine", "r", "h")
    )
    ctx = context(run)
    assert ctx.hook_active("mine")
    assert not ctx.hook_active("not mine")
    taken = ctx.hook_conflict("not mine")
    assert taken is not None
    assert (taken.run_id, taken.hook_id, taken.token) == ("r", "h", "")
    assert ctx.hook_conflict("mine") is None
    assert ctx.hook_conflict("unknown") is None


def test_an_absent_outcome_is_the_default_or_for_typed_readers_an_error() -> None:
    ctx = context(running(step("a"), started("a"), events.hook_created("h", "token", None)))
    for step_id in ("a", "unknown"):
        assert not ctx.step_completed(step_id)
        with pytest.raises(InvalidTransition, match=f"step '{step_id}' has no output yet"):
            ctx.step_output(step_id)
        assert ctx.step_output(step_id, None) is None
        assert ctx.step_output(step_id, 5) == 5
        assert ctx.step_output(step_id, MISSING) is MISSING
        assert ctx.step_output_as(step_id, Order, None) is None
        assert ctx.step_failed(step_id) is None
        with pytest.raises(InvalidTransition, match=f"step '{step_id}' has no output yet"):
            ctx.step_output_as(step_id, Order)
    for hook_id in ("h", "unknown"):
        assert not ctx.hook_received(hook_id)
        assert not ctx.hook_disposed(hook_id)
        assert ctx.hook_payload(hook_id) is None
        assert ctx.hook_payload_as(hook_id, Order, 5) == 5
        with pytest.raises(InvalidTransition, match=f"hook '{hook_id}' has no payload yet"):
            ctx.hook_payload_as(hook_id, Order)
    assert not ctx.wait_completed("unknown")
    assert ctx.progress("unknown") is None
    assert ctx.child_operation("unknown") is None


def test_typed_readers_validate_and_name_what_does_not_fit_without_its_value() -> None:
    run = running(
        step("a"),
        started("a"),
        events.step_completed("a", {"id": "7", "cents": "s3cret"}),
        step("b"),
        started("b"),
        events.step_completed("b", {"left": 1, "right": 2}),
    )
    ctx = context(run)
    assert_type(ctx.step_output_as("b", Pair), Pair)
    assert ctx.step_output_as("b", Pair) == Pair(1, 2)
    with pytest.raises(SerializationError, match=r"step 'a' .*Order: check cents") as e:
        ctx.step_output_as("a", Order)
    assert "s3cret" not in str(e.value)


def test_failures_are_readable_whether_they_used_up_attempts_or_not() -> None:
    run = running(
        step("a", CONTINUE),
        step("b", CONTINUE),
        started("a"),
        started("b"),
        events.step_failed("a", 1, "boom"),
        events.step_non_retryable("b", 1, ""),
    )
    ctx = context(run)
    assert ctx.step_failed("a") == "boom"
    assert ctx.step_failed("b") == ""
    assert not ctx.step_completed("a")


def test_timers_hooks_progress_and_links_are_readable() -> None:
    progress = WorkflowProgress(progress_id="p", completed=1)
    child = ChildOperationReference(reference_id="r", kind="k", operation_id="o")
    run = running(
        events.wait_created("t", resume_at=NOW),
        events.wait_completed("t"),
        events.hook_created("h", "token", None),
        events.hook_disposed("h"),
        event(events.RUN_PROGRESS_RECORDED, progress=progress.wire()),
        event(events.CHILD_OPERATION_LINKED, child=child.wire()),
    )
    ctx = context(run)
    assert ctx.wait_completed("t")
    assert ctx.hook_disposed("h")
    assert ctx.progress("p") == progress
    assert ctx.child_operation("r") == child


def test_whatever_workflow_code_changes_the_snapshot_stays_as_it_was() -> None:
    run = fold(
        created({"items": [1]}),
        events.run_started(),
        step("a"),
        started("a"),
        events.step_completed("a", {"items": [1]}),
        events.hook_created("h", "token", None),
        received("h", [[1]]),
        event(
            events.RUN_PROGRESS_RECORDED,
            progress=WorkflowProgress(progress_id="p", completed=1, details=[1]).wire(),
        ),
        event(
            events.CHILD_OPERATION_LINKED,
            child=ChildOperationReference(
                reference_id="r", kind="k", operation_id="o", metadata=[1]
            ).wire(),
        ),
    )
    before = deepcopy(run)
    ctx = context(run)
    ctx.input["items"].append(2)
    ctx.input_as(dict)["items"].append(2)
    ctx.step_output("a")["items"].append(2)
    ctx.step_output_as("a", dict)["items"].append(2)
    ctx.hook_payload("h")[0].append(2)
    ctx.hook_payload_as("h", list)[0].append(2)
    progress, child = ctx.progress("p"), ctx.child_operation("r")
    assert progress is not None
    assert child is not None
    progress.details.append(2)
    child.metadata.append(2)
    assert run == before
    assert ctx.input == {"items": [1]}
    assert ctx.step_output("a") == {"items": [1]}
    assert ctx.hook_payload("h") == [[1]]


def test_commands_have_the_defaults_one_expects() -> None:
    ctx = context(running())
    assert ctx.schedule_step("a", "w").retry is DEFAULT_RETRY
    assert ctx.step("a", "w", 1, RetryPolicy.none()).retry == RetryPolicy.none()
    assert ctx.schedule_steps(ctx.step(one, "w") for one in "ab") == ScheduleSteps(
        steps=(ctx.step("a", "w"), ctx.step("b", "w"))
    )
    assert ctx.complete().output is None
    assert ctx.sleep("t", SECOND).delay == SECOND
    assert ctx.wait_until("t", NOW).resume_at == NOW
    assert ctx.create_hook("h", "token").metadata is None


def test_a_step_has_its_own_copy_of_the_input() -> None:
    made = plan(running(), lambda ctx: ctx.schedule_step("a", "w", {"items": [1]}))
    launch = made.launches[0]
    call = StepInvocation(RUN, "a", 1, "w", launch.input, "orders.checkout")
    call.input["items"].append(2)
    assert launch.input == {"items": [1]}
    assert call.input_as(dict) == {"items": [1, 2]}


def test_an_idempotency_key_is_stable_for_an_attempt_and_differs_for_every_other() -> None:
    key = idempotency_key("run", "step", 1)
    assert key == StepInvocation("run", "step", 1, "w", None, "wf").idempotency_key
    assert key == "51663592509b1f765113a347fc61bc461c9a1197d55f46bf2dc956a5b674b11c"
    others = {
        idempotency_key("run", "step", 2),
        idempotency_key("runs", "tep", 1),
        idempotency_key("run", "step1", 1),
        idempotency_key("run2", "step", 1),
    }
    assert len(others | {key}) == 5
    assert all(len(one) == 64 for one in others)


def test_invocations_do_not_show_values_in_their_text_form() -> None:
    run = fold(created("s3cret"), events.run_started())
    invocation = WorkflowInvocation(RUN, SPEC, run.input, run)
    assert "s3cret" not in repr(invocation)
    assert "s3cret" not in repr(StepInvocation(RUN, "a", 1, "w", "s3cret", "wf"))
    assert repr(MISSING) == "MISSING"
    assert not MISSING
