"""Direct inserts into flow_events: projections stay right, wrong rows are refused unseen."""

from __future__ import annotations

import json
from typing import Any

import psycopg
import pytest

from tests.sql.database import Connection, Database, codes, detail

INSERT = (
    "INSERT INTO flow_events (run_id, sequence, event_id, event_type, subject_id, due_at, payload) "
    "VALUES (%s, %s, gen_random_uuid(), %s, %s, %s, %s)"
)
SPEC = {"spec": {"name": "old", "version": "0"}, "input": None}


def insert(
    db: Database,
    run_id: str,
    sequence: int,
    event_type: str,
    subject: str | None = None,
    due: str | None = None,
    payload: Any = None,
    on: Connection | None = None,
) -> None:
    """One event, the way a writer of another make would write it."""
    db.rows(INSERT, run_id, sequence, event_type, subject, due, json.dumps(payload or {}), on=on)


def begin(db: Database, run_id: str = "r") -> None:
    insert(db, run_id, 1, "run_created", payload=SPEC)
    insert(db, run_id, 2, "run_started")


def refused(db: Database, *arguments: Any, **named: Any) -> psycopg.Error:
    """The error an insert ends with, which shows nothing of the row and changes nothing."""
    before = db.everything()
    with pytest.raises(psycopg.Error) as caught:
        insert(db, *arguments, **named)
    error = caught.value
    for text in (str(error), error.diag.message_detail, error.diag.message_hint):
        assert "secret" not in (text or "")
    assert db.everything() == before
    return error


def test_an_insert_keeps_every_projection(db: Database) -> None:
    begin(db)
    run = db.row("SELECT workflow_name, workflow_version, status, head_sequence FROM flow_runs")
    assert run == {
        "workflow_name": "old",
        "workflow_version": "0",
        "status": "running",
        "head_sequence": 2,
    }
    insert(db, "r", 3, "wait_created", "w", "2031-01-01T00:00:00Z")
    assert db.row("SELECT kind, subject_id FROM scheduled_wakeups") == {
        "kind": "wait",
        "subject_id": "w",
    }
    assert db.status("r") == "suspended"
    insert(db, "r", 4, "wait_completed", "w")
    assert db.rows("SELECT FROM scheduled_wakeups") == []
    assert db.status("r") == "running"
    metadata = {"token": "secret", "metadata": {"a": [1]}}
    insert(db, "r", 5, "hook_created", "h", "2031-01-01T00:00:00Z", metadata)
    hook = db.row("SELECT hook_id, token, metadata, created_sequence FROM flow_active_hooks")
    assert hook == {
        "hook_id": "h",
        "token": "secret",
        "metadata": {"a": [1]},
        "created_sequence": 5,
    }
    assert db.value("SELECT kind FROM scheduled_wakeups") == "hook_expiry"
    insert(db, "r", 6, "hook_received", "h", payload={"hook_id": "h", "payload": 1})
    assert db.rows("SELECT FROM flow_active_hooks") == []
    assert db.rows("SELECT FROM scheduled_wakeups") == []
    insert(db, "r", 7, "step_created", "s")
    insert(db, "r", 8, "step_started", "s")
    insert(db, "r", 9, "step_retrying", "s", "2031-01-01T00:00:00Z")
    assert db.value("SELECT kind FROM scheduled_wakeups") == "step_retry"
    assert db.status("r") == "suspended"
    insert(db, "r", 10, "step_started", "s")
    assert db.rows("SELECT FROM scheduled_wakeups") == []
    insert(db, "r", 11, "step_retrying", "s")
    assert db.rows("SELECT FROM scheduled_wakeups") == []
    insert(db, "r", 12, "event_from_the_future", "x")
    insert(db, "r", 13, "run_completed", payload={"output": 1})
    assert db.row(
        "SELECT status, head_sequence, ended_at = updated_at AS ended FROM flow_runs"
    ) == {
        "status": "completed",
        "head_sequence": 13,
        "ended": True,
    }


@pytest.mark.parametrize(
    ("event_type", "status"),
    [
        ("run_completed", "completed"),
        ("run_failed", "failed"),
        ("run_cancelled", "cancelled"),
        ("run_timed_out", "failed"),
        ("run_retry_exhausted", "failed"),
        ("run_host_shutdown", "failed"),
        ("run_continued_as_new", "continued_as_new"),
    ],
)
def test_an_end_drops_what_is_open_and_lets_nothing_follow(
    db: Database, event_type: str, status: str
) -> None:
    begin(db)
    insert(db, "r", 3, "wait_created", "w", "2031-01-01T00:00:00Z")
    insert(db, "r", 4, "hook_created", "h", payload={"token": "secret"})
    insert(db, "r", 5, event_type)
    assert db.status("r") == status
    assert db.rows("SELECT FROM flow_active_hooks") == []
    assert db.rows("SELECT FROM scheduled_wakeups") == []
    error = refused(db, "r", 6, "step_created", "s")
    assert error.sqlstate == "WF004"
    assert detail(error) == {"run_id": "r", "status": status}


def test_gaps_and_wrong_beginnings_are_refused(db: Database) -> None:
    begin(db)
    assert refused(db, "r", 4, "step_created", "s").sqlstate == "WF009"
    assert refused(db, "r", 2, "step_created", "s").sqlstate == "23505"
    assert refused(db, "s", 1, "run_started").sqlstate == "WF009"
    assert refused(db, "s", 2, "run_created", payload=SPEC).sqlstate == "WF009"
    assert refused(db, "r", 3, "run_created", payload=SPEC).sqlstate == "WF009"
    assert refused(db, "s", 7, "run_started").sqlstate == "WF009"
    assert refused(db, "s s", 1, "run_created", payload=SPEC).sqlstate == "WF013"
    assert refused(db, "s", 1, "run_created", payload={"spec": {"name": " "}}).sqlstate == "WF009"
    with pytest.raises(psycopg.Error) as caught:
        db.rows(
            "INSERT INTO flow_events (run_id, sequence, event_id, event_type, payload) VALUES "
            "('r', 3, gen_random_uuid(), 'run_failed', '{}'), "
            "('r', 4, gen_random_uuid(), 'run_started', '{}')"
        )
    assert caught.value.sqlstate == "WF004"


def test_rows_of_the_wrong_shape_are_refused_without_being_shown(db: Database) -> None:
    begin(db)
    secret = {"token": "secret"}
    assert refused(db, "r", 3, "hook_created", None, payload=secret).sqlstate == "WF009"
    assert refused(db, "r", 3, "hook_created", "h" * 2049, payload=secret).sqlstate == "WF009"
    assert refused(db, "r", 3, "wait_created", "w", payload=secret).sqlstate == "WF009"
    assert refused(db, "r", 3, "", "w", payload=secret).sqlstate == "WF009"
    assert refused(db, "r", 0, "step_created", "w", payload=secret).sqlstate == "WF009"
    assert refused(db, "r", 3, "step_created", "w", payload=["secret"]).sqlstate == "WF009"
    large = {"secret": "secret" * 200_000}
    error = refused(db, "r", 3, "step_created", "w", payload=large)
    assert error.sqlstate == "WF012"
    columns = "run_id, sequence, event_id, event_type, subject_id, payload, recorded_at"
    row = {
        "run_id": "'r'",
        "sequence": "3",
        "event_id": "gen_random_uuid()",
        "event_type": "'x'",
        "subject_id": "'x'",
        "payload": '\'{"x":"secret"}\'',
        "recorded_at": "now()",
    }
    for column in ("run_id", "sequence", "event_type", "payload", "recorded_at"):
        values = ", ".join({**row, column: "NULL"}.values())
        with pytest.raises(psycopg.Error) as caught:
            db.rows(f"INSERT INTO flow_events ({columns}) VALUES ({values})")
        assert caught.value.sqlstate == "WF009", column
        assert "secret" not in str(caught.value), column


@pytest.mark.parametrize("time", ["infinity", "-infinity", "10000-01-01 00:00+00", "0001-01-01 BC"])
def test_times_that_no_reader_can_take_are_refused(db: Database, time: str) -> None:
    begin(db)
    assert refused(db, "r", 3, "wait_created", "w", time).sqlstate == "WF009"
    with pytest.raises(psycopg.Error) as caught:
        db.rows(
            "INSERT INTO flow_events (run_id, sequence, event_id, event_type, subject_id, payload,"
            " recorded_at) VALUES ('r', 3, gen_random_uuid(), 'x', 'x', '{}', %s)",
            time,
        )
    assert caught.value.sqlstate == "WF009"


def test_the_last_times_there_are_may_be_written_and_read(db: Database) -> None:
    begin(db)
    for sequence, time in enumerate(("0001-01-01 00:00+00", "9999-12-31 23:59:59.999999+00"), 3):
        insert(db, "r", sequence, "wait_created", str(sequence), time)
    assert len(db.rows("SELECT due_at FROM flow_open_suspensions()")) == 2


def test_a_token_that_is_taken_is_refused_without_being_shown(db: Database) -> None:
    begin(db, "r")
    begin(db, "s")
    insert(db, "r", 3, "hook_created", "h", payload={"token": "secret"})
    error = refused(db, "s", 3, "hook_created", "i", payload={"token": "secret"})
    assert error.sqlstate == "WF005"
    assert detail(error) == {
        "run_id": "r",
        "hook_id": "h",
        "requested_run_id": "s",
        "requested_hook_id": "i",
    }
    changed = refused(db, "r", 4, "hook_created", "h", payload={"token": "secret2"})
    assert changed.sqlstate == "WF009"
    with pytest.raises(psycopg.Error) as caught:
        db.rows(
            "INSERT INTO flow_events (run_id, sequence, event_id, event_type, subject_id, payload)"
            " VALUES ('s', 3, gen_random_uuid(), 'hook_created', 'a', '{\"token\":\"secret3\"}'),"
            " ('s', 4, gen_random_uuid(), 'hook_created', 'b', '{\"token\":\"secret3\"}')"
        )
    assert caught.value.sqlstate == "WF005"
    assert "secret" not in str(caught.value)
    assert "secret" not in (caught.value.diag.message_detail or "")


def test_a_hook_that_was_refused_its_token_has_no_row_and_is_none_that_was_created(
    db: Database,
) -> None:
    begin(db)
    insert(db, "r", 3, "hook_created", "open", payload={"token": "secret"})
    insert(db, "r", 4, "hook_created", "shut", payload={"token": "secret2"})
    insert(db, "r", 5, "hook_disposed", "shut")
    owner = {"owner_run_id": "r", "owner_hook_id": "open"}
    insert(db, "r", 6, "hook_conflicted", "new", payload=owner)
    assert [row["hook_id"] for row in db.rows("SELECT hook_id FROM flow_active_hooks")] == ["open"]
    for known in ("open", "shut", "new"):
        assert refused(db, "r", 7, "hook_conflicted", known, payload=owner).sqlstate == "WF009"
    for call in ("flow_resume_hook('r', 'new', '1')", "flow_dispose_hook('r', 'new')"):
        with pytest.raises(psycopg.Error, match="its token belonged to another hook") as caught:
            db.rows(f"SELECT * FROM {call}")
        assert caught.value.sqlstate == "WF007"


def test_of_writers_who_race_for_one_token_one_wins(db: Database) -> None:
    token = {"token": "secret" * 1400}
    for number in range(8):
        begin(db, f"r{number}")

    def write(connection: Connection, number: int) -> bool:
        insert(db, f"r{number}", 3, "hook_created", "h", payload=token, on=connection)
        return True

    results = db.race(8, write)
    assert results.count(True) == 1
    assert codes(results) == ["WF005"] * 7
    for result in results:
        if isinstance(result, psycopg.Error):
            assert "secret" not in str(result)
            assert "secret" not in (result.diag.message_detail or "")


def test_a_direct_writer_and_an_append_at_one_place_leave_one_event(db: Database) -> None:
    begin(db)

    def write(connection: Connection, number: int) -> bool:
        if number % 2:
            insert(db, "r", 3, "step_created", f"s{number}", on=connection)
            return True
        event = {"type": "step_created", "subject": f"s{number}"}
        (answer,) = db.append({"run_id": "r", "expected": 2, "events": [event]}, on=connection)
        return bool(answer["outcome"] == "appended")

    results = db.race(12, write)
    assert results.count(True) == 1
    assert set(codes(results)) <= {"23505", "WF009"}
    assert db.types("r") == ["run_created", "run_started", "step_created"]
    assert db.value("SELECT head_sequence FROM flow_runs") == 3


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE flow_events SET payload = '{}'",
        "UPDATE flow_events SET payload = '{}' WHERE false",
        "DELETE FROM flow_events",
        "TRUNCATE flow_event_log",
        "UPDATE flow_event_log SET payload = '{}' WHERE false",
        "DELETE FROM flow_event_log",
    ],
)
def test_history_is_append_only_even_for_its_owner(db: Database, statement: str) -> None:
    begin(db)
    with pytest.raises(psycopg.Error) as caught:
        db.rows(statement)
    assert caught.value.sqlstate == "WF009"
    assert db.types("r") == ["run_created", "run_started"]


def test_attributes_of_one_insert_are_merged_in_order_and_null_takes_one_away(
    db: Database,
) -> None:
    begin(db)
    for number, changes in enumerate(({"a": 1, "b": "ü"}, {"b": None, "c": True}), 3):
        insert(db, "r", number, "run_attributes_set", payload={"attributes": changes})
    assert db.value("SELECT attributes FROM flow_run_info('r')") == {"a": 1, "c": True}
    events = [{"a": 2}, {"a": None}, {"c": None}]
    appended = [{"type": "run_attributes_set", "payload": {"attributes": e}} for e in events]
    assert db.append({"run_id": "r", "events": appended})[0]["outcome"] == "appended"
    assert db.value("SELECT attributes FROM flow_list_runs()") is None


@pytest.mark.parametrize(
    "payload", [{}, {"attributes": None}, {"attributes": [1]}, {"attributes": {"a": "secret\x00"}}]
)
def test_attributes_that_a_column_cannot_hold_are_refused(db: Database, payload: Any) -> None:
    begin(db)
    error = refused(db, "r", 3, "run_attributes_set", payload=payload)
    assert error.sqlstate == "WF009"
    assert db.value("SELECT attributes FROM flow_runs") is None


def test_a_cancelled_wait_leaves_no_wakeup_and_the_run_goes_on(db: Database) -> None:
    begin(db)
    resume_at = "2030-01-01T00:00:00Z"
    insert(db, "r", 3, "wait_created", "w", resume_at, {"wait_id": "w", "resume_at": resume_at})
    assert db.value("SELECT status FROM flow_runs") == "suspended"
    insert(db, "r", 4, "wait_cancelled", "w", payload={"wait_id": "w"})
    assert db.value("SELECT count(*) FROM scheduled_wakeups") == 0
    assert db.value("SELECT status FROM flow_runs") == "running"
    assert db.rows("SELECT applied FROM flow_resume_wait('r', 'w')") == [{"applied": False}]
