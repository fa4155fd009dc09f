"""The scheduler: timers, delayed retries, hook expiries and deadlines of steps in other queues that
are due become work of the queue.

Any number may run at once, on any hosts: each deadline is dispatched by one of them, in the
statement that also makes the task of its run. A scheduler drives nothing.
"""

from __future__ import annotations

import asyncio
import logging
import random
from dataclasses import dataclass
from datetime import datetime, timedelta

from flowpg.engine.flow_engine import FlowEngine
from flowpg.errors import InvalidArgument, StoreError, StoreUnavailable
from flowpg.fleet.pacing import Pace
from flowpg.model.arguments import check_limit
from flowpg.model.inspection import ScheduledWakeup, WakeupKind
from flowpg.store.protocol import FlowEventStore

logger = logging.getLogger("flowpg.fleet.scheduler")

_ZERO = timedelta(0)
_SHORTEST = 0.02
"""Seconds between two ticks at least: a deadline that was dispatched stays the earliest until its
run has been driven."""

_SILENCE = 0.5
"""Seconds on top of half the timeout after which a server counts as silent."""


@dataclass(frozen=True, slots=True)
class FlowSchedulerTick:
    """What one tick dispatched, by kind, and how many runs that gave work: one task each, however
    many of their deadlines were due."""

    due_waits: tuple[ScheduledWakeup, ...] = ()
    due_retries: tuple[ScheduledWakeup, ...] = ()
    due_expiries: tuple[ScheduledWakeup, ...] = ()
    due_steps: tuple[ScheduledWakeup, ...] = ()
    enqueued_tasks: int = 0

    @property
    def dispatched(self) -> int:
        """How many deadlines that were."""
        due = self.due_waits, self.due_retries, self.due_expiries, self.due_steps
        return sum(map(len, due))


class FlowScheduler:
    """Dispatches what is due in ``store`` (or the store of an engine), ``limit`` deadlines a tick.

    ``poll`` is the longest pause between two ticks: a deadline nearer than any known before is
    noticed within it. A tick that takes longer than ``timeout`` is ended by the server, and made
    again; so is one that a silent server has not answered some time after that.
    """

    def __init__(
        self,
        store: FlowEventStore | FlowEngine,
        *,
        limit: int = 1000,
        poll: timedelta = timedelta(seconds=1),
        timeout: timedelta = timedelta(seconds=30),
    ) -> None:
        if poll <= _ZERO or timeout <= _ZERO:
            raise InvalidArgument("the poll interval and the timeout must be positive")
        self._store = store.store if isinstance(store, FlowEngine) else store
        self._limit = check_limit(limit)
        self._poll = poll.total_seconds()
        self._timeout = timeout
        self._pace = Pace(min(0.05, self._poll), self._poll)
        self._stopping = False
        self._stopped = asyncio.Event()

    async def enqueue_due_work(self, as_of: datetime | None = None) -> FlowSchedulerTick:
        """One tick: dispatch what is due at ``as_of`` (default: the store's now), the earliest
        first. A run that is being written to at this moment is left to the next tick. Raises
        StoreError."""
        moved = await self._store.enqueue_due(as_of=as_of, limit=self._limit, timeout=self._timeout)
        by_kind: dict[WakeupKind, list[ScheduledWakeup]] = {}
        for wakeup in moved:
            by_kind.setdefault(wakeup.kind, []).append(wakeup)
        return FlowSchedulerTick(
            tuple(by_kind.get(WakeupKind.WAIT, ())),
            tuple(by_kind.get(WakeupKind.STEP_RETRY, ())),
            tuple(by_kind.get(WakeupKind.HOOK_EXPIRY, ())),
            tuple(by_kind.get(WakeupKind.STEP_DEADLINE, ())),
            enqueued_tasks=len({wakeup.run_id for wakeup in moved}),
        )

    async def next_wakeup_delay(self) -> timedelta | None:
        """How long until the earliest deadline, by the store's clock; zero if it has passed, None
        if no run waits for any. Raises StoreError."""
        wakeup = await self._store.next_wakeup()
        if wakeup is None:
            return None
        return max(_ZERO, wakeup.due_at - await self._store.now())

    async def run(self) -> None:
        """Tick until ``stop`` is called.

        While the database is unavailable this waits, longer each time. Any other StoreError (a
        missing privilege, a schema of another release) is raised.
        """
        while not self._stopping:
            pause = await self._attempt()
            try:
                async with asyncio.timeout(pause):
                    await self._stopped.wait()
            except TimeoutError:
                pass

    def stop(self) -> None:
        """End ``run`` after the tick at work."""
        self._stopping = True
        self._stopped.set()

    async def _attempt(self) -> float:
        """One tick, and the seconds to wait after it."""
        patience = 1.5 * self._timeout.total_seconds() + _SILENCE
        try:
            async with asyncio.timeout(patience):
                tick = await self.enqueue_due_work()
                if tick.dispatched >= self._limit:
                    self._pace.found(busy=True)
                    return 0.0
                delay = await self.next_wakeup_delay()
        except TimeoutError:
            logger.error("a tick has not answered for %g s; trying again", patience)
        except StoreUnavailable as error:
            logger.warning("the database is unavailable (%s); trying again", error)
        except StoreError:
            raise
        except Exception as error:  # noqa: BLE001  the next tick may find another world
            logger.error("a tick failed (%s); trying again", type(error).__name__)
        else:
            self._pace.found(busy=tick.dispatched > 0)
            pause = self._pace.seconds()
            if delay is not None and delay > _ZERO:
                # Jitter after the deadline, never before it: schedulers share one earliest one.
                pause = min(pause, delay.total_seconds() + random.uniform(0, _SHORTEST))
            return max(pause, _SHORTEST)
        self._pace.failed()
        return self._pace.seconds()
