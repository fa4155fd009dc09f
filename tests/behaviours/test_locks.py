"""A token has one owner at a time, and serves as a lock between runs."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest

from flowpg import (
    FlowApp,
    FlowEngine,
    FlowWorker,
    HookTokenConflict,
    Retry,
    RetryLater,
    WorkflowRunSnapshot,
    hook,
    step_context,
)
from flowpg.testing import Fault, WorkflowEnvironment, every_fault, replay
from tests.behaviours.support import SECOND
from tests.engine.support import EngineStore
from tests.fleet.watching import until_ended
from tests.waiting import until_async

SECRET = "a token that nobody may see"


def claims(always_replay: bool = False) -> FlowApp:
    """A workflow that holds a token until it is told what to do, or says who holds it."""
    app = FlowApp("claims", always_replay=always_replay)

    @app.workflow
    async def main() -> str:
        try:
            async with hook("lock", str, token=SECRET):
                match await hook("go", str):
                    case "complete":
                        return "completed"
                    case "fail":
                        raise ValueError("failed")
            return await hook("later", str)
        except HookTokenConflict as taken:
            return f"taken by {taken.run_id} {taken.hook_id}"

    return app


END: dict[str, Callable[[FlowEngine, str], Awaitable[Any]]] = {
    "leaves its block": lambda engine, owner: engine.resume_hook(owner, "go", "leave"),
    "completes": lambda engine, owner: engine.resume_hook(owner, "go", "complete"),
    "fails": lambda engine, owner: engine.resume_hook(owner, "go", "fail"),
    "is asked to cancel": lambda engine, owner: engine.request_cancellation(owner),
    "is ended by force": lambda engine, owner: engine.force_cancel(owner),
    "loses its hook": lambda engine, owner: engine.dispose_hook(owner, "lock"),
    "is answered": lambda engine, owner: engine.resume_hook_by_token(SECRET, "answer"),
}


@pytest.mark.parametrize("always_replay", [False, True], ids=["kept", "replayed"])
async def test_a_second_run_catches_the_conflict_and_the_token_is_free_after_every_end(
    engine_store: EngineStore, always_replay: bool
) -> None:
    app = claims(always_replay)
    main = app.workflows["main"]
    engine = await engine_store.engine(app)

    async def start(run_id: str) -> WorkflowRunSnapshot:
        await engine.start_with_id(run_id, main.spec, main.input())
        return await engine.snapshot(run_id)

    await start("0")
    for number, (how, end) in enumerate(END.items()):
        owner, following = str(number), str(number + 1)
        assert (await start(f"loser-{owner}")).output == f"taken by {owner} lock", how
        history = await engine.history(f"loser-{owner}")
        assert "hook_conflicted" in [event.type for event in history]
        assert not any(SECRET in event.payload for event in history)
        await end(engine, owner)
        await start(following)
        active = {(h.run_id, h.hook_id) for h in await engine.list_active_hooks()}
        assert (following, "lock") in active, how
        assert (owner, "lock") not in active


async def fifty_claim(store: EngineStore, runs: int) -> None:
    """So many runs, of three workers, ask for one token at once."""
    app = claims()
    main = app.workflows["main"]
    engines = [await store.engine(app) for _ in range(3)]
    ids = [f"r{number}" for number in range(runs)]
    for run_id in ids:
        await engines[0].start_with_id(run_id, main.spec, main.input(), drive=False)
    workers = [FlowWorker(engine) for engine in engines]
    working = [asyncio.ensure_future(worker.run()) for worker in workers]
    await until_ended(engines[0], *await losers(engines[0], ids))
    [active] = [h for h in await engines[0].list_active_hooks() if h.hook_id == "lock"]
    for run_id in ids:
        snapshot = await engines[0].snapshot(run_id)
        if run_id != active.run_id:
            assert snapshot.output == f"taken by {active.run_id} lock"
        assert (await engines[0].run_info(run_id)).blocked_reason is None
    await engines[0].resume_hook(active.run_id, "go", "complete", drive=False)
    await until_ended(engines[0], active.run_id)
    assert (await engines[0].snapshot(active.run_id)).output == "completed"
    for worker in workers:
        worker.stop()
    await asyncio.gather(*working)


async def losers(engine: FlowEngine, ids: list[str]) -> list[str]:
    """All but the one that holds the token, once there is one."""

    async def held() -> list[Any]:
        return [h for h in await engine.list_active_hooks() if h.hook_id == "lock"]

    [owner] = await until_async(held, "a run holds the token")
    return [run_id for run_id in ids if run_id != owner.run_id]


async def test_of_fifty_runs_that_claim_one_token_one_has_it_and_the_others_are_told(
    engine_store: EngineStore,
) -> None:
    await fifty_claim(engine_store, 50)


# -- patterns: what a loser may do ----------------------------------------------------------------


@dataclass
class World:
    """What the steps of a test know of the runs beside their own."""

    look: Callable[[str], Awaitable[WorkflowRunSnapshot]]
    answer: Callable[[str, str, Any], Awaitable[Any]]
    done: list[str] = field(default_factory=list)


def waits_and_acquires(app: FlowApp, world: World) -> None:
    """The loser asks again until it gets the token."""

    @app.step
    async def work(name: str) -> None:
        world.done.append(name)

    @app.workflow
    async def main(name: str) -> str:
        for tries in range(100):
            try:
                async with hook("lock", token=SECRET):
                    await work(f"{name} begins")
                    await asyncio.sleep(100)
                    await work(f"{name} ends")
                    return f"{name} was {'not ' if tries else ''}first"
            except HookTokenConflict:
                await asyncio.sleep(30)
        return "never"


def is_blocked_and_acquires(app: FlowApp, world: World) -> None:
    """The loser is blocked until it gets the token."""

    @app.step
    async def work(name: str) -> None:
        world.done.append(name)

    @app.workflow
    async def main(name: str) -> str:
        async with hook("lock", token=SECRET, on_conflict="wait"):
            await work(f"{name} begins")
            await asyncio.sleep(100)
            await work(f"{name} ends")
        return f"{name} was {'' if name == 'owner' else 'not '}first"


def adopts_the_result(app: FlowApp, world: World) -> None:
    """The loser returns what the owner returns."""

    @app.step
    async def work(name: str) -> str:
        world.done.append(name)
        return f"made by {name}"

    @app.step(retry=Retry.fixed(1000))
    async def outcome(run_id: str) -> str:
        snapshot = await world.look(run_id)
        if not snapshot.terminal:
            raise RetryLater("it is at work", 10 * SECOND)
        return str(app.workflows["main"].result(snapshot))

    @app.workflow
    async def main(name: str) -> str:
        try:
            async with hook("lock", token=SECRET):
                made = await work(name)
                await asyncio.sleep(100)
                return made
        except HookTokenConflict as taken:
            return await outcome(taken.run_id)


def signals_the_owner(app: FlowApp, world: World) -> None:
    """The loser hands what it came for to the owner."""

    @app.step(retry=Retry.fixed(5, SECOND))
    async def tell(run_id: str, hook_id: str, what: str) -> None:
        await world.answer(run_id, hook_id, what)
        if step_context().attempt < 3:
            raise ConnectionError("the answer was lost")

    @app.workflow
    async def main(name: str) -> str:
        try:
            async with hook("inbox", str, token=SECRET) as inbox:
                return f"{name} got {await inbox}"
        except HookTokenConflict as taken:
            await tell(taken.run_id, taken.hook_id, f"news of {name}")
            return f"{name} told {taken.run_id}"


ONE_BY_ONE = ["owner begins", "owner ends", "loser begins", "loser ends"]
PATTERNS: dict[Callable[[FlowApp, World], None], tuple[str, str, list[str]]] = {
    waits_and_acquires: ("owner was first", "loser was not first", ONE_BY_ONE),
    is_blocked_and_acquires: ("owner was first", "loser was not first", ONE_BY_ONE),
    adopts_the_result: ("made by owner", "made by owner", ["owner"]),
    signals_the_owner: ("owner got news of loser", "loser told owner", []),
}
CAUGHT = [pattern for pattern in PATTERNS if pattern is not is_blocked_and_acquires]


async def in_memory(
    pattern: Callable[[FlowApp, World], None], **environment: Any
) -> tuple[tuple[str, str], list[str], list[str]]:
    """The results of owner and loser, what was done, and both histories."""
    app = FlowApp("pattern")
    async with WorkflowEnvironment(app, **environment) as env:

        async def answer(run_id: str, hook_id: str, value: Any) -> None:
            await env.engine.resume_hook(run_id, hook_id, value, drive=False)
            env.drive(run_id)

        world = World(lambda run_id: env.engine.snapshot(run_id), answer)
        pattern(app, world)
        main: Any = app.workflows["main"]
        owner = await env.start_with_id("owner", main, "owner")
        await env.settle()
        loser = await env.start_with_id("loser", main, "loser")
        results = str(await owner.result()), str(await loser.result())
        lines = []
        for run in (owner, loser):
            history = await run.history()
            lines += [f"{e.sequence} {e.recorded_at} {e.type} {e.payload}" for e in history]
            await replay(app, history)
        return results, world.done, lines


@pytest.mark.parametrize("pattern", CAUGHT)
async def test_a_loser_waits_and_acquires_or_adopts_the_result_or_signals_the_owner_once(
    pattern: Callable[[FlowApp, World], None],
) -> None:
    *wanted, done = PATTERNS[pattern]
    kept = await in_memory(pattern)
    assert list(kept[0]) == wanted
    assert kept[1] == done
    assert sum("hook_received" in line for line in kept[2]) == (pattern is signals_the_owner)
    assert (await in_memory(pattern, always_replay=True)) == kept
    deaths = 0
    async for faults in every_fault(Fault.DIES_BEFORE, Fault.DIES_AFTER):
        results, _, lines = await in_memory(pattern, faults=faults)
        assert list(results) == wanted, (faults.at, faults.fault)
        assert sum("hook_received" in line for line in lines) == (pattern is signals_the_owner)
        deaths += faults.happened
    assert deaths >= 8


@pytest.mark.parametrize("always_replay", [False, True], ids=["kept", "replayed"])
@pytest.mark.parametrize("pattern", PATTERNS)
async def test_what_a_loser_may_do_holds_in_every_store(
    engine_store: EngineStore, pattern: Callable[[FlowApp, World], None], always_replay: bool
) -> None:
    *wanted, done = PATTERNS[pattern]
    app = FlowApp("pattern", always_replay=always_replay)
    engine = await engine_store.engine(app)

    async def answer(run_id: str, hook_id: str, value: Any) -> None:
        await engine.resume_hook(run_id, hook_id, value, drive=False)

    world = World(engine.snapshot, answer)
    pattern(app, world)
    main: Any = app.workflows["main"]
    worker = FlowWorker(engine)
    for run_id in ("owner", "loser"):
        await engine.start_with_id(run_id, main.spec, main.input(run_id), drive=False)
        await worker.run_until_idle()
    for _ in range(100):
        ended = [(await engine.run_info(run_id)).status.terminal for run_id in ("owner", "loser")]
        if all(ended):
            break
        engine_store.advance(timedelta(seconds=10))
        await worker.run_until_idle()
    assert [(await engine.snapshot(run_id)).output for run_id in ("owner", "loser")] == wanted
    assert world.done == done
    received = [e for e in await engine.history("owner") if e.type == "hook_received"]
    assert len(received) == (pattern is signals_the_owner)
