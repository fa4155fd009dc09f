"""What the commands about runs print of ids, reasons, drivers and events."""

import asyncio
import json
import os
import sys
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Literal

import pytest
from pydantic import BaseModel
from typer.testing import CliRunner

from flowpg import FlowApp, HookTokenConflict, hook
from flowpg.console import lines
from flowpg.console.expected import in_short
from flowpg.console.main import app
from flowpg.errors import NonRetryable, UnknownStep
from flowpg.fleet.worker import FlowWorker
from flowpg.model.inspection import SuspensionKind, WorkflowRunSuspension
from flowpg.model.payload_schema import schema_of
from flowpg.replay.runtime import StepInvocation
from tests.engine.support import SPEC, EngineStore
from tests.fleet.apps import Marked


@dataclass
class Order:
    cents: int
    note: str | None = None


class Tree(BaseModel):
    left: "Tree | None" = None


LONG = "order-" + "x" * 200


class Failing(Marked):
    """Its step fails for good."""

    def run_step(self, step: StepInvocation) -> None:
        """Say why."""
        raise NonRetryable("the card was refused\nfor good")


class Without(Marked):
    """Has no step."""

    def run_step(self, step: StepInvocation) -> None:
        """Block."""
        raise UnknownStep(step.step_name)


def said(dsn: str, *arguments: str) -> str:
    """What the command prints."""
    result = CliRunner().invoke(app, [*arguments, "--dsn", dsn])
    assert result.exit_code == 0, result.output
    return result.stdout


async def _driven(store: EngineStore, runtime: Marked, run_id: str) -> None:
    engine = await store.engine(runtime)
    await engine.start_with_id(run_id, SPEC, "s", drive=False)
    await FlowWorker(engine).run_until_idle()


async def test_ids_are_whole_and_what_blocks_a_run_has_a_line_of_its_own(
    postgres_only: EngineStore, direct_dsn: str
) -> None:
    await _driven(postgres_only, Without(), LONG)
    printed = said(direct_dsn, "runs").splitlines()
    assert [line for line in printed if line.startswith(LONG + "  ")]
    assert [line for line in printed if line.startswith("    blocked: UnknownStep: ")]
    assert printed[-1].startswith("1 run: ")
    found = json.loads(said(direct_dsn, "runs", "--json"))
    assert [run["run_id"] for run in found["runs"]] == [LONG]
    assert found["summary"]["total"] == 1


async def test_a_history_says_what_failed_and_which_attempt(
    postgres_only: EngineStore, direct_dsn: str
) -> None:
    await _driven(postgres_only, Failing(), "order-1")
    printed = said(direct_dsn, "history", "order-1")
    assert "attempt 1, NonRetryable: the card was refused | for good" in printed
    assert LONG not in printed


@pytest.mark.parametrize("mark", ["flowpg.error: ", "flowpg.sealed: "])
def test_the_part_of_an_error_that_is_for_programs_is_left_out(mark: str) -> None:
    assert lines.legible(f"ValueError: no\nsuch thing\n{mark}{{}}") == "ValueError: no\nsuch thing"
    assert lines.legible("ValueError: no") == "ValueError: no"
    assert lines.legible(None) == ""


def test_an_answer_is_never_made_up() -> None:
    result = CliRunner().invoke(app, ["answer", "order-1", "approval"])
    assert result.exit_code == 2
    assert "--payload" in result.output + result.stderr


async def test_who_answers_a_hook_that_is_not_there_is_told_which_are(
    postgres_only: EngineStore, direct_dsn: str
) -> None:
    shop = FlowApp("shop")

    @shop.workflow
    async def sale() -> bool:
        return await hook("approval", bool)

    engine = await postgres_only.engine(shop)
    await sale.start_with_id(engine, "order-1")
    wrong = ["answer", "order-1", "aproval", "--payload", "true", "--dsn", direct_dsn]
    result = CliRunner().invoke(app, wrong)
    assert result.exit_code == 1
    assert "hook aproval does not exist; it waits for 'approval'" in result.stderr
    said(direct_dsn, "answer", "order-1", "approval", "--payload", "true")
    assert sale.result(await engine.drive("order-1")) is True


async def test_who_answers_with_what_does_not_fit_is_told_what_is_waited_for(
    postgres_only: EngineStore, direct_dsn: str
) -> None:
    shop = FlowApp("shop")

    @shop.workflow
    async def sale() -> int:
        return (await hook("order", Order)).cents

    engine = await postgres_only.engine(shop)
    await sale.start_with_id(engine, "order-1")
    assert "hook order, answered with {cents: integer, note?: string | null}\n" in said(
        direct_dsn, "show", "order-1"
    )
    [wait] = json.loads(said(direct_dsn, "show", "order-1", "--json"))["waits_for"]
    assert wait["payload_schema"]["required"] == ["cents"]
    wrong = ["answer", "order-1", "order", "--payload", '{"cents": "s3cret"}', "--dsn", direct_dsn]
    result = CliRunner().invoke(app, wrong)
    assert result.exit_code == 1
    assert "cents should be an integer" in result.stderr
    assert "s3cret" not in result.output + result.stderr
    said(direct_dsn, "answer", "order-1", "order", "--payload", '{"cents": 5}')
    assert sale.result(await engine.drive("order-1")) == 5


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (int, "integer"),
        (bool | None, "boolean | null"),
        (Literal["a", 1], '"a" | 1'),
        (list[int | str], "(integer | string)[]"),
        (tuple[int, str], "[integer, string]"),
        (dict[str, list[float]], "{*: number[]}"),
        (datetime, "date-time"),
        (Decimal, "decimal"),
        (Tree, "{left?: Tree | null}"),
    ],
)
def test_what_is_waited_for_is_one_line(kind: Any, text: str) -> None:
    assert in_short(schema_of(kind)) == text


@pytest.mark.parametrize("schema", [True, 5, {}, {"$ref": "x"}, {"type": "object"}, {"anyOf": []}])
def test_a_schema_of_another_make_is_shown_somehow(schema: Any) -> None:
    assert isinstance(in_short(schema), str)


def test_a_long_type_is_cut() -> None:
    long = {"type": "object", "properties": {f"member{n}": {"type": "null"} for n in range(99)}}
    assert len(in_short(long)) == 200


async def test_a_cancelled_run_says_why(postgres_only: EngineStore, direct_dsn: str) -> None:
    engine = await postgres_only.engine(None)
    await engine.start_with_id("order-1", SPEC, "s", drive=False)
    await engine.force_cancel("order-1", "the customer left")
    assert "the customer left" in said(direct_dsn, "show", "order-1")
    assert "the customer left" in said(direct_dsn, "history", "order-1")


async def test_who_held_the_token_of_a_hook_that_gave_way_is_shown_and_the_token_is_not(
    postgres_only: EngineStore, direct_dsn: str
) -> None:
    app_ = FlowApp("locks")

    @app_.workflow
    async def main() -> str:
        try:
            return await hook("lock", str, token="s3cret")
        except HookTokenConflict:
            return await hook("other", str)

    engine = await postgres_only.engine(app_)
    for run_id in ("owner", "loser"):
        await engine.start_with_id(run_id, main.spec, main.input())
    shown, told = said(direct_dsn, "show", "loser"), said(direct_dsn, "history", "loser")
    assert "gave way  hook lock, token held by hook lock of run owner" in shown
    assert "token held by hook lock of run owner" in told
    found = json.loads(said(direct_dsn, "show", "loser", "--json"))
    assert found["refused_hooks"] == [
        {"hook_id": "lock", "owner_run_id": "owner", "owner_hook_id": "lock"}
    ]
    held = said(direct_dsn, "show", "owner")
    assert "gave way" not in held
    assert "waits for hook lock, has its token, answered with string\n" in held
    [waits] = json.loads(said(direct_dsn, "show", "owner", "--json"))["waits_for"]
    assert waits["holds_token"] is True
    # A hook whose token was made up keeps nobody out.
    assert "waits for hook other, answered with string\n" in shown
    assert [w["holds_token"] for w in found["waits_for"]] == [False]
    assert "s3cret" not in shown + told + json.dumps(found)


async def test_a_block_that_is_a_lock_is_not_said_to_wait_for_an_answer_only(
    postgres_only: EngineStore, direct_dsn: str
) -> None:
    app_ = FlowApp("locks")

    @app_.workflow
    async def main() -> None:
        async with hook("lock", token="s3cret"):
            await asyncio.sleep(60)

    engine = await postgres_only.engine(app_)
    await engine.start_with_id("owner", main.spec, main.input())
    shown = said(direct_dsn, "show", "owner")
    assert "waits for hook lock, has its token as a lock or for an answer\n" in shown
    assert "s3cret" not in shown


async def test_show_says_who_drives_a_run_and_whose_lease_ran_out(
    postgres_only: EngineStore, direct_dsn: str
) -> None:
    engine = await postgres_only.engine(None)
    await engine.start_with_id("order-1", SPEC, "s", drive=False)
    assert "waiting for a worker since" in said(direct_dsn, "show", "order-1")
    lease = await engine.store.acquire_run("order-1", "host-7", timedelta(seconds=30))
    assert lease is not None
    assert "driven by host-7, lease until" in said(direct_dsn, "show", "order-1")
    postgres_only.advance(timedelta(seconds=31))
    late = said(direct_dsn, "show", "order-1")
    assert "waiting for a worker: the last lease, of host-7, ran out at" in late
    found = json.loads(said(direct_dsn, "show", "order-1", "--json"))
    assert (found["run_id"], found["lease_owner"]) == ("order-1", "host-7")


@pytest.mark.parametrize(
    ("text", "place"), [("s3cret", "line 1, column 1"), ('{"a":\n s3cret}', "line 2, column 2")]
)
def test_an_option_that_is_no_json_is_told_where_and_not_quoted(text: str, place: str) -> None:
    result = CliRunner().invoke(app, ["start", "order", "--input", text])
    assert result.exit_code == 1
    assert f"--input is not valid JSON from {place} on; quote it" in result.stderr
    assert "s3cret" not in result.output + result.stderr


async def test_a_taken_id_comes_with_what_to_do(
    postgres_only: EngineStore, direct_dsn: str
) -> None:
    assert postgres_only.name == "postgres"
    said(direct_dsn, "start", "order", "--id", "order-1", "--input", "1")
    again = ["start", "order", "--id", "order-1", "--input", "2", "--dsn", direct_dsn]
    result = CliRunner().invoke(app, again)
    assert result.exit_code == 1
    assert "`flowpg show order-1` shows it, a new run needs another id" in result.stderr


async def test_a_history_is_imported_from_standard_input(
    postgres_only: EngineStore, direct_dsn: str
) -> None:
    assert postgres_only.name == "postgres"
    said(direct_dsn, "start", "order", "--id", "order-1")
    exported = said(direct_dsn, "history", "order-1", "--jsonl").replace("order-1", "order-2")
    result = CliRunner().invoke(app, ["import", "-", "--dsn", direct_dsn], input=exported)
    assert "order-2: 1 event\n" in result.stdout, result.output


async def test_a_terminal_that_lacks_a_letter_is_shown_its_escape_and_json_is_utf_8(
    postgres_only: EngineStore, direct_dsn: str
) -> None:
    engine = await postgres_only.engine(None)
    await engine.start_with_id("order-1", SPEC, "s", drive=False)
    await engine.force_cancel("order-1", "z\u0142y")
    for command, word in (
        (["show", "order-1"], b"z\\u0142y"),
        (["show", "order-1", "--json"], "z\u0142y".encode()),
        (["history", "order-1", "--jsonl"], "z\u0142y".encode()),
    ):
        shown = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "flowpg", *command, "--dsn", direct_dsn),
            env={**os.environ, "PYTHONIOENCODING": "iso8859-1"},
            stdout=asyncio.subprocess.PIPE,
        )
        printed, _ = await shown.communicate()
        assert shown.returncode == 0
        assert word in printed


def test_a_timer_says_how_long_it_takes_yet() -> None:
    now = datetime(2026, 1, 2, tzinfo=UTC)
    timer = WorkflowRunSuspension(
        "order-1", SuspensionKind.WAIT, "grace", now + timedelta(seconds=12), due=False
    )
    assert lines.wait_line(timer, now) == "timer grace, due in 12 s (2026-01-02 00:00:12Z)"
    assert lines.wait_line(timer, now + timedelta(minutes=1)).startswith("timer grace, due now")


@pytest.mark.parametrize(
    ("left", "said"),
    [
        (timedelta(seconds=119), "119 s"),
        (timedelta(minutes=2), "2 min"),
        (timedelta(hours=47), "47 h"),
        (timedelta(days=3, seconds=-1), "2 days"),
    ],
)
def test_what_is_far_off_is_said_in_units_that_are_read_at_a_glance(
    left: timedelta, said: str
) -> None:
    now = datetime(2026, 1, 2, tzinfo=UTC)
    hook = WorkflowRunSuspension("order-1", SuspensionKind.HOOK, "go", now + left, due=False)
    assert lines.wait_line(hook, now).startswith(f"hook go, due in {said} (2026-01-")
