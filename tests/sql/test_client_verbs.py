"""The client verbs: applied once, recognised when repeated, refused when they contradict."""

from __future__ import annotations

import json

import pytest

from tests.sql.database import SPEC, Connection, Database, codes, end, hook, refused, wait, wakes

PROGRESS = '{"progress_id":"p","completed":1,"total":3,"message":null,"details":{"a":[1.0]}}'
CHILD = '{"reference_id":"c","kind":"k","operation_id":"o","metadata":null}'


# -- start ---------------------------------------------------------------------------------------


def test_a_start_creates_the_run_and_wakes_it_in_one_transaction(db: Database) -> None:
    answer = db.row("SELECT * FROM flow_start(%s, '{\"x\": [1.50]}', 'r', 'slow')", SPEC)
    assert answer == {"run_id": "r", "subject_id": None, "applied": True, "head_sequence": 1}
    assert db.types("r") == ["run_created"]
    assert db.value("SELECT payload::text FROM flow_events") == (
        f'{{"spec":{SPEC},"input":{{"x": [1.50]}}}}'
    )
    task = db.row("SELECT queue, wakes, kind FROM flow_tasks")
    assert task == {"queue": "slow", "wakes": 1, "kind": "drive_run"}
    assert db.row("SELECT status, queue FROM flow_runs") == {"status": "pending", "queue": "slow"}


def test_the_same_start_again_is_recognised_also_when_the_run_has_ended(db: Database) -> None:
    db.rows("SELECT flow_start(%s, '1', 'r')", SPEC)
    again = "SELECT applied, head_sequence FROM flow_start(%s, '1.0', 'r')"
    reordered = '{"version": "1", "name": "test"}'
    assert db.row(again, reordered) == {"applied": False, "head_sequence": 1}
    assert wakes(db) == 2
    end(db)
    db.rows("DELETE FROM flow_tasks")
    assert db.row(again, SPEC) == {"applied": False, "head_sequence": 2}
    assert wakes(db) == 0


def test_the_same_id_with_another_definition_is_a_conflict(db: Database) -> None:
    db.rows("SELECT flow_start(%s, '1', 'r')", SPEC)
    assert refused(db, "SELECT flow_start(%s, '2', 'r')", SPEC) == (
        "WF002",
        {"run_id": "r", "reason": "workflow input differs"},
    )
    other = '{"name":"test","version":"2"}'
    assert refused(db, "SELECT flow_start(%s, '1', 'r')", other)[1]["reason"] == (
        "workflow spec differs"
    )


@pytest.mark.parametrize(
    "spec",
    [
        *("null", "[]", '"w"', "{}", '{"name":"w"}', '{"name":" ","version":"1"}'),
        *('{"name":5,"version":"1"}', '{"name":"w","version":"1","runtime_build":7}'),
        *('{"name":"w\\u0000","version":"1"}', '{"name":"\\ud800","version":"1"}'),
    ],
)
def test_a_spec_without_name_and_version_is_refused(db: Database, spec: str) -> None:
    assert refused(db, "SELECT flow_start(%s)", spec)[0] == "WF010"


def test_a_generated_id_is_a_version_7_uuid_that_sorts_by_time(db: Database) -> None:
    ids = [db.row("SELECT run_id FROM flow_start(%s)", SPEC)["run_id"] for _ in range(20)]
    assert len(set(ids)) == 20
    assert {run_id[14] for run_id in ids} == {"7"}
    assert {run_id[19] for run_id in ids} <= set("89ab")
    assert [run_id[:13] for run_id in ids] == sorted(run_id[:13] for run_id in ids)


def test_many_starts_are_each_judged_on_their_own(db: Database) -> None:
    db.rows("SELECT flow_start(%s, '1', 'old')", SPEC)
    spec = json.loads(SPEC)
    batch = [
        {"run_id": "new", "spec": spec, "queue": "q"},
        {"run_id": "old", "spec": spec, "input": 1},
        {"run_id": "old", "spec": spec, "input": 2},
        {"run_id": "new", "spec": spec, "input": None},
        {"run_id": "new", "spec": spec, "input": "x"},
        {"run_id": "new", "spec": spec, "input": "x"},
        {"spec": spec},
        {"run_id": "bad id", "spec": spec},
        {"spec": {"name": "w"}},
        {"run_id": ["r"], "spec": spec, "queue": {}},
        17,
    ]
    answers = db.rows("SELECT * FROM flow_start_many(%s)", json.dumps(batch))
    outcomes = [answer["outcome"] for answer in answers]
    assert outcomes == (
        ["created", "exists", "run_conflict", "exists", "run_conflict", "run_conflict", "created"]
        + ["invalid"] * 2
        + ["invalid"] * 2
    )
    assert [answer["ordinal"] for answer in answers] == list(range(1, 12))
    assert answers[2]["detail"] == {"reason": "workflow input differs"}
    assert answers[7]["detail"]["sqlstate"] == "WF013"
    assert answers[0]["detail"] is None
    assert db.value("SELECT count(*) FROM flow_tasks") == 3


def test_fifty_concurrent_starts_of_one_id_make_one_run(db: Database) -> None:
    def start(connection: Connection, number: int) -> bool:
        query = "SELECT applied FROM flow_start(%s, '{}', 'r')"
        return bool(db.value(query, SPEC, on=connection))

    assert sum(map(bool, db.race(20, start))) == 1
    assert db.types("r") == ["run_created"]
    assert wakes(db) == 20


# -- waits ---------------------------------------------------------------------------------------


def test_a_due_wait_is_completed_once(db: Database) -> None:
    db.start("r")
    db.append({"run_id": "r", "events": [wait("w")]})
    assert db.status("r") == "suspended"
    query = "SELECT * FROM flow_resume_wait('r', 'w')"
    assert db.row(query) == {
        "run_id": "r",
        "subject_id": "w",
        "applied": True,
        "head_sequence": 4,
    }
    assert db.row(query)["applied"] is False
    assert db.status("r") == "running"
    assert db.value("SELECT payload::text FROM flow_events WHERE sequence = 4") == (
        '{"wait_id":"w"}'
    )
    assert wakes(db) == 2


def test_a_wait_is_not_completed_before_its_deadline(db: Database) -> None:
    db.start("r")
    db.append({"run_id": "r", "events": [wait("w", 60_000_000)]})
    code, fields = refused(db, "SELECT flow_resume_wait('r', 'w')")
    due = db.value("SELECT payload ->> 'resume_at' FROM flow_events WHERE due_at IS NOT NULL")
    assert (code, fields) == (
        "WF009",
        {"run_id": "r", "reason": f"wait w is not due before {due}"},
    )
    db.advance("1 minute")
    assert db.value("SELECT applied FROM flow_resume_wait('r', 'w')") is True


@pytest.mark.parametrize("how", ["flow_request_cancellation", "flow_force_cancel"])
def test_a_cancelled_wait_is_not_resumed_and_not_an_error(db: Database, how: str) -> None:
    db.start("r")
    db.append({"run_id": "r", "events": [wait("w")]})
    db.rows(f"SELECT {how}('r')")
    assert db.value("SELECT applied FROM flow_resume_wait('r', 'w')") is False


def test_an_unknown_wait_is_an_error_that_tells_whether_the_run_has_ended(db: Database) -> None:
    db.start("r")
    db.open_hook("r", "h")
    assert refused(db, "SELECT flow_resume_wait('r', 'h')")[0] == "WF009"
    end(db)
    assert refused(db, "SELECT flow_resume_wait('r', 'x')") == (
        "WF004",
        {"run_id": "r", "status": "completed"},
    )
    assert refused(db, "SELECT flow_resume_wait('none', 'x')") == ("WF001", {"run_id": "none"})


# -- hooks ---------------------------------------------------------------------------------------


def test_a_hook_is_answered_once_and_the_same_answer_is_recognised(db: Database) -> None:
    db.start("r")
    db.open_hook("r")
    query = "SELECT * FROM flow_resume_hook('r', 'h', %s)"
    assert db.row(query, '{"ok": true, "n": 1.0}') == {
        "run_id": "r",
        "subject_id": "h",
        "applied": True,
        "head_sequence": 4,
        "payload_schema": None,
    }
    assert db.value("SELECT payload::text FROM flow_events WHERE sequence = 4") == (
        '{"hook_id":"h","payload":{"ok": true, "n": 1.0}}'
    )
    assert db.row(query, '{"n":1,"ok":true}')["applied"] is False
    assert wakes(db) == 2
    end(db)
    assert db.row(query, '{"n":1,"ok":true}')["applied"] is False
    assert wakes(db) == 2
    code, fields = refused(db, query, '{"ok": false}')
    assert (code, fields["hook_id"]) == ("WF007", "h")
    assert refused(db, "SELECT flow_dispose_hook('r', 'h')")[0] == "WF007"


def test_a_hook_is_disposed_once_and_then_cannot_be_answered(db: Database) -> None:
    db.start("r")
    db.open_hook("r")
    query = "SELECT applied FROM flow_dispose_hook('r', 'h')"
    assert db.value(query) is True
    assert db.value(query) is False
    assert refused(db, "SELECT flow_resume_hook('r', 'h', '1')")[0] == "WF007"
    end(db)
    assert db.value(query) is False


def test_a_hook_of_a_run_that_was_cancelled_or_ended_is_refused(db: Database) -> None:
    db.start("r")
    db.open_hook("r")
    db.rows("SELECT flow_request_cancellation('r')")
    for call in ("flow_resume_hook('r', 'h', '1')", "flow_dispose_hook('r', 'h')"):
        code, fields = refused(db, f"SELECT {call}")
        assert (code, fields["reason"]) == ("WF007", "it was cancelled")
    db.rows("SELECT flow_force_cancel('r')")
    assert refused(db, "SELECT flow_resume_hook('r', 'h', '1')")[0] == "WF004"
    db.start("s")
    assert refused(db, "SELECT flow_resume_hook('s', 'h', '1')")[0] == "WF009"
    end(db, "s")
    assert refused(db, "SELECT flow_dispose_hook('s', 'h')")[0] == "WF004"
    assert refused(db, "SELECT flow_resume_hook('none', 'h', '1')")[0] == "WF001"


def test_a_hook_is_found_by_its_token_only_while_it_is_active(db: Database) -> None:
    db.start("r")
    db.open_hook("r", "one", "token")
    assert db.row("SELECT * FROM flow_find_hook('token')") == {"run_id": "r", "hook_id": "one"}
    by_token = "SELECT applied FROM flow_resume_hook_by_token('token', '1')"
    assert db.value(by_token) is True
    assert refused(db, by_token) == ("WF006", {})
    assert db.rows("SELECT * FROM flow_find_hook('token')") == []
    db.open_hook("r", "two", "token")
    assert db.row("SELECT * FROM flow_dispose_hook_by_token('token')")["subject_id"] == "two"
    assert refused(db, "SELECT flow_dispose_hook_by_token('token')")[0] == "WF006"


@pytest.mark.parametrize("way_out", ["received", "disposed", "cancelled", "completed"])
def test_a_token_is_free_again_after_every_way_out(db: Database, way_out: str) -> None:
    db.start("r")
    db.open_hook("r", "h", "token")
    if way_out == "received":
        db.rows("SELECT flow_resume_hook('r', 'h', '1')")
    elif way_out == "disposed":
        db.rows("SELECT flow_dispose_hook('r', 'h')")
    elif way_out == "cancelled":
        db.rows("SELECT flow_request_cancellation('r')")
    else:
        end(db)
    db.start("s")
    db.open_hook("s", "h", "token")


def test_an_expired_hook_is_disposed_by_one_of_many_scans(db: Database) -> None:
    db.start("r")
    db.append({"run_id": "r", "events": [{**hook("h", "t"), "due_in_us": 0}, hook("i", "u")]})

    def scan(connection: Connection, number: int) -> list[tuple[str, str]]:
        rows = db.rows("SELECT run_id, hook_id FROM flow_dispose_expired_hooks()", on=connection)
        return [(row["run_id"], row["hook_id"]) for row in rows]

    found = [hit for hits in db.race(8, scan) if isinstance(hits, list) for hit in hits]
    assert found == [("r", "h")]
    assert db.types("r")[-1] == "hook_disposed"
    assert [row["hook_id"] for row in db.rows("SELECT hook_id FROM flow_active_hooks")] == ["i"]


# -- all of them ---------------------------------------------------------------------------------

CALLS = [
    "flow_resume_wait('{}', 'w')",
    "flow_resume_hook('{}', 'h', '1')",
    "flow_dispose_hook('{}', 'h')",
    "flow_request_cancellation('{}')",
    "flow_force_cancel('{}')",
    "flow_terminate_for_timeout('{}', now())",
    "flow_terminate_for_host_shutdown('{}')",
    f"flow_record_progress('{{}}', '{PROGRESS.replace('{', '{{').replace('}', '}}')}')",
    f"flow_link_child_operation('{{}}', '{CHILD.replace('{', '{{').replace('}', '}}')}')",
    "flow_wake_run('{}')",
    "flow_acquire_run('{}', 'me', '1 minute')",
    "flow_resume_due_waits(p_run_id => '{}')",
    "flow_dispose_expired_hooks(p_run_id => '{}')",
]


@pytest.mark.parametrize("call", CALLS)
def test_every_verb_names_the_run_that_does_not_exist(db: Database, call: str) -> None:
    assert refused(db, f"SELECT {call.format('none')}") == ("WF001", {"run_id": "none"})
    for run_id in ("", " ", "-x", "a b", "a/b", "ü", "r" * 256, "r" * 300):
        assert refused(db, f"SELECT {call.format(run_id)}")[0] == "WF013"


@pytest.mark.parametrize("call", CALLS[:7])
def test_every_verb_is_part_of_the_callers_transaction(db: Database, call: str) -> None:
    db.start("r")
    db.append({"run_id": "r", "events": [wait("w"), hook("h", "t")]})
    before = db.everything()
    with db.main.transaction(force_rollback=True):
        db.rows(f"SELECT {call.format('r')}")
        assert db.everything() != before
    assert db.everything() == before


def test_of_conflicting_answers_exactly_one_is_committed(db: Database) -> None:
    db.start("r")
    db.open_hook("r", "h", "token")

    def answer(connection: Connection, number: int) -> bool:
        call = "SELECT applied FROM flow_resume_hook('r', 'h', %s)"
        return bool(db.value(call, str(number), on=connection))

    results = db.race(20, answer)
    assert sum(result is True for result in results) == 1
    assert codes(results) == ["WF007"] * 19
    assert db.types("r").count("hook_received") == 1


def test_one_token_and_two_callers_have_one_winner(db: Database) -> None:
    token = "x" * 8192
    for number in range(10):
        run = f"r{number}"
        db.start(run)
        db.open_hook(run, "h", token)

        def call(connection: Connection, number: int) -> bool:
            query = "SELECT applied FROM flow_resume_hook_by_token(%s, '1')"
            return bool(db.value(query, token, on=connection))

        results = db.race(2, call)
        assert sorted([r is True for r in results]) == [False, True]
        assert codes(results) == ["WF006"]
