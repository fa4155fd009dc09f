"""Deadlines, and that no wake-up is ever lost between two who look at a run at once."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from functools import partial
from itertools import combinations
from typing import Any

import pytest

from tests.sql.database import SPEC, Connection, Database, hook, retry, wait, wakes
from tests.waiting import until


def waiting_run(db: Database, run_id: str = "r", microseconds: int = 0) -> None:
    db.start(run_id)
    events = [wait("w", microseconds), *retry("s", microseconds)]
    expiring = {**hook("h", f"t {run_id}"), "due_in_us": microseconds}
    assert db.append({"run_id": run_id, "events": [*events, expiring]})[0]["outcome"] == "appended"


def test_due_wakeups_become_one_drive_task_a_run_and_are_dispatched_once(db: Database) -> None:
    waiting_run(db, "a")
    waiting_run(db, "b")
    waiting_run(db, "later", 10**9)
    moved = db.rows("SELECT run_id, kind, subject_id FROM flow_enqueue_due()")
    assert len(moved) == 6
    assert {row["run_id"] for row in moved} == {"a", "b"}
    assert {row["kind"] for row in moved} == {"wait", "step_retry", "hook_expiry"}
    assert (wakes(db, "a"), wakes(db, "b"), wakes(db, "later")) == (1, 1, 0)
    assert db.rows("SELECT * FROM flow_enqueue_due()") == []
    assert len(db.rows("SELECT * FROM flow_due_wakeups()")) == 6
    db.advance("20 minutes")
    assert len(db.rows("SELECT * FROM flow_enqueue_due()")) == 3


def test_a_dispatch_of_a_leased_run_keeps_its_holder_from_releasing(db: Database) -> None:
    db.rows("SELECT flow_start(%s, '1', 'r')", SPEC)
    db.claim()
    db.append({"run_id": "r", "epoch": 1, "events": [{"type": "run_started"}, wait("w")]})
    db.rows("SELECT flow_enqueue_due()")
    assert db.value("SELECT flow_release_run('r', 1, 1)") is False


def test_any_number_of_schedulers_dispatch_each_wakeup_once(db: Database) -> None:
    for number in range(20):
        waiting_run(db, f"r{number}")

    def dispatch(connection: Connection, number: int) -> list[tuple[str, str]]:
        found: list[tuple[str, str]] = []
        while rows := db.rows("SELECT run_id, kind FROM flow_enqueue_due(7)", on=connection):
            found += [(row["run_id"], row["kind"]) for row in rows]
        return found

    moved = [pair for pairs in db.race(6, dispatch) if isinstance(pairs, list) for pair in pairs]
    moved += dispatch(db.main, 0)
    assert len(moved) == len(set(moved)) == 60
    assert db.value("SELECT count(*) FROM flow_tasks") == 20


def test_due_waits_are_completed_once_by_whoever_comes_first(db: Database) -> None:
    for number in range(15):
        db.start(f"r{number}")
        db.append({"run_id": f"r{number}", "events": [wait("a"), wait("b"), wait("c", 10**9)]})

    def scan(connection: Connection, number: int) -> list[tuple[str, str]]:
        rows = db.rows("SELECT run_id, wait_id FROM flow_resume_due_waits()", on=connection)
        return [(row["run_id"], row["wait_id"]) for row in rows]

    done = [pair for pairs in db.race(6, scan) if isinstance(pairs, list) for pair in pairs]
    done += scan(db.main, 0)
    assert sorted(done) == sorted((f"r{n}", w) for n in range(15) for w in "ab")
    assert db.types("r0")[-2:] == ["wait_completed"] * 2
    assert db.rows("SELECT DISTINCT subject_id FROM scheduled_wakeups") == [{"subject_id": "c"}]


def test_a_scan_of_one_run_leaves_others_alone_and_keeps_its_limit(db: Database) -> None:
    for run_id in ("a", "b"):
        db.start(run_id)
        db.append({"run_id": run_id, "events": [wait("x"), wait("y"), wait("z")]})
    query = "SELECT run_id, wait_id FROM flow_resume_due_waits(p_limit => 2, p_run_id => 'a')"
    assert [row["wait_id"] for row in db.rows(query)] == ["x", "y"]
    assert db.rows(query) == [{"run_id": "a", "wait_id": "z"}]
    assert len(db.rows("SELECT * FROM flow_resume_due_waits(p_limit => 1)")) == 1


def test_a_scan_may_ask_about_another_moment(db: Database) -> None:
    db.start("r")
    db.append({"run_id": "r", "events": [wait("w", 10**9)]})
    assert db.rows("SELECT * FROM flow_resume_due_waits(clock_timestamp())") == []
    due = db.value("SELECT due_at FROM scheduled_wakeups")
    query = "SELECT wait_id, due_at FROM flow_resume_due_waits(%s)"
    assert db.rows("SELECT * FROM flow_due_wakeups(%s - interval '1 microsecond')", due) == []
    assert len(db.rows("SELECT * FROM flow_due_wakeups(%s)", due)) == 1
    assert db.rows(query, due) == [{"wait_id": "w", "due_at": due}]


def test_the_clock_is_flow_now_and_nothing_else(db: Database) -> None:
    db.start("r")
    db.append({"run_id": "r", "events": [wait("w", 3_600_000_000)]})
    assert db.rows("SELECT * FROM flow_enqueue_due()") == []
    db.advance("1 hour")
    assert len(db.rows("SELECT * FROM flow_enqueue_due()")) == 1
    assert db.value("SELECT applied FROM flow_resume_wait('r', 'w')") is True
    age = db.value(
        "SELECT extract(epoch FROM max(recorded_at) - clock_timestamp()) FROM flow_events"
    )
    assert 3500 < age < 3700


def test_the_next_wakeup_is_the_earliest_dispatched_or_not(db: Database) -> None:
    query = "SELECT run_id, subject_id FROM flow_next_wakeup()"
    assert db.rows(query) == []
    db.start("r")
    db.append({"run_id": "r", "events": [wait("late", 10**9), wait("soon", 10)]})
    assert db.row(query)["subject_id"] == "soon"
    db.rows("SELECT flow_enqueue_due()")
    assert db.row(query)["subject_id"] == "soon"
    db.rows("SELECT flow_resume_due_waits()")
    assert db.row(query)["subject_id"] == "late"
    db.rows("SELECT flow_force_cancel('r')")
    assert db.rows(query) == []


def test_a_retry_that_starts_again_forgets_its_deadline(db: Database) -> None:
    db.start("r")
    db.append({"run_id": "r", "events": retry("s")})
    assert db.status("r") == "suspended"
    db.rows("SELECT flow_enqueue_due()")
    started = {"type": "step_started", "subject": "s"}
    failed = {"type": "step_retrying", "subject": "s", "due_in_us": 10**9}
    db.append({"run_id": "r", "events": [started]})
    assert db.status("r") == "running"
    db.append({"run_id": "r", "events": [failed]})
    assert db.row(
        "SELECT dispatched_at, due_at > now() + '10 min' AS later FROM scheduled_wakeups"
    ) == {
        "dispatched_at": None,
        "later": True,
    }
    db.append({"run_id": "r", "events": [started, failed, started]})
    assert db.rows("SELECT FROM scheduled_wakeups") == []


# -- lost wake-ups -------------------------------------------------------------------------------


def interleavings() -> Iterator[str]:
    """Every order of a client's two moments (C) and a worker's three (W)."""
    for places in combinations(range(5), 2):
        yield "".join("C" if place in places else "W" for place in range(5))


CALLS = {
    "resume_hook": "flow_resume_hook('r', 'h', '1')",
    "resume_wait": "flow_resume_wait('r', 'w')",
    "enqueue_due": "flow_enqueue_due()",
    "cancel": "flow_request_cancellation('r')",
    "wake": "flow_wake_run('r')",
}


@pytest.mark.parametrize("verb", CALLS)
def test_in_every_order_a_verb_is_seen_or_the_run_stays_runnable(db: Database, verb: str) -> None:
    """The client calls its verb and then commits; the worker claims, loads, and releases."""
    client, worker = db.connect(), db.connect()
    for order in interleavings():
        run_id = f"r{order}"
        db.start(run_id)
        db.append({"run_id": run_id, "events": [wait("w"), hook("h", run_id)]})
        db.rows("SELECT flow_wake_run(%s)", run_id)
        seen = meet(db, order, client, worker, run_id, CALLS[verb].replace("'r'", f"'{run_id}'"))

        tasks = db.rows("SELECT wakes, lease_owner FROM flow_tasks")
        head = db.value("SELECT head_sequence FROM flow_runs WHERE run_id = %s", run_id)
        # runnable: there is a task, held by nobody or by one who could not release it
        observed = seen["released"] and seen["head"] == head and seen["wakes"] == seen["woken"]
        left_for_next = "SELECT FROM scheduled_wakeups WHERE dispatched_at IS NULL AND run_id = %s"
        if verb == "enqueue_due":
            observed = observed or bool(db.rows(left_for_next, run_id))
        assert tasks or observed, (order, seen)
        assert not (tasks and seen["released"] and tasks[0]["lease_owner"]), (order, seen)
        db.rows("DELETE FROM flow_tasks")
        db.rows("SELECT flow_force_cancel(%s)", run_id)
        db.rows("DELETE FROM flow_tasks")


def meet(
    db: Database, order: str, client: Connection, worker: Connection, run_id: str, call: str
) -> dict[str, Any]:
    """Let both take their steps in this order; returns what the worker saw."""
    seen: dict[str, Any] = {"lease": None, "released": False, "woken": None}

    def claim(connection: Connection) -> None:
        for task in db.claim(on=connection):
            seen["lease"] = task["epoch"]

    def load(connection: Connection) -> None:
        query = "SELECT head_sequence, wakes FROM flow_load_runs(ARRAY[%s])"
        loaded = db.row(query, run_id, on=connection)
        seen["head"], seen["wakes"] = loaded["head_sequence"], loaded["wakes"]

    def release(connection: Connection) -> None:
        if seen["lease"] is not None:
            counted = db.rows("SELECT wakes FROM flow_tasks", on=connection)
            query = "SELECT flow_release_run(%s, %s, %s)"
            values = (run_id, seen["lease"], seen["wakes"])
            seen["released"] = db.value(query, *values, on=connection)
            seen["woken"] = counted[0]["wakes"] if counted else None

    client_steps = [("BEGIN", f"SELECT {call}"), ("COMMIT",)]
    worker_steps = [claim, load, release]
    running: list[Future[None]] = []
    for who in order:
        if who == "C":
            for statement in client_steps.pop(0):
                db.rows(statement, on=client)
        else:
            running.append(db.background_on(worker, worker_steps.pop(0)))
            # a step that waits for the client goes on when the client commits
            until(partial(db.is_settled, running[-1]), "the worker's step is done or waits")
    for step in running:
        step.result(30)
    return seen
