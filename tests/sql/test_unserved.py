"""Tasks that the workers of a queue do not take cost those that they take next to nothing."""

from __future__ import annotations

from typing import Any

from tests.sql.database import Database
from tests.sql.fleet import Clock, claim, start
from tests.sql.test_claim_plans import buffers

UNKNOWN = 10_000

KINDS = ["drive_run", "run_step"]
MINE: dict[str, Any] = {"workflows": ["test"], "kinds": KINDS}
"""What the workers of these tests take."""


def unknown_tasks(db: Database, count: int = UNKNOWN, *, ago: str = "0") -> None:
    """So many tasks of a workflow that they do not know."""
    db.rows(
        "INSERT INTO flow_tasks (queue, run_id, kind, workflow_name, available_at, enqueued_at)"
        " SELECT 'default', 'u' || n, 'run_step', 'unknown', flow_now() - %s::interval, flow_now()"
        " FROM generate_series(1, %s) AS n",
        ago,
        count,
    )


def test_a_claim_reads_what_it_does_not_take_once_and_not_each_time(db: Database) -> None:
    unknown_tasks(db)
    clock = Clock(db)
    clock.step("3 seconds")
    call = (
        "SELECT * FROM flow_claim_tasks('default', 10, 'w', '1 minute',"
        " p_workflows => '{test}', p_kinds => '{drive_run,run_step}')"
    )
    start(db, "first")
    assert buffers(db, call, rows=1) > 300, "they are not in the way: the test sees nothing"
    clock.step("3 seconds")
    claim(db, **MINE)
    clock.step("1 second")
    for run_id in "abc":
        assert buffers(db, call, rows=0) < 200
        start(db, run_id)
        assert buffers(db, call, rows=1) < 300
    # and who knows them finds them at once, also where others have marks
    assert len(claim(db, 1000, workflows=["unknown"], kinds=KINDS)) == 1000
    assert len(claim(db, 1000)) == 1000


def test_a_task_from_the_past_is_found_at_once_by_claims_with_marks_of_their_own(
    db: Database,
) -> None:
    unknown_tasks(db, 10)
    for _ in range(2):
        db.advance("3 seconds")
        assert claim(db, **MINE) == []
    assert db.value("SELECT count(*) FROM flow_lanes WHERE takes <> '' AND low_water > '-infinity'")
    db.rows(
        "INSERT INTO flow_tasks (queue, kind, workflow_name, run_id, available_at, enqueued_at)"
        " VALUES ('default', 'run_step', 'test', 'r', flow_now() - interval '1 day', flow_now())"
    )
    assert [task["run_id"] for task in claim(db, workflows=["test"], kinds=["run_step"])] == ["r"]


def test_a_task_committed_late_is_found_within_a_sweep_by_them_too(db: Database) -> None:
    start(db, "first")
    late = db.connect()
    late.execute("BEGIN")
    spec = '{"name":"test","version":"1"}'
    db.rows("SELECT flow_start(%s, '1', 'late')", spec, on=late)
    db.advance("1 minute")
    for _ in range(2):  # the marks move only when nothing is left before them
        claim(db, **MINE)
        db.advance("3 seconds")
    claim(db, **MINE)
    late.execute("COMMIT")
    db.advance("6 seconds")
    found = claim(db, **MINE) + claim(db, **MINE)
    assert [task["run_id"] for task in found] == ["late"]


def test_a_new_lane_and_a_moved_task_are_found_at_once_by_them_too(db: Database) -> None:
    start(db, "a", "b")
    db.advance("3 seconds")
    assert len(claim(db, 1, **MINE)) == 1
    db.advance("3 seconds")
    start(db, "pinned", build="x")
    assert "pinned" in [task["run_id"] for task in claim(db, **MINE)]
    start(db, "moved")
    db.rows("SELECT flow_set_run_priority('moved', 5::smallint)")
    assert [task["run_id"] for task in claim(db, **MINE)] == ["moved"]


def test_marks_of_claims_that_nobody_makes_any_more_are_forgotten(db: Database) -> None:
    start(db, "r")
    for names in (["old"], ["test", "old"]):
        db.advance("3 seconds")
        claim(db, workflows=names, kinds=["drive_run"])
        start(db, names[0] + str(len(names)))
    before = "SELECT count(DISTINCT takes) FROM flow_marks WHERE takes <> ''"
    assert db.value(before) == 2
    db.advance("2 hours")
    claim(db, **MINE)
    assert db.value(before) == 1
    assert db.value("SELECT count(DISTINCT takes) FROM flow_lanes WHERE takes <> ''") == 1
