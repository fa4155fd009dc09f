"""Being told of work at once, where that is possible.

One connection listens, past any pooler. A notification carries the name of a queue and nothing
else, and any may be lost: whoever listens polls as well, so a listener that is down costs latency
and nothing more. A connection that is silently dead is found by a notification to oneself.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import psycopg
from psycopg import sql

from flowpg.errors import FlowError
from flowpg.postgres.pool import connection_options
from flowpg.postgres.session import break_connection

logger = logging.getLogger("flowpg.fleet.listener")

_POOLER = ". If a pooler is in between, name the server itself with --direct-dsn"

_LONGEST_BACKOFF = 60.0

Connection = psycopg.AsyncConnection[Any]


class Listener:
    """Calls ``on_news`` when a queue of ``queues`` is said to have work, and whenever the
    connection is made, for what was said before is lost.

    ``dsn`` must lead to the server itself: a PgBouncer in transaction mode accepts a LISTEN and
    never delivers, which the probe finds out. ``channel`` asks the database for the name to listen
    on. A probe is sent every ``probe_every`` seconds by ``notify`` (channel, payload), over another
    connection, and has ``probe_timeout`` seconds to come back.
    """

    def __init__(
        self,
        dsn: str,
        channel: Callable[[], Awaitable[str]],
        queues: frozenset[str],
        on_news: Callable[[], None],
        notify: Callable[[str, str], Awaitable[None]],
        *,
        probe_every: float = 20.0,
        probe_timeout: float = 5.0,
    ) -> None:
        self._dsn = dsn
        self._channel = channel
        self._queues = queues
        self._on_news = on_news
        self._notify = notify
        self._probe_every = probe_every
        self._probe_timeout = probe_timeout
        self._connection: Connection | None = None
        self._task: asyncio.Task[None] | None = None
        self._awaited = ""
        self.healthy = False
        """Whether a notification came through lately."""
        self.rebuilt = 0
        """How often a connection was given up."""

    def start(self) -> None:
        """Listen, in a task of the running event loop."""
        self._task = asyncio.ensure_future(self._work())

    async def close(self) -> None:
        """Stop. Does not wait for a peer that says nothing."""
        task, self._task = self._task, None
        if task is None:
            return
        task.cancel()
        # A cancelled call asks the server to cancel it, and waits for that: end it first.
        if self._connection is not None:
            break_connection(self._connection)
        with suppress(asyncio.CancelledError):
            await task

    async def _work(self) -> None:
        failures = 0
        while True:
            try:
                await self._listen()
            except (psycopg.Error, FlowError, OSError, TimeoutError) as error:
                failures = 1 if self.healthy else failures + 1
                if failures == 1:
                    logger.warning(
                        "no notifications (%s); polling goes on%s",
                        type(error).__name__,
                        # A server that cannot be reached is no pooler that keeps them to itself.
                        _POOLER if isinstance(error, TimeoutError) else "; trying again",
                    )
            self.healthy = False
            self.rebuilt += 1
            self._on_news()
            await asyncio.sleep(
                random.uniform(0.5, 1.0) * min(_LONGEST_BACKOFF, 0.2 * 2.0 ** min(failures, 10))
            )

    async def _listen(self) -> None:
        channel = await self._channel()
        options = connection_options(self._dsn, prepare=False)
        connection = await Connection.connect(self._dsn, autocommit=True, **options)
        self._connection = connection
        try:
            # Not asyncio.timeout: see close.
            alarm = asyncio.get_running_loop().call_later(self._probe_timeout, self._break)
            try:
                await connection.execute(_listen_statement(channel))
            finally:
                alarm.cancel()  # or it would break the connection after this one
            while True:
                await self._probe(connection, channel)
                if not self.healthy:
                    self.healthy = True
                    self._on_news()
                await self._hear(connection, self._probe_every)
        finally:
            self._connection = None
            connection.pgconn.finish()

    async def _probe(self, connection: Connection, channel: str) -> None:
        """Have oneself notified. TimeoutError if that does not come."""
        self._awaited = f"probe {secrets.token_hex(8)}"
        # Sent over this connection, it would come back even where nothing else is delivered.
        async with asyncio.timeout(self._probe_timeout):
            await self._notify(channel, self._awaited)
        await self._hear(connection, self._probe_timeout)
        if self._awaited:
            raise TimeoutError

    async def _hear(self, connection: Connection, seconds: float) -> None:
        """Take notifications for so long, or until the awaited one has come."""
        waiting, loop = bool(self._awaited), asyncio.get_running_loop()
        end = loop.time() + seconds
        while (left := end - loop.time()) > 0:
            # What else came with the first one is delivered too before the generator ends.
            async for notify in connection.notifies(timeout=left, stop_after=1):
                if notify.payload == self._awaited:
                    self._awaited = ""
                elif notify.payload in self._queues:
                    self._on_news()
            if waiting and not self._awaited:
                return

    def _break(self) -> None:
        if self._connection is not None:
            break_connection(self._connection)


def _listen_statement(channel: str) -> sql.Composed:
    return sql.SQL("LISTEN {}").format(sql.Identifier(channel))
