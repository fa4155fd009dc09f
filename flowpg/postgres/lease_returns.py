"""Leases that are given back: those of one moment, a worker's that stops say, share a call."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence

from flowpg.model.arguments import MAX_PAGE
from flowpg.model.records import RunLease

_Send = Callable[[Sequence[RunLease]], Awaitable[list[bool]]]
_Waiting = list[tuple[RunLease, "asyncio.Future[bool]"]]


class LeaseReturns:
    """Collects leases and hands them to ``send``: all that are given back while the event loop runs
    what is ready, and then all that came during the call. A call that fails fails its own members.
    A lease that could not be given back in company goes to ``send_one``, which waits for its run.
    """

    def __init__(self, send: _Send, send_one: Callable[[RunLease], Awaitable[bool]]) -> None:
        self._send = send
        self._send_one = send_one
        self._begin()

    def _begin(self) -> None:
        self._process = os.getpid()
        self._waiting: _Waiting = []
        self._calls: set[asyncio.Task[None]] = set()

    async def give_back(self, lease: RunLease) -> bool:
        """Give one lease back, in company if there is any; whether it was held."""
        if self._process != os.getpid():
            self._begin()  # what was at work at the fork is the parent's
        answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting.append((lease, answer))
        if not self._calls:
            task = asyncio.create_task(self._work())
            self._calls.add(task)
        return await answer or await self._send_one(lease)

    async def _work(self) -> None:
        try:
            while self._waiting:
                group, self._waiting = self._waiting[:MAX_PAGE], self._waiting[MAX_PAGE:]
                await self._commit(group)
        finally:
            # In the same breath as finding nothing more to do, as with appends.
            self._calls.clear()

    async def _commit(self, group: _Waiting) -> None:
        try:
            held = await self._send([lease for lease, _ in group])
        except Exception as error:  # noqa: BLE001  whatever it is, nobody may wait for ever
            for _, answer in group:
                if not answer.done():
                    answer.set_exception(error)
        else:
            for (_, answer), was_held in zip(group, held, strict=True):
                if not answer.done():
                    answer.set_result(was_held)
