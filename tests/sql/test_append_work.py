"""The work of one append grows with its events, not with their square."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from psycopg import sql

from tests.sql.database import CREATED, Database, hook, wait

QUESTIONS = ["flow_clears", "flow_event_flags", "flow_wakeup_kind"]
"""What is asked about an event; inlined, and so not counted, in the schema as it is."""
STATEMENTS = (
    "SELECT p.proname AS name, pg_get_function_arguments(p.oid) AS arguments,"
    " pg_get_function_result(p.oid) AS result, pg_get_function_sqlbody(p.oid) AS body"
    " FROM pg_proc AS p WHERE p.pronamespace = 'flowpg'::regnamespace AND p.proname = ANY (%s)"
)
CALLS = "SELECT sum(calls)::integer FROM pg_stat_xact_user_functions WHERE funcname = ANY (%s)"

Events = list[dict[str, Any]]


def count_questions(db: Database) -> None:
    """Have the server count every question, by giving the same answer in another language."""
    for row in db.rows(STATEMENTS, QUESTIONS):
        db.main.execute(
            sql.SQL(
                "CREATE OR REPLACE FUNCTION {}({}) RETURNS {} LANGUAGE plpgsql IMMUTABLE AS {}"
            ).format(
                sql.Identifier(row["name"]),
                sql.SQL(row["arguments"]),
                sql.SQL(row["result"]),
                sql.Literal(f"BEGIN {row['body']}; END"),
            )
        )
    db.main.execute("SET track_functions = 'all'")


def questions(db: Database, run_id: str, before: Events, events: Events, outcome: str) -> int:
    """How many questions the append of these events asks, after others of the same run."""
    db.append({"run_id": run_id, "events": [CREATED, *before]})
    with db.main.transaction():
        (answer,) = db.append({"run_id": run_id, "events": events})
        asked = db.value(CALLS, QUESTIONS)
    assert answer["outcome"] == outcome
    return int(asked)


def settle(kind: str, subject: str) -> dict[str, Any]:
    """An event that settles a hook or a wait."""
    return {"type": kind, "subject": subject, "payload": {}}


def hooks_alone(run: str, count: int) -> tuple[Events, Events]:
    return [], [hook(f"h{n}", f"{run}/{n}") for n in range(count)]


def hooks_that_take_over(run: str, count: int) -> tuple[Events, Events]:
    over = [(settle("hook_disposed", f"h{n}"), hook(f"g{n}", f"{run}/{n}")) for n in range(count)]
    return hooks_alone(run, count)[1], [event for pair in over for event in pair]


def hooks_beside_settled_waits(run: str, count: int) -> tuple[Events, Events]:
    waits = [wait(f"w{n}", 3_600_000_000) for n in range(count)]
    done = [settle("wait_completed", f"w{n}") for n in range(count)]
    return waits, [*done, *hooks_alone(run, count)[1]]


def waits_beside_steps(run: str, count: int) -> tuple[Events, Events]:
    waits = [wait(f"w{n}", 3_600_000_000) for n in range(count)]
    return [], [*waits, settle("step_completed", "s")]


def hooks_of_which_the_last_is_taken(run: str, count: int) -> tuple[Events, Events]:
    return [], [*hooks_alone(run, count)[1], hook("late", "taken")]


def hooks_that_are_taken_by_each_other(run: str, count: int) -> tuple[Events, Events]:
    before, mine = hooks_alone(run, count)
    late = [hook(f"late {n}", f"{run}/{n}") for n in range(count)]
    return mine, [*before, settle("hook_disposed", "h0"), *late]


@pytest.mark.parametrize(
    ("events", "outcome"),
    [
        (hooks_alone, "appended"),
        (hooks_that_take_over, "appended"),
        (hooks_beside_settled_waits, "appended"),
        (waits_beside_steps, "appended"),
        (hooks_of_which_the_last_is_taken, "hook_token_conflict"),
        (hooks_that_are_taken_by_each_other, "hook_token_conflict"),
    ],
)
def test_the_questions_of_an_append_grow_with_its_events(
    db: Database, events: Callable[[str, int], tuple[Events, Events]], outcome: str
) -> None:
    db.start("owner")
    db.open_hook("owner", "o", "taken")
    count_questions(db)
    few = questions(db, "few", *events("few", 50), outcome)
    many = questions(db, "many", *events("many", 500), outcome)
    assert few > 0
    # ten times the events: quadratic work would be a hundred times as much
    assert many < 15 * few


def test_what_stands_in_the_way_of_one_hook_among_many_is_still_found(db: Database) -> None:
    """Of hooks of which most have nothing in common, each of the few that do is looked at."""
    for run in ("a", "b", "c"):
        db.start(run)
    db.append({"run_id": "a", "events": [hook("one", "t1"), hook("two", "t2")]})
    free = [hook(f"h{n}", f"free {n}") for n in range(20)]
    answers = db.append(
        {"run_id": "c", "events": [*free, hook("x", "t2")]},
        {"run_id": "a", "events": [settle("hook_disposed", "one")]},
        {"run_id": "b", "events": [*free, hook("y", "t1")]},
    )
    assert [answer["outcome"] for answer in answers] == [
        "hook_token_conflict",
        "appended",
        "appended",
    ]
    owners = db.rows("SELECT DISTINCT run_id FROM flow_active_hooks ORDER BY 1")
    assert [row["run_id"] for row in owners] == ["a", "b"]


def test_of_events_that_create_the_same_hook_the_first_is_kept(db: Database) -> None:
    db.start("r")
    db.append({"run_id": "r", "events": [hook("h", "t"), hook("h", "t")]})
    assert db.value("SELECT created_sequence FROM flow_active_hooks") == 3


MOVES = (
    "SELECT pg_stat_get_xact_tuples_updated(oid) AS updated,"
    " pg_stat_get_xact_tuples_hot_updated(oid) AS in_place"
    " FROM pg_class WHERE oid = 'flowpg.flow_runs'::regclass"
)


def test_a_run_that_starts_waits_and_goes_on_writes_no_index_of_runs(db: Database) -> None:
    db.append({"run_id": "r", "events": [CREATED]})
    seen = [db.status("r")]
    with db.main.transaction():
        for events in ([{"type": "run_started"}], [wait("w")], [settle("wait_completed", "w")]):
            (answer,) = db.append({"run_id": "r", "events": events})
            assert answer["outcome"] == "appended"
            seen.append(db.status("r"))
        moved = db.row(MOVES)
        db.append({"run_id": "r", "events": [{"type": "run_completed"}]})
        ended = db.row(MOVES)
    assert seen == ["pending", "running", "suspended", "running"]
    assert moved["updated"] == moved["in_place"] == 3
    assert ended == {"updated": 4, "in_place": 3}, "the end is what lists by status go by"
