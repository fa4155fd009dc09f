"""Whatever a verb accepts, a driver can read: a history is never corrected, so one event that no
driver reads would keep its run from ever being driven."""

import json
from typing import Any

import pytest

from flowpg.model.events import FlowEventEnvelope
from flowpg.model.snapshot import WorkflowRunSnapshot
from flowpg.replay.projection import project
from tests.sql.database import SPEC, Database, refused

NO_BREAK_SPACE = "\u00a0"
RUNTIME = {"type": "python", "entrypoint": "w"}


def nested(levels: int) -> str:
    """JSON of so many levels, objects and lists in turns, brackets in strings among them."""
    return (
        '[{"]\\"[":' * (levels // 2)
        + "[" * (levels % 2)
        + "0"
        + "]" * (levels % 2)
        + ("}]" * (levels // 2))
    )


UNREADABLE = {
    "one level too deep": nested(201),
    "far too deep": "[" * 5000 + "]" * 5000,
    "too deep beside much that is flat": "[" + "[]," * 500 + nested(200) + "]",
    "too many digits": "9" * 4301,
    "too many digits inside": '{"a":["x",-' + "7" * 5000 + "]}",
}
READABLE = {
    "as deep as it goes": nested(200),
    "wide": "[" + ",".join(["[{}]"] * 2000) + "]",
    "brackets in a string": json.dumps("[{" * 1000 + '"\\' * 100),
    "digits in a string": json.dumps("9" * 10_000),
    "as many digits as there may be": "9" * 4300,
    "many numbers": "[" + ",".join(["123456789"] * 1000) + "]",
}
unreadable = pytest.mark.parametrize("value", UNREADABLE.values(), ids=UNREADABLE)
readable = pytest.mark.parametrize("value", READABLE.values(), ids=READABLE)


def read(db: Database, run_id: str = "r") -> WorkflowRunSnapshot:
    """The run as drivers see it; raises if they cannot."""
    rows = db.rows("SELECT * FROM flow_history(%s)", run_id)
    return project(
        run_id,
        [
            FlowEventEnvelope(
                run_id,
                row["sequence"],
                str(row["event_id"]),
                row["recorded_at"],
                row["event_type"],
                payload=row["payload"],
            )
            for row in rows
        ],
    )


@unreadable
def test_a_value_that_no_driver_can_read_is_refused_by_every_verb(db: Database, value: str) -> None:
    assert refused(db, "SELECT flow_start(%s, %s)", SPEC, value)[0] == "WF010"
    spec = SPEC.replace("}", f',"more":{value}}}')
    assert refused(db, "SELECT flow_start(%s)", spec)[0] == "WF010"
    batch = f'[{{"spec":{SPEC},"input":{value}}},{{"spec":{SPEC},"run_id":"beside"}}]'
    answers = db.rows("SELECT outcome, detail FROM flow_start_many(%s)", batch)
    assert [answer["outcome"] for answer in answers] == ["invalid", "created"]
    assert answers[0]["detail"]["argument"] == "p_input"

    db.start("r")
    db.open_hook("r")
    assert refused(db, "SELECT flow_resume_hook('r', 'h', %s)", value)[0] == "WF010"
    assert refused(db, "SELECT flow_resume_hook_by_token('t', %s)", value)[0] == "WF010"
    progress = f'{{"progress_id":"p","completed":1,"details":{value}}}'
    assert refused(db, "SELECT flow_record_progress('r', %s)", progress)[0] == "WF009"
    child = f'{{"reference_id":"c","kind":"k","operation_id":"o","metadata":{value}}}'
    assert refused(db, "SELECT flow_link_child_operation('r', %s)", child)[0] == "WF009"


@readable
def test_a_value_at_the_edge_is_taken_and_read(db: Database, value: str) -> None:
    db.rows("SELECT flow_start(%s, %s, 'r')", SPEC, value)
    db.append({"run_id": "r", "events": [{"type": "run_started"}]})
    db.open_hook("r")
    db.rows("SELECT flow_resume_hook('r', 'h', %s)", value)
    snapshot = read(db)
    assert snapshot.input == json.loads(value)
    assert snapshot.hooks["h"].payload == json.loads(value)


@pytest.mark.parametrize(
    "spec",
    [
        {"name": "w" * 256, "version": "1"},
        {"name": NO_BREAK_SPACE, "version": "1"},
        {"name": "\u3000\u2003\n", "version": "1"},
        {"name": "\x1c", "version": "1"},
        {"name": "w", "version": "v" * 256},
        {"name": "w", "version": "1", "runtime_build": "b" * 129},
        {"name": "w", "version": "1", "runtime": None},
        {"name": "w", "version": "1", "runtime": "python"},
        {"name": "w", "version": "1", "runtime": {}},
        {"name": "w", "version": "1", "runtime": {**RUNTIME, "entrypoint": 5}},
        {"name": "w", "version": "1", "runtime": {**RUNTIME, "entrypoint": " "}},
        {"name": "w", "version": "1", "runtime": {**RUNTIME, "type": "cobol"}},
        {"name": "w", "version": "1", "runtime": {**RUNTIME, "type": None}},
        {"name": "w", "version": "1", "runtime": {**RUNTIME, "export_name": None}},
    ],
)
def test_a_spec_that_no_driver_takes_is_refused(db: Database, spec: dict[str, object]) -> None:
    assert refused(db, "SELECT flow_start(%s)", json.dumps(spec))[0] == "WF010"
    event = {"type": "run_created", "payload": {"spec": spec, "input": None}}
    assert db.append({"run_id": "r", "events": [event]})[0]["outcome"] == "invalid"


@pytest.mark.parametrize(
    "spec",
    [
        {"name": "w", "version": "1"},
        {"name": "w", "version": "1", "runtime_build": None},
        {"name": "w", "version": "1", "runtime": {"entrypoint": "w"}},
        {"name": "w", "version": "1", "runtime": RUNTIME, "runtime_build": "b" * 128},
        {"name": "é" * 255, "version": f"{NO_BREAK_SPACE}1"},
        {"name": "😀" * 255, "version": "1", "more": {"anything": []}},
    ],
)
def test_a_spec_as_short_or_as_long_as_it_may_be_is_taken_and_read(
    db: Database, spec: dict[str, object]
) -> None:
    db.rows("SELECT flow_start(%s, NULL, 'r')", json.dumps(spec))
    assert read(db).spec.name == spec["name"]
    assert read(db).spec.runtime.export_name == "main"


WRONG_REPORTS: list[dict[str, Any]] = [
    *({"progress_id": value} for value in (7, None, " ", NO_BREAK_SPACE, "x" * 513, "\x00")),
    *({"completed": value} for value in (1.0, 1e300, "1", True, -1, None)),
    *({"total": value} for value in (0, -1, 2.0, "3", True)),
    *({"message": value} for value in (5, True)),
    {"completed": 3, "total": 2},
]


@pytest.mark.parametrize("wrong", WRONG_REPORTS)
def test_a_progress_report_that_no_driver_takes_is_refused(
    db: Database, wrong: dict[str, object]
) -> None:
    db.start("r")
    report = json.dumps({"progress_id": "p", "completed": 1, **wrong})
    assert refused(db, "SELECT flow_record_progress('r', %s)", report)[0] == "WF009"


@pytest.mark.parametrize("member", ["reference_id", "kind", "operation_id", "flow_run_id"])
@pytest.mark.parametrize("value", [7, True, [], " ", NO_BREAK_SPACE, "x" * 513, "\x00"])
def test_a_link_that_no_driver_takes_is_refused(db: Database, member: str, value: object) -> None:
    db.start("r")
    link = {"reference_id": "c", "kind": "k", "operation_id": "o", member: value}
    code, _ = refused(db, "SELECT flow_link_child_operation('r', %s)", json.dumps(link))
    assert code == "WF009"


def test_progress_and_links_at_the_edge_are_taken_and_read(db: Database) -> None:
    db.start("r")
    long = "é" * 512
    for report in (
        {"progress_id": long, "completed": 0, "total": None, "message": None},
        {"progress_id": "big", "completed": 10**400, "total": 10**401, "message": "\ud800\x00"},
    ):
        db.rows("SELECT flow_record_progress('r', %s)", json.dumps(report))
    link = {"reference_id": long, "kind": long, "operation_id": long, "flow_run_id": "r"}
    db.rows("SELECT flow_link_child_operation('r', %s)", json.dumps(link))
    snapshot = read(db)
    assert [item.progress_id for item in snapshot.progress] == [long, "big"]
    assert snapshot.child_operations[long].flow_run_id == "r"


@pytest.mark.parametrize(
    "deadline",
    ["infinity", "-infinity", "10000-01-01", "294276-12-31", "0044-03-15 BC"],
)
def test_a_deadline_beyond_what_drivers_call_a_time_is_refused(db: Database, deadline: str) -> None:
    db.start("r")
    assert refused(db, "SELECT flow_terminate_for_timeout('r', %s)", deadline)[0] == "WF010"


@pytest.mark.parametrize(
    "deadline", ["0001-01-01 00:00:00+00", "9999-12-31 23:59:59.999999+00", "2026-02-28 24:00+14"]
)
def test_a_deadline_that_is_a_time_is_taken_and_read(db: Database, deadline: str) -> None:
    db.start("r")
    db.rows("SELECT flow_terminate_for_timeout('r', %s)", deadline)
    assert read(db).terminal
