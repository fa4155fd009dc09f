"""Tasks and futures of a run: the same in every replay, names, hashes and order included.

A set of tasks is walked by their hashes, which for asyncio's own are addresses in memory. Here they
are numbers in the order of creation, so ``asyncio.wait`` and ``TaskGroup``, which keep sets, behave
the same in every process.
"""

from __future__ import annotations

import asyncio
import random
import sys
from asyncio import tasks as _tasks
from contextvars import Context
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any

from flowpg.authoring.errors import NotDurable

if TYPE_CHECKING:
    from flowpg.authoring.loop import RunLoop


class RunFuture(asyncio.Future[Any]):
    """A future of a run; ``number`` is its hash, ``operation`` the durable call it is of, until
    that is settled: the two refer to each other, and are to leave no garbage to collect."""

    __slots__ = ("number", "operation")

    number: int
    operation: Any

    def __hash__(self) -> int:
        return self.number

    def cancel(self, msg: Any | None = None) -> bool:
        """Cancel it; a durable call is given up with that."""
        cancelled = super().cancel(msg)
        if cancelled and self.operation is not None:
            loop: Any = self.get_loop()
            loop.run.give_up(self.operation)
            self.operation = None
        return cancelled


class CallSites:
    """Counts what code outside any task creates and calls."""

    __slots__ = ("calls", "children", "path", "stream")

    def __init__(self, path: str) -> None:
        self.path = path
        self.calls = 0
        self.children = 0
        self.stream: random.Random | None = None


class RunTask(asyncio.Task[Any]):
    """A task of a run. ``path`` says where it was created: ``""`` for the workflow itself, ``"2"``
    for the second task that created, ``"2.1"`` for the first of that one."""

    __slots__ = ("calls", "children", "number", "path", "stream")

    def __init__(
        self,
        coro: Any,
        loop: RunLoop,
        number: int,
        path: str,
        name: str | None,
        context: Context | None,
    ) -> None:
        self.number = number
        self.path = path
        self.calls = 0
        self.children = 0
        self.stream: random.Random | None = None
        super().__init__(coro, loop=loop, name=name or f"task {path or 'main'}", context=context)

    def __hash__(self) -> int:
        return self.number


# -- tasks that asyncio makes -------------------------------------------------------------------

_ENSURE_FUTURE: CodeType = getattr(_tasks, "_ensure_future", _tasks.ensure_future).__code__


def made_for(codes: frozenset[CodeType], most: int, depth: int) -> FrameType | None:
    """The frame of one of ``codes`` if the caller at ``depth`` makes a task for it, by way of
    ``ensure_future`` and at most ``most`` frames in all."""
    frame: FrameType | None = sys._getframe(depth + 1)
    if frame is None or frame.f_code is not _ENSURE_FUTURE:
        return None
    for _ in range(most):
        frame = frame.f_back
        if frame is None:
            return None
        if frame.f_code in codes:
            return frame
    return None


# -- as_completed -------------------------------------------------------------------------------


def _shuffling_codes() -> frozenset[CodeType]:
    """The code that puts coroutines, which have no stable hash, into a set before it makes tasks
    of them: ``as_completed``, by one name or another."""
    found = [_tasks.as_completed.__code__]
    iterator = getattr(_tasks, "_AsCompletedIterator", None)
    if iterator is not None:
        found.append(iterator.__init__.__code__)
    return frozenset(found)


_SHUFFLING = _shuffling_codes()


def shuffled_by(depth: int) -> FrameType | None:
    """The frame of ``as_completed`` if the caller at ``depth`` makes a task for it."""
    return made_for(_SHUFFLING, 4, depth + 1)


class Burst:
    """The tasks that one ``as_completed`` makes: numbered and started in the order in which its
    caller listed the coroutines."""

    def __init__(self, frame: FrameType, children: int, numbers: int) -> None:
        self.frame = frame
        names = frame.f_locals
        listed = names.get("fs", names.get("aws"))
        if not isinstance(listed, (list, tuple)):
            raise NotDurable(
                f"asyncio.as_completed() over a {type(listed).__name__}",
                "give it a list, so that its tasks have an order",
            )
        self.listed = listed
        self.children = children
        self.numbers = numbers
        self.started: list[tuple[int, asyncio.Handle]] = []

    def place_of(self, coro: object) -> int:
        """Where the caller listed this coroutine."""
        return next(place for place, item in enumerate(self.listed) if item is coro)
