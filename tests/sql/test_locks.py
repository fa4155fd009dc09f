"""Lock order: whatever two callers do to one run, one of them waits and none is a victim."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from concurrent.futures import Future

import psycopg
import pytest

from tests.sql.database import (
    DEADLOCK_TIMEOUT,
    SPEC,
    Connection,
    Database,
    codes,
    hook,
    retry,
    wait,
)
from tests.sql.verbs import EXPECTED, PROGRESS, VERBS, collided, prepare
from tests.waiting import until


@pytest.mark.parametrize("first", VERBS)
def test_no_two_verbs_on_one_run_deadlock(db: Database, first: str) -> None:
    """One transaction is held open after its verb; the other comes, waits or passes, and ends."""
    db.start("other")
    holder = db.connect(deadlock_timeout=DEADLOCK_TIMEOUT)
    for number, second in enumerate(VERBS):
        run_id = f"r{number}"
        prepare(db, run_id)
        verbs = (verb.replace("<r>", run_id) for verb in (VERBS[first], VERBS[second]))
        refused = codes(collided(db, holder, *verbs, commit=number % 2 == 1))
        assert set(refused) <= EXPECTED, (first, second, refused)
        db.rows("SELECT flow_force_cancel(%s)", run_id)
        db.rows("DELETE FROM flow_tasks")
    assert db.deadlocks() == 0


def test_batches_with_the_same_runs_in_opposite_order_do_not_deadlock(db: Database) -> None:
    runs = [f"r{number}" for number in range(30)]
    for run_id in runs:
        db.start(run_id)

    def write(connection: Connection, number: int) -> int:
        connection.execute("SET deadlock_timeout = '100ms'")
        order, done = (runs, reversed(runs))[number % 2], 0
        order = list(order)
        for turn in range(15):
            event = {"type": "step_created", "subject": f"s{number}-{turn}"}
            answers = db.append(*({"run_id": r, "events": [event]} for r in order), on=connection)
            done += sum(answer["outcome"] == "appended" for answer in answers)
        return done

    assert db.race(6, write) == [15 * 30] * 6
    assert db.deadlocks() == 0
    heads = {row["head_sequence"] for row in db.rows("SELECT head_sequence FROM flow_runs")}
    assert heads == {2 + 6 * 15}


def test_equal_lock_keys_only_slow_runs_down(db: Database) -> None:
    """Two runs whose ids hash to one key wait for each other and nothing else happens."""
    db.rows(
        "CREATE OR REPLACE FUNCTION flow_run_key(p_run_id text) RETURNS bigint "
        "LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN 1::bigint"
    )
    db.rows(
        "CREATE OR REPLACE FUNCTION flow_token_key(p_token text) RETURNS bigint "
        "LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN 1::bigint"
    )

    def work(connection: Connection, number: int) -> str:
        for turn in range(5):
            run_id = f"r{number}-{turn}"
            db.rows("SELECT flow_start(%s, '1', %s)", SPEC, run_id, on=connection)
            db.append({"run_id": run_id, "events": [hook("h", run_id)]}, on=connection)
            db.rows("SELECT flow_resume_hook_by_token(%s, '1')", run_id, on=connection)
            db.claim(3, on=connection)
        return "done"

    assert db.race(8, work) == ["done"] * 8
    assert db.deadlocks() == 0
    assert db.value("SELECT count(*) FROM flow_events WHERE event_type = 'hook_received'") == 40
    with db.main.transaction():
        db.start("held")
        other = db.background(
            lambda connection: db.append(
                {
                    "run_id": "other",
                    "events": [{"type": "run_created", "payload": {"spec": json.loads(SPEC)}}],
                },
                on=connection,
            )
        )
        with db.connect() as watcher:
            until(
                lambda: (
                    watcher.execute(
                        "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
                        " AND datname = current_database()"
                    ).fetchone()
                    is not None
                ),
                "the other waits",
            )
    assert other.result(30)[0]["outcome"] == "appended"


def test_the_lock_keys_are_spread_over_64_bits(db: Database) -> None:
    counts = db.row(
        "SELECT count(DISTINCT flow_run_key('run-' || n)) AS keys, "
        "count(DISTINCT flow_run_key('run-' || n) >> 48) AS high, "
        "count(*) FILTER (WHERE flow_run_key('run-' || n) = flow_token_key('run-' || n)) AS both "
        "FROM generate_series(1, 100000) AS n"
    )
    assert counts["keys"] == 100000
    assert counts["high"] > 40000
    assert counts["both"] == 0


@pytest.mark.parametrize(
    "verb", ["claim", "due waits", "expired hooks", "enqueue due", "heartbeat"]
)
def test_a_busy_run_holds_nobody_up_who_looks_at_all_runs(db: Database, verb: str) -> None:
    """The transaction of a slow client keeps its own run only; the others go on."""
    prepare(db, "slow")
    prepare(db, "quick")
    if verb == "claim":
        db.rows("SELECT flow_give_back(run_id, 1) FROM flow_runs")
    slow = db.connect()
    with slow.transaction():
        db.rows("SELECT flow_record_progress('slow', %s)", PROGRESS, on=slow)
        if verb == "heartbeat":
            leases = json.dumps([{"run_id": r, "epoch": 1} for r in ("slow", "quick")])
            query = "SELECT run_id, held FROM flow_heartbeat(%s, '5 minutes')"
            answers = {row["run_id"]: row["held"] for row in db.rows(query, leases)}
            assert answers == {"slow": True, "quick": True}
        else:
            rows = db.rows(f"SELECT run_id FROM {VERBS[verb]} AS f")
            assert {row["run_id"] for row in rows} == {"quick"}


@pytest.mark.timeout(180)
def test_a_storm_of_all_verbs_has_no_deadlock_and_leaves_projections_right(db: Database) -> None:
    runs = [f"r{number}" for number in range(6)]
    for run_id in (*runs, "other"):
        db.start(run_id)
    until_then = time.monotonic() + 15

    def storm(connection: Connection, number: int) -> list[str]:
        connection.execute("SET deadlock_timeout = '100ms'")
        dice, surprises = random.Random(number), list[str]()
        while time.monotonic() < until_then:
            chosen = dice.sample(runs, dice.randint(1, 4))
            try:
                dice.choice((batch, single, single))(db, connection, dice, chosen)
            except psycopg.Error as error:
                if error.sqlstate not in EXPECTED | {"WF001"}:
                    surprises.append(f"{error.sqlstate} {error}")
        return surprises

    assert db.race(8, storm) == [[]] * 8
    assert db.deadlocks() == 0
    assert differences(db) == []


def single(db: Database, connection: Connection, dice: random.Random, runs: list[str]) -> None:
    """One verb on one run, or on all."""
    verb = VERBS[dice.choice(list(VERBS))].replace("<r>", runs[0])
    db.rows(f"SELECT {verb}", on=connection)
    if db.rows(
        "SELECT FROM flow_runs WHERE run_id = %s AND status NOT IN"
        " ('completed', 'failed', 'cancelled')",
        runs[0],
        on=connection,
    ):
        return
    # ended: put another in its place, under another id, so that the storm goes on
    with_new = f"{runs[0]}-{dice.random()}"
    db.rows("SELECT flow_start(%s, '1', %s)", SPEC, with_new, on=connection)


def batch(db: Database, connection: Connection, dice: random.Random, runs: list[str]) -> None:
    """Appends to several runs, hooks with contested tokens among them."""
    made: list[Callable[[], list[dict[str, object]]]] = [
        lambda: [wait(f"w{dice.random()}", dice.choice((0, 10**9)))],
        lambda: [hook(f"h{dice.random()}", f"t{dice.randint(0, 3)}")],
        lambda: retry(f"s{dice.random()}", dice.choice((0, 10**9))),
        lambda: [{"type": "run_x"}],
    ]
    elements = [{"run_id": r, "events": dice.choice(made)()} for r in runs]
    db.append(*elements, on=connection)


def differences(db: Database) -> list[object]:
    """What the projections say and history does not, or the other way round."""
    heads = db.rows(
        "SELECT r.run_id FROM flow_runs r JOIN flow_events e USING (run_id) "
        "GROUP BY r.run_id HAVING max(e.sequence) <> r.head_sequence OR count(*) <> r.head_sequence"
    )
    # the last event of each subject, and whether its run was cleared after it
    opened = (
        "WITH cleared AS (SELECT run_id, max(sequence) AS sequence FROM flow_events"
        " WHERE flow_clears(event_type) GROUP BY run_id),"
        " last AS (SELECT DISTINCT ON (e.run_id, k.kind, e.subject_id) e.run_id, k.kind,"
        " e.subject_id, e.event_type, e.due_at, e.sequence FROM flow_events e,"
        " LATERAL (SELECT split_part(e.event_type, '_', 1) AS kind) k"
        " WHERE e.subject_id IS NOT NULL AND k.kind IN ('wait', 'hook', 'step')"
        " ORDER BY e.run_id, k.kind, e.subject_id, e.sequence DESC),"
        " open AS (SELECT l.* FROM last l LEFT JOIN cleared c USING (run_id)"
        " WHERE l.sequence > coalesce(c.sequence, 0)) "
    )
    hooks = db.rows(
        opened + "SELECT * FROM (SELECT run_id, subject_id FROM open WHERE event_type ="
        " 'hook_created') a FULL JOIN flow_active_hooks h"
        " ON h.run_id = a.run_id AND h.hook_id = a.subject_id"
        " WHERE h.run_id IS NULL OR a.run_id IS NULL"
    )
    wakeups = db.rows(
        opened + "SELECT * FROM (SELECT run_id, flow_wakeup_kind(event_type) AS kind, subject_id,"
        " due_at FROM open WHERE due_at IS NOT NULL AND event_type IN ('wait_created',"
        " 'hook_created', 'step_retrying')) a FULL JOIN scheduled_wakeups w"
        " ON (w.run_id, w.kind, w.subject_id, w.due_at)"
        " = (a.run_id, a.kind, a.subject_id, a.due_at)"
        " WHERE w.run_id IS NULL OR a.run_id IS NULL"
    )
    statuses = db.rows(
        "SELECT run_id, status FROM flow_runs WHERE status IN ('running', 'suspended')"
        " AND flow_has_suspension(run_id) <> (status = 'suspended')"
    )
    return [*heads, *hooks, *wakeups, *statuses]


def test_a_verb_waits_for_the_run_and_then_sees_what_was_done(db: Database) -> None:
    db.start("r")
    db.open_hook("r")
    holder = db.connect()
    with holder.transaction():
        db.rows("SELECT flow_resume_hook('r', 'h', '1')", on=holder)
        late: Future[bool] = db.background(
            lambda connection: bool(
                db.value("SELECT applied FROM flow_resume_hook('r', 'h', '1')", on=connection)
            )
        )
        db.wait_until_blocked()
    assert late.result(30) is False
    assert db.types("r").count("hook_received") == 1
