"""What a worker on PostgreSQL has beside its loop: heartbeats, notifications, its registration."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from time import monotonic

from flowpg.engine.flow_engine import FlowEngine
from flowpg.errors import FlowError
from flowpg.fleet.heartbeat import HeartbeatThread
from flowpg.fleet.listener import Listener
from flowpg.fleet.registry import Registry
from flowpg.fleet.task_worker import FlowTaskWorker
from flowpg.postgres.fleet_verbs import channel, listen_hint
from flowpg.store.postgres import PostgresEventStore

logger = logging.getLogger("flowpg.fleet.services")

_TASKS_POLL, _TASKS_POLL_UNTOLD = timedelta(seconds=10), timedelta(seconds=2)
_TASKS_LATER = 0.25
"""Seconds after which tasks are looked for if what was notified seems to have been runs."""
_TASKS_END = 0.3
"""Seconds the tasks at work may take to end when the worker ends, and again once cancelled."""
_HINT = timedelta(seconds=60)
"""How long a hint is good; it is renewed after half of that."""


@dataclass(frozen=True, slots=True)
class ServiceOptions:
    """Which of them run, and how; see ``FlowWorker``."""

    listen: bool
    direct_dsn: str | None
    register: bool
    tasks: bool
    max_wedged: timedelta
    exits: bool


class WorkerServices:
    """Starts and stops them; ``on_news`` is called when the queue is said to have work, ``on_step``
    when a step of another queue's run has ended."""

    def __init__(
        self,
        engine: FlowEngine,
        store: PostgresEventStore,
        queues: Sequence[str],
        slots: int,
        running: Callable[[], int],
        alive: Callable[[], bool],
        on_news: Callable[[], None],
        on_step: Callable[[], None],
        max_crashes: int,
        options: ServiceOptions,
    ) -> None:
        self._store = store
        self._queues = queues
        self._on_news = on_news
        self._options = options
        self._hinted_until = 0.0  # until then the hint is not to be given again
        self._resting = False  # and it was not taken down yet
        self._notified = True  # no queue was switched off
        lease, beat = engine.options.lease, engine.options.beat
        session = store.session(timeout=max(1.0, lease.total_seconds() / 3))
        self.beats = HeartbeatThread(session, lease, beat, options.max_wedged, exits=options.exits)
        engine.keep_leases_with(self.beats)
        self._registry = Registry(engine, store, queues, slots, running, alive)
        self._listener: Listener | None = None
        self._tasks = FlowTaskWorker(
            engine,
            queues,
            limit=slots,
            poll=_TASKS_POLL if options.listen else _TASKS_POLL_UNTOLD,
            max_crashes=max_crashes,
            busy=lambda: running() > 0,
            on_step=on_step,
        )
        self._tasks_later: asyncio.TimerHandle | None = None  # they will be looked for then
        self._clean_up = engine.options.cancel_grace.total_seconds()
        self._working: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start what was chosen, in tasks of the running event loop."""
        if self._options.register:
            self._registry.start()
        if self._options.tasks and self._working is None:
            self._working = asyncio.ensure_future(self._carry_out_tasks())
        if self._options.listen and self._listener is None:
            dsn = self._options.direct_dsn or self._store.dsn
            queues = frozenset(self._queues)
            self._listener = Listener(dsn, self._channel, queues, self._heard, self._store.notify)
            self._listener.start()

    @property
    def listening(self) -> bool:
        """Whether notifications come through."""
        return self._listener is not None and self._listener.healthy

    async def hint(self) -> None:
        """Say that this worker waits for a notification, unless that was said and still holds;
        then look at the queues once more before waiting."""
        if not self.listening or monotonic() < self._hinted_until:
            return
        # Set before the call: what is heard while it is on its way may have taken the hint already.
        self._hinted_until = monotonic() + _HINT.total_seconds() / 2
        try:
            rest = await self._store.call(listen_hint(self._queues, _HINT))
        except BaseException:
            self._hinted_until = 0.0
            raise
        self._notified = rest is not None
        self._resting = bool(rest)
        if rest:
            self._hinted_until = monotonic() + rest.total_seconds()

    @property
    def told(self) -> bool:
        """Whether whoever brings work will say so."""
        return self.listening and self._notified and not self._resting

    @property
    def rest(self) -> float:
        """After how many seconds the hint is to be tried again; for ever long if it was taken."""
        return max(0.0, self._hinted_until - monotonic()) if self._resting else math.inf

    def look_at_tasks(self) -> None:
        """There is news, and no run was meant."""
        if self._tasks_later is not None:
            self._tasks_later.cancel()
            self._tasks_later = None
            self._tasks.look()

    def drain(self) -> None:
        """Take no more tasks; what is at work goes on."""
        self._tasks.stop()

    @property
    def busy(self) -> bool:
        """Whether a step of another queue's run is at work."""
        return self._tasks.busy

    async def close(self) -> None:
        """Stop listening, and say that this worker ends. Heartbeats end with the engine."""
        self._tasks.stop()
        if self._tasks_later is not None:
            self._tasks_later.cancel()
        if self._working is not None:
            await asyncio.wait({self._working}, timeout=_TASKS_END)
            # Cancelled, it gives back what it has; a server that is silent is not waited for.
            if not self._working.done():
                self._working.cancel()
                patience = _TASKS_END + (self._clean_up if self._tasks.busy else 0.0)
                await asyncio.wait({self._working}, timeout=patience)
        if self._listener is not None:
            await self._listener.close()
        await self._registry.close()

    async def _channel(self) -> str:
        return await self._store.call(channel())

    def _heard(self) -> None:
        # Whoever notifies takes the hint away.
        self._hinted_until = 0.0
        self._on_news()
        # Runs are more often meant, and are not to be kept waiting by a claim of tasks.
        if self._tasks_later is None:
            loop = asyncio.get_running_loop()
            self._tasks_later = loop.call_later(_TASKS_LATER, self.look_at_tasks)

    async def _carry_out_tasks(self) -> None:
        try:
            await self._tasks.run()
        except FlowError as error:  # runs go on without
            logger.error("tasks are not carried out any more: %s", error)
        except Exception as error:  # noqa: BLE001
            logger.error("tasks are not carried out any more: %s", type(error).__name__)
