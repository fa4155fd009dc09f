"""A worker: takes runs that have work from its queues and drives them, a bounded number at a time.

Any number of workers may serve a queue. A worker that dies loses its leases after their length, and
another goes on; one that is stopped gives them back at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from time import monotonic

from flowpg.engine.errortext import blocked_reason
from flowpg.engine.flow_engine import FlowEngine
from flowpg.engine.tip import RunTip
from flowpg.errors import FlowError, InvalidArgument, LeaseLost, StoreError, StoreUnavailable
from flowpg.fleet.attention import Attention
from flowpg.fleet.claims import Claims, Due
from flowpg.fleet.collector import calm_collector
from flowpg.fleet.liveness import Liveness
from flowpg.fleet.pacing import Pace
from flowpg.fleet.services import ServiceOptions, WorkerServices
from flowpg.model.arguments import MAX_PAGE, check_queues
from flowpg.model.records import LoadedRun, RunLease
from flowpg.model.snapshot import WorkflowRunSnapshot
from flowpg.store.postgres import PostgresEventStore

logger = logging.getLogger("flowpg.fleet.worker")

_BUSY_PAUSE = 0.05
_LAST_CALL = 2.0
"""Seconds a stopping worker waits for the answer to its last claim, and for giving that back."""


class FlowWorker:
    """Drives runs of ``queues``, one or several (default: the engine's queue), at most
    ``concurrency`` at once.

    ``grace`` is how long a stopped worker lets steps finish before it cancels them; ``poll`` the
    longest pause between two looks at an empty queue while no notifications come through. A claim
    that has not answered within ``claim_timeout`` is left alone and another one made. A run that
    took ``max_crashes`` workers with it is set aside as a dead letter. It is given only runs that
    the engine's builds and the workflows of its runtime, where that names them, can drive. A
    worker that was stopped is not started again: make another.

    ``schedule``: make work of what is due too, which a FlowScheduler must do otherwise. On
    PostgreSQL it also, unless told not to, carries out ``tasks`` of its queues and steps that runs
    of other queues have left to them, lets itself be notified of work (``listen``; ``direct_dsn``
    leads to the server past any pooler, by default it is the store's DSN), and tells operators that
    it is there (``register``). Leases are kept by a thread, unless the event loop has been blocked
    for ``max_wedged``. With ``exits`` the process ends then if workflow code is what blocks it, as
    is right for one that is nothing but a worker.
    """

    def __init__(
        self,
        engine: FlowEngine,
        queues: str | Sequence[str] | None = None,
        concurrency: int = 20,
        *,
        grace: timedelta = timedelta(seconds=20),
        poll: timedelta = timedelta(seconds=1),
        claim_timeout: timedelta = timedelta(seconds=60),
        max_crashes: int = 3,
        schedule: bool = True,
        tasks: bool = True,
        listen: bool = True,
        direct_dsn: str | None = None,
        register: bool = True,
        max_wedged: timedelta = timedelta(minutes=10),
        exits: bool = False,
    ) -> None:
        if not 1 <= concurrency <= MAX_PAGE:
            raise InvalidArgument(f"the concurrency of a worker must be from 1 to {MAX_PAGE}")
        if poll <= timedelta(0) or claim_timeout <= timedelta(0):
            raise InvalidArgument("the poll interval and the claim timeout must be positive")
        self.engine = engine
        self.queues = check_queues(engine.options.queue if queues is None else queues)
        self.concurrency = concurrency
        self.grace = grace
        self._max_crashes = max_crashes
        self._claim_timeout = claim_timeout.total_seconds()
        self._pace = Pace(_BUSY_PAUSE, poll.total_seconds())
        self._active: dict[asyncio.Task[None], RunLease] = {}
        self._abandoned: set[asyncio.Task[int]] = set()
        self._returning: set[asyncio.Task[None]] = set()
        self._service_options = ServiceOptions(
            listen=listen,
            direct_dsn=direct_dsn,
            register=register,
            tasks=tasks,
            max_wedged=max_wedged,
            exits=exits,
        )
        self._services: WorkerServices | None = None
        self._last_claim = monotonic()
        self._stopping = False
        self._at_once = False
        self._stopped = asyncio.Event()
        # Looks more than once after a deadline, if this clock is a little ahead of the database's.
        self._attention = Attention(on_deadline=lambda: self._pace.found(busy=True))
        self._claims = Claims(
            engine,
            self.queues,
            max_crashes,
            schedule=schedule,
            begin=self._begin,
            held=lambda: list(self._active.values()),
        )

    # -- lifecycle ------------------------------------------------------------------------------

    async def run(self) -> None:
        """Work until ``stop`` is called.

        While the database is unavailable this waits, longer each time. Any other StoreError (a
        missing privilege, a schema of another release) ends it, after the runs at work were given
        back.
        """
        calm_collector()
        self._last_claim = monotonic()
        services = self._services = self._make_services()
        try:
            if services is not None:
                services.start()
            own = False
            while not self._stopping:
                # Whoever was told of work looks at once. Else a worker with nothing to do says so
                # first, so that what comes after the look is told.
                told = self._attention.looking()
                due = self._due(told)
                found = await self._attempt(hint=not told and self._idle, due=due)
                if told and found is not None:
                    self._pace.followed(found > 0 or own)
                    if not found and services is not None:
                        services.look_at_tasks()
                    if not found and self._idle:
                        await self._attempt(hint=True, due=Due.WITH)
                own = due is Due.WITH and bool(found)  # then news of it come here too, in vain
                pause = self._pace.seconds(told=services is not None and services.told)
                if services is not None and self._idle:
                    pause = min(pause, services.rest)
                await self._pause(pause)
        except asyncio.CancelledError:
            self._at_once = True
            raise
        finally:
            await self._wind_down()
            if services is not None:
                await services.close()

    def stop(self, *, at_once: bool = False) -> None:
        """Claim nothing more, let the steps at work finish within the grace period, give the rest
        back; ``at_once`` leaves out the grace period. May be called again with ``at_once``."""
        self._stopping = True
        self._at_once = self._at_once or at_once
        if self._services is not None:
            self._services.drain()
        self._drain()
        self._attention.stir()
        self._stopped.set()

    def abandon(self) -> int:
        """Give every lease back without the event loop, which is blocked, from any thread; returns
        how many. Only for a process that ends now: steps may still be at work."""
        return self._services.beats.give_back_all() if self._services is not None else 0

    def liveness(self, within: timedelta = timedelta(seconds=60)) -> Liveness:
        """How this worker does. It is alive if a claim succeeded ``within`` this time, and ready if
        it also takes runs, and claimed within a third of that."""
        since, limit = monotonic() - self._last_claim, within.total_seconds()
        ready = not self._stopping and since <= limit / 3
        return Liveness(
            since <= limit, ready, since, len(self._active), self.concurrency, self._stopping
        )

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
        ended = asyncio.ensure_future(self.engine.wait(run_id, timeout))
        try:
            await asyncio.wait({work, ended}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                return await ended
            work.result()
            return await self.engine.snapshot(run_id)
        finally:
            ended.cancel()
            self.stop()
            await work

    # -- claiming -------------------------------------------------------------------------------

    def _make_services(self) -> WorkerServices | None:
        store = self.engine.store
        if not isinstance(store, PostgresEventStore):
            return None
        return WorkerServices(
            self.engine,
            store,
            self.queues,
            self.concurrency,
            running=lambda: len(self._active),
            alive=lambda: self.liveness().alive,
            on_news=self._hear,
            on_step=self._attention.stir,
            max_crashes=self._max_crashes,
            options=self._service_options,
        )

    def _due(self, told: bool) -> Due:
        if self._attention.due:
            self._attention.due = False
            return Due.WITH
        if told:
            return Due.LATER
        return Due.WITH if self._idle else Due.AFTER

    async def _attempt(self, *, hint: bool, due: Due) -> int | None:
        """Claim, and learn from how that went; None if it failed. Never waits longer than the claim
        timeout. ``hint`` says first that this worker waits to be told."""
        claim = asyncio.ensure_future(self._claim(due, hint=hint))
        stopped = asyncio.ensure_future(self._stopped.wait())
        try:
            await asyncio.wait(
                {claim, stopped},
                timeout=self._claim_timeout,
                return_when=asyncio.FIRST_COMPLETED,
            )
            if self._stopping and not claim.done():
                await asyncio.wait({claim}, timeout=_LAST_CALL)
        finally:
            stopped.cancel()
            if not claim.done():
                self._give_up(claim)
        if claim.cancelled() or not claim.done():
            self._pace.failed()
            logger.error("a claim has not answered for %g s; trying again", self._claim_timeout)
            return None
        try:
            claimed = claim.result()
        except StoreUnavailable as error:
            self._pace.failed()
            logger.warning("the database is unavailable (%s); trying again", error)
        except StoreError:
            raise
        except Exception as error:  # noqa: BLE001
            self._pace.failed()
            logger.error("a claim failed (%s); trying again", type(error).__name__)
        else:
            self._last_claim = monotonic()
            self._pace.found(claimed > 0 or self._free <= 0)
            return claimed
        return None

    def _give_up(self, claim: asyncio.Task[int]) -> None:
        # Cancelled, and not waited for: what holds it up may hold up the cancellation too.
        claim.cancel()
        self._claims.strays.abandoned(claim)
        self._abandoned.add(claim)
        claim.add_done_callback(self._abandoned.discard)

    async def _claim(self, due: Due = Due.WITH, *, hint: bool = False) -> int:
        """Claim up to the free slots and start driving; returns how many runs were claimed."""
        if hint and self._services is not None:
            await self._services.hint()
        free = self._free
        return await self._claims.take(free, due=due) if free > 0 else 0

    def _begin(self, lease: RunLease, loaded: LoadedRun | None, parked: RunTip | None) -> None:
        task = asyncio.ensure_future(self._drive(lease, loaded, parked))
        self._active[task] = lease
        task.add_done_callback(self._freed)

    async def _drive(
        self, lease: RunLease, loaded: LoadedRun | None, parked: RunTip | None
    ) -> None:
        run_id = lease.run_id
        if self._stopping:  # claimed while the worker was told to stop
            giving = asyncio.ensure_future(self._give_back(lease))
            self._returning.add(giving)
            giving.add_done_callback(self._returning.discard)
            return
        try:
            self._attention.expect(await self.engine.drive_claimed(lease, loaded, parked))
        except LeaseLost:
            logger.warning("the lease of run %r was lost; another worker drives it now", run_id)
        except StoreError as error:
            logger.warning("run %r is left to another attempt: %s", run_id, error)
        except FlowError as error:
            logger.warning("run %r is blocked: %s", run_id, blocked_reason(error))
        except Exception as error:  # noqa: BLE001  one run must not end the others
            logger.error("driving run %r failed: %s", run_id, type(error).__name__)

    async def _give_back(self, lease: RunLease) -> None:
        try:
            await self.engine.store.give_back(lease)
        except Exception as error:  # noqa: BLE001  the lease then runs out by itself
            logger.warning(
                "the lease of run %r was not given back: %s", lease.run_id, type(error).__name__
            )

    @property
    def _idle(self) -> bool:
        return self._pace.quiet or not self._active

    @property
    def _at_work(self) -> bool:
        return bool(self._active) or (self._services is not None and self._services.busy)

    @property
    def _free(self) -> int:
        return self.concurrency - len(self._active)

    def _hear(self) -> None:
        self._attention.tell_after(self._pace.reaction)

    def _freed(self, task: asyncio.Task[None]) -> None:
        del self._active[task]
        self._attention.stir()

    async def _pause(self, seconds: float) -> None:
        """Until ``seconds`` have passed, or the worker is told of work or stopped, or has nothing
        left at work, or, if it was full, a quarter of its slots is free: a few runs claimed
        together cost as one."""
        full, busy = self._free <= 0, bool(self._active)
        enough = max(1, self.concurrency // 4)

        def over() -> bool:
            return self._stopping or (busy and not self._active) or (full and self._free >= enough)

        await self._attention.wait(seconds, over)

    # -- stopping -------------------------------------------------------------------------------

    def _drain(self) -> None:
        for lease in self._active.values():
            self.engine.drain(lease.run_id)

    async def _wind_down(self) -> None:
        self._stopping = True
        await asyncio.sleep(0)  # whatever was claimed last has begun, and gives itself back
        self._drain()
        try:
            if self._at_work and not self._at_once:
                grace = self.grace.total_seconds()
                await self._attention.wait_for(grace, lambda: self._at_once or not self._at_work)
        finally:
            left = list(self._active)
            for task in left:
                task.cancel()
            if left:
                logger.info("giving back %d runs that did not finish in time", len(left))
                await asyncio.wait(left)
            if self._returning:
                await asyncio.wait(set(self._returning), timeout=_LAST_CALL)
            if self._abandoned:
                await asyncio.wait(set(self._abandoned), timeout=_LAST_CALL)
            with suppress(TimeoutError):
                async with asyncio.timeout(_LAST_CALL):
                    await self._claims.strays.give_back()
