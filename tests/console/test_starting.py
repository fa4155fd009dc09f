"""``flowpg start --app``: what cannot come to anything is refused before a run exists."""

from typing import cast

import pytest
from typer.testing import CliRunner

from flowpg.authoring.app import FlowApp
from flowpg.client import FlowClient
from flowpg.console.main import app
from flowpg.console.starting import declared
from flowpg.errors import InvalidArgument
from flowpg.replay.runtime import FlowRuntime

bulky = FlowApp("bulky")


@bulky.workflow(queue="bulk", version="2")
async def sweep(days: int, dry: bool = False) -> None: ...


@pytest.mark.parametrize(
    ("workflow", "given", "says"),
    [
        ("swept", '{"days": 1}', "--app has no workflow 'swept', it has 'sweep'"),
        ("sweep", '{"dayz": 1}', "workflow 'sweep' misses 'days'"),
        ("sweep", '{"days": 1, "wet": 1}', "workflow 'sweep' has no argument 'wet'"),
        ("sweep", '{"days": "many"}', "argument 'days' of workflow 'sweep' does not fit"),
        ("sweep", "null", "workflow 'sweep' misses 'days'"),
    ],
)
def test_an_app_refuses_what_it_could_not_run(
    direct_dsn: str, workflow: str, given: str, says: str
) -> None:
    named = ["--app", "tests.console.test_starting:bulky", "--dsn", direct_dsn]
    found = CliRunner().invoke(app, ["start", workflow, "--input", given, "--id", "r", *named])
    assert found.exit_code == 1
    assert says in found.output
    assert "nothing was started" in found.output
    with FlowClient(direct_dsn) as client:
        assert client.list_runs() == []


def test_a_run_gets_the_queue_and_version_that_its_workflow_declares(direct_dsn: str) -> None:
    named = ["--app", "tests.console.test_starting:bulky", "--dsn", direct_dsn]
    command = ["start", "sweep", "--input", '{"days": 1}']
    for more in (
        ["--id", "declared", *named],
        ["--id", "said", "--queue", "q", "--version", "3", *named],
        ["--id", "bare", "--dsn", direct_dsn],
    ):
        assert CliRunner().invoke(app, [*command, *more]).exit_code == 0
    with FlowClient(direct_dsn) as client:
        runs = [client.run_info(run_id) for run_id in ("declared", "said", "bare")]
        specs = [client.snapshot(run.run_id).spec for run in runs]
    assert [run.queue for run in runs] == ["bulk", "q", "default"]
    assert [spec.version for spec in specs] == ["2", "3", "1"]


def test_a_sealed_input_and_a_runtime_that_names_nothing_are_not_looked_into() -> None:
    sealed = {"$": "sealed", "c": ["zlib"], "v": ""}
    assert declared(bulky, "sweep", sealed, None, None)[1] == "bulk"

    class ByHand:
        def run_workflow(self, invocation: object) -> None: ...

        async def run_step(self, invocation: object) -> None: ...

    spec, queue = declared(cast("FlowRuntime", ByHand()), "anything", 1, None, None)
    assert (spec.name, spec.version, queue) == ("anything", "1", "default")

    class Named(ByHand):
        workflows = ("order",)

    with pytest.raises(InvalidArgument, match="it has 'order'"):
        declared(cast("FlowRuntime", Named()), "ordre", 1, None, None)
