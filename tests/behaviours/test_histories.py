"""What was stored once is repeated by the code of today."""

import os
import subprocess
import sys

import pytest

from flowpg import FlowEngine, InMemoryEventStore, dump_history, load_history
from flowpg.model import jsontext
from flowpg.replay.projection import project
from flowpg.testing import Fault, WorkflowEnvironment, every_fault, replay
from tests.behaviours.programs import PROGRAMS, app
from tests.behaviours.recording import HISTORIES, record


@pytest.mark.parametrize("name", PROGRAMS)
async def test_a_history_that_was_kept_is_repeated_by_the_code_of_today(name: str) -> None:
    kept = HISTORIES / f"{name}.jsonl"
    await replay(app, kept)
    # And is written as it was read.
    text = kept.read_text()
    assert dump_history(load_history(text)) == text


def test_every_kept_history_has_its_program() -> None:
    assert sorted(path.stem for path in HISTORIES.glob("*.jsonl")) == sorted(PROGRAMS)


async def test_a_program_has_one_history_however_often_it_is_recorded() -> None:
    for name in PROGRAMS:
        first, again = await record(name), await record(name)
        assert first == again


@pytest.mark.parametrize("name", PROGRAMS)
async def test_whatever_process_dies_at_whatever_commit_the_history_can_be_repeated(
    name: str,
) -> None:
    workflow, arguments, scenario = PROGRAMS[name]
    ended = project(name, load_history((HISTORIES / f"{name}.jsonl").read_text())).status
    deaths = 0
    async for faults in every_fault(Fault.DIES_BEFORE, Fault.DIES_AFTER):
        async with WorkflowEnvironment(app, faults=faults) as env:
            run = await env.start_with_id(name, workflow, *arguments)
            await scenario(env, run)
            assert (await run.finish()).status is ended, (faults.at, faults.fault)
            history = await run.history()
        await replay(app, history)
        deaths += faults.happened
    assert deaths >= 6


EVERY_PROGRAM = """
import asyncio
from tests.behaviours.programs import PROGRAMS, app
from tests.behaviours.recording import record

async def main():
    for app.always_replay in (False, True):
        for name in PROGRAMS:
            print(await record(name), end="")

asyncio.run(main())
"""


def test_histories_are_the_same_under_every_hash_seed_and_zone_kept_and_replayed() -> None:
    seen = set()
    for seed, zone in (("0", "UTC"), ("1", "America/New_York"), ("31", "Australia/Lord_Howe")):
        done = subprocess.run(
            [sys.executable, "-c", EVERY_PROGRAM],
            env={**os.environ, "PYTHONHASHSEED": seed, "TZ": zone},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        half = len(done.stdout) // 2
        assert done.stdout[:half] == done.stdout[half:]
        seen.add(done.stdout)
    assert len(seen) == 1


async def test_a_run_that_began_before_there_were_conflicts_goes_on_from_wherever_it_is() -> None:
    kept = load_history((HISTORIES / "beside.jsonl").read_text())
    outcomes = {"step_retrying", "step_completed", "wait_completed", "hook_received"}
    for upto in [2, *(at for at, event in enumerate(kept) if event.type in outcomes)]:
        store = InMemoryEventStore(clock=lambda at=kept[upto - 1].recorded_at: at)  # type: ignore[misc]
        await store.import_history(kept[:upto])
        async with FlowEngine(store, app) as engine:
            while not (run := await engine.drive("beside")).terminal:
                wakeup = await store.next_wakeup()
                if wakeup is not None:
                    store.advance(wakeup.due_at - await store.now())
                else:
                    hook_id = list(run.open.hooks)[-1]
                    await engine.resume_hook("beside", hook_id, int(hook_id[-1]), drive=False)
            assert jsontext.equal(run.output, kept[-1].data["output"]), upto
            # What was decided under the old rule stands, whatever is decided under the new one.
            await replay(app, await engine.history("beside"))
