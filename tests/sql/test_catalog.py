"""The rules of the house, read off the catalog: paths, rights, comments, and what the files say."""

from __future__ import annotations

import re
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from flowpg.postgres.install import install_fresh
from flowpg.postgres.manifest import manifest, statements
from flowpg.resources import sql_root
from flowpg.testing.servers import PostgresServer
from tests.sql.database import SPEC, Database

# One-expression helpers that have no SET clause so that they can be inlined. Their bodies were
# parsed when they were created: no search_path reaches them. (No other kind of body is allowed.)
INLINED = {
    *("flow_now", "flow_retention_key", "flow_run_key", "flow_token_key", "flow_is_repeatable"),
    *("flow_run_id_is_valid", "flow_terminal_status", "flow_is_terminal", "flow_clears"),
    *("flow_json_is_hard", "flow_json_unshield", "flow_text_unshield", "flow_json_get"),
    *("flow_json_get_text", "flow_json_with", "flow_json_is_name", "flow_time_text"),
    *(
        "flow_time_after",
        "flow_event_id",
        "flow_event_name",
        "flow_event_refusal",
        "flow_event_flags",
    ),
    *("flow_wakeup_kind", "flow_has_suspension", "flow_due_member", "flow_append_read_events"),
    *("flow_append_open_hooks", "flow_mark_key", "flow_is_token_kind"),
    "flow_unbundle",
    *("flow_claim_admits", "flow_worker_admits", "flow_json_refusal", "flow_text_is_name"),
    *("flow_spec_is_named", "flow_created_status", "flow_claim_takes", "flow_claim_digest"),
}
FUNCTIONS = (
    "SELECT p.oid::regprocedure::text AS signature, p.proname AS name, p.proconfig AS settings,"
    " p.prosqlbody IS NOT NULL AS is_parsed, p.prosecdef AS is_definer, p.provolatile AS volatile,"
    " has_function_privilege('public', p.oid, 'EXECUTE') AS is_public,"
    " obj_description(p.oid, 'pg_proc') AS comment"
    " FROM pg_proc p WHERE p.pronamespace = 'flowpg'::regnamespace"
)


def code_of(text: str) -> str:
    """SQL without its comments."""
    return re.sub(r"--[^\n]*", "", text)


def test_every_function_pins_its_path_or_was_parsed_when_it_was_created(db: Database) -> None:
    for function in db.rows(FUNCTIONS):
        settings = function["settings"] or []
        if function["name"] in INLINED:
            assert function["is_parsed"], function
            assert not settings, function
        else:
            assert "search_path=flowpg, pg_temp" in [s.replace('"', "") for s in settings], function


def test_no_function_is_open_to_everybody_or_runs_with_other_rights(db: Database) -> None:
    for function in db.rows(FUNCTIONS):
        assert not function["is_public"], function
        assert not function["is_definer"], function


def test_every_object_has_a_comment(db: Database) -> None:
    for function in db.rows(FUNCTIONS):
        assert function["comment"], function
    bare = db.rows(
        "SELECT c.relname, a.attname FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid"
        " WHERE c.relnamespace = 'flowpg'::regnamespace AND c.relkind = 'r' AND a.attnum > 0"
        " AND NOT a.attisdropped AND col_description(c.oid, a.attnum) IS NULL"
        " UNION ALL SELECT c.relname, '' FROM pg_class c"
        " WHERE c.relnamespace = 'flowpg'::regnamespace AND c.relkind IN ('r', 'c')"
        " AND obj_description(c.oid, 'pg_class') IS NULL"
        " AND (c.relkind = 'r' OR obj_description(c.reltype, 'pg_type') IS NULL)"
    )
    assert bare == []


def test_text_columns_compare_by_bytes(db: Database) -> None:
    columns = db.rows(
        "SELECT table_name, column_name FROM information_schema.columns"
        " WHERE table_schema = 'flowpg' AND data_type = 'text' AND collation_name IS DISTINCT FROM"
        " 'C' AND table_name IN ('flow_events', 'flow_event_log', 'flow_runs',"
        " 'flow_active_hooks', 'flow_tasks',"
        " 'scheduled_wakeups', 'flow_migrations')"
    )
    # free text that nothing compares or sorts
    assert {column["column_name"] for column in columns} == {"blocked_reason", "lease_owner"}


def test_the_verbs_that_read_are_stable(db: Database) -> None:
    inspect = {path.stem for path in (sql_root() / "functions" / "inspect").glob("*.sql")}
    volatility = {row["name"]: row["volatile"] for row in db.rows(FUNCTIONS)}
    assert inspect
    assert {volatility[name] for name in inspect} == {"s"}


def test_the_manifest_lists_every_file_once() -> None:
    listed = [path.relative_to(sql_root()).as_posix() for path in manifest()]
    assert len(listed) == len(set(listed))
    there = {path.relative_to(sql_root()).as_posix() for path in sql_root().rglob("*.sql")}
    assert set(listed) == there


@pytest.mark.parametrize(
    ("path", "text"), list(statements()), ids=lambda value: getattr(value, "stem", "")
)
def test_every_file_keeps_the_rules(path: Path, text: str) -> None:
    lines = text.splitlines()
    assert len(lines) <= 150
    assert max(map(len, lines)) <= 100
    assert lines[0].startswith("-- ")
    code = code_of(text)
    assert not re.search(r"(SELECT|RETURNING)\s+(\w+\.)?\*", code), "columns are listed"
    assert "flowpg" not in code, "no file names the schema"
    clocks = r"\b(now\(|current_timestamp|localtimestamp|transaction_timestamp)"
    assert not re.search(clocks, code, re.I), "flow_now() is the only clock"
    assert "clock_timestamp" not in code or path.stem == "flow_now"
    assert not re.search(r"ON CONFLICT \(run_id, sequence\)", code)
    for created in re.findall(r"CREATE FUNCTION\s+(\w+)", code):
        assert re.search(rf"REVOKE EXECUTE ON FUNCTION\s+{created}\(", code), created
        assert re.search(rf"COMMENT ON FUNCTION\s+{created}\(", code), created
    if "functions" in path.parts and "CREATE FUNCTION" in code:
        header = "\n".join(line for line in lines if line.startswith("--"))
        for topic in ("Locks", "SQLSTATEs", "Callers"):
            assert topic in header, f"the header says nothing about {topic}"


def test_the_readme_lists_every_error_and_every_verb(db: Database) -> None:
    readme = (sql_root() / "README.md").read_text()
    source = "".join(text for _, text in statements())
    assert set(re.findall(r"'(WF\d{3})'", source)) == set(
        re.findall(r"^\| `(WF\d{3})`", readme, re.M)
    )
    matrix = db.rows("SELECT capability, kind, name, privileges FROM flow_capabilities()")
    lines = [line for line in readme.splitlines() if line.startswith("| `")]
    for row in matrix:
        if row["kind"] == "verb":
            (line,) = (line for line in lines if f"`{row['name']}`" in line)
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            allowed = dict(zip(("reader", "client", "worker"), cells[1:], strict=True))
            assert allowed[row["capability"]] == "yes", row
    for row in matrix:
        if row["kind"] == "table" and row["capability"] != "reader":
            assert re.search(rf"^\| `{row['name']}` .*{row['privileges']}", readme, re.M), row


def test_the_schema_can_have_any_name(pg_server: PostgresServer) -> None:
    name = 'Mine "x" %s'
    with pg_server.database() as database:
        dsn = pg_server.dsn_of(database)
        install_fresh(dsn, name)
        with psycopg.connect(dsn, autocommit=True) as connection:
            call = sql.SQL("SELECT applied FROM {}.flow_start({}::json)")
            schema = sql.Identifier(name)
            statement = call.format(schema, sql.Literal(SPEC))
            assert connection.execute(statement).fetchall() == [(True,)]
            with pytest.raises(psycopg.errors.DuplicateSchema):
                install_fresh(connection, name)


def test_a_fresh_schema_leaves_the_search_path_alone(pg_server: PostgresServer) -> None:
    with (
        pg_server.database() as database,
        psycopg.connect(pg_server.dsn_of(database)) as connection,
    ):
        connection.execute("SET search_path = pg_catalog")
        install_fresh(connection)
        shown = connection.execute("SHOW search_path").fetchone()
        assert shown == ("pg_catalog",)
        connection.rollback()
        found = connection.execute("SELECT to_regnamespace('flowpg')").fetchone()
        assert found == (None,)
