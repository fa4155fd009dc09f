"""What a drive waits on while there is nothing for it to do."""

from __future__ import annotations

import asyncio


class Bell:
    """Wakes the one drive that waits. A ring that nobody waits for is forgotten: whoever rings
    leaves its news elsewhere, and the drive looks for them before it waits."""

    __slots__ = ("_late", "_waiter")

    def __init__(self) -> None:
        self._waiter: asyncio.Future[None] | None = None
        self._late = False

    @property
    def waited_on(self) -> bool:
        """Whether a drive waits, and nothing has woken it."""
        return self._waiter is not None and not self._waiter.done()

    def ring(self) -> None:
        """Wake the drive."""
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    async def wait(self, seconds: float | None) -> bool:
        """Wait for a ring, at most ``seconds``. Says whether that time ran out."""
        loop = asyncio.get_running_loop()
        self._late = False
        self._waiter = loop.create_future()
        if seconds is None:
            await self._waiter
            return False
        timer = loop.call_later(seconds, self._ring_late)
        try:
            await self._waiter
        finally:
            timer.cancel()
        return self._late

    def _ring_late(self) -> None:
        self._late = True
        self.ring()
