"""A worker: takes runs that have work from a queue and drives them, a bounded number at a time.

Any number of workers may serve a queue. A worker that dies loses its leases after their length, and
another goes on; one that is stopped gives them back at once.
"""

from __future__ import annotations

import asyncio
import logging
import random
from datetime import timedelta

from flowpg.engine.flow_engine import FlowEngine
from flowpg.errors import FlowError, InvalidArgument, LeaseLost, StoreError, StoreUnavailable
from flowpg.model.arguments import MAX_PAGE, check_queue
from flowpg.model.records import LoadedRun, RunLease
from flowpg.model.snapshot import WorkflowRunSnapshot

logger = logging.getLogger("flowpg.fleet.worker")

_BUSY_PAUSE = 0.05
_IDLE_PAUSE = 1.0
_LONGEST_BACKOFF = 10.0


class FlowWorker:
    """Drives runs of ``queue`` (default: the engine's), at most ``concurrency`` at once.

    ``grace`` is how long a stopped worker lets steps finish before it cancels them. A worker that
    was stopped is not started again: make another.
    """

    def __init__(
        self,
        engine: FlowEngine,
        queue: str | None = None,
        concurrency: int = 20,
        *,
        grace: timedelta = timedelta(seconds=20),
    ) -> None:
        if not 1 <= concurrency <= MAX_PAGE:
            raise InvalidArgument(f"the concurrency of a worker must be from 1 to {MAX_PAGE}")
        self.engine = engine
        self.queue = check_queue(engine.options.queue if queue is None else queue)
        self.concurrency = concurrency
        self._grace = grace.total_seconds()
        self._active: dict[asyncio.Task[None], str] = {}
        self._stopping = False
        self._at_once = False
        self._news = asyncio.Event()

    # -- lifecycle ------------------------------------------------------------------------------

    async def run(self) -> None:
        """Work until ``stop`` is called.

        While the database is unavailable this waits, longer each time. Any other StoreError (a
        missing privilege, a schema of another release) ends it, after the runs at work were given
        back.
        """
        pause = _BUSY_PAUSE
        failures = 0
        try:
            while not self._stopping:
                try:
                    claimed = await self._claim()
                except StoreUnavailable as error:
                    failures += 1
                    pause = min(_LONGEST_BACKOFF, _BUSY_PAUSE * 2 ** min(failures, 10))
                    logger.warning("the database is unavailable (%s); trying again", error)
                else:
                    failures = 0
                    busy = claimed or self._free <= 0
                    pause = _BUSY_PAUSE if busy else min(_IDLE_PAUSE, pause * 2)
                await self._pause(pause)
        except asyncio.CancelledError:
            self._at_once = True
            raise
        finally:
            await self._wind_down()

    def stop(self, *, at_once: bool = False) -> None:
        """Claim nothing more, let the steps at work finish within the grace period, give the rest
        back; ``at_once`` leaves out the grace period. May be called again with ``at_once``."""
        self._stopping = True
        self._at_once = self._at_once or at_once
        self._news.set()

    # -- for tests and scripts ------------------------------------------------------------------

    async def run_once(self) -> int:
        """Claim once and drive what was claimed to its end or suspension; returns how many runs
        that were."""
        claimed = await self._claim()
        try:
            while self._active:
                await asyncio.wait(self._active)
        except asyncio.CancelledError:
            self._at_once = True
            await self._wind_down()
            raise
        return claimed

    async def run_until_idle(self) -> int:
        """``run_once`` until there is nothing to claim; returns how many drives that took. Timers
        that are not due yet are not waited for."""
        total = 0
        while claimed := await self.run_once():
            total += claimed
        return total

    async def run_until(self, run_id: str, timeout: timedelta | None = None) -> WorkflowRunSnapshot:
        """Work until this run has ended, then stop; returns its snapshot. TimeoutError after
        ``timeout``; RunNotFound."""
        work = asyncio.ensure_future(self.run())
        try:
            async with asyncio.timeout(timeout.total_seconds() if timeout else None):
                while not (await self.engine.run_info(run_id)).status.terminal:
                    await asyncio.wait({work}, timeout=_BUSY_PAUSE)
                    if work.done():
                        work.result()
                        break
        finally:
            self.stop()
            await work
        return await self.engine.snapshot(run_id)

    # -- claiming -------------------------------------------------------------------------------

    async def _claim(self) -> int:
        """Claim up to the free slots and start driving; returns how many runs were claimed."""
        free = self._free
        if free <= 0:
            return 0
        store, options = self.engine.store, self.engine.options
        await store.enqueue_due()
        leases = await store.claim_runs(self.queue, free, self.engine.owner, options.lease)
        if not leases:
            return 0
        # One read for all of them. If it fails, each drive reads its own, with patience.
        loaded: dict[str, LoadedRun] = {}
        try:
            if len(leases) > 1:
                loaded = await store.load_runs([lease.run_id for lease in leases])
        except StoreError as error:
            logger.warning("%d claimed runs could not be read together: %s", len(leases), error)
        for lease in leases:
            task = asyncio.ensure_future(self._drive(lease, loaded.get(lease.run_id)))
            self._active[task] = lease.run_id
            task.add_done_callback(self._freed)
        return len(leases)

    async def _drive(self, lease: RunLease, loaded: LoadedRun | None) -> None:
        run_id = lease.run_id
        try:
            await self.engine.drive_claimed(lease, loaded)
        except LeaseLost:
            logger.warning("the lease of run %r was lost; another worker drives it now", run_id)
        except StoreError as error:
            logger.warning("run %r is left to another attempt: %s", run_id, error)
        except FlowError as error:
            # The text may quote the history, which belongs to the run's own pages.
            logger.warning("run %r is blocked: %s", run_id, type(error).__name__)
        except Exception as error:  # noqa: BLE001  one run must not end the others
            logger.error("driving run %r failed: %s", run_id, type(error).__name__)

    @property
    def _free(self) -> int:
        return self.concurrency - len(self._active)

    def _freed(self, task: asyncio.Task[None]) -> None:
        del self._active[task]
        self._news.set()

    async def _pause(self, seconds: float) -> None:
        """Until ``seconds`` (a little more or less) have passed, or the worker is stopped, or, if
        it was full, a quarter of its slots is free: a few runs claimed together cost as one."""
        full = self._free <= 0
        enough = max(1, self.concurrency // 4)
        self._news.clear()
        if self._stopping:
            return
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds * random.uniform(0.8, 1.2)
        timer = loop.call_at(end, self._news.set)
        try:
            while loop.time() < end and not self._stopping:
                await self._news.wait()
                self._news.clear()
                if full and self._free >= enough:
                    return
        finally:
            timer.cancel()

    # -- stopping -------------------------------------------------------------------------------

    async def _wind_down(self) -> None:
        self._stopping = True
        for run_id in self._active.values():
            self.engine.drain(run_id)
        loop = asyncio.get_running_loop()
        end = loop.time() + self._grace
        timer = loop.call_at(end, self._news.set)
        try:
            while self._active and not self._at_once and loop.time() < end:
                self._news.clear()
                await self._news.wait()
        finally:
            timer.cancel()
            left = list(self._active)
            for task in left:
                task.cancel()
            if left:
                logger.info("giving back %d runs that did not finish in time", len(left))
                await asyncio.wait(left)
