"""Idle workers are told about work, sparsely; who is alive is known; what nobody serves says so."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.sql.database import SPEC, Connection, Database, hook, wait
from tests.sql.fleet import claim, enqueue, release, start
from tests.waiting import until


class Listener:
    """A connection that hears what is notified."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._connection = db.connect()
        self._connection.execute(f"LISTEN {db.value('SELECT flow_channel()')}")

    def heard(self) -> list[str]:
        """What came since the last call; a notification of our own ends the wait for more."""
        channel = self._db.value("SELECT flow_channel()")
        self._db.rows("SELECT pg_notify(%s, 'end of the test')", channel)
        payloads: list[str] = []
        for notify in self._connection.notifies(timeout=30):
            if notify.payload == "end of the test":
                break
            payloads.append(notify.payload)
        return payloads


def idle(db: Database, *queues: str) -> None:
    db.rows("SELECT flow_listen_hint(%s::text[])", list(queues))


def test_nobody_is_notified_unless_somebody_is_idle(db: Database) -> None:
    listener = Listener(db)
    start(db, "a", "b")
    enqueue(db)
    assert listener.heard() == []
    idle(db, "default", "other")
    start(db, "c")
    assert listener.heard() == ["default"]


WAKING = {
    "start": 'SELECT flow_start(\'{"name":"test","version":"1"}\', \'1\', \'new\')',
    "resume": "SELECT flow_resume_hook('r', 'h', '1')",
    "wake": "SELECT flow_wake_run('r')",
    "cancel": "SELECT flow_request_cancellation('r')",
    "due": "SELECT flow_enqueue_due()",
    "task": "SELECT flow_enqueue_task('resume_due_waits')",
    "give back": "SELECT flow_give_back('held', 1)",
    "redrive": "SELECT flow_redrive(p_queue => 'default')",
    "resume queue": "SELECT flow_resume_queue('default')",
}


@pytest.mark.parametrize("verb", WAKING)
def test_whatever_makes_work_wakes_the_idle(db: Database, verb: str) -> None:
    start(db, "held")
    claim(db)
    enqueue(db)
    (task,) = claim(db)
    db.rows("SELECT flow_dead_letter(%s, 1, 'why')", task["task_id"])
    db.start("r")
    db.append({"run_id": "r", "events": [wait("w"), hook("h", "t")]})
    db.rows("SELECT flow_pause_queue('default')")
    listener = Listener(db)
    idle(db, "default")
    db.rows(WAKING[verb])
    assert listener.heard() == ["default"]


def test_a_burst_is_one_notification_until_somebody_is_idle_again(db: Database) -> None:
    listener = Listener(db)
    idle(db, "default")
    for number in range(200):
        start(db, f"r{number}")
    assert listener.heard() == ["default"]
    idle(db, "default")
    db.advance("1 second")
    start(db, "later")
    assert listener.heard() == ["default"]


def freeze(db: Database) -> None:
    """Let it be one moment from now on, whatever the speed of this machine."""
    db.main.execute(
        "CREATE OR REPLACE FUNCTION flow_now() RETURNS timestamptz LANGUAGE sql VOLATILE"
        f" RETURN timestamptz '{db.value('SELECT flow_now()')}'"
    )


def test_who_was_notified_a_moment_ago_is_told_when_to_give_the_hint_again(db: Database) -> None:
    listener = Listener(db)
    hint = "SELECT extract(milliseconds FROM flow_listen_hint('{default,other}'))::integer"
    freeze(db)
    assert db.value(hint) == 0
    start(db, "a")
    assert db.value(hint) == 10
    start(db, "b")
    assert listener.heard() == ["default"]
    enqueue(db, queue="other")
    assert listener.heard() == ["other"], "that queue was quiet, and the hint for it is good"
    db.advance("11 milliseconds")
    assert db.value(hint) == 0
    start(db, "c")
    assert listener.heard() == ["default"]


def test_what_comes_while_another_transaction_holds_the_hint_is_notified_too(db: Database) -> None:
    listener = Listener(db)
    idle(db, "default")
    holder = db.connect()
    holder.execute("BEGIN")
    db.rows("SELECT flow_start(%s, '1', 'held')", SPEC, on=holder)
    start(db, "a")
    assert listener.heard() == ["default"]
    holder.execute("COMMIT")
    assert listener.heard() == ["default"]


def test_a_transaction_that_keeps_one_snapshot_notifies_too(db: Database) -> None:
    listener = Listener(db)
    idle(db, "default")
    other = db.connect()
    other.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    db.rows("SELECT flow_start(%s, '1', 'a')", SPEC, on=other)
    other.execute("COMMIT")
    assert listener.heard() == ["default"]


def test_a_hint_runs_out_and_is_not_written_while_it_is_fresh(db: Database) -> None:
    listener = Listener(db)
    idle(db, "default")
    written = db.value("SELECT xmin::text FROM flow_idle_queues")
    idle(db, "default")
    assert db.value("SELECT xmin::text FROM flow_idle_queues") == written
    db.advance("11 seconds")
    start(db, "a")
    assert listener.heard() == []


def test_a_queue_can_be_taken_out_of_notifications(db: Database) -> None:
    listener = Listener(db)
    db.rows("SELECT flow_set_queue_limits('default')")
    assert db.value("SELECT flow_listen_hint('{default}')") is not None
    db.rows("UPDATE flow_queues SET notify = false")
    assert db.value("SELECT flow_listen_hint('{other,default}')") is None
    start(db, "a")
    assert listener.heard() == []


def test_a_rolled_back_enqueue_leaves_the_hint(db: Database) -> None:
    listener = Listener(db)
    idle(db, "default")
    with db.main.transaction(force_rollback=True):
        start(db, "a")
    start(db, "b")
    assert listener.heard() == ["default"]


def test_neither_enqueuing_nor_a_hint_waits_for_who_holds_the_hint(db: Database) -> None:
    idle(db, "default")
    holder = db.connect()
    holder.execute("BEGIN")
    db.rows("SELECT flow_start(%s, '1', 'held')", SPEC, on=holder)

    def others(connection: Connection) -> int:
        db.rows("SELECT flow_start(%s, '1', 'free')", SPEC, on=connection)
        db.rows("SELECT flow_listen_hint('{default}')", on=connection)
        return len(claim(db, on=connection))

    assert db.background(others).result(30) == 1
    holder.execute("ROLLBACK")


def test_schemas_have_channels_of_their_own(db: Database) -> None:
    channel = db.value("SELECT flow_channel()")
    assert channel.startswith("flow_")
    assert len(channel) < 64


# -- workers -------------------------------------------------------------------------------------


def beat(db: Database, worker: str, **options: Any) -> None:
    values = {
        "build": "b1",
        "host": "h",
        "pid": 7,
        "queues": ["default"],
        "workflows": None,
        "steps": None,
        "slots": 5,
        "running": 1,
        **options,
    }
    casts = {"queues": "text[]", "workflows": "text[]", "steps": "text[]", "builds": "text[]"}
    named = "".join(f", p_{name} => %s::{casts.get(name, 'text')}" for name in values)
    for name in ("pid", "slots", "running"):
        named = named.replace(f"p_{name} => %s::text", f"p_{name} => %s::integer")
    named = named.replace("p_accept_unpinned => %s::text", "p_accept_unpinned => %s::boolean")
    db.rows(f"SELECT flow_worker_beat(%s{named})", worker, *values.values())


def test_a_worker_is_alive_until_three_beats_are_missed_or_it_says_goodbye(db: Database) -> None:
    beat(db, "a")
    beat(db, "b")
    beat(db, "b", running=3)
    alive = "SELECT worker_id, running FROM flow_live_workers()"
    assert [tuple(row.values()) for row in db.rows(alive)] == [("a", 1), ("b", 3)]
    assert db.value("SELECT flow_worker_gone('b')") is True
    assert db.value("SELECT flow_worker_gone('b')") is False
    db.advance("29 seconds")
    assert len(db.rows(alive)) == 1
    db.advance("2 seconds")
    assert db.rows(alive) == []
    db.advance("1 day")
    beat(db, "c")
    assert db.value("SELECT count(*) FROM flow_workers") == 1


def test_a_run_that_nobody_takes_says_what_is_missing(db: Database) -> None:
    start(db, "r", build="b1")
    waiting = "SELECT waiting_for FROM flow_run_info('r')"
    assert db.value(waiting) == "no worker for queue default"
    beat(db, "w", queues=["other"])
    assert db.value(waiting) == "no worker for queue default"
    beat(db, "w", workflows=["x"])
    assert db.value(waiting) == "no worker for workflow test"
    beat(db, "w", builds=["b2"])
    assert db.value(waiting) == "no worker for build b1"
    beat(db, "v", workflows=["x"], builds=["b1"])
    assert db.value(waiting) == "no worker for workflow test of build b1"
    assert db.value("SELECT waiting_for FROM flow_list_runs()") == db.value(waiting)
    beat(db, "u", workflows=["x", "test"], builds=["b1"])
    assert db.value(waiting) is None
    db.advance("31 seconds")
    assert db.value(waiting) == "no worker for queue default"
    claimed = claim(db)
    assert db.value(waiting) is None, "somebody has it"
    release(db, *claimed)
    db.rows("SELECT flow_force_cancel('r')")
    assert db.value(waiting) is None


def test_runs_without_a_build_need_a_worker_that_takes_them(db: Database) -> None:
    start(db, "r")
    beat(db, "w", accept_unpinned=False)
    waiting = "SELECT waiting_for FROM flow_run_info('r')"
    assert db.value(waiting) == "no worker for runs without a build"


def test_a_build_may_be_retired_when_no_open_run_needs_it(db: Database) -> None:
    start(db, "a", "b", build="1")
    start(db, "c", build="2")
    start(db, "d")
    beat(db, "w", build="3", builds=["2", "3"])
    usage = "SELECT runtime_build, open_runs, live_workers FROM flow_build_usage()"
    assert [tuple(row.values()) for row in db.rows(usage)] == [
        ("1", 2, 0),
        ("2", 1, 1),
        ("3", 0, 1),
    ]
    for run_id in "abc":
        db.rows("SELECT flow_force_cancel(%s)", run_id)
    assert [tuple(row.values()) for row in db.rows(usage)] == [("3", 0, 1)]


def test_health_says_where_work_waits(db: Database) -> None:
    start(db, "a", "b", "c")
    enqueue(db, delay="1 hour")
    enqueue(db, queue="other", max_attempts=1)
    (task,) = claim(db, queues=["other"])
    done = [{"task_id": task["task_id"], "epoch": 1, "ok": False}]
    db.rows("SELECT flow_complete_tasks(%s)", json.dumps(done))
    claim(db, 1)
    db.start("w")
    db.append({"run_id": "w", "events": [wait("x")]})
    db.advance("2 minutes")
    facts = {(row["kind"], row["name"]): row for row in db.rows("SELECT * FROM flow_health()")}
    queue = facts["queue", "default"]
    assert queue["count"] == 2
    assert queue["age"].total_seconds() >= 120
    expected = {"leased": 0, "expired": 1, "delayed": 1, "paused": False, "dead_letters": 0}
    assert queue["detail"] == expected
    assert facts["queue", "other"]["detail"]["dead_letters"] == 1
    assert facts["wakeups", ""]["count"] == 1
    assert facts["wakeups", ""]["age"].total_seconds() >= 120
    assert facts["workers", ""]["count"] == 0


def unserved(db: Database) -> dict[tuple[str, str | None], int]:
    """What no live worker takes, and of which build: how many tasks."""
    rows = db.rows("SELECT * FROM flow_health() WHERE kind = 'unserved'")
    return {(row["name"], row["detail"]["build"]): row["count"] for row in rows}


def test_health_counts_what_no_live_worker_takes(db: Database) -> None:
    start(db, "a", "b", "c")
    start(db, "pinned", build="x")
    claim(db, 1)
    db.rows(
        "INSERT INTO flow_tasks (queue, run_id, kind, workflow_name, available_at, enqueued_at)"
        " VALUES ('gpu', 'a', 'run_step', 'step:render', flow_now(), flow_now())"
    )
    beat = "SELECT flow_worker_beat('w', NULL, 'h', 1, %s, %s, %s, 1, 0, '10 seconds', %s)"
    assert unserved(db) == {
        ("step render on queue gpu", None): 1,
        ("workflow test on queue default", None): 2,
        ("workflow test on queue default", "x"): 1,
    }
    db.rows(beat, ["default"], ["test"], ["other"], ["y"])
    assert unserved(db) == {
        ("step render on queue gpu", None): 1,
        ("workflow test on queue default", "x"): 1,
    }
    db.rows(beat, ["default"], ["test"], ["other"], ["x"])
    assert unserved(db) == {("step render on queue gpu", None): 1}
    (task,) = claim(db, 1)
    db.rows("SELECT flow_give_back(%s, %s, '1 hour', 'why', 'draw')", task["run_id"], task["epoch"])
    assert unserved(db)["step draw on queue default", None] == 1
    db.rows(beat, ["default", "gpu"], ["test"], ["draw", "render"], ["x"])
    assert unserved(db) == {}
    db.advance("31 seconds")
    assert ("step render on queue gpu", None) in unserved(db), "nobody is alive any more"


def test_health_names_who_holds_the_oldest_snapshot(db: Database) -> None:
    holder = db.connect(application_name="the holder")
    holder.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    holder.execute("SELECT count(*) FROM flow_runs")
    start(db, *(f"r{number}" for number in range(20)))
    pid = holder.info.backend_pid

    def oldest() -> dict[str, Any]:
        rows = db.rows("SELECT * FROM flow_health() WHERE kind = 'snapshot'")
        return dict(rows[0]) if rows else {"name": None}

    until(lambda: oldest()["name"] == "the holder", "health names the holder")
    fact = oldest()
    assert fact["detail"] == {"kind": "session", "pid": pid, "state": "idle in transaction"}
    assert fact["count"] >= 20
    holder.execute("ROLLBACK")
