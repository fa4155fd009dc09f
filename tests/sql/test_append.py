"""flow_append_many and flow_append: what is stored, what is refused, and who is harmed by it."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import psycopg
import pytest

from tests.sql.database import CREATED, STARTED, Connection, Database, codes, detail, hook, wait

STEP = {"type": "step_created", "subject": "s", "payload": {"step_id": "s"}}
DONE = {"type": "run_completed", "payload": {"output": None}}


def test_a_new_run_begins_with_run_created(db: Database) -> None:
    (answer,) = db.append({"run_id": "r", "expected": 0, "events": [CREATED, STARTED]})
    assert (answer["ordinal"], answer["outcome"], answer["head_sequence"]) == (1, "appended", 2)
    run = db.row("SELECT * FROM flow_runs")
    assert run["workflow_name"] == "test"
    assert run["workflow_version"] == "1"
    assert run["queue"] == "default"
    assert run["status"] == "running"
    assert run["created_at"] == run["updated_at"] == answer["recorded_at"]


def test_the_queue_of_the_batch_is_the_queue_of_the_run(db: Database) -> None:
    db.append({"run_id": "r", "queue": "slow", "events": [CREATED]})
    assert db.row("SELECT queue, status, head_sequence FROM flow_runs") == {
        "queue": "slow",
        "status": "pending",
        "head_sequence": 1,
    }


@pytest.mark.parametrize(
    ("element", "outcome", "more"),
    [
        ({"expected": 1, "events": [STEP]}, "event_conflict", {"expected": 1, "actual": 2}),
        ({"expected": 0, "events": [CREATED]}, "event_conflict", {"expected": 0, "actual": 2}),
        ({"events": [CREATED]}, "event_conflict", {"expected": 0, "actual": 2}),
        ({"epoch": 4, "events": [STEP]}, "lease_lost", {"epoch": 4, "current": 0}),
        ({"run_id": "other", "events": [STEP]}, "run_not_found", {}),
        ({"run_id": "ended", "events": [STEP]}, "run_terminal", {"status": "completed"}),
        (
            {"events": [hook("h", "taken")]},
            "hook_token_conflict",
            {"run_id": "owner", "hook_id": "o", "requested_hook_id": "h"},
        ),
        (
            {
                "events": [
                    {
                        "type": "child_operation_linked",
                        "subject": "c",
                        "payload": {"child": {"reference_id": "c", "flow_run_id": "missing"}},
                    }
                ]
            },
            "link_not_found",
            {"flow_run_id": "missing"},
        ),
        ({"events": []}, "invalid", None),
        ({"events": [{"type": ""}]}, "invalid", None),
        ({"events": [{"type": "step_created"}]}, "invalid", None),
        ({"events": [{"type": "step_created", "subject": " "}]}, "invalid", None),
        ({"events": [{"type": "step_created", "subject": "s" * 2049}]}, "invalid", None),
        ({"events": [{"type": "wait_created", "subject": "w"}]}, "invalid", None),
        ({"events": [{**STEP, "due_in_us": 5}]}, "invalid", None),
        ({"events": [{**wait("w"), "due_in_us": -1}]}, "invalid", None),
        ({"events": [{**wait("w"), "due_at": "2026-01-01T00:00:00Z"}]}, "invalid", None),
        ({"events": [{"type": "wait_created", "subject": "w", "due_at": "now"}]}, "invalid", None),
        ({"events": [{**STEP, "payload": []}]}, "invalid", None),
        ({"events": [{**STEP, "event_id": "x"}]}, "invalid", None),
        ({"events": [{"type": "hook_created", "subject": "h"}]}, "invalid", None),
        ({"events": [STEP, CREATED]}, "invalid", None),
        ({"events": [DONE, STEP]}, "invalid", None),
        ({"events": {"type": "run_started"}}, "invalid", None),
        ({"events": [STEP], "release": 1}, "invalid", None),
        ({"events": [STEP], "expected": "two"}, "invalid", None),
        ({"run_id": None, "events": [STEP]}, "invalid", None),
        ({"run_id": "r" * 256, "events": [STEP]}, "invalid", None),
        ({"run_id": "-r", "events": [CREATED]}, "invalid", None),
        ({"run_id": "new", "events": [{"type": "run_created"}]}, "invalid", None),
        ({"run_id": "new", "queue": " ", "events": [CREATED]}, "invalid", None),
    ],
)
def test_a_refused_element_changes_nothing_and_harms_no_neighbour(
    db: Database, element: dict[str, Any], outcome: str, more: dict[str, Any] | None
) -> None:
    for run in ("r", "ended", "owner", "before", "after"):
        db.start(run)
    db.open_hook("owner", "o", "taken")
    db.append({"run_id": "ended", "events": [DONE]})
    whole = db.everything()
    neighbours = [{"run_id": run, "expected": 2, "events": [STEP]} for run in ("before", "after")]

    answers = db.append(neighbours[0], {"run_id": "r", **element}, neighbours[1])

    assert [answer["outcome"] for answer in answers] == ["appended", outcome, "appended"]
    if more is None:
        assert {"sqlstate", "reason"} <= answers[1]["detail"].keys()
    else:
        assert answers[1]["detail"] == more
    for run in ("before", "after"):
        assert db.types(run) == ["run_created", "run_started", "step_created"]
    for table, rows in whole.items():
        untouched = [row for row in rows if "(before" not in row["t"] and "(after" not in row["t"]]
        now = [
            row
            for row in db.everything()[table]
            if "(before" not in row["t"] and "(after" not in row["t"]
        ]
        assert now == untouched, table


def test_a_run_twice_in_a_batch_is_refused_the_second_time(db: Database) -> None:
    db.start("r")
    answers = db.append({"run_id": "r", "events": [STEP]}, {"run_id": "r", "events": [STEP]})
    assert [answer["outcome"] for answer in answers] == ["appended", "invalid"]


def test_a_batch_that_is_no_array_is_an_error(db: Database) -> None:
    for batch in ('{"run_id": "r"}', '"r"', "null"):
        with pytest.raises(psycopg.Error) as caught:
            db.rows("SELECT * FROM flow_append_many(%s)", batch)
        assert detail(caught.value)["argument"] == "p_batch"
    assert db.rows("SELECT * FROM flow_append_many('[]')") == []
    assert [row["outcome"] for row in db.rows("SELECT * FROM flow_append_many('[1, null]')")] == [
        "invalid",
        "invalid",
    ]


def test_elements_count_in_their_order(db: Database) -> None:
    """Who frees a token, or creates the run that is linked, may stand earlier in the batch."""
    for run in ("a", "b", "c"):
        db.start(run)
    db.open_hook("a", "h", "token")
    link = {"reference_id": "l", "kind": "k", "operation_id": "o", "flow_run_id": "child"}
    answers = db.append(
        {"run_id": "a", "events": [{"type": "hook_disposed", "subject": "h"}]},
        {"run_id": "b", "events": [hook("h", "token")]},
        {"run_id": "child", "events": [CREATED]},
        {
            "run_id": "c",
            "events": [
                {"type": "child_operation_linked", "subject": "l", "payload": {"child": link}}
            ],
        },
        {"run_id": "late", "events": [CREATED, hook("h", "token")]},
    )
    assert [answer["outcome"] for answer in answers] == ["appended"] * 4 + ["hook_token_conflict"]
    assert answers[4]["detail"] == {"run_id": "b", "hook_id": "h", "requested_hook_id": "h"}
    assert db.row("SELECT run_id, token FROM flow_active_hooks")["run_id"] == "b"


def test_within_an_element_the_net_effect_on_hooks_counts(db: Database) -> None:
    db.start("r")
    db.open_hook("r", "one", "token")
    settle = {"type": "hook_received", "subject": "one", "payload": {"hook_id": "one"}}
    (answer,) = db.append({"run_id": "r", "events": [hook("two", "token"), settle]})
    assert answer["outcome"] == "appended"
    fleeting = [hook("three", "other"), {"type": "hook_disposed", "subject": "three"}]
    assert db.append({"run_id": "r", "events": fleeting})[0]["outcome"] == "appended"
    assert [row["hook_id"] for row in db.rows("SELECT hook_id FROM flow_active_hooks")] == ["two"]
    (twice,) = db.append({"run_id": "r", "events": [hook("x", "same"), hook("y", "same")]})
    assert twice["outcome"] == "hook_token_conflict"
    (changed,) = db.append({"run_id": "r", "events": [hook("two", "another")]})
    assert changed["outcome"] == "invalid"
    (again,) = db.append({"run_id": "r", "events": [hook("two", "token")]})
    assert again["outcome"] == "appended"


@pytest.mark.parametrize("expected", [1, None])
def test_of_twenty_writers_who_expect_one_head_exactly_one_wins(
    db: Database, expected: int | None
) -> None:
    db.append({"run_id": "r", "events": [CREATED]})

    def write(connection: Connection, number: int) -> str:
        event = {"type": "step_created", "subject": f"s{number}", "payload": {}}
        (answer,) = db.append(
            {"run_id": "r", "expected": expected, "events": [event]}, on=connection
        )
        return str(answer["outcome"])

    outcomes = db.race(20, write)
    sequences = [row["sequence"] for row in db.rows("SELECT sequence FROM flow_events ORDER BY 1")]
    if expected is None:
        assert outcomes == ["appended"] * 20
        assert sequences == list(range(1, 22))
    else:
        assert sorted(map(str, outcomes)) == ["appended"] + ["event_conflict"] * 19
        assert sequences == [1, 2]


def test_of_twenty_creators_of_one_run_exactly_one_wins(db: Database) -> None:
    def create(connection: Connection, number: int) -> str:
        return str(db.append({"run_id": "r", "events": [CREATED]}, on=connection)[0]["outcome"])

    outcomes = db.race(20, create)
    assert sorted(map(str, outcomes)) == ["appended"] + ["event_conflict"] * 19
    assert db.types("r") == ["run_created"]


def test_one_token_wanted_by_twenty_runs_goes_to_one(db: Database) -> None:
    token = "secret-" + "x" * 8192

    def create(connection: Connection, number: int) -> str:
        events = [CREATED, STARTED, hook("h", token)]
        (answer,) = db.append({"run_id": f"r{number}", "events": events}, on=connection)
        assert "secret" not in json.dumps(answer["detail"])
        return str(answer["outcome"])

    outcomes = db.race(20, create)
    assert sorted(map(str, outcomes)) == ["appended"] + ["hook_token_conflict"] * 19
    assert db.value("SELECT count(*) FROM flow_runs") == 1


def test_the_single_form_raises_what_the_bulk_form_returns(db: Database) -> None:
    db.start("r")
    db.start("owner")
    db.open_hook("owner", "o", "secret-token")
    call = "SELECT * FROM flow_append(%s, %s, %s, %s)"
    assert db.row(call, "r", 2, json.dumps([STEP]), None)["head_sequence"] == 3

    def refused(run: str, expected: int | None, events: Any, epoch: int | None) -> psycopg.Error:
        with pytest.raises(psycopg.Error) as caught:
            db.row(call, run, expected, json.dumps(events), epoch)
        return caught.value

    conflict = refused("r", 2, [STEP], None)
    assert conflict.sqlstate == "WF003"
    assert detail(conflict) == {"run_id": "r", "expected": 2, "actual": 3}
    lost = refused("r", None, [STEP], 7)
    assert lost.sqlstate == "WF008"
    assert detail(lost) == {"run_id": "r", "epoch": 7, "current": 0}
    taken = refused("r", None, [hook("h", "secret-token")], None)
    assert taken.sqlstate == "WF005"
    assert detail(taken)["hook_id"] == "o"
    assert "secret" not in str(taken)
    assert refused("none", None, [STEP], None).sqlstate == "WF001"
    assert refused("r", None, [{"type": "step_created"}], None).sqlstate == "WF009"
    assert refused("r", None, "no", None).sqlstate == "WF010"
    assert refused("!", None, [CREATED], None).sqlstate == "WF013"
    large = {**STEP, "payload": {"x": "y" * 1048576}}
    too_large = refused("r", None, [large], None)
    assert too_large.sqlstate == "WF012"
    assert detail(too_large) == {
        "run_id": "r",
        "event_type": "step_created",
        "bytes": 1048576 + len('{"x": ""}'),
        "max_bytes": 1048576,
    }
    db.append({"run_id": "r", "events": [DONE]})
    ended = refused("r", None, [STEP], None)
    assert ended.sqlstate == "WF004"
    assert detail(ended) == {"run_id": "r", "status": "completed"}


def test_an_append_in_a_transaction_that_rolls_back_never_happened(db: Database) -> None:
    with db.main.transaction(force_rollback=True):
        db.start("r")
        assert db.status("r") == "running"
    assert db.everything()["flow_runs"] == []


def test_a_deadline_counts_from_the_append_and_ends_the_payload(db: Database) -> None:
    db.start("r")
    events = [
        {**wait("w", 1_500_001), "payload": {}},
        {**hook("h", "t"), "due_in_us": 3_600_000_000},
        {"type": "step_created", "subject": "s"},
        {"type": "step_started", "subject": "s"},
        {"type": "step_retrying", "subject": "s", "due_in_us": 0, "payload": {"attempt": 1}},
    ]
    (answer,) = db.append({"run_id": "r", "events": events})
    at: datetime = answer["recorded_at"]
    rows = db.rows(
        "SELECT event_type, payload::text AS text, extract(epoch FROM due_at - %s) AS after "
        "FROM flow_events WHERE due_at IS NOT NULL ORDER BY sequence",
        at,
    )
    assert [float(row["after"]) for row in rows] == [1.500001, 3600, 0]
    keys = {
        "wait_created": "resume_at",
        "hook_created": "expires_at",
        "step_retrying": "retry_after",
    }
    for row in rows:
        payload = json.loads(row["text"])
        assert list(payload)[-1] == keys[row["event_type"]]
        written = payload[keys[row["event_type"]]]
        assert written.endswith("Z")
        assert len(written) == len("2026-01-02T03:04:05.678901Z")
    kinds = {row["kind"] for row in db.rows("SELECT kind FROM scheduled_wakeups")}
    assert kinds == {"wait", "hook_expiry", "step_retry"}


@pytest.mark.parametrize(
    ("text", "microsecond"),
    [
        ("2030-01-01T00:00:00.000000100Z", 1),
        ("2030-01-01T00:00:00.000000Z", 0),
        ("2030-01-01T01:00:00.0000019+01:00", 2),
        ("2030-01-01T00:00:00.123456789Z", 123457),
        ("2030-01-01T00:00:00.000001000Z", 1),
        ("2030-01-01T00:00:00Z", 0),
    ],
)
def test_a_deadline_is_rounded_up_and_its_text_kept(
    db: Database, text: str, microsecond: int
) -> None:
    db.start("r")
    payload = {"wait_id": "w", "resume_at": text}
    db.append(
        {
            "run_id": "r",
            "events": [
                {"type": "wait_created", "subject": "w", "due_at": text, "payload": payload}
            ],
        }
    )
    row = db.row("SELECT due_at, payload FROM flow_events WHERE due_at IS NOT NULL")
    assert row["payload"] == payload
    assert row["due_at"].microsecond == microsecond
    assert db.row("SELECT due_at FROM scheduled_wakeups")["due_at"] == row["due_at"]


def test_an_event_id_is_kept_or_derived_from_its_place(db: Database) -> None:
    db.start("r")
    given = "0190a1b2-0000-7000-8000-000000000001"
    db.append({"run_id": "r", "events": [{**STEP, "event_id": given}, {**STEP, "subject": "t"}]})
    ids = [row["id"] for row in db.rows("SELECT event_id::text AS id FROM flow_events ORDER BY 1")]
    assert given in ids
    derived = db.value("SELECT md5('r/4')::uuid::text")
    assert derived in ids


def test_more_than_a_thousand_elements_are_refused(db: Database) -> None:
    with pytest.raises(psycopg.Error) as caught:
        db.append(*({"run_id": f"r{n}", "events": [CREATED]} for n in range(1001)))
    assert codes([caught.value]) == ["WF010"]
    assert db.value("SELECT count(*) FROM flow_runs") == 0


def test_a_batch_is_answered_in_one_row(db: Database) -> None:
    db.append(
        *({"run_id": run, "expected": 0, "events": [CREATED, STARTED]} for run in "abcd"),
    )
    epochs = {}
    for run in "abc":
        epochs[run], wakes = db.row(
            "SELECT epoch, wakes FROM flow_acquire_run(%s, 'me', '1 minute')", run
        ).values()
    db.rows("SELECT flow_wake_run('c')")
    batch = [
        {"run_id": "a", "epoch": epochs["a"], "events": [STEP]},
        {"run_id": "b", "epoch": epochs["b"], "events": [DONE], "release": wakes},
        {"run_id": "c", "epoch": epochs["c"], "events": [STEP], "release": wakes},
        {"run_id": "d", "expected": 7, "events": [STEP]},
    ]
    answer = db.row("SELECT * FROM flow_append_batch(%s)", json.dumps(batch))
    assert answer["marks"] == "araa"
    assert json.loads(answer["heads"]) == [3, 3, 3, 2]
    kept, refused = json.loads(answer["exceptions"])
    assert kept == [3, "appended", wakes + 1, None]
    assert refused == [4, "event_conflict", 0, {"expected": 7, "actual": 2}]
    assert answer["recorded_at"] == db.row("SELECT max(recorded_at) AS at FROM flow_events")["at"]
    empty = db.row("SELECT * FROM flow_append_batch('[]')")
    assert set(empty.values()) == {None}
