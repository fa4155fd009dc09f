"""Step events that come as a bundle: one row in the log, and the same events for every reader."""

from __future__ import annotations

import json
from typing import Any

import psycopg
import pytest

from tests.sql.database import Database

CREATED = '{"step_id":"b","n":1.50,"n":-0.0, "big":123456789012345678901234567890}'
BUNDLE = (
    '[["d",{"step_id":"a","output":{"b":1,"a":"\\u00e9\\n"}}],'
    f'["c",{CREATED}],["s",{{"step_id":"b","attempt":1}}]]'
)
TYPES = ["run_created", "run_started", "step_completed", "step_created", "step_started"]


def send(db: Database, run_id: str = "r", **element: Any) -> dict[str, Any]:
    """The answer to one element; members are JSON text."""
    members = {"run_id": json.dumps(run_id), **element}
    text = ",".join(f'"{name}":{value}' for name, value in members.items())
    return db.row("SELECT * FROM flow_append_many(%s)", f"[{{{text}}}]")


def bundled(db: Database) -> None:
    """A run of five events, the last three of them one row."""
    db.start("r")
    assert send(db, expected=2, steps=BUNDLE)["head_sequence"] == 5


def reason(answer: dict[str, Any]) -> str:
    assert answer["outcome"] == "invalid", answer
    return str(answer["detail"]["reason"])


def test_a_bundle_is_one_row_and_reads_as_the_events_it_holds(db: Database) -> None:
    bundled(db)
    row = db.row(
        "SELECT sequence, event_count, event_id, payload::text FROM flow_event_log"
        " WHERE event_type IS NULL"
    )
    assert row == {"sequence": 5, "event_count": 3, "event_id": None, "payload": BUNDLE}
    events = db.rows(
        "SELECT sequence, event_type, subject_id, payload::text, event_id, due_at, recorded_at,"
        " transaction_id, schema_version FROM flow_events WHERE run_id = 'r' ORDER BY sequence"
    )
    assert [event["sequence"] for event in events] == [1, 2, 3, 4, 5]
    assert [event["event_type"] for event in events] == TYPES
    assert [event["subject_id"] for event in events] == [None, None, "a", "b", "b"]
    assert events[3]["payload"] == CREATED
    assert len({event["event_id"] for event in events}) == 5
    assert len({event["transaction_id"] for event in events}) == 3 - 1
    assert db.row("SELECT head_sequence, status FROM flow_runs") == {
        "head_sequence": 5,
        "status": "running",
    }


def test_pages_and_loads_may_begin_and_end_inside_a_bundle(db: Database) -> None:
    bundled(db)
    assert send(db, events='[{"type":"run_completed"}]')["head_sequence"] == 6
    whole = db.rows("SELECT * FROM flow_history('r')")
    assert [event["event_type"] for event in whole] == [*TYPES, "run_completed"]
    for after in range(7):
        for limit in (1, 2, 3, 10):
            page = db.rows("SELECT * FROM flow_history('r', %s, %s)", after, limit)
            assert page == whole[after : after + limit]
        loaded = db.row("SELECT events FROM flow_load_runs('{r}', ARRAY[%s])", after)
        read = json.loads(loaded["events"])
        assert [event[0] for event in read] == list(range(after + 1, 7))
        assert [event[2] for event in read] == [str(event["event_id"]) for event in whole[after:]]
    assert CREATED in db.value("SELECT events FROM flow_load_runs('{r}')")


def test_the_usual_end_of_a_payload_comes_back_where_it_was_left_out(db: Database) -> None:
    db.start("r")
    send(db, steps='[["C",{"step_id":"b","input":{"a":1.0}}],["S",{"step_id":"b"}]]')
    texts = db.rows(
        "SELECT event_type, payload::text AS text FROM flow_events WHERE sequence > 2 ORDER BY 1"
    )
    assert [tuple(row.values()) for row in texts] == [
        (
            "step_created",
            '{"step_id":"b","input":{"a":1.0},"retry":{"max_attempts":3,"delay_ms":0}}',
        ),
        ("step_started", '{"step_id":"b","attempt":1}'),
    ]
    assert '"attempt":1}' in db.value("SELECT events FROM flow_load_runs('{r}')")


def test_a_bundle_stands_where_the_element_says(db: Database) -> None:
    steps = '[["c",{"step_id":"b"}],["s",{"step_id":"b"}]]'
    around = '[{"type":"wait_completed","subject":"w"},{"type":"run_progress_recorded"}]'
    db.start("r")
    for before, types in (
        ("0", ["step_created", "step_started", "wait_completed", "run_progress_recorded"]),
        ("1", ["wait_completed", "step_created", "step_started", "run_progress_recorded"]),
        ("2", ["wait_completed", "run_progress_recorded", "step_created", "step_started"]),
    ):
        answer = send(db, steps=steps, events=around, before=before)
        assert (answer["outcome"], db.types("r")[-4:]) == ("appended", types)
    assert db.value("SELECT count(*) FROM flow_event_log WHERE event_type IS NULL") == 3
    assert send(db, steps=steps, events='[{"type":"run_failed"}]')["outcome"] == "appended"
    assert db.types("r")[-1] == "run_failed"


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ('[["x",{"step_id":"b"}]]', "an event has no type"),
        ('[["c",{"id":"b"}]]', "has no subject"),
        ('[["c",{"step_id":""}]]', "is blank"),
        ('[["c",{"step_id":"  "}]]', "is blank"),
        ('[["c",{"step_id":"b"}],["c",7]]', "has no type"),
        ('[["c"]]', "has no type"),
        ('[["S",{}]]', "has no type"),
        ('[["C",[{"step_id":"b"}]]]', "has no type"),
        ('["c"]', "malformed"),
        ('[["c",{"step_id":"b"},7]]', "has no type"),
        (f'[["c",{{"step_id":"{"b" * 2049}"}}]]', "longer than 2048"),
        ('{"a":1}', "malformed"),
        ("7", "malformed"),
    ],
)
def test_what_is_no_bundle_is_refused_in_words(db: Database, steps: str, words: str) -> None:
    db.start("r")
    assert words in reason(send(db, steps=steps))
    assert db.types("r") == ["run_created", "run_started"]


def test_an_end_before_a_bundle_is_refused(db: Database) -> None:
    db.start("r")
    end = '[{"type":"run_completed"}]'
    steps = '[["c",{"step_id":"b"}]]'
    assert "follows the end" in reason(send(db, steps=steps, events=end, before="1"))
    assert send(db, steps=steps, events=end)["outcome"] == "appended"


@pytest.mark.parametrize(
    "steps",
    [
        '[["c",{"n":0,"step_id":"b"}],["s",{"step_id":"b"}]]',
        '[["c",{"step_id":"b","text":"\\u0000 \\ud800"}],["s",{"step_id":"b"}]]',
        '[["c",{"step_id":" b"}],["s",{"step_id":" b"}]]',
    ],
)
def test_what_could_not_be_taken_apart_is_stored_event_by_event(db: Database, steps: str) -> None:
    db.start("r")
    assert send(db, steps=steps)["outcome"] == "appended"
    assert db.value("SELECT count(*) FROM flow_event_log WHERE event_type IS NULL") == 0
    assert db.types("r")[2:] == ["step_created", "step_started"]
    first = db.value("SELECT payload::text FROM flow_events WHERE sequence = 3")
    assert f'["c",{first}]' in steps
    assert db.value("SELECT subject_id FROM flow_events WHERE sequence = 4").strip() == "b"


def test_a_bundle_settles_the_delayed_retries_of_its_steps(db: Database) -> None:
    db.start("r")
    for step in ("a", "b"):
        retry = {"type": "step_retrying", "subject": step, "due_in_us": 60_000_000}
        send(db, events=json.dumps([retry]))
    assert db.status("r") == "suspended"
    send(db, steps='[["c",{"step_id":"b"}],["s",{"step_id":"a"}]]')
    assert db.rows("SELECT subject_id FROM scheduled_wakeups") == [{"subject_id": "b"}]
    assert db.status("r") == "suspended"
    send(db, steps='[["d",{"step_id":"b"}]]')
    assert db.rows("SELECT FROM scheduled_wakeups") == []
    assert db.status("r") == "running"


def test_a_bundle_beside_a_delayed_retry_is_stored_event_by_event(db: Database) -> None:
    db.start("r")
    retry = '[{"type":"step_retrying","subject":"b","due_in_us":60000000}]'
    send(db, steps='[["s",{"step_id":"b"}]]', events=retry, before="1")
    assert db.rows("SELECT FROM scheduled_wakeups") == []
    assert db.value("SELECT count(*) FROM flow_event_log WHERE event_type IS NULL") == 0


def test_no_event_can_be_put_inside_a_bundle(db: Database) -> None:
    bundled(db)
    for sequence in (3, 4, 5):
        with pytest.raises(psycopg.Error) as caught:
            db.rows(
                "INSERT INTO flow_events (run_id, sequence, event_type, subject_id, payload)"
                " VALUES ('r', %s, 'step_started', 's', '{}')",
                sequence,
            )
        assert caught.value.sqlstate in ("WF009", "23505")
    assert len(db.types("r")) == 5


@pytest.mark.parametrize(
    "row",
    [
        "('r', 5, 4, NULL, NULL, '[]')",
        "('r', 5, 0, NULL, NULL, '[]')",
        "('r', 5, 3, 'step_created', 's', '{}')",
        "('r', 5, 3, NULL, 's', '[]')",
        "('r', 5, 5, NULL, NULL, '[]')",
        "('r', 5, 2, NULL, NULL, '[]')",
    ],
)
def test_a_row_of_the_log_that_is_neither_is_refused(db: Database, row: str) -> None:
    db.start("r")
    with pytest.raises(psycopg.Error) as caught:
        db.rows(
            "INSERT INTO flow_event_log (run_id, sequence, event_count, event_type, subject_id,"
            f" payload) VALUES {row}"
        )
    assert caught.value.sqlstate == "WF009"
