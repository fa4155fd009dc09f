"""Events as models."""

from datetime import UTC, datetime
from typing import Any, assert_type

import pytest

from flowpg.errors import SerializationError
from flowpg.model import events, typed
from flowpg.model.events import FlowEventEnvelope, NewEvent
from flowpg.model.operations import ChildOperationReference, WorkflowProgress
from flowpg.model.retry import RetryPolicy
from tests.unit.histories import (
    NOW,
    RUN,
    SECOND,
    cancellation,
    created,
    envelopes,
    event,
    received,
    retrying,
    started,
    step,
)

ONE_OF_EACH: list[NewEvent] = [
    created({"a": 1}),
    events.run_started(),
    events.run_completed([1]),
    events.run_failed("x"),
    cancellation(),
    events.run_cancelled(None),
    events.run_timed_out(NOW, "slow"),
    events.run_retry_exhausted("a", 1, "x"),
    event(events.RUN_HOST_SHUTDOWN, reason=None),
    event(
        events.RUN_PROGRESS_RECORDED,
        progress=WorkflowProgress(progress_id="p", completed=1).wire(),
    ),
    event(
        events.CHILD_OPERATION_LINKED,
        child=ChildOperationReference(reference_id="r", kind="k", operation_id="o").wire(),
    ),
    event(events.RUN_ATTRIBUTES_SET, attributes={"customer": "acme", "gone": None}),
    events.patch_recorded("p"),
    step("a", RetryPolicy.exponential(4, SECOND)),
    started("a"),
    events.step_completed("a", None),
    retrying("a", 1, NOW, retry_requested=True),
    events.step_failed("a", 1, "x"),
    events.step_non_retryable("a", 1, "x"),
    events.step_cancelled("a", 1, "x"),
    events.wait_created("t", resume_at=NOW),
    events.wait_completed("t"),
    events.wait_cancelled("t"),
    events.hook_created("h", "token", {"a": 1}, on_conflict="raise"),
    events.hook_conflicted("g", "owner", "h"),
    received("h", None),
    events.hook_disposed("h"),
]


def envelope(type: str, data: Any) -> FlowEventEnvelope:
    """A stored event with any payload."""
    return FlowEventEnvelope(RUN, 1, "id", NOW, type, data=data)


def test_there_is_one_example_of_every_event() -> None:
    assert [one.type for one in ONE_OF_EACH] == list(events.EVENT_KEYS)


@pytest.mark.parametrize("stored", envelopes(*ONE_OF_EACH), ids=list(events.EVENT_KEYS))
def test_every_event_is_read_as_its_model_and_written_as_it_was(stored: FlowEventEnvelope) -> None:
    model = typed.typed(stored)
    assert model.type == stored.type
    assert type(model).__name__.lower() == stored.type.replace("_", "")
    written = model.model_dump(mode="json", exclude_unset=True)
    assert {key: written[key] for key in stored.data if written[key] != stored.data[key]} in (
        {},
        # Models of progress and links write what is absent as null.
        {"progress": {**stored.data.get("progress", {}), "total": None, "message": None}},
        {"child": {**stored.data.get("child", {}), "flow_run_id": None}},
    )


def test_a_model_has_types() -> None:
    model = typed.typed(envelopes(step("a", RetryPolicy.none(), input={"x": 1}))[0])
    assert isinstance(model, typed.StepCreated)
    assert_type(model.retry, RetryPolicy)
    assert (model.step_id, model.retry, model.input) == ("a", RetryPolicy.none(), {"x": 1})
    wait = typed.typed(envelope(events.WAIT_CREATED, {"wait_id": "t", "resume_at": EXACT}))
    assert isinstance(wait, typed.WaitCreated)
    assert wait.resume_at == datetime(2026, 1, 1, 0, 0, 0, 1, tzinfo=UTC)


EXACT = "2026-01-01T00:00:00.000000001Z"


@pytest.mark.parametrize(
    ("type", "data", "message"),
    [
        (events.STEP_STARTED, {"step_id": "a"}, "check attempt"),
        (events.STEP_STARTED, {"step_id": "a", "attempt": "1"}, "check attempt"),
        (events.STEP_STARTED, {"step_id": "a", "attempt": True}, "check attempt"),
        (events.STEP_STARTED, {"step_id": 1, "attempt": 1}, "check step_id"),
        (events.STEP_COMPLETED, {"step_id": "a"}, "check output"),
        (events.WAIT_CREATED, {"wait_id": "t", "resume_at": "s3cret"}, "check resume_at"),
        (events.WAIT_CREATED, {"wait_id": "t", "resume_at": 5}, "check resume_at"),
        (events.STEP_CREATED, {"step_id": "a", "step_name": "b", "input": 1, "retry": 5}, "retry"),
        (events.RUN_PROGRESS_RECORDED, {"progress": {"completed": "s3cret"}}, "progress.completed"),
        (events.HOOK_CREATED, {"hook_id": "h", "token": ["s3cret"], "metadata": 1}, "token"),
        (
            events.RUN_CREATED,
            {"spec": {"name": "s3cret"}, "input": 1},
            "check spec.version",
        ),
        (events.RUN_STARTED, [], "not an object"),
        ("signal_received", {}, "unknown"),
        ("s3cret", {}, "unknown"),
    ],
)
def test_what_does_not_fit_is_named_by_its_member_and_never_by_its_value(
    type: str, data: Any, message: str
) -> None:
    with pytest.raises(SerializationError, match=message) as caught:
        typed.typed(envelope(type, data))
    assert "s3cret" not in str(caught.value)
    assert f"event 1 of run '{RUN}'" in str(caught.value)


def test_a_type_among_the_payload_does_not_hide_the_real_one() -> None:
    model = typed.typed(envelope(events.RUN_STARTED, {"type": "run_completed", "output": 1}))
    assert isinstance(model, typed.RunStarted)


def test_models_do_not_show_payloads_errors_and_tokens_in_their_text_form() -> None:
    shown = [
        typed.typed(one)
        for one in envelopes(
            created("s3cret"),
            events.run_completed("s3cret"),
            events.run_failed("s3cret"),
            step("a", input="s3cret"),
            events.step_completed("a", "s3cret"),
            events.step_failed("a", 1, "s3cret"),
            events.hook_created("h", "s3cret", "s3cret"),
            received("h", "s3cret"),
        )
    ]
    assert "s3cret" not in repr(shown)
