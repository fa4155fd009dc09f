"""Code that goes on when the history knows whose a token is, and what was asked for beside it."""

import asyncio
from typing import Any

import pytest

from flowpg import FlowApp, HookTokenConflict, hook, patched
from tests.authoring.support import both


@pytest.mark.parametrize("refused", [False, True])
async def test_it_may_give_up_what_was_asked_for_in_the_same_decision(refused: bool) -> None:
    def build(app: FlowApp) -> None:
        @app.step
        async def work() -> str:
            return "worked"

        @app.workflow
        async def main() -> list[str]:
            async def enter() -> str:
                try:
                    async with hook("door", token="t"):
                        other.cancel()
                        return "entered"
                except HookTokenConflict as taken:
                    other.cancel()
                    return f"taken by {taken.hook_id}"

            async def beside() -> str:
                return await work()

            owner = hook("owner", token="t" if refused else "another")
            async with owner:
                door = asyncio.create_task(enter())
                other = asyncio.create_task(beside())
                await asyncio.wait([door, other])
            return [await door, "given up" if other.cancelled() else await other]

    played = await both(build)
    assert played.result == ["taken by owner" if refused else "entered", "given up"]
    types = played.types()
    [created] = [at for at, line in enumerate(types) if line.startswith("step_created")]
    assert "door" in types[created - 1]


@pytest.mark.parametrize("marks", [0, 1, 2])
async def test_it_takes_the_new_branch_of_a_patch_as_all_code_does_that_nothing_was_decided_after(
    marks: int,
) -> None:
    def build(app: FlowApp) -> None:
        @app.workflow
        async def main() -> list[Any]:
            async def enter() -> bool:
                async with hook("door", token="t"):
                    return patched("inside")

            async def beside() -> list[bool]:
                return [patched(f"beside {number}") for number in range(marks)]

            return [*await asyncio.gather(enter(), beside())]

    played = await both(build)
    assert played.result == [True, [True] * marks]
