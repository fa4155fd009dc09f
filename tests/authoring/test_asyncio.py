"""Ordinary asyncio is durable: the same program gives the same result as under plain asyncio, with
its coroutine kept in memory and replayed at every turn, with the same history."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from flowpg.authoring.app import FlowApp
from tests.authoring.asyncio_programs import PROGRAMS
from tests.authoring.support import both, like_asyncio
from tests.durable import durable


def program(workflow: Any) -> Any:
    """A test of one workflow function, which gets the steps it may call."""

    def build(app: FlowApp) -> None:
        @app.step
        async def double(x: int) -> int:
            return 2 * x

        @app.step(name="broken")
        async def broken(x: int) -> int:
            raise ValueError(f"no {x}")

        async def main() -> Any:
            return await workflow(double, broken)

        main.__name__ = workflow.__name__
        app.workflow(main)

    return build


@pytest.mark.parametrize("workflow", PROGRAMS, ids=lambda workflow: workflow.__name__)
async def test_a_program_does_what_it_does_under_plain_asyncio(workflow: Any) -> None:
    await like_asyncio(program(workflow))


async def test_a_generator_that_is_left_in_the_middle_is_closed() -> None:
    closed: list[str] = []

    async def left(double: Any, broken: Any) -> Any:
        async def numbers() -> AsyncIterator[int]:
            try:
                for number in range(10):
                    yield await double(number)
            finally:
                await double(50)
                closed.append("closed")

        async for number in numbers():
            if number == 2:
                break
        await double(8)
        return await double(9)

    played = await both(program(left))
    assert played.result == 18
    assert "closed" in closed
    assert any('"x":50' in line for line in played.lines())


async def test_branches_of_a_gather_never_shift_each_others_ids() -> None:
    def build(calls_in_first: int) -> Any:
        async def branches(double: Any, broken: Any) -> Any:
            async def branch(calls: int) -> None:
                for number in range(calls):
                    await double(number)

            await asyncio.gather(branch(calls_in_first), branch(2))

        return program(branches)

    short, long = await both(build(1)), await both(build(3))

    def second(lines: list[str]) -> set[str]:
        return {line for line in lines if line.endswith(("#2/1", "#2/2"))}

    assert second(short.types()) == second(long.types()) != set()


async def test_results_of_equal_calls_are_not_swapped() -> None:
    def build(app: FlowApp) -> None:
        gates = [asyncio.Event() for _ in range(4)]

        @app.step
        async def work(x: int) -> str:
            # The last one ends first.
            if x + 1 < len(gates):
                await gates[x + 1].wait()
            gates[x].set()
            return f"result of {x}"

        @app.workflow
        async def main() -> list[str]:
            return await asyncio.gather(*(work(x) for x in range(len(gates))))

    played = await both(build)
    assert played.result == [f"result of {x}" for x in range(4)]


async def test_two_identical_calls_are_two_steps() -> None:
    async def twice(double: Any, broken: Any) -> Any:
        return await asyncio.gather(double(1), double(1)), await double(1)

    played = await both(program(twice))
    created = [event for event in played.history if event.type == "step_created"]
    assert len({event.subject for event in created}) == 3


async def test_what_wait_for_awaits_has_the_same_places_under_every_python() -> None:
    @durable
    async def waits(double: Any, broken: Any) -> Any:
        async def inner(number: int) -> int:
            await asyncio.sleep(1)
            first = await asyncio.create_task(double(number))
            return int(first) + await asyncio.wait_for(nested(number), 50)

        async def nested(number: int) -> int:
            return int(await double(number))

        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(nested(9), 0)
        total = await asyncio.wait_for(inner(1), 100)
        both = await asyncio.gather(*(asyncio.wait_for(inner(n), 10) for n in (2, 3)))
        return total + sum(both) + await double(5)

    played = await both(program(waits))
    assert played.result == 34
    places = sorted(kind.split("#")[1] for kind in played.types() if "step_created" in kind)
    assert places == ["3", "3/3", "3/5", "4/3", "4/5", "5", "6"]


@pytest.mark.parametrize("as_a_future", [True, False], ids=["a future", "a coroutine"])
async def test_who_is_cancelled_while_wait_for_has_its_result_is_cancelled(
    as_a_future: bool,
) -> None:
    # Python 3.11 by itself returns the result and forgets that it was cancelled.
    @durable
    async def cancelled(double: Any, broken: Any) -> Any:
        told: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        async def hears() -> int:
            return await told

        task = asyncio.create_task(asyncio.wait_for(told if as_a_future else hears(), 10))
        await asyncio.sleep(0)
        told.set_result(await double(1) - 1)
        task.cancel("not needed")
        try:
            return await task
        except asyncio.CancelledError as error:
            return [str(error), task.cancelled(), await double(2)]

    assert (await both(program(cancelled))).result == ["not needed", True, 4]


async def test_what_wait_for_awaits_is_in_the_task_of_its_caller() -> None:
    @durable
    async def inside(double: Any, broken: Any) -> Any:
        here = asyncio.current_task()

        async def inner() -> Any:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                return asyncio.current_task() is here

        async def failing() -> None:
            raise KeyError(await double(3))

        found = [await asyncio.wait_for(inner(), 1)]
        for error in (KeyError, TimeoutError):
            with contextlib.suppress(error):
                await asyncio.wait_for(failing() if error is KeyError else asyncio.sleep(9), 2)
                found.append(error)
        return [*found, asyncio.current_task().cancelling()]  # type: ignore[union-attr]

    assert (await both(program(inside))).result == [True, 0]
