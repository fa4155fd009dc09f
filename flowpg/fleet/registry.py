"""Telling operators, and the runs that wait for a worker, who is there and what it can do.

No lease depends on it: a worker that cannot register works all the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Callable, Sequence
from datetime import timedelta

from flowpg.engine.flow_engine import FlowEngine
from flowpg.errors import FlowError, StoreUnavailable
from flowpg.postgres.fleet_verbs import WorkerRow, worker_beat, worker_gone
from flowpg.replay.runtime import known
from flowpg.store.postgres import PostgresEventStore

logger = logging.getLogger("flowpg.fleet.registry")

BEAT_EVERY = timedelta(seconds=10)


class Registry:
    """Writes the row of one worker each ``every`` until it is closed; ``running`` says how many
    runs it drives, ``alive`` whether it still claims any: if not, it is not said to be alive."""

    def __init__(
        self,
        engine: FlowEngine,
        store: PostgresEventStore,
        queues: Sequence[str],
        slots: int,
        running: Callable[[], int],
        alive: Callable[[], bool],
        every: timedelta = BEAT_EVERY,
    ) -> None:
        self._engine = engine
        self._store = store
        self._queues = tuple(queues)
        self._slots = slots
        self._running = running
        self._alive = alive
        self._every = every
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Register, in a task of the running event loop."""
        self._task = asyncio.ensure_future(self._work())

    async def close(self, patience: float = 2.0) -> None:
        """Say that the worker ends. Waits at most ``patience`` seconds for the database."""
        task, self._task = self._task, None
        if task is None:
            return
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        try:
            async with asyncio.timeout(patience):
                await self._store.call(worker_gone(self._engine.owner))
        except (FlowError, TimeoutError):
            logger.info("the worker could not say that it ends; its beats just stop")

    def row(self) -> WorkerRow:
        """What this worker says about itself now."""
        options, runtime = self._engine.options, self._engine.runtime
        builds = options.runtime_builds
        return WorkerRow(
            worker_id=self._engine.owner,
            host=socket.gethostname(),
            pid=os.getpid(),
            queues=self._queues,
            runtime_build=builds[0] if builds else None,
            builds=builds,
            accepts_unpinned=options.accept_unpinned,
            workflows=known(runtime, "workflows"),
            steps=known(runtime, "steps"),
            slots=self._slots,
            running=self._running(),
        )

    async def _work(self) -> None:
        complained = False
        while True:
            try:
                if self._alive():
                    await self._store.call(worker_beat(self.row(), self._every))
            except StoreUnavailable:
                pass  # whoever claims tells
            except FlowError as error:
                if not complained:
                    logger.warning("this worker is not registered: %s", error)
                complained = True
            await asyncio.sleep(self._every.total_seconds())
