"""Wait for a condition, with a deadline, instead of for a while. Here alone is polled."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

_LOOK_AGAIN = 0.01


def until(condition: Callable[[], T | None], what: str, timeout: float = 20.0) -> T:
    """The first truthy value of ``condition``; fails the test when there is none in time."""
    deadline = time.monotonic() + timeout
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {timeout:g} s in vain: {what}")
        time.sleep(_LOOK_AGAIN)
    return value


async def until_async(
    condition: Callable[[], Awaitable[T | None]],
    what: str,
    timeout: float = 20.0,
    look_again: float = _LOOK_AGAIN,
) -> T:
    """The same for a condition that has to be awaited, asked for every ``look_again`` seconds."""
    deadline = time.monotonic() + timeout
    while not (value := await condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {timeout:g} s in vain: {what}")
        await asyncio.sleep(look_again)
    return value


async def turns(count: int = 1) -> None:
    """Let the event loop go round so often: where the number of turns is what is tested."""
    for _ in range(count):
        await asyncio.sleep(0)
