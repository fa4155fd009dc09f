"""Wait for a condition of another process, with a deadline, instead of for a while."""

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
    condition: Callable[[], Awaitable[T | None]], what: str, timeout: float = 20.0
) -> T:
    """The same for a condition that has to be awaited."""
    deadline = time.monotonic() + timeout
    while not (value := await condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {timeout:g} s in vain: {what}")
        await asyncio.sleep(_LOOK_AGAIN)
    return value
