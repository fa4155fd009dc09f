"""Tasks that carry out one verb later: made once, claimed by one, completed under a fence."""

from __future__ import annotations

import json
from typing import Any

import psycopg
import pytest

from tests.sql.database import Connection, Database, refused
from tests.sql.fleet import claim, complete, enqueue, release, start, tasks

HOOK = {"hook_id": "h", "payload": 1}


def test_a_task_is_claimed_with_all_its_worker_must_know(db: Database) -> None:
    start(db, "r", build="b7")
    task_id, is_new = enqueue(
        db, "resume_hook", run_id="r", payload=HOOK, timeout="5 seconds", max_attempts=3
    )
    assert is_new
    (task,) = claim(db, kinds=["resume_hook"])
    assert (task["task_id"], task["run_id"], task["kind"]) == (task_id, "r", "resume_hook")
    assert (task["payload"], task["epoch"], task["attempts"]) == (HOOK, 1, 1)
    assert (task["workflow_name"], task["runtime_build"], task["queue"]) == (
        "test",
        "b7",
        "default",
    )
    assert (task["max_attempts"], task["crashes"], task["head_sequence"]) == (3, 0, 1)
    assert claim(db, kinds=["resume_hook"]) == []
    assert complete(db, task) == "done"
    assert complete(db, task) == "gone"


def test_a_claim_of_drive_tasks_sees_no_other_kinds(db: Database) -> None:
    start(db, "r")
    enqueue(db)
    assert [task["kind"] for task in db.claim()] == ["drive_run"]
    assert [task["kind"] for task in claim(db)] == ["resume_due_waits"]


def test_one_claim_takes_runs_and_other_tasks_up_to_its_limit(db: Database) -> None:
    start(db, *"abc")
    for _ in range(3):
        enqueue(db)
    assert len(claim(db, 4)) == 4
    assert len(claim(db, 4)) == 2


def test_delay_and_priority_order_all_kinds_alike(db: Database) -> None:
    late, _ = enqueue(db, delay="30 seconds")
    second, _ = enqueue(db)
    first, _ = enqueue(db, priority=-5)
    assert [task["task_id"] for task in claim(db)] == [first, second]
    db.advance("31 seconds")
    assert [task["task_id"] for task in claim(db)] == [late]


# -- deduplication -------------------------------------------------------------------------------

# what is there already, when the second one comes; is the second one made, by mode
MODES = {
    "off": {"pending": True, "leased": True, "completed": True, "after ttl": True},
    "until_terminal": {"pending": False, "leased": False, "completed": True, "after ttl": False},
    "until_terminal_or_ttl": {
        "pending": False,
        "leased": False,
        "completed": True,
        "after ttl": True,
    },
    "keep_latest": {"pending": False, "leased": False, "completed": True, "after ttl": False},
}


@pytest.mark.parametrize("state", ["pending", "leased", "completed", "after ttl"])
@pytest.mark.parametrize("mode", MODES)
def test_a_second_task_of_one_target_is_made_when_its_mode_says_so(
    db: Database, mode: str, state: str
) -> None:
    start(db, "r")
    ttl = "1 minute" if mode == "until_terminal_or_ttl" else None
    options: dict[str, Any] = {"run_id": "r", "dedupe_mode": mode, "dedupe_ttl": ttl}
    first, _ = enqueue(db, "resume_hook", payload=HOOK, **options)
    if state in ("leased", "completed"):
        (task,) = claim(db, kinds=["resume_hook"])
        if state == "completed":
            complete(db, task)
    if state == "after ttl":
        db.advance("61 seconds")
    second, is_new = enqueue(db, "resume_hook", payload={**HOOK, "payload": 2}, **options)
    assert is_new is MODES[mode][state]
    assert (second != first) is is_new
    _, is_new = enqueue(db, "resume_hook", payload={"hook_id": "i", "payload": 1}, **options)
    assert is_new, "another target is another task"


def test_the_latest_payload_wins_while_a_task_is_pending(db: Database) -> None:
    for cutoff in (1, 2, 3):
        enqueue(db, payload={"now": cutoff}, dedupe_mode="keep_latest")
    (task,) = claim(db)
    assert task["payload"] == {"now": 3}
    assert complete(db, task) == "done"
    assert tasks(db) == []


def test_the_latest_payload_is_carried_out_after_the_one_at_work(db: Database) -> None:
    enqueue(db, payload={"now": 1}, dedupe_mode="keep_latest")
    (task,) = claim(db)
    enqueue(db, payload={"now": 2}, dedupe_mode="keep_latest")
    enqueue(db, payload={"now": 3}, dedupe_mode="keep_latest")
    assert claim(db) == []
    assert complete(db, task) == "again"
    (again,) = claim(db)
    assert (again["payload"], again["attempts"]) == ({"now": 3}, 1)
    assert complete(db, again) == "done"


def test_many_who_enqueue_one_target_at_once_make_one_task(db: Database) -> None:
    def one(connection: Connection, number: int) -> int:
        query = "SELECT task_id FROM flow_enqueue_task('resume_due_waits', p_dedupe_mode => %s)"
        return int(db.value(query, "until_terminal", on=connection))

    assert len(set(map(str, db.race(12, one)))) == 1
    assert len(tasks(db)) == 1


def test_a_key_names_no_token_and_is_the_same_for_each_spelling_of_a_call(db: Database) -> None:
    payload = {"token": "s3cr3t", "payload": {"a": 1}}
    first, _ = enqueue(db, "resume_hook_by_token", payload=payload, dedupe_mode="until_terminal")
    again = {"payload": 2, "token": "s3cr3t"}
    assert enqueue(db, "resume_hook_by_token", payload=again, dedupe_mode="until_terminal") == (
        first,
        False,
    )
    key = db.value("SELECT dedupe_key FROM flow_tasks")
    assert key.startswith("resume_hook_by_token:")
    assert "s3cr3t" not in key
    # the kind is part of it, and lengths keep parts apart
    assert enqueue(
        db, "dispose_hook_by_token", payload={"token": "s3cr3t"}, dedupe_mode="until_terminal"
    )[1]


# -- completion ----------------------------------------------------------------------------------


def test_a_late_worker_cannot_complete_what_was_handed_on(db: Database) -> None:
    enqueue(db, max_attempts=5)
    (first,) = claim(db)
    db.advance("61 seconds")
    (second,) = claim(db)
    assert second["epoch"] > first["epoch"]
    before = db.rows("SELECT t::text FROM flow_tasks t")
    for ok in (True, False):
        assert complete(db, first, ok) == "lease_lost"
    assert release(db, first) == [False]
    assert (
        db.value("SELECT flow_dead_letter(%s, %s, 'x')", first["task_id"], first["epoch"]) is None
    )
    assert db.rows("SELECT t::text FROM flow_tasks t") == before
    # also when the number of attempts has come back to what it was
    assert release(db, second) == [True]
    (third,) = claim(db)
    assert third["attempts"] == second["attempts"]
    assert complete(db, second) == "lease_lost"
    assert complete(db, third) == "done"


def test_a_failure_is_retried_after_a_delay_that_doubles_until_it_is_used_up(db: Database) -> None:
    enqueue(db, max_attempts=3, retry_delay="10 seconds")
    for seconds in (10, 20):
        (task,) = claim(db)
        assert complete(db, task, ok=False, error="boom") == "retry"
        assert claim(db) == []
        db.advance(f"{seconds - 1} seconds")
        assert claim(db) == []
        db.advance("1 second")
    (task,) = claim(db)
    assert (task["attempts"], task["last_error"]) == (3, "boom")
    assert complete(db, task, ok=False, error="again") == "dead"
    letter = db.row("SELECT kind, reason, last_error, attempts FROM flow_dead_letters")
    assert letter == {
        "kind": "resume_due_waits",
        "reason": "failed 3 times",
        "last_error": "again",
        "attempts": 3,
    }


def test_a_delay_that_is_longer_than_an_hour_is_not_doubled_and_not_cut(db: Database) -> None:
    enqueue(db, max_attempts=3, retry_delay="2 hours")
    for _ in range(2):
        (task,) = claim(db)
        assert complete(db, task, ok=False) == "retry"
        db.advance("119 minutes")
        assert claim(db) == []
        db.advance("1 minute")
    assert len(claim(db)) == 1


def test_a_worker_may_say_the_delay_or_that_no_retry_helps(db: Database) -> None:
    enqueue(db, max_attempts=9)
    (task,) = claim(db)
    assert complete(db, task, ok=False, retry_delay="30 seconds") == "retry"
    db.advance("29 seconds")
    assert claim(db) == []
    db.advance("1 second")
    (task,) = claim(db)
    assert complete(db, task, ok=False, dead=True) == "dead"


def test_a_lost_worker_is_no_failure_and_a_task_given_back_is_neither(db: Database) -> None:
    enqueue(db, max_attempts=2)
    for _ in range(3):
        (task,) = claim(db)
        assert release(db, task) == [True]
    (task,) = claim(db)
    assert (task["attempts"], task["crashes"]) == (1, 0)
    db.advance("61 seconds")
    (task,) = claim(db)
    assert (task["attempts"], task["crashes"]) == (2, 1)
    assert complete(db, task, ok=False) == "retry"
    (task,) = claim(db)
    assert complete(db, task, ok=False) == "dead"


def test_a_line_is_kept_about_tasks_that_ask_for_it(db: Database) -> None:
    start(db, "r")
    kept, _ = enqueue(db, "resume_hook", run_id="r", payload=HOOK, keep=True)
    enqueue(db)
    for task in claim(db, kinds=["resume_hook", "resume_due_waits"]):
        assert complete(db, task) == "done"
    rows = db.rows("SELECT task_id, run_id, attempts FROM flow_finished_tasks")
    assert rows == [{"task_id": kept, "run_id": "r", "attempts": 1}]


def test_a_completion_takes_many_in_any_order_each_on_its_own_merits(db: Database) -> None:
    for _ in range(3):
        enqueue(db)
    claimed = claim(db)
    ids = [task["task_id"] for task in claimed]
    done = [
        {"task_id": ids[2], "epoch": 1, "ok": True},
        {"task_id": 10**9, "epoch": 1, "ok": True},
        {"task_id": ids[0], "epoch": 7, "ok": True},
        {"task_id": ids[1], "epoch": 1},
    ]
    rows = db.rows("SELECT task_id, outcome FROM flow_complete_tasks(%s)", json.dumps(done))
    assert [row["outcome"] for row in rows] == ["done", "gone", "lease_lost", "dead"]
    assert [row["task_id"] for row in rows] == [ids[2], 10**9, ids[0], ids[1]]
    assert tasks(db) == [ids[0]]


def test_drive_tasks_are_not_completed_this_way(db: Database) -> None:
    start(db, "r")
    (task,) = db.claim()
    assert complete(db, task) == "gone"
    assert tasks(db) == [task["task_id"]]


def test_a_heartbeat_keeps_tasks_of_every_kind(db: Database) -> None:
    start(db, "r")
    enqueue(db)
    run, other = claim(db)
    leases = [
        {"task_id": other["task_id"], "epoch": 1},
        {"run_id": "r", "epoch": 1},
        {"task_id": other["task_id"], "epoch": 9},
    ]
    rows = db.rows("SELECT * FROM flow_heartbeat(%s, '1 hour')", json.dumps(leases))
    assert [(row["task_id"], row["held"]) for row in rows] == [
        (other["task_id"], True),
        (run["task_id"], True),
        (other["task_id"], False),
    ]
    db.advance("50 minutes")
    assert claim(db) == []


def test_leases_of_every_kind_are_given_back_at_once(db: Database) -> None:
    start(db, "a", "b")
    enqueue(db)
    claimed = claim(db)
    assert release(db, *reversed(claimed)) == [True] * 3
    assert release(db, *claimed) == [False] * 3
    again = claim(db)
    assert [(task["attempts"], task["epoch"], task["crashes"]) for task in again] == [(1, 2, 0)] * 3


@pytest.mark.parametrize(
    "call",
    [
        "flow_enqueue_task(NULL)",
        "flow_enqueue_task('nonsense')",
        "flow_enqueue_task('resume_due_waits', p_run_id => 'r')",
        "flow_enqueue_task('resume_hook', '{}', p_run_id => 'r')",
        "flow_enqueue_task('resume_hook', '[]', p_run_id => 'r')",
        """flow_enqueue_task('resume_wait', '{"wait_id":7}', p_run_id => 'r')""",
        "flow_enqueue_task('dispose_hook_by_token', '{}')",
        "flow_enqueue_task('resume_due_waits', p_queue => ' ')",
        "flow_enqueue_task('resume_due_waits', p_dedupe_mode => 'x')",
        "flow_enqueue_task('resume_due_waits', p_dedupe_mode => 'until_terminal_or_ttl')",
        "flow_enqueue_task('drive_run', null, 'q', 'r', 0::smallint, '0', 'keep_latest', '0')",
        "flow_enqueue_task('resume_due_waits', p_dedupe_ttl => '1s')",
        "flow_enqueue_task('resume_due_waits', p_max_attempts => 0)",
        "flow_enqueue_task('resume_due_waits', p_retry_delay => '-1s')",
        "flow_enqueue_task('resume_due_waits', p_timeout => '0')",
        "flow_complete_tasks('{}')",
        'flow_complete_tasks(\'[{"task_id":"x"}]\')',
        "flow_release_tasks('{}')",
        "flow_dead_letter(1, 1, ' ')",
        "flow_redrive()",
        "flow_redrive(1, 'q')",
        "flow_requeue_expired(0)",
        "flow_pause_queue('')",
        "flow_set_queue_limits('q', -1)",
        "flow_set_queue_limits('q', p_rate_limit => 1)",
        "flow_listen_hint('{q}', '1 hour')",
        "flow_worker_beat('', 'b', 'h', 1, '{q}', null, null, 1, 0)",
    ],
)
def test_a_call_that_makes_no_sense_is_refused(db: Database, call: str) -> None:
    start(db, "r")
    assert refused(db, f"SELECT {call}")[0] == "WF010"


def test_tasks_of_runs_that_do_not_exist_are_refused(db: Database) -> None:
    call = """SELECT flow_enqueue_task('resume_hook', '{"hook_id":"h"}', p_run_id => %s)"""
    assert refused(db, call, "no-run")[0] == "WF001"
    assert refused(db, call, "not a run id")[0] == "WF013"
    assert refused(db, "SELECT flow_enqueue_task('drive_run')")[0] == "WF013"


def test_an_error_about_a_token_task_does_not_show_it(db: Database) -> None:
    secret = "s3cr3t" * 1000
    call = "SELECT flow_enqueue_task('resume_hook_by_token', %s, p_queue => '')"
    with pytest.raises(psycopg.Error) as caught:
        db.rows(call, json.dumps({"token": secret}))
    diag = caught.value.diag
    for text in (str(caught.value), diag.message_detail, diag.context):
        assert "s3cr3t" not in (text or "")
