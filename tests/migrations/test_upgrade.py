"""Migrating: what is made, where, and what stays when it fails."""

from datetime import timedelta
from pathlib import Path

import psycopg
import pytest

from flowpg.errors import InvalidArgument, MigrationFailed, SchemaAhead, SchemaAltered
from flowpg.postgres.install import install_fresh
from flowpg.postgres.migrate import upgrade
from flowpg.postgres.migration_limits import MigrationLimits
from flowpg.postgres.revisions import sha256
from flowpg.postgres.schema_check import SchemaState, check
from flowpg.testing.servers import PostgresServer
from tests.bouncer import PgBouncer
from tests.migrations.catalog import describe, without_version_table
from tests.migrations.support import ledger, next_release, query

ODD_NAMES = [
    "public",
    "UPPER case",
    'quo"ted',
    "it's 100% %s :name {0}",
    "$$; DROP TABLE x; --",
    "a.b",
    "back\\slash",
    "schön",
    "new",
    "x" * 63,
]


def test_a_migrated_schema_equals_a_fresh_install_of_the_sql_directory(
    empty_database_dsn: str,
) -> None:
    upgrade(empty_database_dsn)
    migrated = without_version_table(describe(empty_database_dsn))
    query(empty_database_dsn, "DROP SCHEMA flowpg CASCADE")
    install_fresh(empty_database_dsn, "flowpg")
    fresh = describe(empty_database_dsn)
    hint = "run `python -m migrations.freeze`"
    assert migrated - fresh == set(), f"only in the migrated schema; {hint}"
    assert fresh - migrated == set(), f"only in a fresh install; {hint}"
    assert len(fresh) > 100


def test_upgrade_is_idempotent_and_says_what_it_applied(empty_database_dsn: str) -> None:
    assert upgrade(empty_database_dsn) == ("0001",)
    before = describe(empty_database_dsn)
    assert upgrade(empty_database_dsn) == ()
    assert describe(empty_database_dsn) == before
    assert ledger(empty_database_dsn) == [("0001",), ("0001",)]


@pytest.mark.parametrize("schema", ODD_NAMES)
def test_any_schema_name_is_quoted_and_checked_alike(empty_database_dsn: str, schema: str) -> None:
    assert check(empty_database_dsn, schema).state is SchemaState.MISSING
    upgrade(empty_database_dsn, schema)
    assert check(empty_database_dsn, schema).ok
    assert ledger(empty_database_dsn, schema) == [("0001",), ("0001",)]


@pytest.mark.parametrize(
    "schema", ["", "x" * 64, "a\0b", "pg_mine", "information_schema", "\ud800"]
)
def test_a_name_that_no_schema_can_have_is_refused(empty_database_dsn: str, schema: str) -> None:
    with pytest.raises(InvalidArgument, match="schema"):
        upgrade(empty_database_dsn, schema)


def test_schemas_side_by_side_do_not_see_each_other(empty_database_dsn: str) -> None:
    upgrade(empty_database_dsn, "one")
    assert check(empty_database_dsn, "two").state is SchemaState.MISSING
    upgrade(empty_database_dsn, "two")
    assert check(empty_database_dsn, "one").ok
    assert check(empty_database_dsn, "two").ok


def test_a_schema_made_beforehand_is_used_as_it_is(empty_database_dsn: str) -> None:
    query(empty_database_dsn, "CREATE SCHEMA flowpg; CREATE TABLE flowpg.mine (a int)")
    upgrade(empty_database_dsn)
    assert check(empty_database_dsn).ok


def test_a_failed_first_migration_leaves_no_trace(empty_database_dsn: str, tmp_path: Path) -> None:
    root = next_release(tmp_path, "SELECT 1;")
    pins = (root / "revisions.txt").read_text().splitlines()
    broken = "CREATE TABLE flow_runs (a int);\nSELECT 1 / 0;\n"
    (root / "versions" / "0001_core.sql").write_text(broken)
    pins[-2] = f"0001_core  open  {sha256(broken.encode())}"
    (root / "revisions.txt").write_text("\n".join(pins) + "\n")
    with pytest.raises(MigrationFailed, match=r"0001 .*division by zero; nothing was changed"):
        upgrade(empty_database_dsn, root=root)
    assert query(empty_database_dsn, "SELECT 1 FROM pg_namespace WHERE nspname = 'flowpg'") == []


def test_a_failed_later_migration_leaves_schema_ledger_and_history_as_they_were(
    empty_database_dsn: str, tmp_path: Path
) -> None:
    upgrade(empty_database_dsn)
    query(empty_database_dsn, 'SELECT * FROM flow_start(\'{"name":"w","version":"1"}\')')
    before = describe(empty_database_dsn)
    history = query(empty_database_dsn, "SELECT * FROM flow_events")
    root = next_release(
        tmp_path,
        "ALTER TABLE flow_runs ADD COLUMN extra text;\n"
        "DELETE FROM flow_runs;\n"
        "SELECT no_such_column FROM flow_runs;\n",
    )
    with pytest.raises(MigrationFailed, match=r"0002 .*near line 3 of 0002_next.sql.*no_such_col"):
        upgrade(empty_database_dsn, root=root)
    assert describe(empty_database_dsn) == before
    assert query(empty_database_dsn, "SELECT * FROM flow_events") == history
    assert len(query(empty_database_dsn, "SELECT 1 FROM flow_runs")) == 1
    assert ledger(empty_database_dsn) == [("0001",), ("0001",)]
    assert check(empty_database_dsn).ok


def test_a_failure_keeps_the_migrations_before_it(empty_database_dsn: str, tmp_path: Path) -> None:
    root = next_release(tmp_path, "SELECT 1 / 0;")
    with pytest.raises(MigrationFailed, match="0002"):
        upgrade(empty_database_dsn, root=root)
    assert ledger(empty_database_dsn) == [("0001",), ("0001",)]


def test_a_statement_that_takes_too_long_is_named(empty_database_dsn: str, tmp_path: Path) -> None:
    upgrade(empty_database_dsn)
    root = next_release(tmp_path, "SELECT pg_sleep(3600);")
    limits = MigrationLimits(statement=timedelta(milliseconds=50))
    with pytest.raises(MigrationFailed, match=r"ran longer than 0\.05 s; nothing was changed"):
        upgrade(empty_database_dsn, root=root, limits=limits)


def test_a_newer_or_altered_schema_is_never_touched(
    empty_database_dsn: str, tmp_path: Path
) -> None:
    root = next_release(tmp_path, "CREATE TABLE flow_more (a bigint);")
    upgrade(empty_database_dsn, root=root)
    with pytest.raises(SchemaAhead, match="0002"):
        upgrade(empty_database_dsn)
    query(empty_database_dsn, "UPDATE flow_migrations SET sha256 = 'x' WHERE version = '0001'")
    with pytest.raises(SchemaAltered, match="0001"):
        upgrade(empty_database_dsn, root=root)


def test_a_hostile_search_path_of_the_database_changes_nothing(empty_database_dsn: str) -> None:
    query(
        empty_database_dsn,
        "CREATE SCHEMA evil;"
        "CREATE TABLE evil.flow_migrations (version text, sha256 text);"
        "CREATE TABLE evil.flow_alembic_version (version_num text);"
        "INSERT INTO evil.flow_alembic_version VALUES ('0001');"
        "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET search_path = evil, public',"
        " current_database()); END $$",
        "public",
    )
    assert check(empty_database_dsn).state is SchemaState.MISSING
    assert upgrade(empty_database_dsn) == ("0001",)
    assert check(empty_database_dsn).ok


@pytest.mark.pgbouncer
def test_a_transaction_pooler_is_no_obstacle(
    pg_server: PostgresServer, pgbouncer: PgBouncer
) -> None:
    with pg_server.database() as name:
        dsn = pgbouncer.dsn_of(pg_server.admin_dsn, name)
        assert upgrade(dsn) == ("0001",)
        assert check(dsn).ok
        # Nothing of the migration's settings stays with a connection of the pool.
        for _ in range(5):
            with psycopg.connect(dsn, prepare_threshold=None) as connection:
                assert connection.execute("SHOW search_path").fetchone() == ('"$user", public',)
                assert connection.execute("SHOW lock_timeout").fetchone() == ("0",)
