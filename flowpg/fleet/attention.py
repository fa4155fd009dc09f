"""What a worker waits for between two looks: news, deadlines of its runs, slots, or time."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable

_LATER = 0.003


class Attention:
    """Where everything that may be a reason to look meets; ``on_deadline`` is called when one of
    the deadlines passes, before the worker is told."""

    def __init__(self, on_deadline: Callable[[], None]) -> None:
        self.due = False
        """Whether a deadline has passed since this was last set to False."""
        self._on_deadline = on_deadline
        self._deadlines: list[float] = []
        self._news = asyncio.Event()
        self._told = False

    def stir(self) -> None:
        """Something changed: let whoever waits look whether that is what it waits for."""
        self._news.set()

    def tell(self) -> None:
        """There may be work: look now."""
        self._told = True
        self._news.set()

    def tell_after(self, seconds: float) -> None:
        """There will be work: look then."""
        if seconds > 0:
            asyncio.get_running_loop().call_later(seconds, self.tell)
        else:
            self.tell()

    def looking(self) -> bool:
        """What was told until now is about to be looked at; whether anything was."""
        told, self._told = self._told, False
        return told

    def expect(self, seconds: float | None) -> None:
        """Tell when the deadline of a run that was driven here passes in the database."""
        if seconds is not None:
            loop = asyncio.get_running_loop()
            at = loop.time() + seconds + _LATER
            heapq.heappush(self._deadlines, at)
            if self._deadlines[0] == at:
                loop.call_at(at, self._deadline)

    async def wait(self, seconds: float, over: Callable[[], bool]) -> None:
        """Until ``seconds`` have passed, or there may be work, or ``over`` holds, which is asked
        whenever something changed."""
        await self.wait_for(seconds, lambda: self._told or over())

    async def wait_for(self, seconds: float, over: Callable[[], bool]) -> None:
        """Until ``seconds`` have passed or ``over`` holds, whatever is told meanwhile."""
        self._news.clear()
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        timer = loop.call_at(end, self._news.set)
        try:
            while loop.time() < end and not over():
                await self._news.wait()
                self._news.clear()
        finally:
            timer.cancel()

    def _deadline(self) -> None:
        loop = asyncio.get_running_loop()
        while self._deadlines and self._deadlines[0] <= loop.time():
            heapq.heappop(self._deadlines)
            self.due = True
            self._on_deadline()
            self.tell()
        if self._deadlines:
            loop.call_at(self._deadlines[0], self._deadline)
