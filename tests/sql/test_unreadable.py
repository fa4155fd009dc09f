"""Rows that no driver can read: a bundle that is none is refused where it comes in, and what is
stored all the same harms nobody but its own run."""

from __future__ import annotations

import json
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.sql.database import Database

SAY = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
SCALARS = st.sampled_from(
    [
        *("null", "true", "0", "-1", "1.5", "1e400", str(2**31), str(2**63), "9" * 5000),
        *('""', '" "', '"b"', '"secret"', '"\\u0000"', '"\\ud800"', '"\\u00e9"', '"\\\\u0000"'),
    ]
)
STEP_IDS = st.sampled_from(["b", "c", " ", "", "\\t", "\\u0000", "\\ud83d", "x" * 2049])
MEMBERS = st.lists(
    st.tuples(st.sampled_from(["step_id", "attempt", "output", "retry", "n", "\\u0000"]), SCALARS),
    max_size=3,
)


@st.composite
def payloads(draw: Any) -> str:
    """JSON objects, most of them of a step: duplicate and extra members, any types."""
    members = [f'"{name}":{value}' for name, value in draw(MEMBERS)]
    if draw(st.integers(0, 4)):
        members.insert(0, f'"step_id":"{draw(STEP_IDS)}"')
    return str(draw(st.sampled_from(["", " "]))).join(["{", ",".join(members), "}"])


ITEMS = st.one_of(
    SCALARS,
    st.just("[]"),
    st.just("[" * 300 + "]" * 300),
    st.tuples(st.sampled_from(["c", "s", "d", "C", "S", "x", "", "cc"]), payloads()).map(
        lambda item: f'["{item[0]}",{item[1]}]'
    ),
    st.tuples(st.sampled_from(["c", "S"]), SCALARS).map(lambda item: f'["{item[0]}",{item[1]}]'),
    payloads().map(lambda payload: f'["c",{payload},{payload}]'),
    payloads().map(lambda payload: f'[{payload},"c"]'),
)
BUNDLES = st.one_of(
    st.lists(ITEMS, max_size=4).map(lambda items: f"[{','.join(items)}]"),
    st.one_of(SCALARS, payloads(), ITEMS),
)


@pytest.fixture
def two(db: Database) -> Database:
    """A database with a run to be harmed, a bundle at its end, and a neighbour."""
    for run_id in ("r", "neighbour"):
        db.start(run_id)
        steps = '[["c",{"step_id":"a"}],["S",{"step_id":"a"}]]'
        db.rows("SELECT * FROM flow_append_many(%s)", f'[{{"run_id":"{run_id}","steps":{steps}}}]')
        db.rows("SELECT flow_wake_run(%s)", run_id)
    return db


def look(db: Database) -> None:
    """Read everything there is of both runs; then the neighbour is driven on."""
    head = db.value("SELECT head_sequence FROM flow_runs WHERE run_id = 'r'")
    for source in ("flow_events WHERE run_id = 'r'", "flow_history('r')"):
        found = db.rows(f"SELECT sequence, event_type, payload::text AS text FROM {source}")
        assert sorted(row["sequence"] for row in found) == list(range(1, head + 1))
        assert all(row["event_type"] and row["text"] for row in found)
    loaded = db.rows("SELECT head_sequence, events FROM flow_load_runs('{r,neighbour}')")
    for run in loaded:
        depth = run["events"].count("[" * 200)
        events = [] if depth or "9" * 4301 in run["events"] else json.loads(run["events"])
        assert not events or [event[0] for event in events] == list(
            range(1, run["head_sequence"] + 1)
        )
    assert db.value("SELECT count(e::text) FROM flow_events AS e") == sum(
        run["head_sequence"] for run in loaded
    )
    assert len(db.rows("SELECT 1 FROM flow_list_runs()")) == 2
    assert len(db.rows("SELECT 1 FROM flow_open_suspensions()")) == 0
    for step in ("a", "b"):
        db.rows("SELECT * FROM flow_step_tip('r', %s)", step)
        db.rows("SELECT * FROM flow_step_completed('r', %s)", step)
    claimed = db.rows("SELECT run_id FROM flow_claim_runs('{default}', 10, 'w', '1 minute')")
    assert {row["run_id"] for row in claimed} == {"r", "neighbour"}
    db.rows("UPDATE flow_tasks SET lease_owner = NULL, lease_expires_at = NULL")
    done = '[{"run_id":"neighbour","steps":[["d",{"step_id":"a"}]]}]'
    assert db.row("SELECT outcome FROM flow_append_many(%s)", done)["outcome"] == "appended"


def undo(db: Database) -> None:
    """As it was: history is append-only, so the owner of the tables has to step in."""
    with db.main.transaction():
        db.rows("ALTER TABLE flow_event_log DISABLE TRIGGER USER")
        db.rows("DELETE FROM flow_event_log WHERE sequence > 4")
        db.rows("UPDATE flow_runs SET head_sequence = 4, status = 'running'")
        db.rows("ALTER TABLE flow_event_log ENABLE TRIGGER USER")


@SAY
@given(steps=BUNDLES, before=st.one_of(st.none(), st.integers(-1, 2), st.just(2**40)))
def test_a_bundle_from_a_worker_is_readable_or_refused_in_words(
    two: Database, steps: str, before: int | None
) -> None:
    where = "" if before is None else f',"events":[{{"type":"run_x"}}],"before":{before}'
    answer = two.row(
        "SELECT outcome, detail::text AS detail FROM flow_append_many(%s::text::json)",
        f'[{{"run_id":"r"{where},"steps":{steps}}}]',
    )
    assert answer["outcome"] in ("appended", "invalid")
    assert "secret" not in (answer["detail"] or "")
    look(two)
    assert "step_unreadable" not in two.types("r")
    undo(two)


@SAY
@example(payload='"secret"', count=2, ahead=None, kind=None, subject=None)
@example(payload='[["S",{}],["c",7]]', count=2, ahead=None, kind=None, subject=None)
@example(payload='[["d",{"step_id":"\\u0000"}],1]', count=2, ahead=None, kind=None, subject=None)
@example(payload="[null,[]]", count=2, ahead=None, kind=None, subject=None)
@given(
    payload=BUNDLES,
    count=st.one_of(st.integers(-1, 5), st.just(2**31 - 1), st.none()),
    ahead=st.one_of(st.none(), st.integers(0, 6), st.just(2**62)),
    kind=st.sampled_from([None, None, None, "step_started", "run_x", "hook_created"]),
    subject=st.sampled_from([None, None, "b"]),
)
def test_a_row_that_is_inserted_is_readable_or_refused_in_words(
    two: Database,
    payload: str,
    count: int | None,
    ahead: int | None,
    kind: str | None,
    subject: Any,
) -> None:
    # mostly where the next row belongs, or its place alone would be refused
    values = (4 + ((count or 1) if ahead is None else ahead), count, kind, subject, payload)
    error = None
    try:
        two.rows(
            "INSERT INTO flow_event_log (run_id, sequence, event_count, event_type, subject_id,"
            " payload) VALUES ('r', %s, %s, %s, %s, %s::text::json)",
            *values,
        )
    except psycopg.Error as caught:
        error = caught
    if error is not None:
        assert error.sqlstate in ("WF009", "WF012", "23505"), error
        said = (str(error), error.diag.message_detail, error.diag.context)
        assert not any("secret" in (text or "") for text in said)
    look(two)
    undo(two)


@SAY
@given(payload=BUNDLES)
def test_a_row_that_was_changed_past_every_guard_harms_nobody_else(
    two: Database, payload: str
) -> None:
    with two.main.transaction():
        two.rows("ALTER TABLE flow_event_log DISABLE TRIGGER USER")
        two.rows(
            "UPDATE flow_event_log SET payload = %s::text::json"
            " WHERE run_id = 'r' AND sequence = 4",
            payload,
        )
        two.rows("ALTER TABLE flow_event_log ENABLE TRIGGER USER")
    two.rows("SELECT e::text FROM flow_events AS e")
    two.rows("SELECT h::text FROM flow_history('r') AS h")
    two.rows("SELECT * FROM flow_load_runs('{r,neighbour}')")
    two.rows("SELECT * FROM flow_step_completed('r', 'a')")
