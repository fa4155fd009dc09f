"""What a worker on PostgreSQL has beside its loop: heartbeats, notifications, its registration."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from time import monotonic

from flowpg.engine.flow_engine import FlowEngine
from flowpg.errors import FlowError
from flowpg.fleet.heartbeat import HeartbeatThread
from flowpg.fleet.listener import Listener
from flowpg.fleet.registry import Registry
from flowpg.postgres.fleet_verbs import channel, listen_hint
from flowpg.store.postgres import PostgresEventStore

_HINT = timedelta(seconds=60)
"""How long a hint is good; it is renewed after half of that."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What is to be chosen about them. ``direct_dsn`` leads to the server past any pooler (default:
    the store's own DSN)."""

    listen: bool = True
    direct_dsn: str | None = None
    register: bool = True
    max_wedged: timedelta = timedelta(minutes=10)


class WorkerServices:
    """Starts and stops them; ``on_news`` is called when the queue is said to have work."""

    def __init__(
        self,
        engine: FlowEngine,
        store: PostgresEventStore,
        queue: str,
        slots: int,
        running: Callable[[], int],
        alive: Callable[[], bool],
        on_news: Callable[[], None],
        choices: Surroundings,
    ) -> None:
        self._store = store
        self._queue = queue
        self._on_news = on_news
        self._choices = choices
        self._hinted_until = 0.0
        options = engine.options
        session = store.session(timeout=max(1.0, options.lease.total_seconds() / 3))
        self.beats = HeartbeatThread(session, options.lease, options.beat, choices.max_wedged)
        engine.keep_leases_with(self.beats)
        self._registry = Registry(engine, store, queue, slots, running, alive)
        self._listener: Listener | None = None

    async def start(self) -> None:
        """Start what was chosen. Without an answer to what the channel is, nothing is listened to
        until the next call."""
        if self._choices.register:
            self._registry.start()
        if self._choices.listen and self._listener is None:
            try:
                name = await self._store.call(channel())
            except FlowError:
                return
            dsn = self._choices.direct_dsn or self._store.dsn
            queues = frozenset({self._queue})
            self._listener = Listener(dsn, name, queues, self._heard, self._store.notify)
            self._listener.start()

    @property
    def listening(self) -> bool:
        """Whether notifications come through."""
        return self._listener is not None and self._listener.healthy

    async def hint(self) -> bool:
        """Say that this worker waits for a notification, unless that was said and still holds.
        True if it was said now: then look at the queue once more before waiting."""
        if not self.listening or monotonic() < self._hinted_until:
            return False
        await self._store.call(listen_hint([self._queue], _HINT))
        self._hinted_until = monotonic() + _HINT.total_seconds() / 2
        return True

    async def close(self) -> None:
        """Stop listening, and say that this worker ends. Heartbeats end with the engine."""
        if self._listener is not None:
            await self._listener.close()
        await self._registry.close()

    def _heard(self) -> None:
        # Whoever notifies takes the hint away.
        self._hinted_until = 0.0
        self._on_news()
