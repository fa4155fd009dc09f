"""The text of an append, written the short way, and the one row that answers a batch of them."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from flowpg.errors import FlowError, InvalidArgument, PayloadTooLarge, SchemaBehind
from flowpg.model import events
from flowpg.model.arguments import check_append
from flowpg.model.events import NewEvent, subject_of
from flowpg.model.records import Append, AppendOutcome
from flowpg.postgres.append_verbs import append_many, append_text

AT = datetime(2026, 1, 2, tzinfo=UTC)

IDS = ["step-1", "a b", 'say "hi"', "back\\slash", "tab\tand\nline", "ünï 🐘", "x" * 512]


def every_event(name: str) -> list[NewEvent]:
    return [
        events.run_started(),
        events.run_completed({"output": name}),
        events.run_failed(name),
        events.run_cancelled(None),
        events.run_timed_out(AT, name),
        events.run_retry_exhausted(name, 3, "no"),
        events.step_created(name, "work", [1, {"a": None}], {"max_attempts": 1}),
        events.step_started(name, 2),
        NewEvent(events.STEP_STARTED, {"step_id": name, "attempt": 2, "more": True}),
        NewEvent(events.STEP_STARTED, {"attempt": True, "step_id": name}),
        events.step_completed(name, {"of": name}),
        events.step_retrying(name, 1, "later", timedelta(seconds=2)),
        events.step_retrying(name, 1, "at once", timedelta(0)),
        events.step_failed(name, 1, "no"),
        events.step_non_retryable(name, 1, "never"),
        events.step_cancelled(name, 1, "the run ends"),
        events.wait_created(name, delay=timedelta(seconds=1)),
        events.wait_created(name, resume_at=AT),
        events.wait_completed(name),
        events.hook_created(name, "token", None, expires_in=timedelta(days=1)),
        events.hook_disposed(name),
        NewEvent("something_else", {"step_id": name}),
    ]


def long_way(event: NewEvent) -> dict[str, Any]:
    shape: dict[str, Any] = {"type": event.type}
    subject = subject_of(event.type, event.data)
    if subject is not None:
        shape["subject"] = subject
    if event.due_at is not None:
        shape["due_at"] = "2026-01-02T00:00:00+00:00"
    if event.due_in is not None:
        shape["due_in_us"] = event.due_in // timedelta(microseconds=1)
    return {**shape, "payload": event.data}


def spread(element: dict[str, Any]) -> dict[str, Any]:
    """The element with its bundle among its events, as the database reads it."""
    kinds = {"c": "step_created", "s": "step_started", "d": "step_completed"}
    ends: dict[str, dict[str, Any]] = {
        "C": {"retry": {"max_attempts": 3, "delay_ms": 0}},
        "S": {"attempt": 1},
    }
    steps = [
        {
            "type": kinds[letter.lower()],
            "subject": data["step_id"],
            "payload": {**data, **ends.get(letter, {})},
        }
        for letter, data in element.pop("steps", ())
    ]
    before, found = element.pop("before", 0), element.get("events", [])
    return {**element, "events": [*found[:before], *steps, *found[before:]]}


@pytest.mark.parametrize("name", IDS)
def test_every_event_is_written_as_what_it_is(name: str) -> None:
    new = every_event(name)
    text = append_text(Append("r", new, expected=4, epoch=2, release=7, queue='the "q"'))
    assert spread(json.loads(text)) == {
        "run_id": "r",
        "expected": 4,
        "epoch": 2,
        "release": 7,
        "queue": 'the "q"',
        "events": [long_way(event) for event in new],
    }
    # A second time the ids are known already.
    assert append_text(Append("r", every_event(name))) == append_text(Append("r", new))


def test_the_usual_end_of_a_payload_is_left_out_of_a_bundle() -> None:
    usual = [
        events.step_created("b", "work", {"retry": None}, {"max_attempts": 3, "delay_ms": 0}),
        events.step_started("b", 1),
    ]
    text = append_text(Append("r", usual))
    assert text.endswith(
        '"steps":[["C",{"step_id":"b","step_name":"work","input":{"retry":null}}],'
        '["S",{"step_id":"b"}]]}'
    )
    assert spread(json.loads(text))["events"] == [*map(long_way, usual)]
    for other in (events.step_started("b", 11), events.step_started("b", 2)):
        assert '["s",' in append_text(Append("r", [other]))


def test_step_events_that_stand_together_are_a_bundle() -> None:
    done, made, started = (
        events.step_completed("a", 1),
        events.step_created("b", "work", None, {"max_attempts": 1}),
        events.step_started("b", 1),
    )
    step = json.loads(append_text(Append("r", [done, made, started])))
    assert [letter for letter, _ in step["steps"]] == ["d", "c", "S"]
    assert "events" not in step
    assert "before" not in step
    first = json.loads(append_text(Append("r", [events.run_started(), made, started])))
    assert (len(first["events"]), first["before"], len(first["steps"])) == (1, 1, 2)
    last = json.loads(append_text(Append("r", [done, events.run_completed(1)])))
    assert (len(last["events"]), len(last["steps"])) == (1, 1)
    assert "before" not in last
    apart = [made, events.wait_completed("w"), started]
    assert spread(json.loads(append_text(Append("r", apart))))["events"] == [*map(long_way, apart)]
    large = json.loads(append_text(Append("r", [events.step_completed("a", "x" * 9000), made])))
    assert (len(large["events"]), len(large["steps"])) == (1, 1)


@pytest.mark.parametrize("bad", ["", " \t", "nul\x00", "\ud800", "x" * 513, None, 7, ["s"]])
@pytest.mark.parametrize("member", ["step_id", "wait_id", "hook_id"])
def test_what_every_store_refuses_is_refused_in_the_same_words(bad: Any, member: str) -> None:
    kind = {
        "step_id": events.STEP_STARTED,
        "wait_id": events.WAIT_COMPLETED,
        "hook_id": events.HOOK_DISPOSED,
    }[member]
    said: list[str] = []
    for check in (check_append, append_text):
        try:
            check(Append("r", [NewEvent(kind, {member: bad, "attempt": 1})]))
        except FlowError as error:
            said.append(f"{type(error).__name__}: {error}")
    assert len(said) in (0, 2)
    assert len(set(said)) <= 1


def test_an_event_without_its_id_and_one_that_is_too_large_are_refused() -> None:
    with pytest.raises(FlowError, match="lacks the id"):
        append_text(Append("r", [NewEvent(events.STEP_STARTED, {"attempt": 1})]))
    for event in (
        events.step_completed("s", "x" * events.MAX_PAYLOAD_BYTES),
        events.run_failed("ü" * (events.MAX_PAYLOAD_BYTES // 2)),
    ):
        with pytest.raises(PayloadTooLarge):
            append_text(Append("r", [event]))
    with pytest.raises(InvalidArgument, match="epoch"):
        append_text(Append("r", [], release=1))


def test_one_row_answers_for_all() -> None:
    asked = [Append(f"r{number}", [events.run_started()]) for number in range(3)]
    exceptions = json.dumps(
        [[2, "lease_lost", 0, {"epoch": 1, "current": 2}], [3, "appended", 5, None]]
    )
    first, second, third = append_many(asked).read([(AT, "raa", "[2,9,3]", exceptions)])
    assert (first.run_id, first.appended, first.released, first.head_sequence) == ("r0", 1, 1, 2)
    assert (first.recorded_at, dict(first.detail)) == (AT, {})
    assert (second.outcome, second.head_sequence) == (AppendOutcome.LEASE_LOST, 9)
    assert second.detail == {"epoch": 1, "current": 2}
    assert (third.appended, third.released, third.wakes) == (True, False, 5)


def test_an_answer_for_another_number_of_appends_is_no_answer() -> None:
    call = append_many([Append("r", [events.run_started()])])
    for row in ((None, None, None, None), (AT, "aa", "[1,2]", None)):
        with pytest.raises(SchemaBehind, match="flowpg migrate"):
            call.read([row])
