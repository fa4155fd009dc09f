"""Ends that others ask for: cleanup runs once, nothing is swallowed, nothing is opened again."""

import asyncio
import contextlib
import random
import signal
from pathlib import Path
from typing import Any

import pytest

from flowpg import (
    FlowApp,
    FlowEngine,
    FlowError,
    FlowWorker,
    InMemoryEventStore,
    RunStatus,
    hook,
)
from flowpg.authoring.context import info
from flowpg.testing import TestedRun, WorkflowEnvironment
from tests.behaviours.support import HOUR, Seen, both, everywhere
from tests.durable import durable, forever
from tests.engine.support import SPEC, EngineStore, keeper_of, short
from tests.fleet.commands import exit_code, line, worker_process
from tests.fleet.watching import until_ended

Outputs = list[Any]


def outputs(seen: Seen) -> Outputs:
    """What the steps of a run returned, in their order."""
    return [event.data["output"] for event in seen.history if event.type == "step_completed"]


async def cancelled(env: WorkflowEnvironment, run: TestedRun[Any]) -> None:
    """Ask the run to cancel when it has waited for an hour."""
    await env.advance(HOUR)
    await run.cancel("changed my mind")


def cleaning(how: str) -> FlowApp:
    """A workflow that cleans up with two steps and a pause, and then does as ``how`` says."""
    app = FlowApp("cleaning")

    @app.step
    async def note(what: str) -> str:
        return what

    @app.workflow
    async def main() -> str:
        try:
            await note("began")
            await forever()
        except asyncio.CancelledError as error:
            await note(f"caught {error}")
            await asyncio.sleep(60)
            if how == "raises again":
                raise
            if how == "fails":
                raise ValueError("cannot undo") from None
        finally:
            await note("finally")
        return "carried on"

    return app


@pytest.mark.parametrize(
    ("how", "status"),
    [("raises again", "cancelled"), ("swallows", "completed"), ("fails", "failed")],
)
async def test_a_request_is_raised_once_and_cleanup_runs_whatever_the_workflow_makes_of_it(
    how: str, status: str
) -> None:
    seen = await everywhere(cleaning(how), scenario=cancelled)
    assert seen.snapshot.status.value == status
    assert outputs(seen) == ["began", "caught changed my mind", "finally"]
    assert seen.types.count("run_cancellation_requested") == 1


async def test_finally_runs_once_a_run_although_the_coroutine_is_put_aside_at_every_turn() -> None:
    ran: list[str] = []
    app = FlowApp("put aside", max_parked=0)

    @app.step
    async def work(n: int) -> int:
        return n

    @app.workflow
    async def main() -> int:
        total = 0
        try:
            for n in range(5):
                total += await work(n)
                await asyncio.sleep(1)
        finally:
            if not info().replaying:
                ran.append("finally")
            total += await work(100)
        return total

    seen = await everywhere(app)
    assert seen.result == 110
    ran.clear()
    await both(app)
    assert ran == ["finally"] * 2  # once for each of the two runs


async def test_a_timeout_a_group_and_a_task_of_the_workflows_own_are_told_from_a_request() -> None:
    app = FlowApp("apart")

    @app.step
    async def note(what: list[Any]) -> list[Any]:
        return what

    def state() -> list[Any]:
        task = asyncio.current_task()
        assert task is not None
        return [task.cancelling(), info().cancellation_requested, info().cancellation_reason]

    @app.workflow
    async def main() -> None:
        try:
            async with asyncio.timeout(5):
                await forever()
        except TimeoutError:
            await note(["timeout", *state()])
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(forever())
                group.create_task(_failing())
        except* ValueError:
            pass
        # Before 3.13 asyncio's own TaskGroup leaves the count of its task as it is.
        await note(["group", *state()[1:]])
        child = asyncio.create_task(forever())
        await asyncio.sleep(1)
        child.cancel()
        await asyncio.gather(child, return_exceptions=True)
        await note(["task", *state()[1:]])
        try:
            await hook("never", token="never")
        except asyncio.CancelledError:
            task = asyncio.current_task()
            assert task is not None
            count = task.cancelling()
            await note(["request", *state()[1:]])
            await note(["uncancelled", task.uncancel() - count, *state()[1:]])
            raise

    @durable
    async def _failing() -> None:
        await asyncio.sleep(1)
        raise ValueError

    seen = await everywhere(app, scenario=cancelled)
    assert seen.snapshot.status is RunStatus.CANCELLED
    assert outputs(seen) == [
        ["timeout", 0, False, None],
        ["group", False, None],
        ["task", False, None],
        ["request", True, "changed my mind"],
        ["uncancelled", -1, True, "changed my mind"],
    ]


@pytest.mark.parametrize("when", ["a step is at work", "a step ends"])
async def test_a_run_that_is_ended_by_force_does_nothing_more(
    engine_store: EngineStore, when: str
) -> None:
    ran: list[str] = []
    app = FlowApp("ended")
    begun, go = asyncio.Event(), asyncio.Event()

    @app.step
    async def work() -> str:
        begun.set()
        await go.wait()
        return "late"

    @app.step
    async def undo() -> None:
        ran.append("undo")

    @app.workflow
    async def main() -> str:
        try:
            return await work()
        finally:
            ran.append("finally")
            await undo()

    engine = await engine_store.engine(app)
    client = await engine_store.engine(None)
    driving = asyncio.ensure_future(engine.start_with_id("r", main.spec, main.input()))
    await begun.wait()
    await client.force_cancel("r", "now")
    if when == "a step ends":
        go.set()
    else:
        await keeper_of(engine).beat()
    await asyncio.gather(driving, return_exceptions=True)
    before = short(await client.history("r"))
    assert before[-1] == "run.cancelled"
    engine_store.leases_run_out()
    await FlowWorker(engine).run_until_idle()
    assert short(await client.history("r")) == before
    app.parked.clear()
    # Code may be asked before the end is seen; nothing comes of what it says.
    assert "undo" not in ran
    if when == "a step is at work":
        assert ran == []


@pytest.mark.parametrize("why", ["no such step", "token taken", "token twice"])
async def test_a_request_ends_a_run_that_is_blocked_too(why: str) -> None:
    app, lacking, store = FlowApp("blocked"), FlowApp("lacking"), InMemoryEventStore()

    @app.step
    async def work() -> None: ...

    @app.workflow
    async def main() -> None:
        if why == "no such step":
            await work()
        elif why == "token taken":
            await hook("go", token="taken", on_conflict="wait")
        else:
            second = hook("b", token="twice", on_conflict="wait")
            await asyncio.gather(hook("a", token="twice", on_conflict="wait"), second)

    lacking.workflows = app.workflows
    runtime = lacking if why == "no such step" else app
    engine = FlowEngine.builder(runtime).with_store(store).build()
    worker = FlowWorker(engine)
    for run_id in ("other", "r"):
        await engine.start_with_id(run_id, main.spec, main.input(), drive=False)
        await worker.run_until_idle()
    info = await engine.run_info("r")
    assert info.blocked_reason or info.status is RunStatus.SUSPENDED
    assert not info.status.terminal
    await engine.request_cancellation("r", "enough", drive=False)
    await worker.run_until_idle()
    info = await engine.run_info("r")
    assert (info.status, info.blocked_reason) == (RunStatus.CANCELLED, None)
    await engine.close()


async def test_a_request_ends_a_run_whose_step_waits_in_a_queue_that_nobody_serves(
    postgres_only: EngineStore,
) -> None:
    ran: list[str] = []
    app = FlowApp("waiting")

    @app.step
    async def work() -> None:
        ran.append("work")

    @app.workflow
    async def main() -> None:
        await work.options(queue="slow")()

    engine = await postgres_only.engine(app)
    run_id = await engine.start(main.spec, main.input(), drive=False)
    worker = FlowWorker(engine)
    await worker.run_until_idle()
    assert not (await engine.run_info(run_id)).status.terminal
    await engine.request_cancellation(run_id, "enough", drive=False)
    await worker.run_until_idle()
    assert (await engine.run_info(run_id)).status is RunStatus.CANCELLED
    # Whoever serves that queue later has nothing to do.
    await FlowWorker(await postgres_only.engine(app), ["slow"]).run_until_idle()
    assert ran == []


@pytest.mark.parametrize("how", ["request", "force"])
async def test_a_process_that_stood_still_while_its_run_was_cancelled_completes_nothing(
    postgres_only: EngineStore, direct_dsn: str, tmp_path: Path, how: str
) -> None:
    client = await postgres_only.engine(None)
    run_id = await client.start(SPEC, "patient")
    gate = tmp_path / "gate"
    async with worker_process(
        *(direct_dsn, "--lease", "1"), environ={"FLOWPG_TEST_GATE": str(gate)}
    ) as process:
        await line(process.stdout, b"entered patient")
        process.send_signal(signal.SIGSTOP)
        gate.touch()  # it would complete at once, if it could
        if how == "force":
            await client.force_cancel(run_id, "now")
        else:
            await client.request_cancellation(run_id, "please", drive=False)
        process.send_signal(signal.SIGCONT)
        process.send_signal(signal.SIGTERM)
        assert await exit_code(process) == 0
    history = short(await client.history(run_id))
    # The event itself ended the step, so whoever comes late completes nothing.
    assert "step.completed s" not in history
    assert history[4] == ("run.cancelled" if how == "force" else "run.cancellation.requested")


async def races(store: EngineStore, runs: int, seed: int) -> None:
    """Requests to cancel that race the steps and the ends of runs."""
    app = FlowApp("races")

    @app.step
    async def work(n: int) -> int:
        return n

    @app.workflow
    async def main() -> str:
        try:
            for n in range(4):
                await work(n)
        except asyncio.CancelledError:
            await work(100)
            raise
        return "completed"

    engine, client = await store.engine(app), await store.engine(None)
    worker = FlowWorker(engine)
    working = asyncio.ensure_future(worker.run())
    chance = random.Random(seed)
    few = asyncio.Semaphore(4)  # so that a request is not held up until its run has ended

    async def one(number: int) -> tuple[str, bool]:
        async with few:
            return await race(number)

    async def race(number: int) -> tuple[str, bool]:
        run_id = await client.start_with_id(f"r{seed}-{number}", main.spec, main.input())
        for _ in range(chance.randrange(6)):
            await client.run_info(run_id)
        try:
            await client.request_cancellation(run_id, "race", drive=False)
        except FlowError:
            return run_id, False
        return run_id, True

    asked = dict(await asyncio.gather(*(one(number) for number in range(runs))))
    await until_ended(client, *asked)
    worker.stop()
    await working
    ends = set()
    for run_id, accepted in asked.items():
        history = await client.history(run_id)
        types = [event.type for event in history]
        requested = types.count("run_cancellation_requested")
        assert requested <= 1
        snapshot = await client.snapshot(run_id)
        if snapshot.status is RunStatus.CANCELLED:
            assert requested == 1
            cleanups = [
                e for e in history if e.type == "step_completed" and e.data["output"] == 100
            ]
            started = any(event.type == "run_started" for event in history)
            assert len(cleanups) <= started
        else:
            # It had decided its end before it saw the request; that end stands, and says so.
            assert (snapshot.status, snapshot.output) == (RunStatus.COMPLETED, "completed")
        if accepted and requested:
            assert types.index("run_cancellation_requested") < len(types) - 1
        ends.add(snapshot.status)
        # No later request changes what was.
        before = len(history)
        with contextlib.suppress(FlowError):
            await client.request_cancellation(run_id, "race", drive=False)
        assert len(await client.history(run_id)) == before
        assert (await client.snapshot(run_id)).status is snapshot.status
    assert RunStatus.CANCELLED in ends


async def test_requests_that_race_steps_and_ends_have_one_outcome_that_stays(
    postgres_only: EngineStore,
) -> None:
    await races(postgres_only, 40, 1)


@pytest.mark.storm
@pytest.mark.timeout(600)
async def test_a_thousand_requests_that_race_steps_and_ends_have_one_outcome_each(
    postgres_only: EngineStore,
) -> None:
    for seed in range(10):
        await races(postgres_only, 100, seed)
