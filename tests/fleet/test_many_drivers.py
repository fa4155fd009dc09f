"""Many workers and engines that are all allowed on one run: one drives it at a time."""

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest

from flowpg.errors import FlowError
from flowpg.fleet.worker import FlowWorker
from flowpg.model.commands import Decision
from flowpg.replay.context import WorkflowContext
from flowpg.replay.runtime import StepInvocation
from tests.engine.support import SPEC, EngineStore, Script
from tests.fleet.watching import until_ended
from tests.waiting import turns, until_async
from tests.weather import pause

ROUNDS, WIDTH, WORKERS, DRIVERS = 6, 4, 4, 3


def rounds(ctx: WorkflowContext) -> Decision:
    """Each round waits for all answers to its hooks, and then runs as many steps at once."""
    done = []
    for number in range(ROUNDS):
        ids = [f"{number}-{place}" for place in range(WIDTH)]
        unanswered = [hook for hook in ids if not ctx.hook_received(hook)]
        if unanswered:
            return tuple(ctx.create_hook(hook, f"token-{hook}") for hook in unanswered)
        unfinished = [step for step in ids if not ctx.step_completed(step)]
        if unfinished:
            payloads = {step: ctx.hook_payload(step) for step in unfinished}
            return ctx.schedule_steps(
                ctx.step(step, "work", payload) for step, payload in payloads.items()
            )
        done += [ctx.step_output(step) for step in ids]
    return ctx.complete(done)


class Floor:
    """Who has steps of the run at work, and whether that was ever more than one."""

    def __init__(self) -> None:
        self.at_work: Counter[int] = Counter()
        self.together: list[tuple[int, ...]] = []
        self.calls: Counter[tuple[str, int]] = Counter()

    def step_of(self, who: int) -> Callable[[StepInvocation], Awaitable[Any]]:
        """The step of one process."""

        async def work(step: StepInvocation) -> Any:
            self.calls[step.step_id, step.attempt] += 1
            self.at_work[who] += 1
            if len(+self.at_work) > 1:
                self.together.append(tuple(sorted(+self.at_work)))
            await turns(random.randint(1, 20))  # in which somebody else may begin
            self.at_work[who] -= 1
            return step.input

        return work


@pytest.mark.parametrize("seed", range(2))
async def test_of_many_drivers_one_drives_and_nothing_is_run_twice_or_lost(
    engine_store: EngineStore, seed: int
) -> None:
    chance, floor = random.Random(seed), Floor()
    engines = [
        await engine_store.engine(Script(rounds, {"work": floor.step_of(who)}))
        for who in range(WORKERS + DRIVERS)
    ]
    workers = [FlowWorker(engine, concurrency=2) for engine in engines[:WORKERS]]
    run_id = await engines[0].start(SPEC, drive=False)
    working = [asyncio.ensure_future(worker.run()) for worker in workers]
    ended = asyncio.Event()

    async def drive_again_and_again(engine: Any) -> None:
        while not ended.is_set():
            await engine.drive(run_id)
            await pause(chance.uniform(0, 0.01))

    driving = [asyncio.ensure_future(drive_again_and_again(e)) for e in engines[WORKERS:]]
    accepted: dict[str, list[str]] = {}

    async def answer(hook: str, who: int) -> None:
        try:
            result = await engines[who].store.resume_hook(run_id, hook, f"{hook} by {who}")
        except FlowError:
            return  # somebody else was faster, and the hook is gone
        if result.applied:
            accepted.setdefault(hook, []).append(f"{hook} by {who}")

    async def is_open(number: int) -> bool:
        hooks = await engines[0].store.list_active_hooks(run_id=run_id)
        return sum(hook.hook_id.startswith(f"{number}-") for hook in hooks) == WIDTH

    try:
        for number in range(ROUNDS):
            await until_async(partial(is_open, number), f"the hooks of round {number} are open")
            burst = [(f"{number}-{place}", who) for place in range(WIDTH) for who in range(4)]
            chance.shuffle(burst)
            await asyncio.gather(*(answer(hook, who) for hook, who in burst))
        await until_ended(engines[0], run_id)
    finally:
        ended.set()
        for worker in workers:
            worker.stop()
        await asyncio.gather(*working, *driving)

    ids = [f"{number}-{place}" for number in range(ROUNDS) for place in range(WIDTH)]
    assert {hook: len(said) for hook, said in accepted.items()} == dict.fromkeys(ids, 1)
    assert (await engines[0].snapshot(run_id)).output == [accepted[hook][0] for hook in ids]
    assert floor.calls == dict.fromkeys(((step, 1) for step in ids), 1)
    assert floor.together == []
