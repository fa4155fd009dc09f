"""``asyncio.wait_for`` of Python 3.11, made to wait as it does from Python 3.12 on.

There it awaits in the task of its caller, under ``asyncio.timeout``; in 3.11 a task of its own is
waited for, and the caller goes on two callbacks later. What else is ready would come first, so a
run could not go on under another Python. Three things that 3.11 asks its loop for, in this order,
are given stand-ins: the future it waits for, the timer, and the task.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine, Generator
from types import CodeType, FrameType
from typing import Any

from flowpg.authoring.tasks import made_for

MAKES_TASKS = sys.version_info < (3, 12)
"""Whether ``wait_for`` of this Python makes a task of what it awaits."""

_WAIT_FOR: frozenset[CodeType] = frozenset({asyncio.wait_for.__code__})


class Waiter:
    """The future and the timer of one ``wait_for``: to wait for it is to do the work."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._error: BaseException | None = None

    def __await__(self) -> Generator[Any, None, None]:
        return self._wait(sys._getframe(1).f_locals["fut"]).__await__()

    async def _wait(self, awaited: Any) -> None:
        inline = awaited if isinstance(awaited, Inline) else None
        try:
            async with asyncio.timeout(self._seconds):
                result = await (awaited if inline is None else inline.coro)
        except BaseException as error:
            if not awaited.done():
                raise
            self._error = error
        else:
            if inline is not None:
                inline.value = result

    def done(self) -> bool:
        """True: what it tells the callback of a future that is done is that nobody needs it."""
        return True

    def cancel(self) -> None:
        """The last thing that ``wait_for`` does, whatever came before. Raises what the wait did:
        3.11 would return a result that is there although its caller was cancelled."""
        error, self._error = self._error, None
        try:
            if error is not None:
                raise error
        finally:
            del error


class Inline:
    """A coroutine that is awaited where a task for it was asked for. ``value`` is its result, once
    there is one; nobody asks before."""

    def __init__(self, coro: Coroutine[Any, Any, Any]) -> None:
        self.coro = coro
        self.value: Any = None

    def done(self) -> bool:
        """True: it is asked when the wait is over."""
        return True

    def result(self) -> Any:
        """What the coroutine returned; None if it raised, which the waiter raises again."""
        return self.value

    def add_done_callback(self, *_: object, **__: object) -> None:
        """Has no effect: the waiter awaits it."""


def waiter_for(depth: int) -> Waiter | None:
    """A waiter if it is ``wait_for`` that asks, at ``depth``, for a future."""
    frame: FrameType = sys._getframe(depth + 1)
    return Waiter(frame.f_locals["timeout"]) if frame.f_code in _WAIT_FOR else None


def awaited_inline(depth: int) -> bool:
    """Whether the caller at ``depth`` asks for the task of a ``wait_for`` that has time. Without
    any it makes a task in every version, only to cancel it."""
    frame = made_for(_WAIT_FOR, 2, depth + 1)
    return frame is not None and bool(frame.f_locals["timeout"] > 0)
