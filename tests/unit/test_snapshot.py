"""Snapshots as values: typed readers, wire form, what their text form hides; and the errors."""

from datetime import timedelta
from typing import Any

import pytest
from pydantic import BaseModel, model_validator

import flowpg.errors
from flowpg.errors import (
    FlowError,
    HookTokenConflict,
    HookTokenNotFound,
    InvalidTransition,
    SerializationError,
)
from flowpg.model import events
from flowpg.model.operations import ChildOperationReference, WorkflowProgress
from flowpg.model.retry import RetryPolicy
from flowpg.model.snapshot import RunStatus, StepStatus
from flowpg.model.sqlstates import SQLSTATES, from_sqlstate
from tests.unit.histories import (
    NOW,
    SECOND,
    created,
    event,
    fold,
    received,
    retrying,
    running,
    started,
    step,
)


class Answer(BaseModel):
    ok: bool


class Closed(BaseModel, extra="forbid"):
    ok: bool


class Read(BaseModel):
    """Its schema says nothing, for its validator may read what it likes."""

    inner: Answer

    @model_validator(mode="before")
    @classmethod
    def _as_it_is(cls, value: Any) -> Any:
        return value


def test_typed_readers_validate() -> None:
    run = fold(
        created({"ok": True}),
        events.run_started(),
        step("a"),
        started("a"),
        events.step_completed("a", {"ok": False}),
        events.hook_created("h", "token", {"ok": True}),
        received("h", {"ok": True}),
        events.run_completed({"ok": True}),
    )
    assert run.input_as(Answer).ok
    assert run.output_as(Answer).ok
    assert not run.steps["a"].output_as(Answer).ok
    assert run.hook_metadata_as("h", Answer).ok
    assert run.hooks["h"].payload_as(Answer).ok
    with pytest.raises(SerializationError, match="the input of run 'run-1' does not fit int"):
        run.input_as(int)


def test_what_does_not_fit_is_named_without_the_names_that_only_the_sender_knows() -> None:
    said = []
    for kind, payload in (
        (Answer, {"ok": "s3cret"}),
        (dict[str, int], {"s3cret": "x"}),
        (dict[str, Answer], {"s3cret": {"ok": "x"}}),
        (Closed, {"ok": True, "s3cret": 1}),
        (Read, {"inner": {"ok": "s3cret"}}),
    ):
        run = running(events.hook_created("h", "token", None), received("h", payload))
        with pytest.raises(SerializationError, match="the payload of hook 'h'") as refused:
            run.hooks["h"].payload_as(kind)
        assert "s3cret" not in str(refused.value)
        said.append(str(refused.value).partition("check ")[2])
    assert said == ["ok", "*", "*.ok", "*", "inner.ok"]


def test_the_wire_form_is_plain_json_ordered_by_id_without_the_engines_own_notes() -> None:
    child = ChildOperationReference(reference_id="r", kind="k", operation_id="o")
    run = running(
        step("b", RetryPolicy.fixed(2, SECOND), input={"x": 1}),
        step("a"),
        started("b"),
        retrying("b", 1, NOW + SECOND),
        events.wait_created("t", resume_at=NOW + timedelta(microseconds=5)),
        events.hook_created("h", "token", {"m": 1}),
        event(
            events.RUN_PROGRESS_RECORDED,
            progress=WorkflowProgress(progress_id="p", completed=1).wire(),
        ),
        event(events.CHILD_OPERATION_LINKED, child=child.wire()),
    )
    wire = run.wire()
    assert "open" not in wire
    assert list(wire["steps"]) == ["a", "b"]
    assert wire["status"] == "suspended"
    assert wire["last_sequence"] == 10
    assert wire["steps"]["b"] == {
        "step_id": "b",
        "step_name": "work",
        "input": {"x": 1},
        "retry": {"max_attempts": 2, "delay_ms": 1000},
        "status": "pending",
        "attempt": 1,
        "output": None,
        "error": "boom",
        "retry_after": "2026-03-01T12:00:01Z",
    }
    assert wire["waits"]["t"]["resume_at"] == "2026-03-01T12:00:00.000005Z"
    assert wire["hooks"]["h"]["token"] == "token"
    assert wire["terminal_outcome"] is None
    hooks = running(
        events.hook_created("g", "t", None, on_conflict="raise"),
        events.hook_conflicted("h", "owner", "theirs"),
    ).wire()["hooks"]
    assert "on_conflict" not in wire["hooks"]["h"]
    assert hooks["g"]["on_conflict"] == "raise"
    assert (hooks["h"]["status"], hooks["h"]["owner_run_id"]) == ("conflicted", "owner")
    ended = running(events.run_timed_out(NOW, None)).wire()
    assert ended["terminal_outcome"] == {
        "type": "timed_out",
        "deadline": "2026-03-01T12:00:00Z",
        "reason": None,
    }


def test_a_snapshot_does_not_show_payloads_errors_and_tokens_in_its_text_form() -> None:
    run = fold(
        created("s3cret"),
        events.run_started(),
        step("a", RetryPolicy.none(), input="s3cret"),
        started("a"),
        events.hook_created("h", "s3cret", "s3cret"),
        received("h", "s3cret"),
        events.step_failed("a", 1, "s3cret"),
        events.run_retry_exhausted("a", 1, "s3cret"),
    )
    assert "s3cret" not in repr(run)
    assert "s3cret" not in repr(running(events.run_completed("s3cret")))
    assert "s3cret" not in repr(running(events.run_failed("s3cret")))


def test_states_know_whether_they_are_final_or_open() -> None:
    assert [status.value for status in RunStatus if status.terminal] == [
        "completed",
        "failed",
        "cancelled",
    ]
    assert [status.value for status in StepStatus if status.open] == ["pending", "running"]


# -- errors ---------------------------------------------------------------------------------------


def test_every_sqlstate_makes_its_error_even_from_an_empty_detail() -> None:
    for sqlstate in SQLSTATES:
        for detail in ({}, {"run_id": None, "expected": None}, {"run_id": "r", "reason": "why"}):
            error = from_sqlstate(sqlstate, detail, "a message", token="s3cret")
            assert isinstance(error, FlowError)
            assert "s3cret" not in str(error) + repr(error)
    assert from_sqlstate("23505", {}, "duplicate key") is None


def test_a_token_can_be_routed_by_and_is_never_shown() -> None:
    for error in (HookTokenNotFound("s3cret"), HookTokenConflict("s3cret", "run-1", "h")):
        assert error.token == "s3cret"
        assert "s3cret" not in f"{error}{error!r}"


def test_the_tree_in_the_docstring_is_the_tree_of_classes() -> None:
    names = {
        name
        for name, kind in vars(flowpg.errors).items()
        if isinstance(kind, type) and issubclass(kind, FlowError)
    }
    tree = (flowpg.errors.__doc__ or "").split("\n\n")[2]
    drawn = [line.lstrip(" │├└─").split()[0] for line in tree.splitlines() if line.strip()]
    assert sorted(drawn) == sorted(names)
    parents: list[str] = []
    for line, name in zip(filter(str.strip, tree.splitlines()), drawn, strict=True):
        depth = (len(line) - len(line.lstrip(" │├└─"))) // 4 - 1
        parents[depth:] = [name]
        if depth:
            assert vars(flowpg.errors)[name].__bases__[0].__name__ == parents[depth - 1]


def test_an_error_names_its_run_once() -> None:
    error = InvalidTransition("it is over", run_id="run-1")
    assert str(error) == "run 'run-1': it is over"
    assert (error.reason, error.run_id) == ("it is over", "run-1")
