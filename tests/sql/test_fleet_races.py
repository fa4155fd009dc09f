"""The verbs of the fleet among each other and among all others: no deadlock, nothing lost."""

from __future__ import annotations

import random
from functools import partial
from itertools import combinations
from typing import Any

import psycopg
import pytest

from tests.sql.database import DEADLOCK_TIMEOUT, Connection, Database, codes, wait
from tests.sql.fleet import claim, complete, enqueue, start
from tests.sql.verbs import EXPECTED, VERBS, collided, prepare
from tests.waiting import until

MINE = (
    "(SELECT json_agg(json_build_object('task_id', task_id, 'epoch', epoch, 'ok', {ok}))"
    " FROM flow_tasks WHERE run_id = '<r>')"
)
FLEET = {
    "claim all": "flow_claim_tasks('{default,other}'::text[], 9, 'me', '1 s', p_kinds => null)",
    "enqueue": """flow_enqueue_task('resume_hook', '{"hook_id":"h"}', p_run_id => '<r>',
                  p_dedupe_mode => 'keep_latest')""",
    "complete": f"flow_complete_tasks({MINE.format(ok='true')})",
    "fail": f"flow_complete_tasks({MINE.format(ok='false')})",
    "release tasks": f"flow_release_tasks({MINE.format(ok='true')})",
    "requeue expired": "flow_requeue_expired(p_max_crashes => 0)",
    "dead letter": "flow_dead_letter((SELECT task_id FROM flow_tasks WHERE run_id = '<r>'"
    " AND kind = 'drive_run'), NULL, 'why')",
    "redrive": "flow_redrive(p_queue => 'default')",
}
ALL = VERBS | FLEET


@pytest.mark.parametrize("first", ALL)
def test_no_two_verbs_deadlock_when_one_is_of_the_fleet(db: Database, first: str) -> None:
    """One transaction is held open after its verb; the other comes, waits or passes, and ends."""
    db.start("other")
    holder = db.connect(deadlock_timeout=DEADLOCK_TIMEOUT)
    for number, second in enumerate(ALL if first in FLEET else FLEET):
        run_id = f"r{number}"
        prepare(db, run_id)
        options = {"run_id": run_id, "dedupe_mode": "keep_latest"}
        enqueue(db, "resume_hook", payload={"hook_id": "h"}, **options)
        claim(db, kinds=["resume_hook"])
        enqueue(db, "dispose_hook", payload={"hook_id": "h"}, run_id=run_id, max_stalled=0)
        claim(db, kinds=["dispose_hook"], lease="1 microsecond")
        verbs = (verb.replace("<r>", run_id) for verb in (ALL[first], ALL[second]))
        refused = codes(collided(db, holder, *verbs, commit=number % 2 == 1))
        assert set(refused) <= EXPECTED, (first, second, refused)
        db.rows("SELECT flow_force_cancel(%s)", run_id)
        db.rows("DELETE FROM flow_tasks")
        db.rows("DELETE FROM flow_dead_letters")
    assert db.deadlocks() == 0


def test_in_every_order_the_latest_payload_is_carried_out(db: Database) -> None:
    """One enqueues and then commits; the worker claims, and completes."""
    client, worker = db.connect(), db.connect()
    for places in combinations(range(4), 2):
        order = "".join("C" if place in places else "W" for place in range(4))
        enqueue(db, payload={"now": 1}, dedupe_mode="keep_latest")
        call = """SELECT flow_enqueue_task('resume_due_waits', '{"now":2}',
                  p_dedupe_mode => 'keep_latest')"""
        steps: list[tuple[str, ...]] = [("BEGIN", call), ("COMMIT",)]
        seen: dict[str, Any] = {"payload": None, "task": None, "outcome": None}

        def take(connection: Connection, seen: dict[str, Any] = seen) -> None:
            for task in claim(db, on=connection):
                seen.update(task=task, payload=task["payload"])

        def finish(connection: Connection, seen: dict[str, Any] = seen) -> None:
            if seen["task"]:
                seen["outcome"] = complete(db, seen["task"], on=connection)

        moves, running = [take, finish], []
        for who in order:
            if who == "C":
                for statement in steps.pop(0):
                    db.rows(statement, on=client)
            else:
                running.append(db.background_on(worker, moves.pop(0)))
                until(partial(db.is_settled, running[-1]), "the worker's step is done or waits")
        for step in running:
            step.result(30)
        left = db.rows("SELECT payload, lease_owner FROM flow_tasks")
        carried_out = seen["outcome"] == "done" and seen["payload"] == {"now": 2}
        waits = bool(left) and left[0] == {"payload": {"now": 2}, "lease_owner": None}
        assert carried_out != waits, (order, seen, left)
        db.rows("DELETE FROM flow_tasks")


def test_the_fence_of_a_run_only_grows(db: Database) -> None:
    start(db, "r")
    dice = random.Random(3)
    epochs = [0]
    for _ in range(60):
        epochs += [task["epoch"] for task in claim(db, lease="1 second", max_crashes=2)]
        what = dice.randrange(6)
        if what == 0:
            acquired = db.rows("SELECT epoch FROM flow_acquire_run('r', 'me', '1 second')")
            epochs += [row["epoch"] for row in acquired]
        elif what == 1:
            db.rows("SELECT flow_release_run('r', %s, 99)", epochs[-1])
            db.rows("SELECT flow_wake_run('r')")
        elif what == 2:
            db.rows("SELECT flow_requeue_expired(p_max_crashes => 2)")
        elif what == 3:
            db.rows("SELECT flow_give_back('r', %s)", epochs[-1])
        elif what == 4:
            db.rows("SELECT flow_redrive(p_queue => 'default')")
        db.advance("600 milliseconds")
    assert len(epochs) > 15
    assert epochs == sorted(set(epochs))
    assert db.value("SELECT lease_epoch FROM flow_runs") >= epochs[-1]


def test_a_scheduler_that_hangs_holds_up_no_other_and_dispatches_nothing_twice(
    db: Database,
) -> None:
    for number in range(6):
        db.start(f"r{number}")
        db.append({"run_id": f"r{number}", "events": [wait("w")]})
    hung = db.connect()
    hung.execute("BEGIN")
    first = db.rows("SELECT run_id FROM flow_enqueue_due(3)", on=hung)

    def schedule(connection: Connection, number: int) -> list[str]:
        rows = db.rows("SELECT run_id FROM flow_enqueue_due(2)", on=connection)
        return [row["run_id"] for row in rows]

    others = [run for runs in db.race(5, schedule) if isinstance(runs, list) for run in runs]
    hung.execute("COMMIT")
    assert sorted(others + [row["run_id"] for row in first]) == [f"r{n}" for n in range(6)]
    assert db.rows("SELECT * FROM flow_enqueue_due()") == []
    assert {row["wakes"] for row in db.rows("SELECT wakes FROM flow_tasks")} == {1}


STRICT = ["repeatable read", "serializable"]


@pytest.mark.parametrize("level", STRICT)
def test_every_verb_works_under_a_stricter_default_isolation(db: Database, level: str) -> None:
    db.start("other")
    strict = db.connect(default_transaction_isolation=level)
    for number, (name, verb) in enumerate(ALL.items()):
        run_id = f"r{number}"
        prepare(db, run_id)
        enqueue(db, "resume_hook", payload={"hook_id": "h"}, run_id=run_id)
        claim(db, kinds=["resume_hook"])
        refused: list[object] = []
        try:
            db.rows(f"SELECT {verb.replace('<r>', run_id)}", on=strict)
        except psycopg.Error as error:
            refused.append(error)
        assert set(codes(refused)) <= EXPECTED, (name, refused)
        db.rows("SELECT flow_force_cancel(%s)", run_id)
        db.rows("DELETE FROM flow_tasks")
        db.rows("DELETE FROM flow_dead_letters")


@pytest.mark.parametrize("level", STRICT)
def test_under_a_stricter_isolation_a_race_is_lost_with_40001_and_nothing_else(
    db: Database, level: str
) -> None:
    for number in range(30):
        start(db, f"r{number}")
        enqueue(db, dedupe_mode="off")
    lost: list[str] = []

    def work(connection: Connection, number: int) -> list[int]:
        connection.execute("SELECT set_config('default_transaction_isolation', %s, false)", [level])
        taken: list[int] = []
        for _ in range(200):
            try:
                claimed = claim(db, 3, on=connection)
            except psycopg.Error as error:
                lost.append(error.sqlstate or "")
                continue
            if not claimed:
                break
            taken += [task["task_id"] for task in claimed]
        return taken

    results = db.race(5, work)
    taken = [task for tasks in results if isinstance(tasks, list) for task in tasks]
    taken += [task["task_id"] for task in claim(db, 100)]
    assert len(taken) == len(set(taken)) == 60
    assert set(lost) <= {"40001"}


def test_many_workers_carry_out_each_task_once(db: Database) -> None:
    for _ in range(120):
        enqueue(db, max_attempts=50)

    def work(connection: Connection, number: int) -> list[int]:
        dice = random.Random(number)
        done: list[int] = []
        for _ in range(150):
            for task in claim(db, 5, on=connection):
                say = {"task_id": task["task_id"], "epoch": task["epoch"]}
                ok = dice.random() < 0.7
                query = "SELECT outcome FROM flow_complete_tasks(json_build_array(%s::json))"
                text = (
                    f'{{"task_id":{say["task_id"]},"epoch":{say["epoch"]},"ok":{str(ok).lower()}}}'
                )
                (row,) = db.rows(query, text, on=connection)
                if row["outcome"] == "done":
                    done.append(task["task_id"])
        return done

    results = db.race(6, work)
    done = [task for tasks in results if isinstance(tasks, list) for task in tasks]
    for task in claim(db, 200):
        assert complete(db, task) == "done"
        done.append(task["task_id"])
    assert len(done) == len(set(done)) == 120
    assert db.deadlocks() == 0
