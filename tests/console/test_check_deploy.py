"""`flowpg check-deploy`: what it says of the open runs of a database, and its exit code."""

import json
from pathlib import Path

import psycopg
import pytest
from typer.testing import CliRunner

from flowpg.console.main import app
from tests.console import deployable

runner = CliRunner()
MODULE = "tests.console.deployable"


@pytest.fixture
async def runs(direct_dsn: str) -> str:
    """A database in which runs of the first release wait, and one of another application."""
    await deployable.start_runs(direct_dsn, ["run-1", "run-2", "run-3"])
    return direct_dsn


def check(dsn: str, release: str, *more: str) -> tuple[int, str]:
    found = runner.invoke(
        app, ["check-deploy", "--app", f"{MODULE}:{release}", "--dsn", dsn, *more]
    )
    return found.exit_code, found.stdout


def test_code_that_fits_all_open_runs_may_be_deployed(runs: str) -> None:
    code, said = check(runs, "first")
    assert said.endswith("4 runs replayed: 3 fits, 1 unserved\n")
    assert code == 0
    assert "parcel-1  parcel  unserved" in said
    assert check(runs, "first", "--every-workflow")[0] == 1
    assert check(runs, "first", "--workflow", "order") == (0, "3 runs replayed: 3 fits\n")


def test_code_that_diverges_is_shown_run_by_run_with_the_line(runs: str) -> None:
    code, said = check(runs, "second", "--workflow", "order")
    assert code == 1
    assert "run-2  order  diverges\n    event " in said
    assert f"{Path(deployable.__file__).name}:" in said
    assert deployable.TOKEN not in said
    code, said = check(runs, "second", "--workflow", "order", "--sample", "2", "--json")
    found = json.loads(said)
    assert code == 1
    assert found["replayed"] == found["verdicts"]["diverges"] == len(found["runs"]) == 2
    assert "expected" in found["runs"][0]["reason"]


def test_nothing_is_written_and_a_reader_may_ask(runs: str) -> None:
    with psycopg.connect(runs, autocommit=True) as owner:
        owner.execute(f"CREATE ROLE deploy_checker LOGIN PASSWORD '{owner.info.password}'")
        owner.execute("SELECT flowpg.flow_grant('deploy_checker', 'reader')")
        owner.execute("ALTER ROLE deploy_checker SET default_transaction_read_only = on")
        try:
            as_reader = psycopg.conninfo.make_conninfo(runs, user="deploy_checker")
            assert check(as_reader, "first", "--workflow", "order")[0] == 0
        finally:
            owner.execute("DROP OWNED BY deploy_checker")
            owner.execute("DROP ROLE deploy_checker")


def test_a_run_that_cannot_be_read_hides_nothing_of_the_others(runs: str) -> None:
    payload = '{"progress":' + "[" * 300 + "]" * 300 + "}"
    with psycopg.connect(runs, autocommit=True) as foreign:
        foreign.execute(
            "INSERT INTO flowpg.flow_events (run_id, sequence, event_type, payload)"
            " SELECT run_id, head_sequence + 1, 'run_progress_recorded', %s"
            "   FROM flowpg.flow_runs WHERE run_id = 'run-2'",
            (payload,),
        )
    code, said = check(runs, "first", "--workflow", "order")
    assert code == 1
    assert said.endswith("3 runs replayed: 2 fits, 1 blocked\n")
    assert "run-2" in said
    assert "nested" in said


def test_exported_histories_take_the_place_of_a_database(runs: str, tmp_path: Path) -> None:
    exported = tmp_path / "run-1.jsonl"
    found = runner.invoke(app, ["history", "run-1", "--jsonl", "--dsn", runs])
    exported.write_text(found.stdout)
    for release, code in (("first", 0), ("second", 1)):
        found = runner.invoke(
            app, ["check-deploy", "--app", f"{MODULE}:{release}", "--history", str(exported)]
        )
        assert found.exit_code == code, found.output
    exported.write_text("no history")
    found = runner.invoke(
        app, ["check-deploy", "--app", f"{MODULE}:first", "--history", str(exported)]
    )
    assert found.exit_code == 2
    assert "run-1.jsonl" in found.stderr


def test_what_cannot_be_found_out_has_an_exit_code_of_its_own(empty_database_dsn: str) -> None:
    assert check(empty_database_dsn, "first")[0] == 2
    assert check(empty_database_dsn, "nothing")[0] == 2
