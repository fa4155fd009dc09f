"""What a role may do, and what a hostile one cannot."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql

from tests.sql.database import SPEC, Connection, Database, hook, refused, wait


@pytest.fixture
def role(db: Database) -> Iterator[str]:
    """A role without any rights."""
    name = f"flowpg_role_{uuid4().hex[:8]}"
    db.main.execute(sql.SQL("CREATE ROLE {}").format(sql.Identifier(name)))
    yield name
    db.main.execute("RESET ROLE")
    db.main.execute(sql.SQL("DROP OWNED BY {}").format(sql.Identifier(name)))
    db.main.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(name)))


def acting_as(db: Database, role: str) -> Connection:
    """A connection with the rights of a role."""
    return db.connect(role=role)


WORKER = """
SELECT flow_start('{"name":"w","version":"1"}', '1', 'w1');
SELECT flow_claim_tasks('default', 1, 'me', '1 minute');
SELECT flow_claim_runs('{default}', 1, 'me', '1 minute');
SELECT flow_append_many('[{"run_id":"w1","epoch":1,"events":[{"type":"run_started"},
  {"type":"wait_created","subject":"w","due_in_us":0},
  {"type":"hook_created","subject":"h","due_in_us":0,"payload":{"token":"t","metadata":{}}}]}]');
SELECT flow_append_batch('[{"run_id":"w1","epoch":1,"events":[{"type":"hook_disposed",
  "subject":"other"}]}]');
SELECT flow_heartbeat('[{"run_id":"w1","epoch":1}]', '1 minute');
SELECT flow_enqueue_due();
SELECT flow_resume_due_waits();
SELECT flow_dispose_expired_hooks();
SELECT flow_complete_step('w1', 1, 's', 1, '{}');
SELECT flow_step_completed('w1', 's');
SELECT flow_record_heartbeats(
  '[{"run_id":"w1","epoch":1,"step_id":"s","attempt":1,"details":"7"}]');
SELECT flow_step_heartbeat('w1', 's');
SELECT flow_route_steps('[{"run_id":"w1","events":[]}]', 'w1', '[]');
SELECT flow_ensure_step_tasks('w1', '[]');
SELECT flow_settle_step('w1', 1, 1, 's', 1, '{}');
SELECT flow_expire_steps('w1', '[]');
SELECT flow_superseded_steps('[]');
SELECT flow_release_strays('{default}', 'nobody', '[]');
SELECT flow_give_back('w1', 1, '0', 'why');
SELECT flow_acquire_run('w1', 'me', '1 minute');
SELECT flow_release_run('w1', 2, 99);
SELECT flow_append('w1', null, '[{"type":"run_completed"}]');
SELECT flow_enqueue_task('resume_hook', '{"hook_id":"x","payload":1}', p_run_id => 'r');
SELECT flow_claim_tasks('{default}'::text[], 5, 'me', '1 minute', p_kinds => null);
SELECT flow_release_tasks('[{"task_id":1,"epoch":1}]');
SELECT flow_complete_tasks('[{"task_id":2,"epoch":1,"ok":false}]');
SELECT flow_requeue_expired();
SELECT flow_dead_letter(0, null, 'why');
SELECT flow_redrive(p_queue => 'default');
SELECT flow_pause_queue('q');
SELECT flow_resume_queue('q');
SELECT flow_set_queue_limits('q', 1, 1, 1, '1 minute');
SELECT flow_listen_hint('{q}');
SELECT flow_worker_beat('me', 'b', 'h', 1, '{q}', '{w}', null, 1, 0);
SELECT flow_worker_gone('me');
SELECT flow_import_history('w2', '[{"sequence":1,"type":"run_created","event_id":
  "0190a1b2-0000-7000-8000-000000000001","recorded_at":"2026-01-01T00:00:00Z",
  "payload":{"spec":{"name":"w","version":"1"}}}]')
"""
CLIENT = """
SELECT flow_start('{"name":"w","version":"1"}', '1', 'c1');
SELECT flow_start_many('[{"spec":{"name":"w","version":"1"},"queue":"q"}]');
SELECT flow_resume_hook('r', 'h1', '1');
SELECT flow_resume_hook_by_token('t2', '1');
SELECT flow_dispose_hook('r', 'h3');
SELECT flow_dispose_hook_by_token('t4');
SELECT flow_resume_wait('r', 'w');
SELECT flow_resume_due_waits();
SELECT flow_dispose_expired_hooks();
SELECT flow_record_progress('r', '{"progress_id":"p","completed":1}');
SELECT flow_link_child_operation('r', '{"reference_id":"c","kind":"k","operation_id":"o"}');
SELECT flow_wake_run('r');
SELECT flow_request_cancellation('r');
SELECT flow_force_cancel('c1');
SELECT flow_list_active_hooks();
SELECT flow_find_hook('t');
SELECT flow_start('{"name":"w","version":"1"}', '1', 'c2');
SELECT flow_terminate_for_timeout('c2', now());
SELECT flow_terminate_for_host_shutdown('c2');
SELECT flow_enqueue_task('dispose_hook', '{"hook_id":"h"}', p_run_id => 'r');
SELECT flow_channel();
SELECT flow_ended_channel();
SELECT flow_await_run('c1');
SELECT flow_set_run_priority('r', 1::smallint, 'k');
SELECT flow_uuid7()
"""
READER = """
SELECT flow_now();
SELECT flow_history('r');
SELECT * FROM flow_events;
SELECT flow_load_runs('{r}');
SELECT flow_run_info('r');
SELECT flow_list_runs('running', 'w', 'q', true);
SELECT flow_list_run_ids();
SELECT flow_run_summary();
SELECT flow_open_suspensions();
SELECT flow_due_wakeups();
SELECT flow_next_wakeup();
SELECT flow_capabilities();
SELECT flow_live_workers();
SELECT flow_build_usage();
SELECT flow_health();
SELECT flow_snapshot_holders();
SELECT flow_run_builds('{r}');
SELECT version, sha256 FROM flow_migrations
"""
FORBIDDEN = {
    "worker": "UPDATE flow_events SET payload = '{}'; DELETE FROM flow_events;"
    " TRUNCATE flow_event_log; DELETE FROM flow_event_log;"
    " SELECT flow_grant('x', 'worker'); DELETE FROM flow_runs",
    "client": "SELECT flow_append('r', null, '[]'); SELECT flow_claim_tasks('q', 1, 'x', '1s');"
    " SELECT flow_import_history('r', '[]'); SELECT flow_pause_queue('q'); SELECT flow_redrive(1);"
    " SELECT flow_listen_hint('{q}'); DELETE FROM flow_tasks; DELETE FROM flow_events",
    "reader": "SELECT flow_start('{}'); SELECT flow_force_cancel('r');"
    " SELECT token FROM flow_active_hooks; SELECT payload FROM flow_tasks;"
    " SELECT flow_list_active_hooks();"
    " SELECT flow_find_hook('t'); SELECT flow_wake_run('r'); SELECT flow_enqueue_due();"
    " INSERT INTO flow_events DEFAULT VALUES; UPDATE flow_runs SET status = 'failed'",
}


def prepared(db: Database) -> None:
    db.start("r")
    hooks = [hook(f"h{n}", f"t{n}") for n in range(1, 5)]
    db.append({"run_id": "r", "events": [wait("w"), *hooks]})
    # a row of several events, which everybody who reads takes apart
    steps = '[["c",{"step_id":"b"}],["S",{"step_id":"b"}]]'
    db.rows("SELECT flow_append_many(%s)", f'[{{"run_id":"r","steps":{steps}}}]')


@pytest.mark.parametrize(
    ("capability", "calls"), [("worker", WORKER), ("client", CLIENT), ("reader", READER)]
)
def test_a_role_can_call_its_verbs_and_no_others(
    db: Database, role: str, capability: str, calls: str
) -> None:
    prepared(db)
    db.rows("SELECT flow_grant(%s, %s)", role, capability)
    db.rows("SELECT flow_grant(%s, %s)", role, capability)
    connection = acting_as(db, role)
    for call in (calls if capability == "reader" else calls + ";" + READER).split(";\n"):
        connection.execute(call.strip().rstrip(";"))
    for statement in FORBIDDEN[capability].split(";"):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute(statement)


def test_every_verb_of_the_matrix_is_called_by_a_test(db: Database) -> None:
    for capability, calls in (("worker", WORKER), ("client", CLIENT), ("reader", READER)):
        lower = {"worker": CLIENT + READER, "client": READER, "reader": ""}[capability]
        query = "SELECT name FROM flow_capabilities() WHERE kind = 'verb' AND capability = %s"
        for row in db.rows(query, capability):
            assert row["name"] + "(" in calls + lower, row


def test_a_role_without_rights_can_do_nothing(db: Database, role: str) -> None:
    connection = acting_as(db, role)
    for statement in ("SELECT flow_now()", "TABLE flow_runs", "SELECT flow_start('{}')"):
        with pytest.raises(
            (
                psycopg.errors.InsufficientPrivilege,
                psycopg.errors.UndefinedTable,
                psycopg.errors.UndefinedFunction,
            )
        ):
            connection.execute(statement)
    connection.execute("SET search_path = ''")
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        connection.execute("SELECT flowpg.flow_now()")


def test_a_grant_that_makes_no_sense_is_refused(db: Database, role: str) -> None:
    assert refused(db, "SELECT flow_grant(%s, 'owner')", role)[0] == "WF010"
    assert refused(db, "SELECT flow_grant('nobody at all', 'worker')")[0] == "WF010"


def test_a_hostile_search_path_reaches_nothing(db: Database, role: str) -> None:
    """Fakes of tables, functions, types and operators, in front of everything the caller sees."""
    prepared(db)
    db.rows("SELECT flow_grant(%s, 'worker')", role)
    name = sql.Identifier(role)
    db.main.execute(sql.SQL("CREATE SCHEMA hostile AUTHORIZATION {}").format(name))
    database = db.value("SELECT current_database()")
    db.main.execute(
        sql.SQL("GRANT TEMPORARY ON DATABASE {} TO {}").format(sql.Identifier(database), name)
    )
    connection = acting_as(db, role)
    connection.execute("SET search_path = hostile, pg_temp, flowpg, pg_catalog")
    for table in ("flow_event_log", "flow_runs", "flow_tasks", "flow_active_hooks"):
        connection.execute(f"CREATE TABLE hostile.{table} (trap int)")
        connection.execute(f"CREATE TEMP TABLE {table} (trap int)")
    connection.execute("CREATE TYPE hostile.flow_append_event AS (trap int)")
    trap = "LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'trapped'; END $$"
    for signature, result in (
        ("flow_now()", "timestamptz"),
        ("now()", "timestamptz"),
        ("clock_timestamp()", "timestamptz"),
        ("md5(text)", "text"),
        ("flow_run_key(text)", "bigint"),
        ("flow_lock_runs(text[])", "void"),
        ("hashtextextended(text, bigint)", "bigint"),
        ("json_typeof(json)", "text"),
        ("jsonb_build_object(text, text)", "jsonb"),
        ("octet_length(text)", "integer"),
        ("starts_with(text, text)", "boolean"),
        ("btrim(text)", "text"),
        ("flow_is_terminal(text)", "boolean"),
        ("equals(text, text)", "boolean"),
        ("adds(bigint, integer)", "bigint"),
    ):
        connection.execute(f"CREATE FUNCTION hostile.{signature} RETURNS {result} {trap}")
    connection.execute(
        "CREATE OPERATOR hostile.= (LEFTARG = text, RIGHTARG = text, FUNCTION = hostile.equals)"
    )
    connection.execute(
        "CREATE OPERATOR hostile.+ (LEFTARG = bigint, RIGHTARG = integer, FUNCTION = hostile.adds)"
    )
    for call in (WORKER + ";\n" + CLIENT + ";\n" + READER).split(";\n"):
        statement = call.strip().rstrip(";")
        if statement.startswith("SELECT flow_") and "now()" not in statement:
            connection.execute(statement.replace("SELECT flow_", "SELECT flowpg.flow_", 1))
    db.main.execute("SET search_path = flowpg")
    assert db.status("w1") == "completed"
    assert db.status("r") == "cancelling"
    db.main.execute("DROP SCHEMA hostile CASCADE")


def test_no_error_shows_a_token_or_a_payload(db: Database) -> None:
    secret = "s3cr3t" * 1500
    db.start("a")
    db.start("b")
    db.open_hook("a", "h", secret)
    spec = SPEC.replace('"1"', '"1","x":"s3cr3t"')
    taken = f'[{{"type":"hook_created","subject":"i","payload":{{"token":"{secret}"}}}}]'
    broken = f'[{{"type":"hook_created","subject":"i","payload":["{secret}"]}}]'
    calls: list[tuple[str, list[str]]] = [
        ("SELECT flow_append('b', null, %s::json)", [taken]),
        ("SELECT flow_append('b', null, %s::json)", [broken]),
        ("SELECT flow_append('b', null, %s::json)", [f'{{"a":"{secret}"}}']),
        (
            "SELECT flow_append('b', null, %s::json)",
            [f'[{{"type":"run_x","event_id":"{secret}"}}]'],
        ),
        ("SELECT flow_append('b', null, %s::json)", [f'[{{"type":"x","due_at":"{secret}"}}]']),
        ("SELECT flow_resume_hook_by_token(%s, '1')", [secret + "x"]),
        ("SELECT flow_dispose_hook_by_token(%s)", [secret + "x"]),
        ("SELECT flow_resume_hook('a', 'other', %s)", [f'"{secret}"']),
        ("SELECT flow_start(%s, '1', 'a')", [spec]),
        ("SELECT flow_start('[]', %s)", [f'"{secret}"']),
        ("SELECT flow_record_progress('a', %s)", [f'{{"details":"{secret}"}}']),
        ("SELECT flow_import_history('c', %s)", [f'[{{"sequence":"{secret}"}}]']),
        ("SELECT flow_heartbeat(%s, '1s')", [f'[{{"epoch":"{secret}"}}]']),
    ]
    notices: list[str] = []
    db.main.add_notice_handler(lambda notice: notices.append(str(notice.message_primary)))
    db.rows("SET client_min_messages = 'debug1'")
    for statement, values in calls:
        with pytest.raises(psycopg.Error) as caught:
            db.rows(statement, *values)
        diag = caught.value.diag
        said = [str(caught.value), diag.message_detail, diag.message_hint, diag.context]
        said += [diag.internal_query, diag.statement_position, *notices]
        assert not any("s3cr3t" in (text or "") for text in said), statement
    (answer,) = db.append({"run_id": "b", "events": [hook("i", secret)]})
    assert answer["outcome"] == "hook_token_conflict"
    assert "s3cr3t" not in str(answer)
