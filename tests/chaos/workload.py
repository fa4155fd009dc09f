"""What the fleet of a storm works on: workflows whose right end can be told from outside."""

import asyncio
from typing import Any

from flowpg.authoring.app import FlowApp
from flowpg.authoring.context import hook
from flowpg.authoring.step_context import step_context
from flowpg.model.retry import RetryPolicy
from tests.chaos.witness import witnessed, witnessed_in_thread
from tests.durable import forever

app = FlowApp("storm")

_TWICE = RetryPolicy.fixed(2)
TIMER = 0.4
"""Seconds after which the timer of a race is due."""


@app.step(retry=RetryPolicy.none())
async def work(number: int) -> int:
    """Takes up to 60 ms; a second attempt would end its run."""
    await witnessed(number % 7 * 0.01)
    return number + 1


@app.step(retry=RetryPolicy.none())
def grind(number: int) -> int:
    """The same in a thread."""
    witnessed_in_thread(number % 5 * 0.01)
    return number + 1


@app.step(retry=_TWICE)
async def flaky(number: int) -> int:
    """Fails once, on purpose: one crash charged to it would end its run."""
    await witnessed(0.01, fails=step_context().attempt == 1)
    return number + 1


@app.workflow
async def chain(number: int) -> int:
    """Four steps, one after the other."""
    number = await work(number)
    number = await grind.run(number)
    number = await flaky(number)
    return await work(number)


@app.workflow
async def spread(number: int) -> int:
    """Steps side by side, a timer, and a step."""
    found = await asyncio.gather(*(work(number + n) for n in range(5)))
    await asyncio.sleep(number % 4 * 0.2)
    return await grind.run(sum(found))


@app.workflow
async def race(number: int) -> list[Any]:
    """A hook and a timer: which of them came first, and a step after it."""
    async with hook("answer", token=f"race-{number}") as answer:
        try:
            async with asyncio.timeout(TIMER):
                winner, value = "hook", await answer
        except TimeoutError:
            winner, value = "timer", None
    return [winner, value, await work(number)]


@app.workflow
async def ask(number: int) -> Any:
    """A step, an answer, a step, and a second answer to a hook of the same kind."""
    await work(number)
    first = await hook("first", token=f"first-{number}")
    await grind.run(number)
    return [first, await hook("second", token=f"second-{number}")]


@app.workflow
async def called_off(number: int) -> int:
    """Waits for ever: somebody cancels it."""
    await work(number)
    try:
        await forever()
    finally:
        await grind.run(number)
    return number
