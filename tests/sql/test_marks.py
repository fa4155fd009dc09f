"""A claim or due scan reads a bounded number of pages, however many dead rows an old snapshot
keeps; and what the marks leave out for a moment is found again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.sql.database import Connection, Database, wait
from tests.sql.fleet import Clock, claim, enqueue, start
from tests.sql.test_claim_plans import buffers

DEAD = 200_000


@pytest.fixture
def old_snapshot(db: Database) -> Iterator[Connection]:
    """Somebody reads, and has been reading since before everything that follows."""
    holder = db.connect()
    holder.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    holder.execute("SELECT count(*) FROM flow_tasks")
    yield holder
    holder.execute("ROLLBACK")


def test_a_claim_reads_little_behind_an_old_snapshot(
    db: Database, old_snapshot: Connection
) -> None:
    db.rows(
        "INSERT INTO flow_tasks (queue, kind, available_at, enqueued_at, lease_owner,"
        " lease_expires_at, epoch) SELECT 'default', 'resume_due_waits', flow_now(), flow_now(),"
        " CASE n %% 2 WHEN 0 THEN 'w' END, CASE n %% 2 WHEN 0 THEN flow_now() + '1 s' END, 1"
        " FROM generate_series(1, %s) AS n",
        DEAD,
    )
    db.rows("DELETE FROM flow_tasks")
    clock = Clock(db)
    clock.step("10 seconds")
    start(db, *(f"r{number}" for number in range(50)))
    call = "SELECT * FROM flow_claim_tasks('default', 10, 'w', '1 minute')"
    assert buffers(db, call) > DEAD / 400, "the snapshot keeps nothing: the test sees nothing"
    for _ in range(3):
        assert buffers(db, call, rows=10) < 1500
        clock.step("1.5 seconds")
    # one that finds nothing as well
    assert len(claim(db, 1000)) == 10
    assert buffers(db, call, rows=0) < 500


def test_a_due_scan_reads_little_behind_an_old_snapshot(
    db: Database, old_snapshot: Connection
) -> None:
    db.rows(
        "INSERT INTO scheduled_wakeups (run_id, kind, subject_id, due_at)"
        " SELECT 'r' || n, 'wait', 'w', flow_now() FROM generate_series(1, %s) AS n",
        DEAD,
    )
    db.rows("DELETE FROM scheduled_wakeups")
    clock = Clock(db)
    clock.step("10 seconds")
    call = "SELECT * FROM flow_enqueue_due(100)"
    assert buffers(db, call) > DEAD / 400, "the snapshot keeps nothing: the test sees nothing"
    for number in range(3):
        db.start(f"r{number}")
        db.append({"run_id": f"r{number}", "events": [wait("w")]})
        assert buffers(db, call, rows=1) < 600
        clock.step("1.5 seconds")
    assert buffers(db, call, rows=0) < 600


def test_a_task_committed_late_is_found_within_a_sweep(db: Database) -> None:
    start(db, "first")
    late = db.connect()
    late.execute("BEGIN")
    enqueue_on = "SELECT flow_enqueue_task('resume_due_waits')"
    db.rows(enqueue_on, on=late)
    db.advance("1 minute")
    claim(db)
    late.execute("COMMIT")
    # it may be overlooked at once, for its time is before the mark; not for long
    db.advance("6 seconds")
    found = claim(db) + claim(db)
    assert [task["kind"] for task in found] == ["resume_due_waits"]


def test_a_lane_that_somebody_is_adding_is_no_obstacle(db: Database) -> None:
    holder = db.connect()
    holder.execute("BEGIN")
    spec = '{"name":"test","version":"1","runtime_build":"b"}'
    db.rows("SELECT flow_start(%s, '1', 'held')", spec, on=holder)
    start(db, "free", build="b")
    assert [task["run_id"] for task in claim(db)] == ["free"]
    holder.execute("COMMIT")
    assert [task["run_id"] for task in claim(db)] == ["held"]
    for _ in range(3):
        db.advance("6 seconds")
        claim(db)
    assert db.value("SELECT count(*) FROM flow_lanes WHERE takes = ''") == 1, "doubles are removed"


def test_a_task_from_the_past_is_found_at_once(db: Database) -> None:
    start(db, "r")
    claim(db)
    db.advance("1 minute")
    claim(db)
    insert = (
        "INSERT INTO flow_tasks (queue, kind, available_at, enqueued_at)"
        " VALUES ('default', 'resume_due_waits', flow_now() - interval '1 day', flow_now())"
    )
    db.rows(insert)
    assert [task["kind"] for task in claim(db, kinds=["resume_due_waits"])] == ["resume_due_waits"]


def test_a_deadline_from_the_past_is_found_at_once(db: Database) -> None:
    db.rows("SELECT flow_enqueue_due()")
    db.advance("1 minute")
    db.rows("SELECT flow_enqueue_due()")
    db.start("r")
    past = {"type": "wait_created", "subject": "w", "due_at": "2001-01-01T00:00:00Z"}
    db.append({"run_id": "r", "events": [past]})
    assert db.rows("SELECT run_id FROM flow_enqueue_due()") == [{"run_id": "r"}]


def test_a_clock_that_was_set_back_loses_nothing(db: Database) -> None:
    start(db, "a")
    claim(db)
    db.advance("10 minutes")
    claim(db)
    db.rows("SELECT flow_enqueue_due()")
    db.advance("-1 hour")
    start(db, "b")
    (task,) = claim(db, 1)
    assert task["run_id"] == "b"
    db.rows("SELECT flow_give_back('b', %s)", task["epoch"])
    assert [task["run_id"] for task in claim(db, 1)] == ["b"]
    db.start("w")
    db.append({"run_id": "w", "events": [wait("x")]})
    assert db.rows("SELECT run_id FROM flow_enqueue_due()") == [{"run_id": "w"}]


def test_an_operator_may_move_tasks_to_another_queue_or_priority(db: Database) -> None:
    start(db, "a", "b")
    db.advance("1 minute")
    claim(db, 1, queues=["other"])
    db.rows("UPDATE flow_tasks SET queue = 'other' WHERE run_id = 'a'")
    db.rows("UPDATE flow_tasks SET priority = 9 WHERE run_id = 'b'")
    assert [task["run_id"] for task in claim(db, queues=["other"])] == ["a"]
    assert [task["run_id"] for task in claim(db)] == ["b"]


def test_marks_never_pass_what_is_left(db: Database) -> None:
    """Claims, failures, releases and time, at random but fixed, until everything is done."""
    import random

    dice = random.Random(7)
    for number in range(30):
        enqueue(db, max_attempts=99, priority=dice.randrange(2), delay=f"{dice.randrange(9)} s")
        if number % 5 == 0:
            db.advance("2 seconds")
    held: list[Any] = []
    done = 0
    for _ in range(400):
        held += claim(db, dice.randrange(1, 4), lease="4 seconds", max_crashes=None)
        db.advance(f"{dice.randrange(3000)} milliseconds")
        dice.shuffle(held)
        for task in held[: len(held) // 2]:
            say = [{"task_id": task["task_id"], "epoch": task["epoch"]}]
            if dice.random() < 0.3:
                db.rows("SELECT flow_release_tasks(%s)", json.dumps(say))
            else:
                say[0]["ok"] = dice.random() < 0.5
                (row,) = db.rows("SELECT outcome FROM flow_complete_tasks(%s)", json.dumps(say))
                done += row["outcome"] == "done"
        held = held[len(held) // 2 :]
        if done == 30:
            break
    assert done == 30
