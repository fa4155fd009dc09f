"""Values that break other stores: each is kept as it is, or refused with a typed error."""

from __future__ import annotations

import json
from typing import Any

import psycopg
import pytest

from tests.sql.database import SPEC, Database, detail, refused

VERBATIM = [
    r'{"a":"\u0000"}',
    r'{"\u0000":1}',
    r'{"a":"\ud800"}',
    r'{"a":"\udc00\ud800\udc00\udc00"}',
    r'{"a":"\ud83d\ude00"}',
    r'{"a":"\\u0000 \\\u0000 \\\\u0000"}',
    r'{"a":"\uD800\u0000\\\ud800"}',
    '{"a":"\x7f \x7f1 \x7f2 \x7f3 \\u007f \\u0000"}',
    '{"a":1e400, "b":-0.0, "c":1.50, "d":9007199254740993}',
    '{"a":1' + "0" * 400 + "}",
    '{"b":1, "a":2, "b":3}',
    '{ "a" : [ ] }',
    '{"a":"é 😀 \u2028"}',
    "{}",
]


def append_text(db: Database, run_id: str, payload: str, *, due: bool = False) -> dict[str, Any]:
    """One event whose payload is exactly this text."""
    more = ',"due_in_us":0' if due else ""
    kind = "wait_created" if due else "step_created"
    batch = (
        f'[{{"run_id":"{run_id}","events":[{{"type":"{kind}","subject":"s\\\\x\\u00e9"{more},'
        f'"payload":{payload}}}]}}]'
    )
    return db.row("SELECT * FROM flow_append_many(%s::text::json)", batch)


@pytest.mark.parametrize("payload", VERBATIM)
def test_a_payload_is_kept_byte_for_byte(db: Database, payload: str) -> None:
    db.start("r")
    answer = append_text(db, "r", payload)
    assert answer["outcome"] == "appended"
    stored = db.row("SELECT payload::text AS text, subject_id FROM flow_events WHERE sequence = 3")
    assert stored == {"text": payload, "subject_id": "s\\xé"}
    assert db.row("SELECT payload FROM flow_history('r', 2)")["payload"] == payload
    assert payload in db.row("SELECT events FROM flow_load_runs('{r}')")["events"]


@pytest.mark.parametrize("payload", [text for text in VERBATIM if not text.endswith(" }")])
def test_a_deadline_is_added_without_touching_the_rest(db: Database, payload: str) -> None:
    db.start("r")
    assert append_text(db, "r", payload, due=True)["outcome"] == "appended"
    stored = db.value("SELECT payload::text FROM flow_events WHERE sequence = 3")
    kept, _, added = stored.rpartition('"resume_at"')
    assert kept == (payload[:-1] + "," if payload != "{}" else "{")
    assert added.endswith('Z"}')


@pytest.mark.parametrize("value", [*VERBATIM, '"\\u0000"', '"caf\\u00e9"', "null", "-0.0", "[]"])
def test_an_input_is_kept_and_recognised(db: Database, value: str) -> None:
    query = "SELECT applied FROM flow_start(%s, %s::text::json, 'r')"
    assert db.value(query, SPEC, value) is True
    assert db.value("SELECT payload::text FROM flow_events") == (
        f'{{"spec":{SPEC},"input":{value}}}'
    )
    assert db.value(query, SPEC, value) is False
    batch = f'[{{"run_id":"r","spec":{SPEC},"input":{value}}}]'
    assert db.row("SELECT * FROM flow_start_many(%s::text::json)", batch)["outcome"] == "exists"
    assert refused(db, query, SPEC, '{"other":"\\u0000"}')[1]["reason"] == "workflow input differs"


@pytest.mark.parametrize("value", [*VERBATIM, '"\\u0000"', "null", "7"])
def test_a_hook_payload_is_kept_and_recognised(db: Database, value: str) -> None:
    db.start("r")
    db.open_hook("r")
    query = "SELECT applied FROM flow_resume_hook('r', 'h', %s::text::json)"
    assert db.value(query, value) is True
    assert db.value("SELECT payload::text FROM flow_events WHERE sequence = 4") == (
        f'{{"hook_id":"h","payload":{value}}}'
    )
    assert db.value(query, value) is False
    assert refused(db, query, '{"other":"\\u0000"}')[0] == "WF007"


def test_what_cannot_be_text_is_refused_where_text_is_needed(db: Database) -> None:
    db.start("r")
    db.start("neighbour")
    for member in (
        '"run_id":"r\\u0000","events":[{"type":"run_started"}]',
        '"run_id":"r","events":[{"type":"step_created","subject":"\\ud800"}]',
        '"run_id":"r","events":[{"type":"run_x\\u0000"}]',
        '"run_id":"r","events":[{"type":"hook_created","subject":"h","payload":{"token":"\\u0000"}}]',
    ):
        good = '{"run_id":"neighbour","events":[{"type":"run_x","payload":{"a":"\\u0000"}}]}'
        batch = f"[{{{member}}},{good}]"
        answers = db.rows("SELECT outcome FROM flow_append_many(%s::text::json)", batch)
        assert [answer["outcome"] for answer in answers] == ["invalid", "appended"], member
    assert db.types("r") == ["run_created", "run_started"]


def test_a_value_that_is_not_json_is_refused_before_anything_happens(db: Database) -> None:
    db.start("r")
    db.open_hook("r")
    before = db.everything()
    for value in ("NaN", '{"a":Infinity}', '{"a":-Infinity}', "{'a':1}", '{"a":', ""):
        with pytest.raises(psycopg.errors.InvalidTextRepresentation):
            db.rows("SELECT flow_resume_hook('r', 'h', %s::text::json)", value)
    assert db.everything() == before


def test_a_payload_may_have_a_mebibyte_and_not_one_byte_more(db: Database) -> None:
    db.start("r")
    db.open_hook("r")
    most = '{"a":"' + "x" * (1048576 - 8) + '"}'
    more = '{"a":"' + "x" * (1048576 - 7) + '"}'
    assert append_text(db, "r", most)["outcome"] == "appended"
    answer = append_text(db, "r", more)
    assert answer["outcome"] == "invalid"
    assert answer["detail"] == {
        "sqlstate": "WF012",
        "reason": "the payload of a step_created event is too large",
        "event_type": "step_created",
        "bytes": 1048577,
        "max_bytes": 1048576,
    }
    escaped = '{"a":"\\u0000' + "\\\\" * ((1048576 - 14) // 2) + '"}'
    assert len(escaped) == 1048576
    assert append_text(db, "r", escaped)["outcome"] == "appended"
    code, fields = refused(db, "SELECT flow_resume_hook('r', 'h', %s)", json.dumps("x" * 1048576))
    assert code == "WF012"
    assert fields["event_type"] == "hook_received"
    assert fields["run_id"] == "r"
    assert refused(db, "SELECT flow_start(%s, %s)", SPEC, json.dumps("x" * 1048576))[0] == "WF012"
    assert refused(db, "SELECT flow_force_cancel('r', %s)", "x" * 1048577)[0] == "WF012"
    query = "SELECT outcome FROM flow_start_many(%s)"
    batch = [{"spec": json.loads(SPEC), "input": "x" * 1048576}, {"spec": json.loads(SPEC)}]
    assert [row["outcome"] for row in db.rows(query, json.dumps(batch))] == ["invalid", "created"]


def test_twenty_megabytes_are_refused_and_named(db: Database) -> None:
    db.start("r")
    code, fields = refused(
        db,
        "SELECT flow_append('r', 2, %s)",
        '[{"type":"run_x","payload":{"a":"' + "x" * 2 * 10**7 + '"}}]',
    )
    assert code == "WF012"
    assert fields["bytes"] > 2 * 10**7


def test_ids_up_to_the_limit_can_be_used_everywhere(db: Database) -> None:
    run_id = "r" * 255
    subject = "é" * 1024
    db.start(run_id)
    event = {"type": "wait_created", "subject": subject, "due_in_us": 0}
    created = {"type": "hook_created", "subject": subject, "payload": {"token": "t" * 20000}}
    assert db.append({"run_id": run_id, "events": [event, created]})[0]["outcome"] == "appended"
    assert db.value("SELECT applied FROM flow_resume_wait(%s, %s)", run_id, subject) is True
    by_token = "SELECT applied FROM flow_resume_hook_by_token(%s, '1')"
    assert db.value(by_token, "t" * 20000) is True
    assert db.value("SELECT count(*) FROM flow_history(%s)", run_id) == 6


@pytest.mark.parametrize(
    "run_id",
    ["r", "0", "A.b_c:d@e+f-g", "r" * 255, "0190a1b2-c3d4-7000-8000-000000000000"],
)
def test_run_ids_of_the_allowed_characters_work(db: Database, run_id: str) -> None:
    assert db.value("SELECT applied FROM flow_start(%s, '1', %s)", SPEC, run_id) is True


@pytest.mark.parametrize(
    "run_id", ["", " ", "-r", ".r", "r ", "r/s", "r\n", "é", "r" * 256, "r" * 300, "r;", "r'"]
)
def test_other_run_ids_are_refused(db: Database, run_id: str) -> None:
    with pytest.raises(psycopg.Error) as caught:
        db.rows("SELECT flow_start(%s, '1', %s)", SPEC, run_id)
    assert caught.value.sqlstate == "WF013"
    assert len(detail(caught.value)["run_id"]) <= 64


def test_equality_of_json_never_raises(db: Database) -> None:
    query = "SELECT flow_json_equal(%s::text::json, %s::text::json)"
    for same in (
        ("1", "1.0"),
        ('{"a":1,"b":[2]}', '{"b": [2], "a": 1}'),
        (r'"\u0000"', r'"\u0000"'),
        ('"é"', r'"\u00e9"'),
        (None, None),
    ):
        assert db.value(query, *same) is True, same
    for other in (
        ("1", '"1"'),
        (r'"\u0000"', r'"\u0001"'),
        (r'{"a":"\ud800"}', r'{"a": "\ud800"}'),
        ("1e400000", "1"),
        ("null", None),
        ("[1,2]", "[2,1]"),
    ):
        assert db.value(query, *other) is False, other
