"""Migrations beside traffic and beside each other: nobody waits long, nobody is left half done."""

from __future__ import annotations

import subprocess
import sys
import threading
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from flowpg.errors import FlowError, MigrationBlocked
from flowpg.postgres.migrate import upgrade
from flowpg.postgres.migration_limits import MigrationLimits
from tests.migrations.catalog import describe
from tests.migrations.support import (
    hold_migration_lock,
    ledger,
    next_release,
    query,
    tables,
)
from tests.waiting import until

QUICK = MigrationLimits(
    lock=timedelta(milliseconds=300), other_migrator=timedelta(milliseconds=200)
)


def _changes_to_every_table(dsn: str) -> str:
    return "".join(f"ALTER TABLE {table} ADD COLUMN more text;\n" for table in tables(dsn))


def test_a_long_reader_of_any_table_makes_a_migration_give_way_and_a_retry_succeeds(
    empty_database_dsn: str, tmp_path: Path
) -> None:
    dsn = empty_database_dsn
    upgrade(dsn)
    root = next_release(tmp_path, _changes_to_every_table(dsn))
    before = describe(dsn)
    for table in tables(dsn):
        with psycopg.connect(dsn) as reader:
            # Of the tables that the migration itself writes, a reader's lock is harmless until the
            # ALTER comes; the outcome is the same for all.
            reader.execute(
                sql.SQL("SELECT FROM {} LIMIT 1").format(sql.Identifier("flowpg", table))
            )
            with pytest.raises(MigrationBlocked, match=r"0\.3 s .*nothing was changed.*again"):
                upgrade(dsn, root=root, limits=QUICK)
            # The reader is still there, and so is everybody else.
            query(dsn, 'SELECT * FROM flow_start(\'{"name":"w","version":"1"}\')')
        assert describe(dsn) == before
        assert ledger(dsn) == [("0001",), ("0001",)]
    assert upgrade(dsn, root=root, limits=QUICK) == ("0002",)


def test_who_holds_a_migration_up_is_named(empty_database_dsn: str, tmp_path: Path) -> None:
    upgrade(empty_database_dsn)
    root = next_release(tmp_path, "ALTER TABLE flow_runs ADD COLUMN more text;")
    with psycopg.connect(empty_database_dsn) as reader:
        reader.execute("SELECT FROM flowpg.flow_runs")
        pid = reader.info.backend_pid
        with pytest.raises(MigrationBlocked, match=rf"pid {pid} \(.*idle in transaction"):
            upgrade(empty_database_dsn, root=root, limits=QUICK)


def test_traffic_that_queues_behind_a_waiting_migration_goes_on(
    empty_database_dsn: str, tmp_path: Path
) -> None:
    dsn = empty_database_dsn
    upgrade(dsn)
    root = next_release(tmp_path, "ALTER TABLE flow_runs ADD COLUMN more text;")
    outcome: list[FlowError] = []

    def migrate() -> None:
        try:
            upgrade(dsn, root=root, limits=MigrationLimits(lock=timedelta(seconds=1)))
        except FlowError as error:
            outcome.append(error)

    with psycopg.connect(dsn) as reader:
        reader.execute("SELECT FROM flowpg.flow_runs")
        migrator = threading.Thread(target=migrate)
        migrator.start()
        until(
            lambda: query(
                dsn,
                "SELECT 1 FROM pg_stat_activity WHERE datname = current_database()"
                " AND wait_event_type = 'Lock' AND query LIKE 'ALTER TABLE%'",
            ),
            "the migration waits for its lock",
        )
        # Stands in the queue behind the migration until that gives way.
        query(dsn, 'SELECT * FROM flow_start(\'{"name":"w","version":"1"}\')')
        migrator.join()
    assert isinstance(outcome[0], MigrationBlocked)
    assert len(query(dsn, "SELECT 1 FROM flow_runs")) == 1
    assert upgrade(dsn, root=root) == ("0002",)


def test_three_migrators_at_once_all_end_and_one_did_the_work(
    empty_database_dsn: str, tmp_path: Path
) -> None:
    dsn = empty_database_dsn
    root = next_release(
        tmp_path,
        "DROP INDEX CONCURRENTLY IF EXISTS more_idx;\n-- next\n"
        "CREATE INDEX CONCURRENTLY more_idx ON flow_runs (queue, run_id);\n",
        transactional=False,
    )
    program = (
        "import sys, pathlib\nfrom flowpg.postgres.migrate import upgrade\n"
        "print(*upgrade(sys.argv[1], root=pathlib.Path(sys.argv[2])))\n"
    )
    polling = (
        "SELECT count(DISTINCT pid) FROM pg_stat_activity WHERE datname = current_database()"
        " AND query LIKE '%flowpg migrate%' AND pid <> pg_backend_pid()"
    )
    with psycopg.connect(dsn) as gate:
        hold_migration_lock(gate)
        migrators = [
            subprocess.Popen(
                [sys.executable, "-c", program, dsn, str(root)],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for _ in range(3)
        ]
        # After a rollback a waiter shows its ROLLBACK as its last query, so look until all three
        # have been seen asking.
        seen: set[int] = set()

        def all_have_asked() -> bool:
            rows = query(dsn, polling.replace("count(DISTINCT pid)", "pid"))
            seen.update(pid for (pid,) in rows if pid != gate.info.backend_pid)
            return len(seen) == 3

        until(all_have_asked, "three migrators ask for the lock", 60)
    outputs = [migrator.communicate() for migrator in migrators]
    assert [migrator.returncode for migrator in migrators] == [0, 0, 0], outputs
    assert sorted(out.strip() for out, _ in outputs) == ["", "", "0001 0002"]
    assert ledger(dsn) == [("0001",), ("0002",), ("0002",)]
    assert query(
        dsn, "SELECT indisvalid FROM pg_index WHERE indexrelid = 'more_idx'::regclass"
    ) == [(True,)]


def test_a_migrator_gives_up_on_another_one_with_a_sentence(empty_database_dsn: str) -> None:
    with psycopg.connect(empty_database_dsn) as other:
        hold_migration_lock(other)
        with pytest.raises(MigrationBlocked, match="another migration of schema 'flowpg'"):
            upgrade(empty_database_dsn, limits=QUICK)
        # The lock is the schema's, not the database's.
        assert upgrade(empty_database_dsn, "elsewhere", limits=QUICK) == ("0001",)
    assert upgrade(empty_database_dsn, limits=QUICK) == ("0001",)


def test_the_migration_lock_is_held_without_a_snapshot(empty_database_dsn: str) -> None:
    with psycopg.connect(empty_database_dsn) as holder:
        hold_migration_lock(holder)
        rows = query(
            empty_database_dsn,
            "SELECT backend_xmin IS NULL AND backend_xid IS NULL FROM pg_stat_activity"
            f" WHERE pid = {holder.info.backend_pid}",
        )
        assert rows == [(True,)]
