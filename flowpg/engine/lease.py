"""Keeping leases: one task per engine extends all of them in one call.

A lease that is lost, and a run that was woken meanwhile, are told to whoever drives the run.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import timedelta
from typing import Protocol

from flowpg.errors import FlowError, StoreUnavailable
from flowpg.model.records import Heartbeat, RunLease
from flowpg.store.protocol import FlowEventStore

logger = logging.getLogger("flowpg.engine.lease")

OnHeartbeat = Callable[[Heartbeat], None]


class Keeper(Protocol):
    """Whoever keeps the leases of an engine's drives."""

    def hold(self, lease: RunLease, on_heartbeat: OnHeartbeat) -> None:
        """Keep this lease until it is dropped; ``on_heartbeat`` gets the answer of each heartbeat,
        in the event loop of the drive."""
        ...

    def drop(self, lease: RunLease) -> None:
        """Stop extending this lease."""
        ...

    async def close(self) -> None:
        """Stop. Leases still held run out by themselves."""
        ...


class LeaseKeeper:
    """Extends every held lease each ``interval`` to ``lease`` from then."""

    def __init__(self, store: FlowEventStore, lease: timedelta, interval: timedelta) -> None:
        self._store = store
        self._lease = lease
        self._interval = interval.total_seconds()
        self._held: dict[tuple[str, int], tuple[RunLease, OnHeartbeat]] = {}
        self._task: asyncio.Task[None] | None = None

    def hold(self, lease: RunLease, on_heartbeat: OnHeartbeat) -> None:
        """Keep this lease until it is dropped; ``on_heartbeat`` gets each heartbeat's answer."""
        self._held[lease.run_id, lease.epoch] = (lease, on_heartbeat)
        if self._task is None or self._task.done():
            self._task = asyncio.ensure_future(self._beat_while_held())

    def drop(self, lease: RunLease) -> None:
        """Stop extending this lease; it is neither given back nor released by that."""
        self._held.pop((lease.run_id, lease.epoch), None)

    async def beat(self) -> None:
        """Extend all held leases now, and tell their listeners."""
        asked = {run_id: pair for (run_id, _), pair in self._held.items()}
        if not asked:
            return
        answers = await self._store.heartbeat([lease for lease, _ in asked.values()], self._lease)
        for answer in answers:
            lease, on_heartbeat = asked[answer.run_id]
            # Dropped while the call was on its way: its answer says nothing any more.
            if (lease.run_id, lease.epoch) in self._held:
                on_heartbeat(answer)

    async def close(self) -> None:
        """Stop the task. Leases still held run out by themselves."""
        task, self._task = self._task, None
        if task is None:
            return
        task.cancel()
        # Not awaited: from Python 3.12 on, the error that this raises would keep the engine alive.
        await asyncio.wait([task])
        if not task.cancelled():
            task.result()

    async def _beat_while_held(self) -> None:
        while True:
            await asyncio.sleep(self._interval)
            if not self._held:
                return
            try:
                await self.beat()
            except StoreUnavailable:
                # The append's fence decides whether the leases were lost meanwhile.
                logger.warning("the database is unavailable; %d leases unextended", len(self._held))
            except FlowError as error:
                logger.error("leases could not be extended: %s", error)
