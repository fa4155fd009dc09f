"""Drive tasks and leases: claimed by one, fenced by an epoch, never lost."""

from __future__ import annotations

import json
from typing import Any

import psycopg
import pytest

from tests.sql.database import SPEC, STARTED, Connection, Database, codes, refused, wakes

STEP = {"type": "step_created", "subject": "s"}


def start(db: Database, *run_ids: str, queue: str = "default") -> None:
    for run_id in run_ids:
        db.rows("SELECT flow_start(%s, '1', %s, %s)", SPEC, run_id, queue)


def heartbeat(db: Database, run_id: str, epoch: int, lease: str = "1 minute") -> Any:
    leases = json.dumps([{"run_id": run_id, "epoch": epoch}])
    return db.row("SELECT * FROM flow_heartbeat(%s, %s)", leases, lease)


def test_a_claim_takes_the_oldest_tasks_and_raises_the_fence(db: Database) -> None:
    start(db, "a", "b", "c")
    first = db.claim(2)
    assert [(t["run_id"], t["epoch"], t["wakes"], t["attempts"]) for t in first] == [
        ("a", 1, 1, 1),
        ("b", 1, 1, 1),
    ]
    assert {task["kind"] for task in first} == {"drive_run"}
    assert [task["run_id"] for task in db.claim(2)] == ["c"]
    assert db.claim(2) == []
    assert db.rows("SELECT DISTINCT lease_epoch FROM flow_runs") == [{"lease_epoch": 1}]


def test_a_claim_looks_at_its_queue_only(db: Database) -> None:
    start(db, "a", queue="slow")
    assert db.claim() == []
    query = "SELECT run_id FROM flow_claim_tasks('slow', 1, 'w', '1s')"
    assert db.rows(query) == [{"run_id": "a"}]


def test_smaller_priorities_come_first(db: Database) -> None:
    start(db, "a", "b", "c", "d")
    db.rows(
        "UPDATE flow_tasks SET priority = CASE run_id WHEN 'd' THEN -1 WHEN 'a' THEN 7 ELSE 0 END"
    )
    assert [task["run_id"] for task in db.claim(3)] == ["d", "b", "c"]
    assert [task["run_id"] for task in db.claim(3)] == ["a"]


def test_concurrent_claims_share_the_tasks_and_none_exceeds_its_limit(db: Database) -> None:
    start(db, *(f"r{number}" for number in range(60)))

    def claim(connection: Connection, number: int) -> list[str]:
        taken: list[str] = []
        while tasks := db.claim(4, on=connection):
            assert len(tasks) <= 4
            taken += [task["run_id"] for task in tasks]
        return taken

    claimed = [run for runs in db.race(10, claim) if isinstance(runs, list) for run in runs]
    assert sorted(claimed) == sorted(f"r{number}" for number in range(60))


def test_a_limit_holds_whatever_the_planner_does(db: Database) -> None:
    start(db, *(f"r{number}" for number in range(30)))
    for setting in ("enable_indexscan", "enable_indexonlyscan", "enable_material", "enable_sort"):
        db.rows(f"SET {setting} = off")
        assert len(db.claim(3)) == 3


def test_an_expired_lease_is_taken_by_another_and_the_first_is_fenced_out(db: Database) -> None:
    start(db, "r")
    (task,) = db.claim()
    assert db.claim() == []
    db.advance("61 seconds")
    (again,) = db.claim()
    assert (again["epoch"], again["attempts"]) == (2, 2)
    (late,) = db.append({"run_id": "r", "expected": 1, "epoch": task["epoch"], "events": [STARTED]})
    assert late["outcome"] == "lease_lost"
    assert late["detail"] == {"epoch": 1, "current": 2}
    assert heartbeat(db, "r", 1)["held"] is False
    assert db.value("SELECT flow_release_run('r', 1, 1)") is False
    assert db.value("SELECT flow_give_back('r', 1)") is False
    (now,) = db.append({"run_id": "r", "expected": 1, "epoch": 2, "events": [STARTED]})
    assert now["outcome"] == "appended"


def test_a_lease_that_expired_but_was_not_taken_is_still_good(db: Database) -> None:
    start(db, "r")
    db.claim()
    db.advance("2 minutes")
    (answer,) = db.append({"run_id": "r", "epoch": 1, "events": [STARTED]})
    assert answer["outcome"] == "appended"
    beat = heartbeat(db, "r", 1)
    assert (beat["held"], beat["head_sequence"], beat["wakes"]) == (True, 2, 1)
    assert db.claim() == []


def test_a_heartbeat_answers_for_every_lease(db: Database) -> None:
    start(db, "a", "b")
    db.claim(1)
    leases = [{"run_id": r, "epoch": 1} for r in ("b", "a", "none")]
    answers = db.rows("SELECT * FROM flow_heartbeat(%s, '1 hour')", json.dumps(leases))
    assert [(a["run_id"], a["held"]) for a in answers] == [
        ("b", False),
        ("a", True),
        ("none", False),
    ]
    db.advance("59 minutes")
    assert [task["run_id"] for task in db.claim()] == ["b"]
    assert db.rows("SELECT * FROM flow_heartbeat('[]', '1 hour')") == []


def test_a_release_ends_the_task_unless_the_run_was_woken(db: Database) -> None:
    start(db, "r")
    db.claim()
    db.rows("SELECT flow_wake_run('r')")
    assert db.value("SELECT flow_release_run('r', 1, 1)") is False
    assert heartbeat(db, "r", 1)["wakes"] == 2
    assert db.value("SELECT flow_release_run('r', 1, 2)") is True
    assert wakes(db) == 0


def test_an_append_releases_in_the_same_transaction(db: Database) -> None:
    start(db, "a", "b", "c")
    db.claim()
    db.rows("SELECT flow_wake_run('b')")
    elements = [
        {"run_id": "a", "epoch": 1, "release": 1, "events": [STARTED]},
        {"run_id": "b", "epoch": 1, "release": 1, "events": [STARTED]},
        {"run_id": "c", "epoch": 1, "release": 1, "events": []},
    ]
    answers = db.append(*elements)
    assert [(a["outcome"], a["released"], a["wakes"], a["head_sequence"]) for a in answers] == [
        ("appended", True, 0, 2),
        ("appended", False, 2, 2),
        ("appended", True, 0, 1),
    ]
    assert [row["run_id"] for row in db.rows("SELECT run_id FROM flow_tasks")] == ["b"]


def test_a_refused_append_releases_nothing(db: Database) -> None:
    start(db, "r")
    db.claim()
    (answer,) = db.append(
        {"run_id": "r", "expected": 9, "epoch": 1, "release": 1, "events": [STARTED]}
    )
    assert (answer["outcome"], answer["released"]) == ("event_conflict", False)
    assert wakes(db) == 1


def test_a_run_that_has_ended_is_always_released(db: Database) -> None:
    start(db, "r")
    db.claim()
    db.rows("SELECT flow_force_cancel('r')")
    assert wakes(db) == 2
    (answer,) = db.append({"run_id": "r", "epoch": 1, "release": 1, "events": []})
    assert (answer["outcome"], answer["released"]) == ("appended", True)
    assert db.rows("SELECT FROM flow_tasks") == []
    assert db.rows("SELECT * FROM flow_acquire_run('r', 'w', '1 minute')") == []


def test_work_given_back_waits_for_its_delay(db: Database) -> None:
    start(db, "r")
    db.claim()
    assert db.value("SELECT flow_give_back('r', 1, '30 seconds')") is True
    assert db.value("SELECT flow_give_back('r', 1, '30 seconds')") is False
    assert db.claim() == []
    db.advance("29 seconds")
    assert db.claim() == []
    db.advance("1 second")
    (task,) = db.claim()
    assert task["epoch"] == 2


def test_a_wake_makes_delayed_work_available_at_once(db: Database) -> None:
    start(db, "r")
    db.claim()
    db.rows("SELECT flow_give_back('r', 1, '1 hour')")
    db.rows("SELECT flow_wake_run('r')")
    assert [task["wakes"] for task in db.claim()] == [2]


def test_a_blocked_run_says_why_until_it_moves(db: Database) -> None:
    start(db, "a", "b")
    db.claim()
    for run_id in ("a", "b"):
        db.rows("SELECT flow_give_back(%s, 1, '0', 'no build 7 here')", run_id)
    blocked = "SELECT run_id, blocked_reason FROM flow_list_runs(p_blocked => true)"
    assert {row["run_id"] for row in db.rows(blocked)} == {"a", "b"}
    assert db.value("SELECT blocked_reason FROM flow_run_info('a')") == "no build 7 here"
    db.claim()
    db.append({"run_id": "a", "epoch": 2, "events": [STARTED]})
    db.append({"run_id": "b", "epoch": 2, "release": 1, "events": []})
    assert db.rows(blocked) == []


def test_one_run_is_acquired_by_one_owner(db: Database) -> None:
    db.start("r")
    acquire = "SELECT epoch, wakes, head_sequence FROM flow_acquire_run('r', %s, '1 minute')"
    assert db.row(acquire, "me") == {"epoch": 1, "wakes": 1, "head_sequence": 2}
    assert db.rows(acquire, "you") == []
    assert db.row(acquire, "me")["epoch"] == 2
    assert db.claim() == []
    db.advance("1 minute")
    assert db.row(acquire, "you")["epoch"] == 3

    def take(connection: Connection, number: int) -> int:
        rows = db.rows(acquire, f"owner {number}", on=connection)
        return len(rows)

    db.rows("SELECT flow_give_back('r', 3)")
    assert sorted(map(str, db.race(10, take))) == ["0"] * 9 + ["1"]


def test_a_wake_counts_and_an_ended_run_is_not_woken(db: Database) -> None:
    db.start("r")
    assert db.value("SELECT flow_wake_run('r')") is True
    assert db.value("SELECT flow_wake_run('r')") is True
    assert wakes(db) == 2
    db.rows("DELETE FROM flow_tasks")
    db.append({"run_id": "r", "events": [{"type": "run_completed"}]})
    assert db.value("SELECT flow_wake_run('r')") is False
    assert wakes(db) == 0


@pytest.mark.parametrize(
    "call",
    [
        "flow_claim_tasks('default', 0, 'w', '1s')",
        "flow_claim_tasks('default', 1001, 'w', '1s')",
        "flow_claim_tasks('default', NULL, 'w', '1s')",
        "flow_claim_tasks('default', 1, ' ', '1s')",
        "flow_claim_tasks('default', 1, 'w', '0')",
        "flow_claim_tasks('default', 1, 'w', '-1s')",
        "flow_acquire_run('r', '', '1s')",
        "flow_acquire_run('r', 'w', NULL)",
        "flow_heartbeat('[]', '0')",
        "flow_heartbeat('{}', '1s')",
        """flow_heartbeat('[{"run_id":"r","epoch":"x"}]', '1s')""",
        "flow_enqueue_due(0)",
        "flow_resume_due_waits(p_limit => 1001)",
    ],
)
def test_arguments_that_make_no_sense_are_refused(db: Database, call: str) -> None:
    start(db, "r")
    assert refused(db, f"SELECT {call}")[0] == "WF010"


def test_a_run_can_have_one_open_drive_task_only(db: Database) -> None:
    start(db, "r")
    with pytest.raises(psycopg.Error) as caught:
        db.rows(
            "INSERT INTO flow_tasks (queue, run_id, available_at, enqueued_at)"
            " VALUES ('default', 'r', now(), now())"
        )
    assert codes([caught.value]) == ["23505"]


def claim_runs(db: Database, events: int, limit: int = 10) -> list[Any]:
    query = "SELECT * FROM flow_claim_runs('{default}', %s, 'me', '1 minute', p_events => %s)"
    return db.rows(query, limit, events)


def test_a_claim_of_runs_reads_short_histories_in_the_order_of_the_queue(db: Database) -> None:
    start(db, "c", "a", "b", "d")
    db.append({"run_id": "a", "events": [STARTED]})
    first = claim_runs(db, events=1, limit=3)
    assert [row["run_id"] for row in first] == ["c", "a", "b"]
    assert [row["status"] for row in first] == ["pending", None, "pending"]
    assert [row["head_sequence"] for row in first] == [1, 2, 1]
    read = db.rows("SELECT run_id, events FROM flow_load_runs('{b,c}')")
    assert {row["run_id"]: row["events"] for row in first if row["events"]} == {
        row["run_id"]: row["events"] for row in read
    }
    (last,) = claim_runs(db, events=0)
    assert (last["run_id"], last["events"], last["epoch"]) == ("d", None, 1)
    assert claim_runs(db, events=5) == []


def test_a_claim_of_runs_stands_although_a_history_cannot_be_read(db: Database) -> None:
    start(db, "a", "b")
    db.rows("ALTER FUNCTION flow_load_runs(text[], bigint[]) RENAME TO flow_load_runs_before")
    db.rows(
        "CREATE FUNCTION flow_load_runs(p_run_ids text[], p_after bigint[] DEFAULT NULL)"
        " RETURNS TABLE (run_id text, status text, events text) LANGUAGE sql STABLE"
        " AS $$ SELECT u, 'pending', (1 / (u <> 'b')::integer)::text FROM unnest(p_run_ids) AS u $$"
    )
    rows = claim_runs(db, events=8)
    assert [(row["run_id"], row["epoch"], row["events"]) for row in rows] == [
        ("a", 1, None),
        ("b", 1, None),
    ]
    assert db.rows("SELECT DISTINCT lease_owner FROM flow_tasks") == [{"lease_owner": "me"}]
