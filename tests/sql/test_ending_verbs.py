"""Verbs that cancel, end and annotate a run."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.sql.database import SPEC, STARTED, Database, end, hook, refused, retry, wait, wakes

REQUEST = "SELECT applied FROM flow_request_cancellation('r', %s)"
PROGRESS = '{"progress_id":"p","completed":1,"total":3,"message":null,"details":{"a":[1.0]}}'
CHILD = '{"reference_id":"c","kind":"k","operation_id":"o","metadata":null}'


# -- cancellation and ending ---------------------------------------------------------------------


def test_a_cancellation_request_closes_open_work_and_is_made_once(db: Database) -> None:
    db.start("r")
    db.append({"run_id": "r", "events": [wait("w"), hook("h", "t"), *retry("s", 10**9)]})
    assert db.value(REQUEST, 'a "reason"') is True
    assert db.status("r") == "cancelling"
    assert db.value("SELECT payload FROM flow_events ORDER BY sequence DESC LIMIT 1") == {
        "request": {"reason": 'a "reason"'}
    }
    assert db.rows("SELECT FROM flow_active_hooks") == []
    assert db.rows("SELECT FROM scheduled_wakeups") == []
    assert db.value(REQUEST, 'a "reason"') is False
    assert refused(db, REQUEST, "another")[0] == "WF002"
    assert refused(db, REQUEST, None)[0] == "WF002"
    db.append({"run_id": "r", "events": [wait("cleanup", 10**9)]})
    assert db.status("r") == "cancelling"
    assert db.value("SELECT subject_id FROM scheduled_wakeups") == "cleanup"
    db.rows("SELECT flow_force_cancel('r')")
    assert db.value(REQUEST, "another") is False


def test_a_cancellation_without_a_reason_says_so(db: Database) -> None:
    db.start("r")
    assert db.value(REQUEST, None) is True
    assert db.value("SELECT payload::text FROM flow_events WHERE sequence = 3") == '{"request":{}}'
    assert db.value(REQUEST, None) is False


@pytest.mark.parametrize(
    ("call", "event_type", "status", "payload"),
    [
        ("flow_force_cancel('r', 'why')", "run_cancelled", "cancelled", {"reason": "why"}),
        ("flow_force_cancel('r')", "run_cancelled", "cancelled", {"reason": None}),
        (
            "flow_terminate_for_timeout('r', '2026-01-02T03:04:05.6+01')",
            "run_timed_out",
            "failed",
            {"deadline": "2026-01-02T02:04:05.600000Z", "reason": None},
        ),
        (
            "flow_terminate_for_host_shutdown('r', 'bye')",
            "run_host_shutdown",
            "failed",
            {"reason": "bye"},
        ),
    ],
)
def test_a_run_is_ended_once_and_keeps_how(
    db: Database, call: str, event_type: str, status: str, payload: dict[str, Any]
) -> None:
    db.start("r")
    db.append({"run_id": "r", "events": [wait("w"), hook("h", "t"), *retry("s", 10**9)]})
    assert db.value(f"SELECT applied FROM {call}") is True
    assert db.value(f"SELECT applied FROM {call}") is False
    assert db.value("SELECT applied FROM flow_force_cancel('r', 'other')") is False
    last = db.row("SELECT event_type, payload FROM flow_events ORDER BY sequence DESC LIMIT 1")
    assert last == {"event_type": event_type, "payload": payload}
    assert db.status("r") == status
    assert db.value("SELECT ended_at = updated_at FROM flow_runs") is True
    assert db.rows("SELECT FROM flow_active_hooks") == []
    assert db.rows("SELECT FROM scheduled_wakeups") == []


def test_a_deadline_that_is_no_time_is_refused(db: Database) -> None:
    db.start("r")
    for deadline in (None, "infinity"):
        code, _ = refused(db, "SELECT flow_terminate_for_timeout('r', %s::timestamptz)", deadline)
        assert code == "WF010"


# -- records -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("verb", "value", "other", "event_type", "member"),
    [
        (
            "flow_record_progress",
            PROGRESS,
            PROGRESS.replace('"completed":1', '"completed":2'),
            "run_progress_recorded",
            "progress",
        ),
        (
            "flow_link_child_operation",
            CHILD,
            CHILD.replace('"k"', '"kk"'),
            "child_operation_linked",
            "child",
        ),
    ],
)
def test_a_record_is_made_once_and_never_changed(
    db: Database, verb: str, value: str, other: str, event_type: str, member: str
) -> None:
    db.start("r")
    query = f"SELECT applied FROM {verb}('r', %s)"
    assert db.value(query, value) is True
    assert db.value("SELECT payload::text FROM flow_events WHERE sequence = 3") == (
        f'{{"{member}":{value}}}'
    )
    assert db.value(query, value.replace(":", ": ")) is False
    code, fields = refused(db, query, other)
    assert (code, fields["run_id"]) == ("WF011", "r")
    assert wakes(db) == 2
    end(db)
    assert db.value(query, value) is False
    assert refused(db, query, value.replace('"c"', '"d"').replace('"p"', '"q"'))[0] == "WF004"


@pytest.mark.parametrize(
    "progress",
    [
        *("{}", "[]", "null", '{"progress_id":"","completed":1}', '{"progress_id":"p"}'),
        *('{"progress_id":"p","completed":-1}', '{"progress_id":"p","completed":1.5}'),
        *('{"progress_id":"p","completed":"one"}', '{"progress_id":"p","completed":0,"total":0}'),
        '{"progress_id":"p","completed":2,"total":1}',
        '{"progress_id":"\\u0000","completed":1}',
    ],
)
def test_a_progress_report_that_makes_no_sense_is_refused(db: Database, progress: str) -> None:
    db.start("r")
    assert refused(db, "SELECT flow_record_progress('r', %s)", progress)[0] == "WF009"


@pytest.mark.parametrize("missing", ["reference_id", "kind", "operation_id"])
def test_a_link_without_its_names_is_refused(db: Database, missing: str) -> None:
    db.start("r")
    child = json.loads(CHILD)
    for value in ({k: v for k, v in child.items() if k != missing}, {**child, missing: " "}):
        query = "SELECT flow_link_child_operation('r', %s)"
        assert refused(db, query, json.dumps(value))[0] == "WF009"


def test_a_link_names_a_run_that_exists(db: Database) -> None:
    db.start("r")
    child = {**json.loads(CHILD), "flow_run_id": "other"}
    query = "SELECT applied FROM flow_link_child_operation('r', %s)"
    assert refused(db, query, json.dumps(child)) == ("WF001", {"run_id": "other"})
    db.start("other")
    assert db.value(query, json.dumps(child)) is True


def test_a_run_that_was_started_but_not_yet_driven_can_be_cancelled(db: Database) -> None:
    db.rows("SELECT flow_start(%s, '1', 'r')", SPEC)
    assert db.value(REQUEST, None) is True
    assert db.status("r") == "cancelling"
    db.append({"run_id": "r", "events": [STARTED]})
    assert db.status("r") == "cancelling"
