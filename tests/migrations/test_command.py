"""``flowpg migrate``, as a person or a deployment runs it."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from flowpg.console.main import app
from flowpg.postgres.migrate import render_sql
from flowpg.postgres.schema_check import check
from tests.migrations.support import query


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FLOWPG_DSN", "FLOWPG_SCHEMA", "FLOWPG_DEBUG"):
        monkeypatch.delenv(name, raising=False)


def flowpg(*arguments: str, **environment: str) -> Result:
    return CliRunner().invoke(app, list(arguments), env=environment)


def test_migrate_says_what_it_applied_and_then_that_there_is_nothing_to_do(
    empty_database_dsn: str,
) -> None:
    first = flowpg("migrate", "--dsn", empty_database_dsn)
    assert (first.exit_code, first.stdout) == (
        0,
        "applied 0001; schema 'flowpg' is at migration 0001\n",
    )
    second = flowpg("migrate", FLOWPG_DSN=empty_database_dsn)
    assert (second.exit_code, second.stdout) == (
        0,
        "nothing to do: schema 'flowpg' is at migration 0001\n",
    )


def test_check_fails_with_a_sentence_until_the_schema_is_there(empty_database_dsn: str) -> None:
    missing = flowpg("migrate", "--check", "--dsn", empty_database_dsn)
    assert missing.exit_code == 1
    assert missing.stderr == (
        "flowpg: schema 'flowpg' has no flowpg tables; run `flowpg migrate`\n"
    )
    assert query(empty_database_dsn, "SELECT 1 FROM pg_namespace WHERE nspname = 'flowpg'") == []
    flowpg("migrate", "--dsn", empty_database_dsn)
    present = flowpg("migrate", "--check", "--dsn", empty_database_dsn)
    assert (present.exit_code, present.stdout) == (0, "schema 'flowpg' is at migration 0001\n")


def test_check_fails_when_the_schema_was_altered(empty_database_dsn: str) -> None:
    flowpg("migrate", "--dsn", empty_database_dsn)
    query(empty_database_dsn, "DROP INDEX scheduled_wakeups_due_idx")
    for arguments in (["--check"], []):
        altered = flowpg("migrate", *arguments, "--dsn", empty_database_dsn)
        assert altered.exit_code == 1
        assert "index scheduled_wakeups_due_idx is gone" in altered.stderr


@pytest.mark.parametrize("by_environment", [True, False])
def test_the_schema_is_named_by_option_or_environment(
    empty_database_dsn: str, by_environment: bool
) -> None:
    name = 'Other "one"'
    if by_environment:
        result = flowpg("migrate", "--dsn", empty_database_dsn, FLOWPG_SCHEMA=name)
    else:
        result = flowpg("migrate", "--dsn", empty_database_dsn, "--schema", name)
    assert result.exit_code == 0, result.stderr
    assert check(empty_database_dsn, name).ok
    assert not check(empty_database_dsn).ok


def test_printing_the_sql_needs_no_server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    result = flowpg("migrate", "--sql", "--schema", "elsewhere", "--lock-timeout", "0.5")
    assert result.exit_code == 0
    assert "SET LOCAL lock_timeout = '500ms';" in result.stdout
    assert 'SET LOCAL search_path = "elsewhere", pg_temp;' in result.stdout
    assert flowpg("migrate", "--sql").stdout == render_sql()
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_dsn_or_contradictory_options_are_a_sentence() -> None:
    unreachable = flowpg("migrate", "--dsn", "host=/nowhere/at/all")
    assert unreachable.exit_code == 1
    assert unreachable.stderr.startswith("flowpg: cannot connect to PostgreSQL:")
    assert flowpg("migrate", "--sql", "--check").exit_code == 2
    assert flowpg("migrate", "--after", "0001").exit_code == 2
    unknown = flowpg("migrate", "--sql", "--after", "0009")
    assert (unknown.exit_code, unknown.stderr) == (
        1,
        "flowpg: this release has no migration '0009'; it has 0001\n",
    )
