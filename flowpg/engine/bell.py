"""What a drive waits on while there is nothing for it to do."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable


class Bell:
    """Wakes the one drive that waits. A ring that nobody waits for is forgotten: whoever rings
    leaves its news elsewhere, and the drive looks for them before it waits."""

    __slots__ = ("_waiter",)

    def __init__(self) -> None:
        self._waiter: asyncio.Future[bool] | None = None

    @property
    def waited_on(self) -> bool:
        """Whether a drive waits, and nothing has woken it."""
        return self._waiter is not None and not self._waiter.done()

    def ring(self) -> None:
        """Wake the drive."""
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(False)

    def wait(self, seconds: float | None) -> Awaitable[bool]:
        """To be awaited: a ring, or that ``seconds`` pass without one. Says whether they did."""
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[bool] = loop.create_future()
        self._waiter = waiter
        if seconds is not None:
            timer = loop.call_later(seconds, _give_up, waiter)
            waiter.add_done_callback(lambda _: timer.cancel())
        return waiter


def _give_up(waiter: asyncio.Future[bool]) -> None:
    if not waiter.done():
        waiter.set_result(True)
