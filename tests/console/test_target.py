"""Which database a command works on."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from typer.testing import CliRunner

from flowpg.console.main import app
from flowpg.console.target import open_target
from flowpg.errors import InvalidArgument
from flowpg.postgres.binaries import Binaries
from flowpg.postgres.embedded import EmbeddedPostgres
from tests.postgres.owners import ROOT, until_gone, value


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, binaries: Binaries) -> Path:
    """The directory of the embedded server that commands use."""
    monkeypatch.setenv("FLOWPG_DATA", str(tmp_path / "pg"))
    monkeypatch.setenv("FLOWPG_PG_BIN", str(binaries.directory))
    return tmp_path / "pg"


@pytest.fixture
def serving(place: Path) -> Iterator[subprocess.Popen[str]]:
    """`flowpg server` in a process of its own."""
    with subprocess.Popen(
        [sys.executable, "-m", "flowpg", "server"], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        process.terminate()


def has_schema(dsn: str) -> object:
    """Whether the database was migrated."""
    return value(dsn, "SELECT to_regnamespace('flowpg') IS NOT NULL")


def test_a_named_database_is_used_as_it_is(
    empty_database_dsn: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with open_target(empty_database_dsn) as target:
        assert (target.dsn, target.embedded) == (empty_database_dsn, False)
    assert has_schema(empty_database_dsn) is False
    assert capsys.readouterr().err == ""


def test_without_a_name_it_is_an_embedded_server_which_is_said_and_migrated(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with open_target(None) as target:
        assert target.embedded
        assert has_schema(target.dsn) is True
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "using an embedded PostgreSQL" in said
    assert str(place) in said
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(target.dsn)


@pytest.mark.usefixtures("place")
def test_the_schema_is_left_alone_when_asked() -> None:
    with open_target(None, migrate=False) as target:
        assert has_schema(target.dsn) is False


def test_the_server_of_another_process_is_used_and_left_running(
    place: Path, binaries: Binaries, capsys: pytest.CaptureFixture[str]
) -> None:
    with EmbeddedPostgres(place, binaries=binaries) as server:
        with open_target(None) as target:
            assert target.dsn == server.dsn
        assert "that runs in" in capsys.readouterr().err
        assert value(server.dsn, "SELECT 1") == 1


def test_flowpg_server_prints_the_dsn_that_other_commands_find(
    serving: subprocess.Popen[str],
) -> None:
    assert serving.stdout is not None
    printed = serving.stdout.readline()
    with open_target(None) as target:
        assert printed == target.dsn + "\n"
        pid = int(str(value(target.dsn, "SELECT pg_backend_pid()")))
    serving.terminate()
    assert serving.wait(30) == 0
    until_gone(pid)


@pytest.mark.parametrize(
    "arguments",
    [
        *("runs", "show x", "start w", "migrate", "builds", "health", "scheduler"),
        "worker --app tests.fleet.apps:marked",
    ],
)
def test_no_command_quotes_a_malformed_dsn(arguments: str) -> None:
    dsn = "postgresql+psycopg://ada:s3cret@localhost/x"
    result = CliRunner().invoke(app, [*arguments.split(), "--dsn", dsn], env={"FLOWPG_DEBUG": "1"})
    assert result.exit_code == 1
    assert "write postgresql:// without +psycopg" in result.stderr
    assert "s3cret" not in result.output + result.stderr


@pytest.mark.parametrize("variable", [pytest.param("", id="empty"), pytest.param("  ", id="blank")])
def test_an_empty_dsn_is_no_wish_for_the_embedded_server(
    variable: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLOWPG_DSN", variable)
    result = CliRunner().invoke(app, ["runs"])
    assert result.exit_code == 1
    assert "is empty: name a database" in result.stderr
    assert not place.exists()
    monkeypatch.delenv("FLOWPG_DSN")
    with pytest.raises(InvalidArgument, match="--dsn is empty"), open_target(variable):
        pass


def test_a_second_server_prints_the_dsn_of_the_first_and_fails(
    place: Path, binaries: Binaries
) -> None:
    with EmbeddedPostgres(place, binaries=binaries) as server:
        second = subprocess.run(
            [sys.executable, "-m", "flowpg", "server", "--wait", "0"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert second.returncode == 1
        assert second.stdout == server.dsn + "\n"
        assert f"export FLOWPG_DSN='{server.dsn}'\n" in second.stderr
        assert "belongs to" in second.stderr
        assert value(server.dsn, "SELECT 1") == 1


def test_a_server_takes_over_from_a_command_that_had_one_for_itself(
    place: Path, binaries: Binaries
) -> None:
    with EmbeddedPostgres(place, binaries=binaries):
        second = subprocess.Popen(
            [sys.executable, "-m", "flowpg", "server", "--wait", "60"],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert second.stdout is not None
        assert second.stderr is not None
        assert "another process has a server" in second.stderr.readline()
    with second:
        assert value(second.stdout.readline().strip(), "SELECT 1") == 1
        second.terminate()
    assert second.returncode == 0
