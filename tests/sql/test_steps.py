"""The verbs of steps that complete themselves in their own transaction."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.sql.database import SPEC, Database
from tests.waiting import until


def prepare(db: Database, *events: dict[str, Any]) -> None:
    """A run that is leased under epoch 1, whose step ``s`` is at work in attempt 1."""
    db.rows("SELECT flow_start(%s, '1', 'r')", SPEC)
    assert [task["run_id"] for task in db.claim()] == ["r"]
    step = {"step_id": "s"}
    made = [
        {"type": "run_started"},
        {"type": "step_created", "subject": "s", "payload": step},
        {"type": "step_started", "subject": "s", "payload": {**step, "attempt": 1}},
        *events,
    ]
    assert db.append({"run_id": "r", "epoch": 1, "events": made})[0]["outcome"] == "appended"


def complete(db: Database, epoch: int = 1, step: str = "s", attempt: int = 1) -> Any:
    """The answer of ``flow_complete_step``."""
    payload = json.dumps({"step_id": step, "output": "\u0000 kept"})
    call = "SELECT * FROM flow_complete_step('r', %s, %s, %s, %s::json)"
    [answer] = db.rows(call, epoch, step, attempt, payload)
    return answer


def test_a_completion_is_appended_at_the_head_whatever_came_in_between(db: Database) -> None:
    prepare(db, {"type": "run_x"}, {"type": "step_created", "subject": "t"})
    answer = complete(db)
    assert (answer["outcome"], answer["head_sequence"]) == ("appended", 7)
    assert "\\u0000 kept" in db.value("SELECT payload::text FROM flow_events WHERE sequence = 7")
    [found] = db.rows("SELECT * FROM flow_step_completed('r', 's')")
    assert (found["is_completed"], found["sequence"]) == (True, 7)
    assert complete(db)["outcome"] == "superseded"


@pytest.mark.parametrize(
    "event",
    [
        {"type": "step_retrying", "subject": "s"},
        {"type": "step_failed", "subject": "s"},
        {"type": "step_cancelled", "subject": "s"},
        {"type": "run_cancellation_requested"},
        {"type": "step_started", "subject": "s", "payload": {"attempt": 2}},
    ],
)
def test_an_attempt_that_is_not_waited_for_is_superseded(
    db: Database, event: dict[str, Any]
) -> None:
    prepare(db, event)
    assert complete(db)["outcome"] == "superseded"
    assert db.value("SELECT count(*) FROM flow_events WHERE event_type = 'step_completed'") == 0


def test_a_fence_an_end_and_an_unknown_run_refuse(db: Database) -> None:
    prepare(db)
    assert complete(db, epoch=7)["outcome"] == "lease_lost"
    assert complete(db, step="unknown")["outcome"] == "superseded"
    db.rows("SELECT flow_force_cancel('r')")
    assert complete(db)["outcome"] == "run_terminal"


def test_a_hook_of_the_same_name_is_no_event_of_the_step(db: Database) -> None:
    prepare(db, {"type": "hook_created", "subject": "s", "payload": {"token": "t"}})
    assert complete(db)["outcome"] == "appended"


def test_whoever_asks_waits_for_the_transaction_in_doubt(db: Database) -> None:
    prepare(db)
    holder = db.connect()
    with holder.transaction():
        db.rows("SELECT flow_complete_step('r', 1, 's', 1, '{}')", on=holder)
        asking = db.background(
            lambda connection: db.rows(
                "SELECT is_completed FROM flow_step_completed('r', 's')", on=connection
            )
        )
        until(lambda: db.is_settled(asking), "the question waits")
        assert not asking.done()
    assert asking.result(30) == [{"is_completed": True}]


def leave(db: Database, due_in: str, due_at: str) -> None:
    """Leave the step at work to another queue, with two deadlines, both counted from now."""
    db.rows(
        "SELECT flow_ensure_step_tasks('r', json_build_array(json_build_object("
        "'step_id', 's', 'step_name', 'n', 'attempt', 1, 'queue', 'q',"
        " 'due_in_us', (extract(epoch FROM %s::interval) * 1000000)::bigint,"
        " 'due_at', flow_time_text(flow_now() + %s::interval))))",
        due_in,
        due_at,
    )


@pytest.mark.parametrize("deadlines", [("1 minute", "1 hour"), ("1 hour", "1 minute")])
def test_a_step_elsewhere_is_due_at_the_earlier_of_its_deadlines(
    db: Database, deadlines: tuple[str, str]
) -> None:
    prepare(db)
    leave(db, *deadlines)
    due = "SELECT due_at - flow_now() BETWEEN '0' AND '1 minute'::interval FROM scheduled_wakeups"
    assert db.value(due)


def test_a_step_elsewhere_whose_deadline_has_passed_is_found_at_once(db: Database) -> None:
    prepare(db)
    assert db.rows("SELECT * FROM flow_enqueue_due()") == []  # so the mark is where the present is
    leave(db, "1 hour", "-1 hour")
    assert [due["subject_id"] for due in db.rows("SELECT * FROM flow_enqueue_due()")] == ["s"]
