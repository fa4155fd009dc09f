"""The commands about runs, where values are sealed: opened with an app, told without one."""

import json
from collections.abc import Callable

import pytest
from typer.testing import CliRunner

from flowpg.client import FlowClient
from flowpg.console.main import app
from flowpg.engine.flow_engine import FlowEngine
from flowpg.model.codecs import is_sealed
from flowpg.model.jsonl import load_history
from flowpg.model.snapshot import RunStatus
from flowpg.store.postgres import PostgresEventStore
from tests.console import sealing_app
from tests.console.sealing_app import CANARY

runner = CliRunner()
INPUT = json.dumps({"text": CANARY})
APP = ("--app", "tests.console.sealing_app:app")
ROTATED = ("--app", "tests.console.sealing_app:rotated")
OTHER = ("--app", "tests.console.sealing_app:other")
KEYLESS = ("--app", "tests.console.sealing_app:keyless")

Command = Callable[..., str]


@pytest.fixture
def command(direct_dsn: str) -> Command:
    """Runs a command on the database; what it prints, and what it complains of after that."""

    def run(*arguments: str, code: int = 0) -> str:
        found = runner.invoke(app, [*arguments, "--dsn", direct_dsn])
        assert found.exit_code == code, found.output
        return found.output

    return run


async def drive(dsn: str, run_id: str) -> None:
    """What a worker of the app does with a run."""
    store = await PostgresEventStore.connect(dsn)
    async with FlowEngine(store, sealing_app.app) as engine:
        await engine.drive(run_id)


async def test_a_run_is_started_answered_and_shown_with_the_codecs_of_an_app(
    direct_dsn: str, command: Command
) -> None:
    assert command("start", "main", "--input", INPUT, "--id", "r", *APP) == "r\n"
    await drive(direct_dsn, "r")
    assert "it was started before" in command("start", "main", "--input", INPUT, "--id", "r", *APP)
    answered = command("answer", "r", "go", "--payload", f'"{CANARY}"', *APP)
    assert "hook go answered" in answered
    again = command("answer", "r", "go", "--payload", f'"{CANARY}"', *ROTATED)
    assert "was answered so before" in again
    await drive(direct_dsn, "r")
    with FlowClient(direct_dsn) as client:
        stored = [event.payload for event in client.history("r")]
    assert CANARY not in "".join(stored).replace(f"token of {CANARY}", "")

    said = command("show", "r", *APP)
    assert f'output    ["{CANARY}{CANARY}","{CANARY}"]' in said
    assert f"ValueError: {CANARY}\n" in said
    shown = json.loads(command("show", "r", "--json", *APP))
    assert shown["output"] == [CANARY * 2, CANARY]
    assert f"ValueError: {CANARY}\n" in command("history", "r", *APP)
    opened = load_history(command("history", "r", "--jsonl", *APP))
    values = [event.data.get(name) for event in opened for name in ("input", "output", "payload")]
    assert [value for value in values if value is not None] == [
        {"text": CANARY},
        {"text": CANARY},
        CANARY * 2,
        {"text": CANARY},
        CANARY,
        [CANARY * 2, CANARY],
    ]


async def test_an_answer_by_token_and_the_end_of_a_failed_run_are_opened_too(
    direct_dsn: str, command: Command
) -> None:
    command("start", "failing", "--input", INPUT, "--id", "r", *APP)
    await drive(direct_dsn, "r")
    with FlowClient(direct_dsn, codecs=sealing_app.app.codecs) as client:
        client.resume_hook_by_token("the token", "because ")
    await drive(direct_dsn, "r")
    assert f"LookupError: because {CANARY}\n" in command("show", "r", *APP)
    assert f"LookupError: because {CANARY}\n" in command("history", "r", *APP)
    opened = load_history(command("history", "r", "--jsonl", *APP))
    assert [e.data["payload"] for e in opened if e.type == "hook_received"] == ["because "]
    assert "LookupError: sealed (aes-gcm with key 'old')" in command("show", "r")


async def test_without_the_app_a_sealed_value_is_said_to_be_one(
    direct_dsn: str, command: Command
) -> None:
    command("start", "main", "--input", INPUT, "--id", "r", *APP)
    await drive(direct_dsn, "r")
    command("answer", "r", "go", "--payload", "null", *APP)
    await drive(direct_dsn, "r")
    for arguments in (("show", "r"), ("history", "r")):
        said = command(*arguments)
        assert "ValueError: sealed (aes-gcm with key 'old')" in said
        assert CANARY not in said
        assert '"$"' not in said
    assert "output    sealed (aes-gcm with key 'old')\n" in command("show", "r")
    # What programs read is what is stored.
    assert is_sealed(json.loads(command("show", "r", "--json"))["output"])
    with FlowClient(direct_dsn) as client:
        exported = load_history(command("history", "r", "--jsonl"))
        assert [e.data for e in exported] == [e.data for e in client.history("r")]


async def test_what_the_app_cannot_open_stays_sealed_and_is_told(
    direct_dsn: str, command: Command
) -> None:
    command("start", "main", "--input", INPUT, "--id", "r", *APP)
    await drive(direct_dsn, "r")
    command("answer", "r", "go", "--payload", "1", *ROTATED)
    for arguments in (("show", "r"), ("history", "r")):
        said = command(*arguments, *OTHER)
        assert "ValueError: sealed (aes-gcm with key 'old')" in said
        assert "flowpg: shown sealed: " in said
        assert "does not decrypt with key 'old'" in said
        assert " more)\n" in said
        assert CANARY not in said


async def test_nothing_is_stored_as_it_is_by_mistake_where_values_are_sealed(
    direct_dsn: str, command: Command
) -> None:
    # No run of the workflow is known yet: nothing says that its values are sealed.
    assert command("start", "main", "--input", INPUT, "--id", "first") == "first\n"
    command("start", "main", "--input", INPUT, "--id", "r", *APP)
    await drive(direct_dsn, "r")
    for without in ((), KEYLESS):
        refused = command("start", "main", "--input", INPUT, "--id", "other", *without, code=1)
        assert "run of 'main', r, has sealed values, and this input would be stored" in refused
        refused = command("answer", "r", "go", "--payload", "1", *without, code=1)
        assert "run 'r' has sealed values; name the app with --app" in refused
    # What is sealed of another workflow says nothing of this one.
    command("start", "failing", "--input", INPUT, "--id", "apart")
    with FlowClient(direct_dsn) as client:
        assert client.summary().total == 3
        assert client.run_info("r").status is RunStatus.SUSPENDED


async def test_a_worker_reads_plain_values_as_they_are_and_no_run_is_stuck(
    direct_dsn: str, command: Command
) -> None:
    command("start", "main", "--input", INPUT, "--id", "r")
    await drive(direct_dsn, "r")
    # The input is plain; the steps of its worker are not.
    assert "has sealed values" in command("answer", "r", "go", "--payload", "1", code=1)
    command("answer", "r", "go", "--payload", "1", "--plain")
    await drive(direct_dsn, "r")
    assert f'output    ["{CANARY}{CANARY}",1]' in command("show", "r", *APP)
    command("start", "main", "--input", INPUT, "--id", "other", *APP)
    for run_id, more in (("third", ()), ("fourth", APP)):
        command("start", "main", "--input", INPUT, "--id", run_id, "--plain", *more)
        with FlowClient(direct_dsn) as client:
            [created, *_] = client.history(run_id)
        assert created.data["input"] == {"text": CANARY}
    await drive(direct_dsn, "other")
    command("answer", "other", "go", "--payload", f'"{CANARY}"', "--plain", *APP)
    with FlowClient(direct_dsn) as client:
        assert client.snapshot("other").hooks["go"].payload == CANARY


@pytest.mark.parametrize("name", ["start", "answer", "show", "history"])
def test_an_app_that_is_none_is_told_before_anything_is_done(name: str, command: Command) -> None:
    arguments = {"answer": ("r", "go", "--payload", "1")}.get(name, ("main",))
    said = command(name, *arguments, "--app", "tests.console.sealing_app:missing", code=1)
    assert said == ("flowpg: --app: module 'tests.console.sealing_app' has no 'missing'\n")
