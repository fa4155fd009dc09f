"""The command: its version, and how it fails."""

import errno
import subprocess
import sys

import psycopg
import pytest
import typer
from typer.testing import CliRunner

from flowpg.console import main
from flowpg.errors import FlowError, RunNotFound

runner = CliRunner()


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> typer.Typer:
    """The command with a command in it that fails as told."""
    app = typer.Typer(cls=main._SentenceGroup, pretty_exceptions_enable=False)
    failures: dict[str, Exception] = {
        "flow": RunNotFound("order-1"),
        "database": psycopg.OperationalError("connection to secret failed"),
        "file": FileNotFoundError(errno.ENOENT, "No such file or directory", "/x"),
        "other": ValueError("payload: secret"),
        "usage": typer.BadParameter("not like this"),
        "pipe": BrokenPipeError(errno.EPIPE, "Broken pipe"),
    }

    @app.command()
    def fail(how: str) -> None:
        raise failures[how]

    @app.command()
    def other() -> None:
        raise typer.Exit(3)

    monkeypatch.delenv("FLOWPG_DEBUG", raising=False)
    return app


def test_it_tells_its_version() -> None:
    result = runner.invoke(main.app, ["--version"])
    assert (result.exit_code, result.stdout) == (0, "flowpg 0.1.0\n")


def test_without_a_command_it_shows_its_help() -> None:
    assert "server" in runner.invoke(main.app, []).output


def test_an_error_of_ours_is_one_sentence_and_exit_code_1(failing: typer.Typer) -> None:
    result = runner.invoke(failing, ["fail", "flow"])
    assert result.exit_code == 1
    assert result.stderr == (
        "flowpg: run 'order-1' does not exist; start it first or check the id\n"
    )


@pytest.mark.parametrize("how", ["database", "other"])
def test_an_error_of_others_says_nothing_that_may_be_secret(failing: typer.Typer, how: str) -> None:
    result = runner.invoke(failing, ["fail", how])
    assert result.exit_code == 1
    assert result.stderr.count("\n") == 1
    assert "secret" not in result.stderr
    assert "Traceback" not in result.stderr


def test_an_error_of_the_system_names_the_file(failing: typer.Typer) -> None:
    assert "No such file or directory: '/x'" in runner.invoke(failing, ["fail", "file"]).stderr


def test_the_traceback_is_shown_when_asked_for(
    failing: typer.Typer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLOWPG_DEBUG", "1")
    result = runner.invoke(failing, ["fail", "other"])
    assert result.exit_code == 1
    assert "Traceback" in result.stderr


def test_wrong_usage_and_chosen_exit_codes_stay_typers_own(failing: typer.Typer) -> None:
    assert runner.invoke(failing, ["fail", "usage"]).exit_code == 2
    assert runner.invoke(failing, ["fail"]).exit_code == 2
    assert runner.invoke(failing, ["other"]).exit_code == 3


def test_a_reader_that_has_seen_enough_is_no_error_of_ours(failing: typer.Typer) -> None:
    result = runner.invoke(failing, ["fail", "pipe"])
    assert result.exit_code == 1
    assert result.stderr == ""


def test_every_error_of_ours_has_a_sentence() -> None:
    assert main._sentence(FlowError("what happened")) == "what happened"


def test_only_migrations_pay_for_their_imports() -> None:
    heavy = "{'alembic', 'sqlalchemy'}"
    script = f"import flowpg.console.main, sys; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"
