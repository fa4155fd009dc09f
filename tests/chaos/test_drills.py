"""Drills: one fault or one race at a time, and what has to be left afterwards."""

import asyncio
import contextlib
import os
from pathlib import Path
from typing import Any

import psycopg
import pytest

from flowpg.authoring.app import FlowApp
from flowpg.authoring.step_context import step_context
from flowpg.engine.flow_engine import FlowEngine
from flowpg.errors import HookConflict, InvalidTransition, RunTerminal
from flowpg.fleet.builds import RuntimeBuildTaskRouter
from flowpg.fleet.tasks import DriveRun, FlowTaskQueue
from flowpg.fleet.worker import FlowWorker
from flowpg.model.commands import Decision
from flowpg.model.events import HOOK_RECEIVED, WAIT_COMPLETED
from flowpg.model.retry import RetryPolicy
from flowpg.replay.context import WorkflowContext
from flowpg.replay.projection import project
from flowpg.replay.runtime import WorkflowInvocation
from tests.chaos import witness, workload
from tests.engine.support import MINUTE, SPEC, EngineStore, Script, one_step, short
from tests.fleet.commands import worker_process
from tests.fleet.conftest import engine_store, postgres_only
from tests.fleet.watching import until_ended
from tests.waiting import until_async

__all__ = ["engine_store", "postgres_only"]

EFFECTS = "FLOWPG_DRILL_EFFECTS"
"""Environment variable: the file that stands for the outside world."""

app = FlowApp("drill")


@app.step(retry=RetryPolicy.none())
def pay() -> int:
    """Has an effect; the process that is the first to have it ends before anybody knows."""
    effects = Path(os.environ[EFFECTS])
    first = not effects.exists()
    with effects.open("a") as world:
        world.write(step_context().idempotency_key + "\n")
    if first:
        os._exit(137)
    return step_context().attempt


@app.workflow
async def payment() -> int:
    """That step."""
    return await pay.run()


async def test_an_exit_after_a_side_effect_repeats_it_under_the_same_key_and_attempt(
    postgres_only: EngineStore,
    direct_dsn: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    effects = tmp_path / "effects"
    monkeypatch.setenv(EFFECTS, str(effects))
    client = await postgres_only.engine(None)
    run_id = await client.start(payment.spec, payment.input())
    async with worker_process(direct_dsn, app="tests.chaos.test_drills:app") as victim:
        assert await victim.wait() == 137
    postgres_only.leases_run_out()
    engine = await postgres_only.engine(app)
    assert await FlowWorker(engine).run_until_idle() == 1
    # No retry was allowed, and none was charged.
    assert (await engine.snapshot(run_id)).output == 1
    began = [line for line in short(await engine.history(run_id)) if "step.started" in line]
    assert len(began) == 1
    first, second = effects.read_text().splitlines()
    assert first == second


async def test_a_removed_build_route_strands_nothing_it_is_seen_and_comes_back(
    postgres_only: EngineStore, direct_dsn: str
) -> None:
    client = await postgres_only.engine(None)
    queue = FlowTaskQueue(client.store)
    old = await client.start(SPEC.with_runtime_build("v1"))
    new = await client.start(SPEC.with_runtime_build("v2"))
    left = RuntimeBuildTaskRouter().with_route("v2", queue)
    with pytest.raises(Exception, match="build 'v1'; nothing was dispatched"):
        await left.dispatch_all(client.store, [DriveRun(run_id=new), DriveRun(run_id=old)])

    work = {"work": lambda step: "done"}
    wrong = FlowWorker(await postgres_only.engine(Script(one_step(), work), builds=["v2"]))
    working = asyncio.ensure_future(wrong.run())
    await until_ended(client, new)

    async def visible() -> bool:
        async with await psycopg.AsyncConnection.connect(direct_dsn) as connection:
            found = await connection.execute(
                "SELECT waiting_for FROM flowpg.flow_run_info(%s)", (old,)
            )
            return await found.fetchone() == ("no worker for build v1",)

    await until_async(visible, "the run says what it waits for")
    wrong.stop()
    await working

    both = RuntimeBuildTaskRouter().with_route("v1", queue).with_route("v2", queue)
    assert await both.dispatch_all(client.store, [DriveRun(run_id=old)]) == 1
    right = FlowWorker(await postgres_only.engine(Script(one_step(), work), builds=["v1"]))
    assert await right.run_until_idle() == 1
    assert (await client.snapshot(old)).output == "done"


def steps_and_hook(ctx: WorkflowContext) -> Decision:
    """A hook, and beside it one step after the other until it is answered."""
    if ctx.hook_received("h"):
        return ctx.complete(ctx.hook_payload("h"))
    done = 0
    while ctx.step_completed(f"s{done}"):
        done += 1
    return (
        ctx.create_hook("h", "token"),
        ctx.schedule_step(f"s{done}", "work", None, RetryPolicy.none()),
    )


async def test_a_burst_of_answers_while_the_run_replays_is_stored_once(
    postgres_only: EngineStore,
) -> None:
    entered = asyncio.Event()

    async def work(step: Any) -> str:
        entered.set()
        return str(step.step_id)

    engine = await postgres_only.engine(Script(steps_and_hook, {"work": work}))
    clients = [await postgres_only.engine(None) for _ in range(4)]
    run_id = await clients[0].start(SPEC)
    worker = FlowWorker(engine)
    working = asyncio.ensure_future(worker.run())
    await entered.wait()

    async def answer(client: FlowEngine, payload: int) -> bool:
        try:
            return (await client.store.resume_hook(run_id, "h", payload)).applied
        except (HookConflict, RunTerminal):
            return False

    burst = [answer(client, number) for number in range(10) for client in clients]
    applied = await asyncio.gather(*burst)
    await until_ended(clients[0], run_id)
    worker.stop()
    await working
    assert applied.count(True) == 1
    history = await engine.history(run_id)
    assert [event.type for event in history].count(HOOK_RECEIVED) == 1
    assert (await engine.snapshot(run_id)).output == applied.index(True) // len(clients)


async def test_a_timer_and_a_hook_that_race_have_one_winner_the_same_in_every_replay(
    postgres_only: EngineStore, direct_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(witness.LEDGER_DSN, direct_dsn)
    monkeypatch.setattr(witness, "ledger", witness.Ledger())
    witness.create(direct_dsn)
    client = await postgres_only.engine(None)
    engine = await postgres_only.engine(workload.app)
    runs = [
        await client.start(workload.race.spec, workload.race.input(number)) for number in range(16)
    ]
    await FlowWorker(engine).run_until_idle()
    postgres_only.advance(MINUTE)
    worker = FlowWorker(engine)
    working = asyncio.ensure_future(worker.run())

    async def answer(run_id: str, number: int) -> None:
        with contextlib.suppress(HookConflict, RunTerminal, InvalidTransition):
            await client.resume_hook(run_id, "answer", number)

    async def ring(run_id: str) -> None:
        (wait,) = (await client.snapshot(run_id)).waits
        with contextlib.suppress(RunTerminal, InvalidTransition):
            await client.resume_wait(run_id, wait)

    racers = [coroutine for n, run in enumerate(runs) for coroutine in (answer(run, n), ring(run))]
    await asyncio.gather(*racers)
    await until_ended(client, *runs)
    worker.stop()
    await working

    winners = set()
    for number, run_id in enumerate(runs):
        history = await client.history(run_id)
        first = next(e.type for e in history if e.type in (HOOK_RECEIVED, WAIT_COMPLETED))
        expected = ["hook", number] if first == HOOK_RECEIVED else ["timer", None]
        snapshot = await client.snapshot(run_id)
        assert snapshot.output == [*expected, number + 1]
        winners.add(expected[0])
        # The whole history but its end, on code that has never seen the run.
        before = project(run_id, history[:-1])
        replayed = FlowApp("replay", always_replay=True)
        replayed.workflows, replayed.steps = workload.app.workflows, workload.app.steps
        decision = replayed.run_workflow(
            WorkflowInvocation(run_id, before.spec, before.input, before, history[:-1])
        )
        assert [command.output for command in _commands(decision)] == [snapshot.output]
    assert winners <= {"hook", "timer"}


def _commands(decision: Any) -> tuple[Any, ...]:
    return decision if isinstance(decision, tuple) else (decision,)


async def test_a_process_that_joins_takes_nothing_from_live_peers(
    postgres_only: EngineStore,
) -> None:
    client = await postgres_only.engine(None)
    release = asyncio.Event()
    begun: list[str] = []

    async def held(step: Any) -> str:
        begun.append(step.run_id)
        await release.wait()
        return "peer"

    owned = [await client.start(SPEC) for _ in range(5)]
    engine = await postgres_only.engine(Script(one_step(), {"work": held}))
    peer = FlowWorker(engine, concurrency=len(owned))
    at_peer = asyncio.ensure_future(peer.run())

    async def all_begun() -> bool:
        return len(begun) == len(owned)

    await until_async(all_begun, "the peer has all runs")
    joined = await postgres_only.engine(Script(one_step(), {"work": lambda step: "joined"}))
    assert await FlowWorker(joined).run_until_idle() == 0
    fresh = await client.start(SPEC)
    assert await FlowWorker(joined).run_until_idle() == 1
    assert (await client.snapshot(fresh)).output == "joined"

    release.set()
    await until_ended(client, *owned)
    peer.stop()
    await at_peer
    for run_id in owned:
        assert (await client.snapshot(run_id)).output == "peer"
    assert sorted(begun) == sorted(owned)
