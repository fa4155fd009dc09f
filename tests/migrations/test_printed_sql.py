"""``flowpg migrate --sql``: what a DBA reads, runs by hand, and gets."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from flowpg.errors import InvalidArgument
from flowpg.postgres.binaries import find_binaries
from flowpg.postgres.migrate import render_sql, upgrade
from flowpg.postgres.schema_check import check
from tests.migrations.catalog import describe
from tests.migrations.support import hold_migration_lock, ledger, next_release, query


def run_in_one_execute(dsn: str, text: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(text)


def run_in_psql(dsn: str, text: str) -> None:
    psql = shutil.which("psql") or shutil.which("psql", path=str(find_binaries().directory))
    if psql is None:
        pytest.skip("no psql beside the server's programs, nor on the path")
    done = subprocess.run(
        [psql, "-X", "-q", "-v", "ON_ERROR_STOP=1", dsn],
        input=text,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("run", [run_in_one_execute, run_in_psql])
@pytest.mark.parametrize("schema", ["flowpg", 'Odd "name" 100% :x $$'])
def test_running_the_printed_sql_by_hand_gives_the_schema_that_migrate_makes(
    empty_database_dsn: str, schema: str, run: Callable[[str, str], None]
) -> None:
    dsn = empty_database_dsn
    run(dsn, render_sql(schema))
    by_hand = describe(dsn, schema)
    rows = ledger(dsn, schema)
    digests = query(dsn, "SELECT version, sha256 FROM flow_migrations", schema)
    assert check(dsn, schema).ok
    assert upgrade(dsn, schema) == ()
    with psycopg.connect(dsn) as connection:
        connection.execute(sql.SQL("DROP SCHEMA {} CASCADE").format(sql.Identifier(schema)))
    upgrade(dsn, schema)
    assert describe(dsn, schema) == by_hand
    assert ledger(dsn, schema) == rows
    assert query(dsn, "SELECT version, sha256 FROM flow_migrations", schema) == digests


def test_printed_settings_do_not_outlive_their_transaction(empty_database_dsn: str) -> None:
    with psycopg.connect(empty_database_dsn, autocommit=True) as connection:
        names = ("search_path", "lock_timeout", "statement_timeout")
        before = [connection.execute(f"SHOW {name}").fetchone() for name in names]
        connection.execute(render_sql())
        assert [connection.execute(f"SHOW {name}").fetchone() for name in names] == before


def test_running_the_printed_sql_twice_changes_nothing(empty_database_dsn: str) -> None:
    run_in_one_execute(empty_database_dsn, render_sql())
    before = describe(empty_database_dsn)
    with pytest.raises(psycopg.errors.DuplicateTable):
        run_in_one_execute(empty_database_dsn, render_sql())
    assert describe(empty_database_dsn) == before
    assert ledger(empty_database_dsn) == [("0001",), ("0001",)]


def test_the_printed_sql_and_a_migrator_exclude_each_other(empty_database_dsn: str) -> None:
    with psycopg.connect(empty_database_dsn) as other:
        hold_migration_lock(other)
        with pytest.raises(psycopg.errors.LockNotAvailable, match="another migration"):
            run_in_one_execute(empty_database_dsn, render_sql())
    run_in_one_execute(empty_database_dsn, render_sql())


def test_only_the_later_migrations_are_printed_on_request(
    empty_database_dsn: str, tmp_path: Path
) -> None:
    root = next_release(tmp_path, "CREATE TABLE flow_more (a bigint);")
    upgrade(empty_database_dsn)
    text = render_sql(after="0001", root=root)
    assert "flow_runs" not in text
    run_in_one_execute(empty_database_dsn, text)
    assert ledger(empty_database_dsn) == [("0001",), ("0002",), ("0002",)]
    assert "nothing to do" in render_sql(after="0001")
    with pytest.raises(InvalidArgument, match="has no migration '0009'; it has 0001"):
        render_sql(after="0009")


def test_all_migrations_run_from_one_script(empty_database_dsn: str, tmp_path: Path) -> None:
    root = next_release(tmp_path, "CREATE TABLE flow_more (a bigint);")
    run_in_one_execute(empty_database_dsn, render_sql(root=root))
    assert ledger(empty_database_dsn) == [("0001",), ("0002",), ("0002",)]


def test_a_migration_without_a_transaction_is_printed_so_that_psql_can_run_it(
    empty_database_dsn: str, tmp_path: Path
) -> None:
    root = next_release(
        tmp_path,
        "CREATE INDEX CONCURRENTLY more_idx ON flow_runs (queue, run_id);\n",
        transactional=False,
    )
    run_in_psql(empty_database_dsn, render_sql(root=root))
    assert ledger(empty_database_dsn) == [("0001",), ("0002",), ("0002",)]


def test_the_printed_sql_needs_no_server_and_is_the_same_each_time() -> None:
    text = render_sql()
    assert text == render_sql()
    assert text.startswith("-- flowpg, schema 'flowpg': 0001_core.")


def test_squawk_finds_nothing_in_the_printed_sql(tmp_path: Path) -> None:
    squawk = shutil.which("squawk", path=str(Path(sys.executable).parent)) or shutil.which("squawk")
    if squawk is None:
        pytest.skip("squawk is not installed")
    printed = tmp_path / "migrations.sql"
    printed.write_text(render_sql())
    rules = Path(__file__).parents[2] / ".squawk.toml"
    done = subprocess.run(
        [squawk, "--config", str(rules), str(printed)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
