"""What the check of a schema finds, and that it changes nothing."""

from pathlib import Path

import psycopg
import pytest

from flowpg.errors import (
    SchemaAhead,
    SchemaAltered,
    SchemaBehind,
    SchemaMissing,
    StoreUnavailable,
)
from flowpg.postgres.migrate import upgrade
from flowpg.postgres.schema_check import SchemaState, check, check_connection, verify, verify_async
from tests.migrations.catalog import describe
from tests.migrations.support import next_release, query

ALTERATIONS = {
    "a function body": (
        """
        CREATE OR REPLACE FUNCTION flow_lock_runs(p_run_ids text[]) RETURNS void
        LANGUAGE sql AS 'SELECT'
        """,
        "function flow_lock_runs(p_run_ids text[]) was changed",
    ),
    "function settings": (
        "ALTER FUNCTION flow_lock_runs RESET search_path",
        "function flow_lock_runs(p_run_ids text[]) was changed",
    ),
    "a dropped index": ("DROP INDEX scheduled_wakeups_due_idx", "index scheduled_wakeups_due_idx"),
    "a disabled trigger": ("ALTER TABLE flow_event_log DISABLE TRIGGER USER", "was changed"),
    "a column type": (
        "ALTER TABLE flow_tasks ALTER COLUMN kind TYPE varchar(40)",
        "column flow_tasks.kind was changed",
    ),
    "a dropped constraint": (
        "ALTER TABLE flow_runs DROP CONSTRAINT flow_runs_status_check",
        "constraint flow_runs.flow_runs_status_check is gone",
    ),
    "a dropped table": ("DROP TABLE scheduled_wakeups CASCADE", "scheduled_wakeups"),
    "an unlogged table": ("ALTER TABLE flow_tasks SET UNLOGGED", "table flow_tasks was changed"),
    "another text of a migration": (
        "UPDATE flow_migrations SET sha256 = repeat('0', 64)",
        "another text of migration 0001",
    ),
    "an emptied ledger": ("TRUNCATE flow_migrations", "that no migration made"),
    "a dropped ledger": ("DROP TABLE flow_migrations", "no flow_migrations"),
    "a version table that disagrees": (
        "UPDATE flow_alembic_version SET version_num = '0007'",
        "contradicts",
    ),
    "a dropped version table": ("DROP TABLE flow_alembic_version", "contradicts"),
}

HARMLESS = {
    "a grant": "GRANT SELECT ON flow_runs TO PUBLIC",
    "a comment": "COMMENT ON TABLE flow_runs IS 'ours'",
    "a storage parameter": "ALTER TABLE flow_runs SET (fillfactor = 80)",
    "an index": "CREATE INDEX mine ON flow_runs (queue)",
    "a column": "ALTER TABLE flow_runs ADD COLUMN mine text",
    "a table": "CREATE TABLE mine (a int)",
    "a clock that tests turn": (
        "CREATE OR REPLACE FUNCTION flow_now() RETURNS timestamptz LANGUAGE sql"
        " AS $$ SELECT clock_timestamp() + interval '1 day' $$"
    ),
}


def test_a_database_that_was_never_migrated_is_missing_and_stays_empty(
    empty_database_dsn: str,
) -> None:
    everything = "SELECT count(*) FROM pg_class", "SELECT count(*) FROM pg_namespace"
    before = [query(empty_database_dsn, text) for text in everything]
    with pytest.raises(SchemaMissing, match="run `flowpg migrate`"):
        verify(empty_database_dsn)
    assert [query(empty_database_dsn, text) for text in everything] == before


async def test_an_asynchronous_connection_can_verify(empty_database_dsn: str) -> None:
    async with await psycopg.AsyncConnection.connect(empty_database_dsn) as connection:
        with pytest.raises(SchemaMissing):
            await verify_async(connection)
        upgrade(empty_database_dsn)
        await verify_async(connection)


def test_a_schema_that_misses_a_migration_is_behind(
    empty_database_dsn: str, tmp_path: Path
) -> None:
    upgrade(empty_database_dsn)
    status = check(empty_database_dsn, root=next_release(tmp_path, "SELECT 1;"))
    assert status.state is SchemaState.BEHIND
    assert status.sentence == (
        "schema 'flowpg' is at migration 0001, this release needs 0002; run `flowpg migrate`"
    )
    with pytest.raises(SchemaBehind):
        status.raise_unless_ok()


def test_a_schema_with_an_unknown_migration_is_ahead(
    empty_database_dsn: str, tmp_path: Path
) -> None:
    upgrade(empty_database_dsn, root=next_release(tmp_path, "CREATE TABLE flow_more (a bigint);"))
    with pytest.raises(SchemaAhead, match="has migration 0002, this release knows up to 0001"):
        verify(empty_database_dsn)


@pytest.mark.parametrize("what", ALTERATIONS)
def test_an_altered_schema_is_found_and_the_difference_named(
    empty_database_dsn: str, what: str
) -> None:
    statement, expected = ALTERATIONS[what]
    upgrade(empty_database_dsn)
    query(empty_database_dsn, statement)
    status = check(empty_database_dsn)
    assert status.state is SchemaState.ALTERED
    assert expected in status.sentence
    with pytest.raises(SchemaAltered):
        verify(empty_database_dsn)


@pytest.mark.parametrize("what", HARMLESS)
def test_what_belongs_to_the_dba_is_not_an_alteration(empty_database_dsn: str, what: str) -> None:
    upgrade(empty_database_dsn)
    query(empty_database_dsn, HARMLESS[what])
    assert check(empty_database_dsn).sentence == "schema 'flowpg' is at migration 0001"


def test_sql_that_is_not_what_was_pinned_is_reported_before_anything_runs(
    empty_database_dsn: str, tmp_path: Path
) -> None:
    root = next_release(tmp_path, "SELECT 1;")
    (root / "versions" / "0001_core.sql").write_text("-- harmless?\n")
    status = check(empty_database_dsn, root=root)
    assert status.state is SchemaState.ALTERED
    assert "0001_core.sql of this installation" in status.sentence
    with pytest.raises(SchemaAltered, match="install flowpg again"):
        upgrade(empty_database_dsn, root=root)
    assert query(empty_database_dsn, "SELECT 1 FROM pg_namespace WHERE nspname = 'flowpg'") == []


@pytest.mark.parametrize(
    "setting",
    [
        *("TimeZone = 'Asia/Kathmandu'", "DateStyle = 'SQL, DMY'", "IntervalStyle = iso_8601"),
        *("quote_all_identifiers = on", "standard_conforming_strings = off"),
        *("extra_float_digits = 0", "bytea_output = escape"),
    ],
)
def test_a_database_with_settings_of_its_own_can_be_migrated_and_verified(
    empty_database_dsn: str, setting: str
) -> None:
    name = query(empty_database_dsn, "SELECT current_database()")[0][0]
    query(empty_database_dsn, f'ALTER DATABASE "{name}" SET {setting}')
    upgrade(empty_database_dsn)
    verify(empty_database_dsn)
    # Dollar quotes, which no setting changes.
    statement = r"""SELECT flowpg.flow_json_get($${"a":"\u0000\\"}$$, 'a')::text"""
    assert query(empty_database_dsn, statement) == [(r'"\u0000\\"',)]


def test_a_check_inside_a_transaction_leaves_its_settings_alone(empty_database_dsn: str) -> None:
    upgrade(empty_database_dsn)
    with psycopg.connect(empty_database_dsn) as connection:
        connection.execute("SET LOCAL search_path = pg_temp")
        assert check_connection(connection).ok
        assert connection.execute("SHOW search_path").fetchone() == ("pg_temp",)
        assert connection.info.transaction_status.name == "INTRANS"


def test_a_check_works_where_nothing_may_be_written(empty_database_dsn: str) -> None:
    upgrade(empty_database_dsn)
    before = describe(empty_database_dsn)
    with psycopg.connect(empty_database_dsn, autocommit=True) as connection:
        connection.execute("SET default_transaction_read_only = on")
        assert check_connection(connection).ok
    assert describe(empty_database_dsn) == before


@pytest.mark.parametrize("dsn", ["host=/nowhere/at/all", "postgresql://host:notaport/x", "no dsn"])
def test_a_wrong_dsn_is_a_sentence(dsn: str) -> None:
    with pytest.raises(StoreUnavailable, match=r"check the DSN|the DSN is malformed"):
        check(dsn)
    with pytest.raises(StoreUnavailable, match=r"check the DSN|the DSN is malformed"):
        upgrade(dsn)
