"""What a claim reads: exactly its limit of tasks whatever the planner does, and no payload."""

from __future__ import annotations

import json

import pytest

from tests.sql.database import Database
from tests.sql.fleet import claim, enqueue, start


def buffers(db: Database, call: str, *, rows: int | None = None) -> int:
    """How many pages a call touches, whether they were in memory or not. It is tried and undone
    first, so that what the session must learn about the schema is not counted."""
    with db.main.transaction(force_rollback=True):
        db.rows(call)
    row = db.row(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {call}")
    plan = row["QUERY PLAN"][0]["Plan"]
    if rows is not None:
        assert plan["Actual Rows"] == rows
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


PLANNERS = [
    {"enable_hashjoin": "off", "enable_mergejoin": "off"},
    {"enable_nestloop": "off"},
    {"enable_indexscan": "off", "enable_bitmapscan": "on", "enable_seqscan": "on"},
    {"plan_cache_mode": "force_generic_plan"},
    {"plan_cache_mode": "force_custom_plan"},
    {"enable_material": "off", "enable_sort": "off", "enable_memoize": "off"},
    {"random_page_cost": "1000", "cpu_tuple_cost": "10"},
]


@pytest.mark.parametrize("planner", PLANNERS, ids=lambda settings: ",".join(settings))
def test_a_claim_never_takes_more_than_its_limit(db: Database, planner: dict[str, str]) -> None:
    start(db, *(f"r{number}" for number in range(60)))
    for number in range(60):
        enqueue(db, priority=number % 3)
    connection = db.connect(**planner)
    for statistics in ("none", "empty", "full"):
        if statistics == "empty":
            db.rows("UPDATE pg_class SET reltuples = 1, relpages = 1 WHERE relname = 'flow_tasks'")
        elif statistics == "full":
            db.rows("ANALYZE")
        for limit in (1, 7):
            assert len(claim(db, limit, on=connection)) == limit
    db.advance("61 seconds")
    assert len(claim(db, 5, on=connection)) == 5
    assert len(db.rows("SELECT * FROM flow_requeue_expired(3)", on=connection)) == 3


def test_a_claim_reads_no_payload_before_it_hands_it_over(db: Database) -> None:
    big = {"hook_id": "h", "payload": "".join(chr(33 + n * 7919 % 90) for n in range(900_000))}
    start(db, "r")
    for _ in range(40):
        enqueue(db, "resume_hook", run_id="r", payload=big, priority=1)
    call = "SELECT task_id FROM flow_claim_tasks('default', 10, 'w', '1 s', p_kinds => '{%s}')"
    # looking past 40 payloads of 900 kB costs what looking past 40 without one costs
    assert buffers(db, call % "resume_due_waits", rows=0) < 400
    leases = json.dumps([{"task_id": t["task_id"], "epoch": 1} for t in claim(db, 10)])
    assert buffers(db, f"SELECT * FROM flow_heartbeat('{leases}', '1 minute')") < 400
    db.rows("SELECT flow_release_tasks(%s)", leases)
    assert buffers(db, "SELECT * FROM flow_requeue_expired()") < 400


@pytest.mark.parametrize("mode", ["auto", "force_generic_plan", "force_custom_plan"])
def test_a_lease_is_looked_up_by_itself_also_by_a_plan_from_before_there_were_any(
    db: Database, mode: str
) -> None:
    """The index of leases looks like the better one to a planner that knows of none."""
    start(db, *(f"r{number}" for number in range(300)))
    db.rows("VACUUM ANALYZE")
    db.rows("SELECT set_config('plan_cache_mode', %s, false)", mode)
    leases = [{"run_id": task["run_id"], "epoch": task["epoch"]} for task in claim(db, 300)]
    assert len(leases) == 300
    beat = f"SELECT * FROM flow_heartbeat('{json.dumps(leases)}', '1 minute')"
    assert buffers(db, beat, rows=300) < 10_500
    ends = [{**lease, "release": 1, "events": []} for lease in leases[:100]]
    end = f"SELECT * FROM flow_append_many('{json.dumps(ends)}') WHERE released"
    assert buffers(db, end, rows=100) < 2_000
