"""What gives up becomes a dead letter: nothing grinds for ever, nothing is lost, no token shows."""

from __future__ import annotations

from typing import Any

from psycopg.rows import DictRow

from tests.sql.database import STARTED, Connection, Database, wakes
from tests.sql.fleet import claim, complete, enqueue, start, tasks


def lose(db: Database, times: int, **options: Any) -> list[DictRow]:
    """Claim, and let the lease expire, so many times; returns the last claim."""
    claimed: list[DictRow] = []
    for _ in range(times):
        claimed = claim(db, **options)
        db.advance("61 seconds")
    return claimed


def test_a_run_that_loses_its_workers_is_blocked_with_the_reason(db: Database) -> None:
    start(db, "poison", "good")
    db.rows("UPDATE flow_tasks SET available_at = available_at + '1 year' WHERE run_id = 'good'")
    last = lose(db, 4)
    assert [(task["run_id"], task["crashes"]) for task in last] == [("poison", 3)]
    assert claim(db) == []
    info = db.row("SELECT * FROM flow_run_info('poison')")
    assert info["blocked_reason"] == "lost 4 workers while they worked on it"
    assert (info["status"], info["waiting_for"]) == ("pending", None)
    letter = db.row("SELECT * FROM flow_dead_letters")
    assert (letter["run_id"], letter["crashes"], letter["kind"]) == ("poison", 4, "drive_run")
    assert info["dead_letter_id"] == letter["dead_letter_id"]
    # whoever comes back late is refused
    (late,) = db.append({"run_id": "poison", "epoch": last[0]["epoch"], "events": [STARTED]})
    assert late["outcome"] == "lease_lost"


def test_nothing_wakes_a_dead_run_but_a_redrive(db: Database) -> None:
    start(db, "r")
    db.append({"run_id": "r", "events": [STARTED]})
    db.open_hook("r")
    lose(db, 1)
    claim(db, max_crashes=0)
    reason = "SELECT blocked_reason FROM flow_run_info('r')"
    assert db.value(reason) == "lost 1 workers while they worked on it"
    db.rows("SELECT flow_resume_hook('r', 'h', '1')")
    db.rows("SELECT flow_wake_run('r')")
    assert claim(db) == []
    assert db.value(reason) == "lost 1 workers while they worked on it"

    letter = db.value("SELECT dead_letter_id FROM flow_dead_letters")
    redriven = db.rows("SELECT * FROM flow_redrive(%s)", letter)
    assert [(row["run_id"], row["redriven"]) for row in redriven] == [("r", True)]
    assert db.rows("SELECT * FROM flow_redrive(%s)", letter) == []
    assert db.value(reason) is None
    (task,) = claim(db)
    assert (task["run_id"], task["crashes"], task["attempts"]) == ("r", 0, 1)
    assert db.types("r")[-1] == "hook_received"


def test_somebody_may_drive_a_dead_run_by_hand(db: Database) -> None:
    start(db, "r")
    lose(db, 1)
    claim(db, max_crashes=0)
    (lease,) = db.rows("SELECT * FROM flow_acquire_run('r', 'me', '1 minute')")
    (answer,) = db.append(
        {"run_id": "r", "epoch": lease["epoch"], "release": lease["wakes"], "events": [STARTED]}
    )
    assert (answer["outcome"], answer["released"]) == ("appended", True)
    assert db.value("SELECT blocked_reason FROM flow_run_info('r')") is not None


def test_a_dead_run_can_be_cancelled_and_its_redrive_does_nothing(db: Database) -> None:
    start(db, "r")
    lose(db, 1)
    claim(db, max_crashes=0)
    db.rows("SELECT flow_force_cancel('r')")
    assert db.value("SELECT blocked_reason FROM flow_run_info('r')") is None
    assert len(db.rows("SELECT * FROM flow_redrive(p_queue => 'default')")) == 1
    assert tasks(db) == []


def test_a_run_that_ended_needs_no_letter(db: Database) -> None:
    start(db, "r")
    lose(db, 1)
    db.append({"run_id": "r", "events": [{"type": "run_completed"}]})
    assert claim(db, max_crashes=0) == []
    assert tasks(db) == []
    assert db.rows("SELECT * FROM flow_dead_letters") == []


def test_each_task_may_have_its_own_number_of_crashes(db: Database) -> None:
    enqueue(db, max_stalled=0)
    enqueue(db, max_stalled=2)
    lose(db, 1)
    assert len(claim(db)) == 1
    assert db.value("SELECT count(*) FROM flow_dead_letters") == 1


def test_a_claim_without_a_limit_buries_nothing(db: Database) -> None:
    start(db, "r")
    assert [task["crashes"] for task in lose(db, 8, max_crashes=None)] == [7]


def test_dead_tasks_do_not_use_up_the_limit_of_a_claim(db: Database) -> None:
    start(db, *(f"r{number}" for number in range(6)))
    claim(db, 3)
    db.advance("61 seconds")
    assert len(claim(db, 3, max_crashes=0)) == 3
    assert db.value("SELECT count(*) FROM flow_dead_letters") == 3


def test_expired_leases_are_put_back_and_counted_without_a_claim(db: Database) -> None:
    start(db, "r")
    enqueue(db, max_stalled=0)
    claim(db)
    assert db.rows("SELECT * FROM flow_requeue_expired()") == []
    db.advance("61 seconds")
    rows = db.rows(
        "SELECT run_id, queue, crashes, dead_letter_id IS NULL AS lives"
        " FROM flow_requeue_expired() ORDER BY run_id"
    )
    assert [(row["run_id"], row["queue"], row["crashes"], row["lives"]) for row in rows] == [
        ("r", "default", 1, True),
        (None, "default", 1, False),
    ]
    (task,) = claim(db)
    assert (task["run_id"], task["crashes"], task["epoch"]) == ("r", 1, 2)


def test_a_task_by_token_dies_with_run_and_hook_in_place_of_the_token(db: Database) -> None:
    db.start("r")
    db.open_hook("r", "approval", "s3cr3t")
    payload = {"token": "s3cr3t", "payload": {"ok": True}}
    enqueue(db, "resume_hook_by_token", payload=payload)
    enqueue(db, "dispose_hook_by_token", payload={"token": "s3cr3t of nobody"})
    for task in claim(db):
        assert complete(db, task, ok=False, error="no luck") == "dead"
    letters = db.rows("SELECT t::text, t.run_id, t.payload FROM flow_dead_letters t ORDER BY 1")
    assert "s3cr3t" not in str(letters)
    assert [(letter["run_id"], letter["payload"]) for letter in letters] == [
        ("r", {"hook_id": "approval", "payload": {"ok": True}}),
        (None, {"hook_id": None}),
    ]
    redriven = db.rows("SELECT run_id, redriven FROM flow_redrive(p_queue => 'default')")
    assert [tuple(row.values()) for row in redriven] == [("r", True), (None, False)]
    (task,) = claim(db)
    assert (task["kind"], task["run_id"]) == ("resume_hook", "r")
    assert task["payload"] == {"hook_id": "approval", "payload": {"ok": True}}


def test_a_redriven_task_keeps_its_policy_and_begins_anew(db: Database) -> None:
    policy: dict[str, Any] = {
        "priority": -3,
        "max_attempts": 2,
        "retry_delay": "7 seconds",
        "timeout": "1 minute",
    }
    enqueue(db, concurrency_key="k", max_stalled=5, keep=True, **policy)
    columns = (
        "priority, max_attempts, retry_delay, timeout, concurrency_key, max_stalled, keep,"
        " attempts, crashes"
    )
    before = db.row(f"SELECT {columns} FROM flow_tasks")
    (task,) = claim(db)
    complete(db, task, ok=False, dead=True)
    db.rows("SELECT flow_redrive(p_queue => 'default')")
    assert db.row(f"SELECT {columns} FROM flow_tasks") == before


def test_of_many_who_redrive_a_queue_each_letter_goes_back_once(db: Database) -> None:
    start(db, *(f"r{number}" for number in range(8)))
    for _ in range(8):
        enqueue(db)
    lose(db, 1, limit=100)
    claim(db, 100, max_crashes=0)
    assert db.value("SELECT count(*) FROM flow_dead_letters") == 16

    def redrive(connection: Connection, number: int) -> int:
        query = "SELECT * FROM flow_redrive(p_queue => 'default', p_limit => 5)"
        return len(db.rows(query, on=connection)) + len(db.rows(query, on=connection))

    db.race(6, redrive)
    assert db.rows("SELECT * FROM flow_dead_letters") == []
    assert len(tasks(db)) == 16
    assert {wakes(db, f"r{number}") for number in range(8)} == {1}


def test_an_operator_may_bury_a_task_that_somebody_holds(db: Database) -> None:
    start(db, "r")
    (task,) = claim(db)
    letter = db.value("SELECT flow_dead_letter(%s, NULL, 'it is evil')", task["task_id"])
    assert letter is not None
    assert db.value("SELECT blocked_reason FROM flow_run_info('r')") == "it is evil"
    (late,) = db.append({"run_id": "r", "epoch": task["epoch"], "events": [STARTED]})
    assert late["outcome"] == "lease_lost"
