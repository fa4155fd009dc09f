"""Pause, concurrency, rate, build and workflow: what a claim must not take, it does not take."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest
from psycopg.rows import DictRow

from tests.sql.database import SPEC, Connection, Database, refused
from tests.sql.fleet import claim, complete, enqueue, release, start


def limit(db: Database, **limits: Any) -> None:
    casts = {"rate_interval": "interval"}
    named = "".join(f", p_{name} => %s::{casts.get(name, 'integer')}" for name in limits)
    db.rows(f"SELECT flow_set_queue_limits('default'{named})", *limits.values())


# -- pause ---------------------------------------------------------------------------------------


def test_a_paused_queue_is_passed_over_and_what_is_at_work_goes_on(db: Database) -> None:
    start(db, "a", "b")
    (task,) = claim(db, 1)
    assert db.value("SELECT flow_pause_queue('default')") is True
    assert db.value("SELECT flow_pause_queue('default')") is False
    assert claim(db) == []
    db.advance("61 seconds")
    assert claim(db) == [], "not an expired lease either"
    (answer,) = db.append(
        {"run_id": "a", "epoch": task["epoch"], "events": [{"type": "run_started"}]}
    )
    assert answer["outcome"] == "appended"
    assert db.value("SELECT waiting_for FROM flow_run_info('b')") == "queue default is paused"
    assert db.value("SELECT flow_resume_queue('default')") is True
    assert db.value("SELECT flow_resume_queue('default')") is False
    assert len(claim(db)) == 2


def test_other_queues_go_on_while_one_is_paused(db: Database) -> None:
    start(db, "a")
    start(db, "b", queue="other")
    db.rows("SELECT flow_pause_queue('default')")
    assert [task["run_id"] for task in claim(db, queues=["default", "other"])] == ["b"]


# -- concurrency ---------------------------------------------------------------------------------


def test_a_queue_has_no_more_live_leases_than_it_may(db: Database) -> None:
    start(db, *(f"r{number}" for number in range(6)))
    limit(db, max_running=4)
    first = claim(db, 3)
    assert len(first) == 3
    second = claim(db, 3)
    assert len(second) == 1
    assert claim(db) == []
    release(db, first[0])
    assert len(claim(db)) == 1


def test_the_limit_holds_when_many_claim_at_once(db: Database) -> None:
    start(db, *(f"r{number}" for number in range(40)))
    limit(db, max_running=7)

    def one(connection: Connection, number: int) -> int:
        return sum(len(claim(db, 3, on=connection)) for _ in range(6))

    db.race(8, one)
    while claim(db, 3):
        pass
    assert db.value("SELECT count(*) FROM flow_tasks WHERE lease_owner IS NOT NULL") == 7


def test_a_slot_of_a_worker_that_died_is_free_when_its_lease_expires(db: Database) -> None:
    start(db, "a", "b")
    limit(db, max_running=1)
    connection = db.connect()
    assert len(claim(db, on=connection)) == 1
    connection.close()
    assert claim(db) == []
    db.advance("61 seconds")
    assert len(claim(db)) == 1
    assert claim(db) == []


def test_a_claim_that_is_rolled_back_takes_no_slot_and_none_of_the_rate(db: Database) -> None:
    start(db, "a", "b")
    limit(db, max_running=1, rate_limit=1, rate_interval="1 hour")
    connection = db.connect()
    connection.execute("BEGIN")
    assert len(claim(db, on=connection)) == 1
    assert claim(db) == [], "while the other is not committed, the queue is passed over"
    connection.execute("ROLLBACK")
    assert len(claim(db)) == 1


def test_a_key_has_no_more_live_leases_than_it_may(db: Database) -> None:
    for key in ("a", "a", "a", "b", "a", "b"):
        enqueue(db, concurrency_key=key)
    enqueue(db)
    limit(db, max_per_key=1)
    claimed = claim(db)
    assert [task["task_id"] for task in claimed] == [1, 4, 7]
    assert claim(db) == []
    complete(db, claimed[0])
    assert [task["task_id"] for task in claim(db)] == [2]
    db.advance("61 seconds")
    assert sorted(task["task_id"] for task in claim(db, 3)) == [2, 4, 7]


def test_a_claim_fills_its_limit_although_the_front_is_one_key(db: Database) -> None:
    for _ in range(30):
        enqueue(db, concurrency_key="busy")
    for number in range(5):
        enqueue(db, concurrency_key=f"k{number}")
    limit(db, max_per_key=2)
    assert len(claim(db, 5)) == 5
    assert len(claim(db, 5)) == 2


def test_a_run_keeps_its_priority_and_key_from_task_to_task(db: Database) -> None:
    start(db, "a", "b", "c")
    for run_id in ("b", "c"):
        call = "SELECT flow_set_run_priority(%s, -3::smallint, 'tenant')"
        assert db.value(call, run_id) is True
    limit(db, max_per_key=1)
    claimed = claim(db)
    assert [task["run_id"] for task in claimed] == ["b", "a"]
    (answer,) = db.append({"run_id": "b", "epoch": 1, "release": 1, "events": []})
    assert answer["released"]
    assert [task["run_id"] for task in claim(db)] == ["c"]
    db.rows("SELECT flow_wake_run('b')")
    assert claim(db) == []
    db.rows("SELECT flow_set_run_priority('b')")
    assert [task["run_id"] for task in claim(db)] == ["b"]
    db.rows("SELECT flow_force_cancel('b')")
    assert db.value("SELECT flow_set_run_priority('b')") is False
    assert refused(db, "SELECT flow_set_run_priority('none')")[0] == "WF001"
    assert refused(db, "SELECT flow_set_run_priority('a', 1::smallint, ' ')")[0] == "WF010"


# -- rate ----------------------------------------------------------------------------------------


def test_a_queue_is_claimed_from_no_more_often_than_its_rate(db: Database) -> None:
    start(db, *(f"r{number}" for number in range(9)))
    limit(db, rate_limit=3, rate_interval="1 minute")
    assert len(claim(db, 2)) == 2
    assert len(claim(db, 2)) == 1
    assert claim(db) == []
    db.advance("59 seconds")
    assert claim(db) == []
    db.advance("2 seconds")
    assert len(claim(db, lease="1 hour")) == 3
    limit(db)
    assert len(claim(db, 20)) == 6


def test_a_limit_of_none_takes_nothing_and_no_limit_takes_all(db: Database) -> None:
    start(db, "a")
    limit(db, max_running=0)
    assert claim(db) == []
    limit(db)
    assert len(claim(db)) == 1


# -- builds and workflows ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, {"plain", "one", "two"}),
        ({"builds": ["1"]}, {"plain", "one"}),
        ({"builds": ["1"], "accept_unpinned": False}, {"one"}),
        ({"builds": []}, {"plain"}),
        ({"builds": ["1", "2"], "accept_unpinned": False}, {"one", "two"}),
        ({"builds": None, "accept_unpinned": False}, {"one", "two"}),
        ({"builds": ["9"], "accept_unpinned": False}, set()),
        ({"workflows": ["test"]}, {"plain", "one", "two"}),
        ({"workflows": ["other"]}, set()),
        ({"workflows": []}, set()),
    ],
)
def test_a_worker_sees_only_runs_of_its_builds_and_workflows(
    db: Database, options: dict[str, Any], expected: set[str]
) -> None:
    start(db, "plain")
    start(db, "one", build="1")
    start(db, "two", build="2")
    assert {task["run_id"] for task in claim(db, **options)} == expected
    # and it is the same for leases that have expired
    claim(db)
    db.advance("61 seconds")
    assert {task["run_id"] for task in claim(db, **options)} == expected


def test_priority_goes_before_build_and_age_within_it(db: Database) -> None:
    for run_id, build in (("a", "2"), ("b", None), ("c", "1"), ("d", None)):
        start(db, run_id, build=build)
    db.rows("UPDATE flow_tasks SET priority = -1 WHERE run_id = 'd'")
    assert [task["run_id"] for task in claim(db, 3)] == ["d", "a", "b"]


def test_tasks_of_a_run_carry_its_build(db: Database) -> None:
    start(db, "r", build="1")
    enqueue(db, "resume_scheduled_run", run_id="r")
    assert claim(db, builds=["2"], accept_unpinned=True) == []
    assert {task["runtime_build"] for task in claim(db, builds=["1"])} == {"1"}


# -- several queues ------------------------------------------------------------------------------


def test_one_claim_looks_at_several_queues_and_keeps_its_limit(db: Database) -> None:
    for queue in ("a", "b", "c"):
        start(db, *(f"{queue}{number}" for number in range(4)), queue=queue)
    claimed = claim(db, 7, queues=["a", "b", "none", "c"])
    assert len(claimed) == 7
    assert len(claim(db, 7, queues=["a", "b"])) <= 5
    while claim(db, 7, queues=["a", "b", "c", "c"]):
        pass
    assert db.value("SELECT count(*) FROM flow_tasks WHERE lease_owner IS NULL") == 0


def test_no_queue_is_always_the_last(db: Database) -> None:
    for queue in ("a", "b"):
        db.rows(
            "SELECT flow_start(%s, '1', %s || n, %s) FROM generate_series(1, 40) AS n",
            SPEC,
            queue,
            queue,
        )
    first = [claim(db, 1, queues=["a", "b"])[0]["queue"] for _ in range(40)]
    assert set(first) == {"a", "b"}


def test_limits_of_one_queue_do_not_hold_up_the_claim_of_another(db: Database) -> None:
    start(db, "a")
    start(db, "b", queue="other")
    limit(db, max_running=1)
    connection = db.connect()
    connection.execute("BEGIN")
    claim(db, on=connection)

    def other(connection: Connection) -> list[DictRow]:
        return claim(db, queues=["default", "other"], on=connection)

    work: Future[list[DictRow]] = db.background(other)
    assert [task["run_id"] for task in work.result(30)] == ["b"]
    connection.execute("ROLLBACK")
