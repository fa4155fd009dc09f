"""What steps at work say of their progress, on its way into the store.

Steps may say something as often as they like. The newest of each is stored at most every half
second, all steps of an engine in one call, so that heartbeats cost the database the same however
many there are. The first after a quiet time goes out at once.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Generator
from time import monotonic
from typing import Any

from flowpg.errors import FlowError, StoreUnavailable
from flowpg.model.records import StepHeartbeat
from flowpg.replay.runtime import Heard
from flowpg.store.protocol import FlowEventStore

logger = logging.getLogger("flowpg.engine.steps")

_INTERVAL = 0.5
_HURRIED = 0.05
"""Seconds between two calls; and while somebody waits for one."""


class Saved(Heard):
    """The way of one heartbeat into the store."""

    __slots__ = ("_beats", "_number")

    def __init__(self, beats: StepHeartbeats, number: int) -> None:
        self._beats = beats
        self._number = number

    def __await__(self) -> Generator[Any, None, None]:
        return self._beats.stored(self._number).__await__()

    def wait(self, timeout: float | None = None) -> None:
        """See ``Heard``."""
        asyncio.run_coroutine_threadsafe(self._beats.stored(self._number), self._beats.loop).result(
            timeout
        )


class StepHeartbeats:
    """The heartbeats of one engine. To be made in its event loop."""

    def __init__(self, store: FlowEventStore) -> None:
        self.loop = asyncio.get_running_loop()
        self._store = store
        self._lock = threading.Lock()
        self._new: dict[tuple[str, str], StepHeartbeat] = {}
        self._said = 0  # how many beats there were
        self._stored = 0  # all up to this one are in the store, or come to nothing
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self._hurry = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._last = 0.0

    def say(self, beat: StepHeartbeat) -> Saved:
        """Store this in place of what the step said before. From any thread."""
        with self._lock:
            idle = not self._new
            self._new[beat.run_id, beat.step_id] = beat
            self._said += 1
            number = self._said
        if idle:
            self.loop.call_soon_threadsafe(self._begin)
        return Saved(self, number)

    async def stored(self, number: int) -> None:
        """Wait until beat ``number`` is stored, and see to it that this is soon."""
        if number <= self._stored:
            return
        waiter = self.loop.create_future()
        self._waiting.append((number, waiter))
        self._hurry.set()
        await waiter

    async def close(self) -> None:
        """Store what is left, as far as the store answers."""
        if self._task is not None and not self._task.done():
            self._hurry.set()
            await asyncio.wait({self._task}, timeout=1.0)
            self._task.cancel()

    def _begin(self) -> None:
        if self._task is None or self._task.done():
            self._task = self.loop.create_task(self._work())

    async def _work(self) -> None:
        while self._new:
            await self._pause()
            with self._lock:
                beats, self._new = self._new, {}
                number = self._said
            self._last = monotonic()
            try:
                again = await self._send(list(beats.values()))
            except StoreUnavailable as error:
                logger.warning("%d heartbeats of steps have to wait: %s", len(beats), error)
                again = list(beats.values())
            except FlowError as error:
                logger.error("%d heartbeats of steps are lost: %s", len(beats), error)
                again = []
            if again:
                with self._lock:
                    for beat in again:  # unless it has said something newer meanwhile
                        self._new.setdefault((beat.run_id, beat.step_id), beat)
            else:
                self._reached(number)

    async def _send(self, beats: list[StepHeartbeat]) -> list[StepHeartbeat]:
        outcomes = await self._store.record_heartbeats(beats)
        return [beat for beat, outcome in zip(beats, outcomes, strict=True) if outcome == "busy"]

    async def _pause(self) -> None:
        elapsed = monotonic() - self._last
        if elapsed >= _INTERVAL:
            return
        if not self._waiting:
            self._hurry.clear()
            try:
                async with asyncio.timeout(_INTERVAL - elapsed):
                    await self._hurry.wait()
            except TimeoutError:
                return
        await asyncio.sleep(max(0.0, _HURRIED - (monotonic() - self._last)))

    def _reached(self, number: int) -> None:
        self._stored = number
        waiting, self._waiting = self._waiting, []
        for wanted, waiter in waiting:
            if wanted > number:
                self._waiting.append((wanted, waiter))
            elif not waiter.done():
                waiter.set_result(None)
