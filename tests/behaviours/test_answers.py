"""Answers from outside: none is lost, none is taken twice, and every refusal is said."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from flowpg import (
    FlowApp,
    FlowError,
    FlowWorker,
    HookTokenNotFound,
    RunNotFound,
    RunStatus,
    hook,
)
from flowpg.errors import SerializationError
from flowpg.testing import TestedRun, WorkflowEnvironment
from tests.behaviours.support import HOUR, SECOND, both, everywhere
from tests.engine.support import EngineStore
from tests.fleet.watching import until_ended
from tests.waiting import until_async

SECRET = "a token that nobody may see"


async def test_an_answer_at_any_phase_is_kept_until_it_is_awaited_in_the_order_of_the_code() -> (
    None
):
    app = FlowApp("inbox")

    @app.step
    async def handle(message: str) -> str:
        return message

    @app.workflow
    async def main(count: int) -> list[str]:
        seen = []
        hooks = [hook(f"m{n}", str, token=f"m{n}") for n in range(count)]
        for one in hooks:
            await one.__aenter__()
        await asyncio.sleep(10)
        for one in hooks:
            seen.append(await handle(await one))
            await asyncio.sleep(3)
        return seen

    async def answers(env: WorkflowEnvironment, run: TestedRun[Any]) -> None:
        # Last first: before the wait, between replays, in a step's turn, while another is awaited.
        for n in reversed(range(5)):
            env.after(timedelta(seconds=n * 4.7), lambda n=n: run.answer(f"m{n}", f"message {n}"))  # type: ignore[misc]

    seen = await everywhere(app, 5, scenario=answers)
    assert seen.result == [f"message {n}" for n in range(5)]
    assert seen.types.count("hook_received") == 5


async def test_a_wait_that_timed_out_leaves_a_late_answer_to_the_next_wait() -> None:
    app = FlowApp("patient")

    @app.workflow
    async def main() -> list[str]:
        seen = []
        async with hook("go", str, token="go") as go:
            for _ in range(2):
                try:
                    async with asyncio.timeout(60):
                        seen.append(await go)
                except TimeoutError:
                    seen.append("timed out")
                    await asyncio.sleep(60)
        return seen

    async def late(env: WorkflowEnvironment, run: TestedRun[Any]) -> None:
        env.after(90 * SECOND, lambda: run.answer("go", "late"))

    seen = await everywhere(app, scenario=late)
    assert seen.result == ["timed out", "late"]
    assert (await both(app, scenario=late)).took == 120 * SECOND


async def test_an_answer_that_nobody_checked_is_an_error_there_and_may_be_asked_for_again() -> None:
    app = FlowApp("declared")

    @app.workflow
    async def main() -> Any:
        said: list[str] = []
        for number in range(3):
            try:
                return [number, await hook("age", int, token=f"age {number}"), *said]
            except SerializationError as error:
                said.append(str(error))
        return None

    async def answers(env: WorkflowEnvironment, run: TestedRun[Any]) -> None:
        # As the function in SQL does it, which checks nothing.
        await env.settle()
        await env.engine.store.resume_hook(run.id, "age", "forty years")
        env.drive(run.id)
        await run.answer("age#1", 40)

    [number, age, said] = (await everywhere(app, scenario=answers)).result
    assert (number, age) == (1, 40)
    assert "'age'" in said
    assert "years" not in said


async def test_refusals_name_the_run_and_never_the_token(engine_store: EngineStore) -> None:
    app = FlowApp("refusals")

    @app.workflow
    async def main() -> str:
        return await hook("go", str, token=SECRET)

    engine = await engine_store.engine(app)
    await engine.start_with_id("r", main.spec, main.input())
    said = []
    with pytest.raises(RunNotFound) as unknown:
        await engine.resume_hook("nobody", "go", 1)
    with pytest.raises(HookTokenNotFound) as wrong:
        await engine.resume_hook_by_token("wrong " + SECRET, 1)
    await engine.resume_hook_by_token(SECRET, "first")
    # Used and ended: nothing tells whether such a token ever existed.
    with pytest.raises(HookTokenNotFound) as used:
        await engine.resume_hook_by_token(SECRET, "second")
    with pytest.raises(FlowError) as ended:
        await engine.resume_hook("r", "go", "second")
    assert str(used.value) == str(wrong.value)
    said += [str(caught.value) for caught in (unknown, wrong, used, ended)]
    assert not any(SECRET in line or "second" in line for line in said)
    assert (await engine.snapshot("r")).output == "first"
    # The same answer again is no other one.
    assert (await engine.resume_hook("r", "go", "first")).status is RunStatus.COMPLETED


async def test_of_two_runs_with_one_token_the_second_waits_visibly_and_goes_on_when_it_is_free(
    engine_store: EngineStore,
) -> None:
    app = FlowApp("mutex")

    @app.workflow
    async def main(name: str) -> str:
        async with hook("mutex", str, token=SECRET, on_conflict="wait") as mutex:
            return f"{name}: {await mutex}"

    engine = await engine_store.engine(app)
    worker = FlowWorker(engine)
    await engine.start_with_id("first", main.spec, main.input("first"), drive=False)
    await worker.run_until_idle()
    await engine.start_with_id("second", main.spec, main.input("second"), drive=False)
    await worker.run_until_idle()
    reason = (await engine.run_info("second")).blocked_reason
    assert reason is not None
    assert "HookTokenConflict" in reason
    assert SECRET not in reason
    await engine.resume_hook_by_token(SECRET, "mine", drive=False)
    await worker.run_until_idle()
    assert (await engine.snapshot("first")).output == "first: mine"
    engine_store.advance(HOUR)
    await worker.run_until_idle()
    assert (await engine.run_info("second")).blocked_reason is None
    await engine.resume_hook_by_token(SECRET, "now mine", drive=False)
    await worker.run_until_idle()
    assert (await engine.snapshot("second")).output == "second: now mine"


async def answered_as_they_open(store: EngineStore, runs: int, group: str = "r") -> None:
    """Runs that open a hook, and clients that answer each in the moment it can be."""
    app = FlowApp("moments")

    @app.step
    async def after(value: int) -> int:
        return value + 1

    @app.workflow
    async def main(number: int) -> list[int]:
        return [await after(await hook("go", int, token=f"{number} {n}")) for n in range(3)]

    engine, client = await store.engine(app), await store.engine(None)
    worker = FlowWorker(engine)
    working = asyncio.ensure_future(worker.run())

    async def answer(number: int) -> None:
        for turn in range(3):

            async def answered(turn: int = turn) -> bool:
                try:
                    token = f"{number} {turn}"
                    await client.resume_hook_by_token(token, number * 10 + turn, drive=False)
                except HookTokenNotFound:
                    return False
                return True

            await until_async(answered, "the hook opens")

    ids = [
        await client.start_with_id(f"{group}{n}", main.spec, main.input(n), drive=False)
        for n in range(runs)
    ]
    await asyncio.gather(*(answer(number) for number in range(runs)))
    await until_ended(client, *ids)
    worker.stop()
    await working
    for number, run_id in enumerate(ids):
        wanted = [number * 10 + turn + 1 for turn in range(3)]
        assert (await client.snapshot(run_id)).output == wanted


async def test_an_answer_in_the_moment_its_hook_opens_is_not_missed(
    engine_store: EngineStore,
) -> None:
    await answered_as_they_open(engine_store, 12)


@pytest.mark.storm
@pytest.mark.timeout(600)
async def test_thousands_of_answers_in_the_moment_their_hooks_open_are_not_missed(
    postgres_only: EngineStore,
) -> None:
    for group in "abcdefg":
        await answered_as_they_open(postgres_only, 100, group)


async def test_an_answer_in_the_turn_that_ends_the_run_is_taken_or_refused_and_never_dropped(
    postgres_only: EngineStore,
) -> None:
    app = FlowApp("closing")

    @app.workflow
    async def main() -> list[str]:
        async with hook("more", str, token="more") as more, hook("stop", token="stop") as stop:
            waits = [asyncio.ensure_future(_awaited(h)) for h in (more, stop)]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            return [await wait for wait in waits if wait.done()]

    async def _awaited(one: Any) -> Any:
        return await one

    engine, client = await postgres_only.engine(app), await postgres_only.engine(None)
    worker = FlowWorker(engine)
    working = asyncio.ensure_future(worker.run())
    taken = 0
    for number in range(15):
        run_id = f"r{number}"
        await client.start_with_id(run_id, main.spec, main.input(), drive=False)

        async def opened(run_id: str = run_id) -> bool:
            return len((await client.snapshot(run_id)).open.hooks) == 2

        await until_async(opened, "both hooks are open")

        async def answer(name: str, run_id: str = run_id) -> bool:
            try:
                await client.resume_hook(run_id, name, name, drive=False)
            except FlowError:  # the run has ended, or withdrawn the hook
                return False
            return True

        accepted = sum(await asyncio.gather(answer("more"), answer("stop")))
        await until_ended(client, run_id)
        history = [event.type for event in await client.history(run_id)]
        # What was accepted stands in the history; what was refused does not.
        assert history.count("hook_received") == accepted
        taken += accepted
        with pytest.raises(FlowError):
            await client.resume_hook(run_id, "more", "too late", drive=False)
    worker.stop()
    await working
    assert taken >= 15
