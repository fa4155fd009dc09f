"""Runs that begin together: each is listed under its own spec, and is woken once."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.sql.database import Database, wakes

PLAIN = {"name": "first", "version": "1"}
LISTED = "SELECT run_id, workflow_name AS n, workflow_version AS v, runtime_build AS b, queue AS q"


def listed(db: Database) -> dict[str, tuple[Any, ...]]:
    """Name, version, build and queue of every run, as the list page has them."""
    rows = db.rows(f"{LISTED} FROM flow_runs ORDER BY run_id")
    return {row["run_id"]: (row["n"], row["v"], row["b"], row["q"]) for row in rows}


def test_runs_of_a_batch_are_listed_each_under_its_own_spec(db: Database) -> None:
    others: dict[str, dict[str, Any]] = {
        "b": {"name": "second", "version": "1"},
        "c": {"name": "first", "version": "2"},
        "d": {"name": "first", "version": "1", "runtime_build": "b1"},
        "e": {"version": "1", "name": "first", "more": {"spec": {"name": "inner"}}},
        "f": {"name": 'q"\\u', "version": "ä"},
    }
    batch: list[dict[str, Any]] = [{"run_id": "a", "spec": PLAIN}]
    batch += [{"run_id": "g", "spec": PLAIN, "queue": "slow"}]
    batch += [{"run_id": run, "spec": spec} for run, spec in others.items()]
    answers = db.rows("SELECT outcome FROM flow_start_many(%s)", json.dumps(batch))
    assert [row["outcome"] for row in answers] == ["created"] * len(batch)
    assert listed(db) == {
        "a": ("first", "1", None, "default"),
        "b": ("second", "1", None, "default"),
        "c": ("first", "2", None, "default"),
        "d": ("first", "1", "b1", "default"),
        "e": ("first", "1", None, "default"),
        "f": ('q"\\u', "ä", None, "default"),
        "g": ("first", "1", None, "slow"),
    }
    builds = db.rows("SELECT run_id, runtime_build AS b, queue FROM flow_tasks ORDER BY run_id")
    assert [(row["run_id"], row["b"]) for row in builds if row["b"]] == [("d", "b1")]
    assert [row["run_id"] for row in builds if row["queue"] == "slow"] == ["g"]


@pytest.mark.parametrize("member", ['"spec"', '"s\\u0070ec"'])
def test_a_later_member_of_the_same_name_is_the_one_that_counts(db: Database, member: str) -> None:
    spec = json.dumps(PLAIN)
    plain = f'{{"spec":{spec},"input":{{"spec":{spec}}}}}'
    twice = f'{{"spec":{spec},"input":1,{member}:{{"name":"later","version":"9"}}}}'
    db.rows(
        "INSERT INTO flow_events (run_id, sequence, event_id, event_type, payload)"
        " VALUES ('a', 1, gen_random_uuid(), 'run_created', %s),"
        " ('b', 1, gen_random_uuid(), 'run_created', %s)",
        plain,
        twice,
    )
    assert listed(db) == {
        "a": ("first", "1", None, "default"),
        "b": ("later", "9", None, "default"),
    }


def test_a_spec_that_cannot_be_listed_is_refused_also_behind_one_that_can(db: Database) -> None:
    nameless = '{"spec":{"name":" ","version":"1"},"input":1}'
    values = [f'{{"spec":{json.dumps(PLAIN)},"input":1}}', nameless]
    for order in (values, values[::-1]):
        with pytest.raises(Exception, match="spec") as caught:
            db.rows(
                "INSERT INTO flow_events (run_id, sequence, event_id, event_type, payload)"
                " VALUES ('a', 1, gen_random_uuid(), 'run_created', %s),"
                " ('b', 1, gen_random_uuid(), 'run_created', %s)",
                *order,
            )
        assert getattr(caught.value, "sqlstate", None) == "WF009"
    assert listed(db) == {}


def test_a_run_is_woken_once_for_each_start_that_names_it(db: Database) -> None:
    def start(*runs: str) -> list[str]:
        batch = [{"run_id": run, "spec": PLAIN} for run in runs]
        answers = db.rows("SELECT outcome FROM flow_start_many(%s)", json.dumps(batch))
        return [row["outcome"] for row in answers]

    assert start("a", "b") == ["created", "created"]
    assert start("b", "c", "c", "a") == ["exists", "created", "exists", "exists"]
    assert [wakes(db, run) for run in ("a", "b", "c")] == [2, 2, 1]


def test_starting_a_thousand_needs_no_room_on_disk(db: Database) -> None:
    """One group of an aggregate for each run would spill."""
    db.rows("SET log_temp_files = 0")
    db.rows("SET client_min_messages = 'log'")
    spilled: list[str] = []
    db.main.add_notice_handler(lambda notice: spilled.append(notice.message_primary or ""))
    batch = [{"run_id": f"r{n}", "spec": PLAIN, "input": "x" * 100} for n in range(1000)]
    answers = db.rows("SELECT outcome FROM flow_start_many(%s)", json.dumps(batch))
    assert {row["outcome"] for row in answers} == {"created"}
    assert [text for text in spilled if "temporary file" in text] == []
