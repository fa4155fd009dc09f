"""The verbs that read: pages without gaps, filters, and the moment they speak of."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.sql.database import SPEC, Database, hook, refused, retry, wait


def test_history_comes_in_pages_without_gaps(db: Database) -> None:
    db.start("r")
    steps = [{"type": "step_created", "subject": f"s{n}", "payload": {"n": n}} for n in range(20)]
    db.append({"run_id": "r", "events": steps})
    seen: list[int] = []
    while page := db.rows("SELECT * FROM flow_history('r', %s, 6)", seen[-1] if seen else 0):
        assert len(page) <= 6
        seen += [row["sequence"] for row in page]
    assert seen == list(range(1, 23))
    event = db.row("SELECT * FROM flow_history('r', 21)")
    assert json.loads(event["payload"]) == {"n": 19}
    assert (event["event_type"], event["schema_version"]) == ("step_created", None)
    for limit in (0, 1001, None):
        assert refused(db, "SELECT flow_history('r', 0, %s)", limit)[0] == "WF010"
    assert refused(db, "SELECT flow_history('none')")[0] == "WF001"


def test_runs_are_listed_newest_first_and_page_by_page(db: Database) -> None:
    made = [f"r{n:02}" for n in range(30)]
    spec = json.loads(SPEC)
    db.rows(
        "SELECT flow_start_many(%s)",
        json.dumps([{"run_id": r, "spec": spec} for r in made[:10]]),
    )
    for run_id in made[10:]:
        db.rows("SELECT flow_start(%s, '1', %s)", SPEC, run_id)
    seen: list[Any] = []
    after: tuple[Any, Any] = (None, None)
    page_of = (
        "SELECT run_id, created_at FROM flow_list_runs("
        "p_after_created_at => %s, p_after_run_id => %s, p_limit => 7)"
    )
    while page := db.rows(page_of, *after):
        seen += page
        after = page[-1]["created_at"], page[-1]["run_id"]
    assert [row["run_id"] for row in seen] == [*reversed(made[10:]), *made[:10]]


def test_runs_are_filtered(db: Database) -> None:
    other = '{"name":"other","version":"1"}'
    db.rows("SELECT flow_start(%s, '1', 'a')", SPEC)
    db.rows("SELECT flow_start(%s, '1', 'b', 'slow')", other)
    db.start("c")
    db.claim()
    db.rows("SELECT flow_give_back('a', 1, '0', 'why')")

    def listed(filters: str) -> list[str]:
        return [row["run_id"] for row in db.rows(f"SELECT run_id FROM flow_list_runs({filters})")]

    assert listed("") == ["c", "b", "a"]
    assert listed("'pending'") == ["b", "a"]
    assert listed("p_workflow_name => 'other'") == ["b"]
    assert listed("p_queue => 'default'") == ["c", "a"]
    assert listed("p_blocked => true") == ["a"]
    assert listed("p_blocked => false") == ["c", "b"]
    assert listed("'pending', 'test', 'default', true, 'infinity', '', 5") == ["a"]
    assert listed("'completed'") == []
    assert refused(db, "SELECT flow_list_runs('done')")[0] == "WF010"
    assert refused(db, "SELECT flow_list_runs(p_limit => 0)")[0] == "WF010"


def test_run_ids_are_listed_in_byte_order(db: Database) -> None:
    for run_id in ("b", "a", "B", "a.1", "a-1", "10", "9"):
        db.start(run_id)
    everything = [row["run_id"] for row in db.rows("SELECT * FROM flow_list_run_ids()")]
    assert everything == sorted(["b", "a", "B", "a.1", "a-1", "10", "9"])
    assert db.rows("SELECT * FROM flow_list_run_ids('a', 2)") == [
        {"run_id": "a-1"},
        {"run_id": "a.1"},
    ]


def test_a_run_shows_its_lease_and_its_task(db: Database) -> None:
    db.rows("SELECT flow_start(%s, '1', 'r')", SPEC)
    info = db.row("SELECT * FROM flow_run_info('r')")
    assert (info["lease_epoch"], info["lease_owner"]) == (0, None)
    assert info["available_at"] is not None
    db.claim()
    info = db.row("SELECT * FROM flow_run_info('r')")
    assert (info["lease_epoch"], info["lease_owner"]) == (1, "worker")
    assert info["lease_expires_at"] is not None
    assert refused(db, "SELECT flow_run_info('none')") == ("WF001", {"run_id": "none"})


def test_the_summary_counts_runs_and_what_open_ones_wait_for(db: Database) -> None:
    assert set(db.row("SELECT * FROM flow_run_summary()").values()) == {0}
    db.rows("SELECT flow_start(%s, '1', 'pending')", SPEC)
    for run_id in ("running", "suspended", "cancelling", "failed", "completed"):
        db.start(run_id)
    open_work = [wait("a", 10**9), wait("b", 10**9), hook("h", "t"), *retry("s", 10**9)]
    db.append({"run_id": "suspended", "events": open_work})
    db.append({"run_id": "failed", "events": [wait("w", 10**9), hook("h", "u")]})
    db.rows("SELECT flow_terminate_for_host_shutdown('failed')")
    db.rows("SELECT flow_request_cancellation('cancelling')")
    db.append({"run_id": "completed", "events": [{"type": "run_completed"}]})
    summary = db.row("SELECT * FROM flow_run_summary()")
    assert {key: value for key, value in summary.items() if value} == {
        "total": 6,
        "pending": 1,
        "running": 1,
        "suspended": 1,
        "cancelling": 1,
        "completed": 1,
        "failed": 1,
        "terminal": 2,
        "non_terminal": 4,
        "open_waits": 2,
        "active_hooks": 1,
        "pending_retries": 1,
    }


def test_open_suspensions_come_in_order_and_in_pages_that_cut_anywhere(db: Database) -> None:
    for run_id in ("b", "a", "c"):
        db.start(run_id)
        events = [*retry("s", 10**9), hook("h", run_id), wait("w2"), wait("w1", 10**9)]
        db.append({"run_id": run_id, "events": events})
    query = "SELECT run_id, kind, subject_id FROM flow_open_suspensions(NULL, %s, %s, %s, %s)"
    expected = [
        (run_id, kind, subject)
        for run_id in "abc"
        for kind, subject in (("wait", "w1"), ("wait", "w2"), ("hook", "h"), ("retry", "s"))
    ]
    for limit in (1, 2, 3, 5, 100):
        seen: list[tuple[str, str, str]] = []
        after = ("", "", "")
        while page := db.rows(query, *after, limit):
            seen += [(row["run_id"], row["kind"], row["subject_id"]) for row in page]
            after = seen[-1]
        assert seen == expected, limit
    beyond = db.rows("SELECT DISTINCT run_id FROM flow_open_suspensions(NULL, 'a') ORDER BY 1")
    assert [row["run_id"] for row in beyond] == ["b", "c"]
    one = "SELECT kind, due FROM flow_open_suspensions('b')"
    assert [(row["kind"], row["due"]) for row in db.rows(one)] == [
        ("wait", False),
        ("wait", True),
        ("hook", None),
        ("retry", False),
    ]
    later = "SELECT DISTINCT due FROM flow_open_suspensions('b', p_as_of => 'infinity')"
    assert {row["due"] for row in db.rows(later)} == {True, None}
    assert refused(db, "SELECT flow_open_suspensions('none')")[0] == "WF001"


def test_active_hooks_come_in_pages(db: Database) -> None:
    for run_id in ("b", "a"):
        db.start(run_id)
        db.append({"run_id": run_id, "events": [hook(h, run_id + h) for h in ("y", "x")]})
    query = "SELECT run_id, hook_id, token, metadata FROM flow_list_active_hooks(%s, %s, %s, 3)"
    first = db.rows(query, None, "", "")
    assert [(row["run_id"], row["hook_id"]) for row in first] == [
        ("a", "x"),
        ("a", "y"),
        ("b", "x"),
    ]
    assert first[0]["token"] == "ax"
    assert first[0]["metadata"] == {"for": "x"}
    assert [row["hook_id"] for row in db.rows(query, None, "b", "x")] == ["y"]
    assert [row["run_id"] for row in db.rows(query, "b", "", "")] == ["b", "b"]
    assert refused(db, query, "none", "", "")[0] == "WF001"


def test_due_wakeups_name_the_build_and_can_be_narrowed(db: Database) -> None:
    spec = '{"name":"w","version":"1","runtime_build":"build-7"}'
    db.rows("SELECT flow_start(%s, '1', 'pinned')", spec)
    db.start("free")
    for run_id in ("pinned", "free"):
        db.append({"run_id": run_id, "events": [wait("w"), *retry("s")]})
    rows = db.rows("SELECT run_id, kind, runtime_build FROM flow_due_wakeups()")
    assert [(row["kind"], row["run_id"], row["runtime_build"]) for row in rows] == [
        ("step_retry", "free", None),
        ("step_retry", "pinned", "build-7"),
        ("wait", "free", None),
        ("wait", "pinned", "build-7"),
    ]
    assert len(db.rows("SELECT * FROM flow_due_wakeups(p_kind => 'wait')")) == 2
    assert len(db.rows("SELECT * FROM flow_due_wakeups(p_limit => 3)")) == 3


def test_loaded_runs_are_of_one_moment(db: Database) -> None:
    """What is not counted as a wake is not among the events, whatever commits meanwhile."""
    db.rows("SELECT flow_start(%s, '1', 'r')", SPEC)
    db.open_hook("r")
    with db.main.transaction():
        query = "SELECT head_sequence, wakes, status, events FROM flow_load_runs('{r,none,r}')"
        (loaded,) = db.rows(query)
    assert (loaded["head_sequence"], loaded["wakes"], loaded["status"]) == (2, 1, "pending")
    events = json.loads(loaded["events"])
    assert [event[:2] for event in events] == [[1, "run_created"], [2, "hook_created"]]
    assert all(event[3].endswith("Z") for event in events)
    assert events[1][4]["hook_id"] == "h"
    assert db.rows("SELECT * FROM flow_load_runs('{}')") == []


@pytest.mark.parametrize(
    "call",
    [
        *("flow_history('r')", "flow_load_runs('{r}')", "flow_run_info('r')", "flow_list_runs()"),
        *("flow_list_run_ids()", "flow_run_summary()", "flow_open_suspensions()"),
        *("flow_list_active_hooks()", "flow_find_hook('t')", "flow_due_wakeups()"),
        *("flow_next_wakeup()", "flow_now()", "flow_capabilities()", "flow_run_builds('{r}')"),
    ],
)
def test_reading_needs_no_write(db: Database, call: str) -> None:
    """So it works on a hot standby, and in a transaction that may not write."""
    db.start("r")
    db.open_hook("r", "h", "t")
    reader = db.connect(default_transaction_read_only="on")
    with reader.transaction():
        db.rows(f"SELECT {call}", on=reader)
        assert db.value("SELECT pg_current_xact_id_if_assigned()::text", on=reader) is None


# -- import --------------------------------------------------------------------------------------

EXPORT = (
    "SELECT json_agg(json_build_object('sequence', sequence, 'type', event_type, 'subject',"
    " subject_id, 'due_at', due_at, 'payload', payload, 'event_id', event_id, 'recorded_at',"
    " recorded_at, 'schema_version', schema_version) ORDER BY sequence)::text FROM flow_events"
    " WHERE run_id = 'r'"
)


def test_an_imported_history_keeps_its_ids_and_times_and_is_woken(db: Database) -> None:
    db.start("r")
    db.append({"run_id": "r", "events": [wait("w"), hook("h", "t"), *retry("s", 10**9)]})
    db.rows("SELECT flow_dispose_hook('r', 'h')")
    history = db.value(EXPORT)
    assert db.value("SELECT flow_import_history('copy', %s, 'slow')", history) == 8
    columns = "sequence, event_id, event_type, subject_id, due_at, payload::text, recorded_at"
    query = f"SELECT {columns} FROM flow_events WHERE run_id = %s ORDER BY sequence"
    assert db.rows(query, "copy") == db.rows(query, "r")
    runs = db.rows("SELECT status, head_sequence, created_at, updated_at FROM flow_runs")
    assert runs[0] == runs[1]
    task = db.row("SELECT queue FROM flow_tasks WHERE run_id = 'copy'")
    assert task == {"queue": "slow"}
    assert db.value("SELECT count(*) FROM scheduled_wakeups WHERE run_id = 'copy'") == 2
    assert refused(db, "SELECT flow_import_history('r', %s)", history)[0] == "WF002"


def test_an_imported_history_that_has_ended_is_not_woken(db: Database) -> None:
    db.start("r")
    db.append({"run_id": "r", "events": [{"type": "run_completed", "payload": {"o": "\0"}}]})
    assert db.value("SELECT flow_import_history('copy', %s)", db.value(EXPORT)) == 3
    assert db.rows("SELECT FROM flow_tasks") == []
    assert db.status("copy") == "completed"


def test_a_history_that_is_not_one_is_refused(db: Database) -> None:
    db.start("r")
    db.open_hook("r", "h", "taken")
    events: list[dict[str, Any]] = json.loads(db.value(EXPORT))

    def code(changed: Any, run_id: str = "copy") -> str:
        query = "SELECT flow_import_history(%s, %s)"
        return refused(db, query, run_id, json.dumps(changed))[0]

    assert code(events) == "WF005"
    events = events[:2]
    assert code(events[1:]) == "WF009"
    assert code([events[0], {**events[1], "sequence": 3}]) == "WF009"
    assert code([events[0], events[0]]) == "WF009"
    assert code([events[0], {**events[1], "type": "run_failed"}, {**events[1], "sequence": 3}]) == (
        "WF004"
    )
    assert code([{**events[0], "event_id": None}]) == "WF009"
    assert code([{**events[0], "event_id": "x"}]) == "WF010"
    assert code([{**events[0], "recorded_at": "soon"}]) == "WF010"
    assert code([{**events[0], "payload": 1}]) == "WF009"
    assert code([]) == "WF010"
    assert code({}) == "WF010"
    assert code(events, "not an id") == "WF013"
