"""Specs, commands, hooks, progress and links as they are written and read."""

from datetime import timedelta
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from flowpg.errors import InvalidRunId, InvalidTransition, InvalidWorkflow
from flowpg.model import events, jsontext
from flowpg.model.commands import (
    Complete,
    CreateHook,
    Fail,
    RuntimeCommand,
    ScheduleStep,
    ScheduleSteps,
    StepCommand,
    WaitUntil,
)
from flowpg.model.events import FlowEventEnvelope, NewEvent, subject_of
from flowpg.model.hooks import HookCallbackRoute, HookMetadata
from flowpg.model.operations import (
    CancellationRequest,
    ChildOperationReference,
    WorkflowProgress,
)
from flowpg.model.retry import DEFAULT_RETRY, RetryPolicy
from flowpg.model.spec import WorkflowRuntime, WorkflowSpec
from tests.unit.histories import NOW, RUN, SECOND, envelopes
from tests.unit.test_typed import ONE_OF_EACH

COMMAND: TypeAdapter[RuntimeCommand] = TypeAdapter(RuntimeCommand)


# -- specs ----------------------------------------------------------------------------------------


def test_a_spec_comes_back_from_its_wire_form_with_members_it_does_not_know() -> None:
    wire = {
        "name": "orders",
        "version": "2",
        "runtime": {"type": "rust_embedded", "entrypoint": "e", "export_name": "m", "extra": [1]},
        "signal_names": ["paid"],
    }
    spec = WorkflowSpec.model_validate(wire)
    assert spec.wire() == wire
    assert spec.model_dump(mode="json") == wire


def test_a_build_is_on_the_wire_only_when_the_spec_is_pinned() -> None:
    spec = WorkflowSpec.python("orders")
    assert "runtime_build" not in spec.wire()
    pinned = spec.with_runtime_build("build-7")
    assert pinned.wire()["runtime_build"] == "build-7"
    assert pinned != spec
    assert spec.runtime_build is None


@pytest.mark.parametrize(
    "spec",
    [
        WorkflowSpec.python(""),
        WorkflowSpec.python(" \t"),
        WorkflowSpec.python("a", version=""),
        WorkflowSpec.python("a", export_name=""),
        WorkflowSpec.python("x" * 256),
        WorkflowSpec.python("a\x00"),
        WorkflowSpec.python("a\ud800"),
        WorkflowSpec.python("a").with_runtime_build(""),
        WorkflowSpec.python("a").with_runtime_build("b" * 129),
        WorkflowSpec(name="a", version="1", runtime=WorkflowRuntime(entrypoint=" ")),
    ],
)
def test_a_spec_with_a_blank_or_odd_name_cannot_be_run(spec: WorkflowSpec) -> None:
    with pytest.raises(InvalidWorkflow):
        spec.check()


# -- commands -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wire", "command"),
    [
        ({"type": "complete", "output": 1}, Complete(output=1)),
        ({"type": "fail", "error": "x"}, Fail(error="x")),
        (
            {"type": "schedule_step", "step_id": "a", "step_name": "w", "input": [1]},
            ScheduleStep(step_id="a", step_name="w", input=[1], retry=DEFAULT_RETRY),
        ),
        (
            {"type": "schedule_steps", "steps": [{"step_id": "a", "step_name": "w"}]},
            ScheduleSteps(steps=(StepCommand(step_id="a", step_name="w"),)),
        ),
        (
            {"type": "wait_until", "wait_id": "t", "resume_at": "2026-03-01T12:00:00Z"},
            WaitUntil(wait_id="t", resume_at=NOW),
        ),
        (
            {"type": "create_hook", "hook_id": "h", "token": "t", "metadata": None},
            CreateHook(hook_id="h", token="t"),
        ),
    ],
)
def test_foreign_commands_are_read_by_their_type(
    wire: dict[str, Any], command: RuntimeCommand
) -> None:
    assert COMMAND.validate_python(wire) == command


@pytest.mark.parametrize(
    "wire", [None, {}, {"type": "explode"}, {"type": "fail"}, {"type": "create_hook", "hook_id": 1}]
)
def test_what_is_no_command_is_refused(wire: Any) -> None:
    with pytest.raises(ValidationError):
        COMMAND.validate_python(wire)


def test_commands_never_show_inputs_outputs_errors_or_tokens() -> None:
    secret = "s3cret"
    shown = [
        Complete(output=secret),
        Fail(error=secret),
        ScheduleStep(step_id="a", step_name="w", input=secret),
        ScheduleSteps(steps=(StepCommand(step_id="a", step_name="w", input={secret: 1}),)),
        CreateHook(hook_id="h", token=secret, metadata=secret),
    ]
    assert secret not in repr(shown)
    assert all(secret not in str(command) for command in shown)
    wrong: Any = [secret]
    with pytest.raises(ValidationError) as caught:
        CreateHook(hook_id="h", token=wrong)
    assert secret not in str(caught.value)


# -- hooks, progress, links -----------------------------------------------------------------------


def test_hook_metadata_is_built_up_and_leaves_out_what_is_absent() -> None:
    metadata = (
        HookMetadata.webhook("payment")
        .with_callback_route(HookCallbackRoute.post("/hooks/{token}"))
        .with_data("invoice", {"id": 7})
    )
    assert metadata.wire() == {
        "kind": "webhook",
        "label": "payment",
        "callback_route": {"method": "POST", "path": "/hooks/{token}"},
        "data": {"invoice": {"id": 7}},
    }
    assert HookMetadata.model_validate(metadata.wire()) == metadata
    assert HookMetadata(kind="k").wire() == {"kind": "k", "data": {}}


def test_a_null_inside_hook_data_is_kept() -> None:
    metadata = HookMetadata(kind="k").with_data("none", None).with_data("in", {"none": None})
    assert metadata.wire()["data"] == {"none": None, "in": {"none": None}}


def test_progress_and_links_leave_out_what_is_absent() -> None:
    assert WorkflowProgress(progress_id="p", completed=0).wire() == {
        "progress_id": "p",
        "completed": 0,
        "details": None,
    }
    child = ChildOperationReference(
        reference_id="r", kind="k", operation_id="o", flow_run_id="run-2"
    )
    assert child.wire() == {
        "reference_id": "r",
        "kind": "k",
        "operation_id": "o",
        "flow_run_id": "run-2",
        "metadata": None,
    }
    assert CancellationRequest().wire() == {}
    assert CancellationRequest(reason="").wire() == {"reason": ""}


def test_progress_and_links_are_checked() -> None:
    WorkflowProgress(progress_id="p", completed=2, total=2).check()
    changes: list[dict[str, Any]] = [{"completed": 3}, {"total": 0}, {"completed": -1}]
    for change in [*changes, {"progress_id": "\n"}]:
        with pytest.raises(InvalidTransition):
            WorkflowProgress(**{"progress_id": "p", "completed": 2, "total": 2, **change}).check()
    with pytest.raises(InvalidRunId):
        ChildOperationReference(
            reference_id="r", kind="k", operation_id="o", flow_run_id="a b"
        ).check()


def test_nothing_is_converted_in_progress_and_links() -> None:
    wrong: Any
    for wrong in ("1", True, 1.0, None):
        with pytest.raises(ValidationError):
            WorkflowProgress(progress_id="p", completed=wrong)


# -- events ---------------------------------------------------------------------------------------


def test_every_event_knows_its_key_and_what_it_is_about() -> None:
    subjects = {one.type: one.subject for one in envelopes(*ONE_OF_EACH)}
    assert subjects["step_created"] == subjects["run_retry_exhausted"] == "a"
    assert (subjects["wait_created"], subjects["hook_disposed"]) == ("t", "h")
    assert (subjects["run_progress_recorded"], subjects["child_operation_linked"]) == ("p", "r")
    assert {kind for kind, subject in subjects.items() if subject is None} == {
        "run_created",
        "run_started",
        "run_completed",
        "run_failed",
        "run_cancellation_requested",
        "run_cancelled",
        "run_timed_out",
        "run_host_shutdown",
        "run_attributes_set",
    }
    for one in envelopes(*ONE_OF_EACH):
        assert one.key == events.EVENT_KEYS[one.type]
    assert set(events.EVENT_KEYS) >= events.TERMINAL_TYPES
    assert subject_of("wait_completed", {"wait_id": "t"}) == "t"


def test_an_envelope_keeps_its_text_and_decodes_it_once() -> None:
    envelope = FlowEventEnvelope(RUN, 1, "id", NOW, "run_completed", payload='{"output": 1.0}')
    assert envelope.payload == '{"output": 1.0}'
    assert envelope.data is envelope.data
    assert envelope.timestamp == "2026-03-01T12:00:00Z"
    other = FlowEventEnvelope(RUN, 1, "id", NOW, "run_completed", data={"output": 1})
    assert envelope == other
    assert other.payload == '{"output":1}'
    assert envelope != FlowEventEnvelope(RUN, 2, "id", NOW, "run_completed", data={"output": 1})
    assert envelope != 5


def test_events_do_not_show_payloads_in_their_text_form() -> None:
    new = events.hook_created("h", "s3cret", "s3cret")
    assert "s3cret" not in repr([new, *envelopes(new)])


def test_a_payload_is_encoded_once() -> None:
    new = events.step_completed("a", {"x": 1})
    text = new.payload()
    new.data["output"] = 2
    assert new.payload() is text
    assert jsontext.decode(text) == {"step_id": "a", "output": {"x": 1}}


def test_a_deadline_is_a_time_or_a_duration() -> None:
    assert events.wait_created("t", resume_at=NOW).due_at == NOW
    assert events.wait_created("t", delay=SECOND).due_in == SECOND
    assert events.wait_created("t").due_in == timedelta(0)
    assert events.step_retrying("a", 1, "x", timedelta(0)).due_in is None
    assert isinstance(events.hook_created("h", "t", None, expires_in=SECOND), NewEvent)
    assert RetryPolicy() == DEFAULT_RETRY
