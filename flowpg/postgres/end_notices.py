"""Being told of the ends of runs: one thread that listens for all who wait in a process.

It begins with the first who waits, and ends when nobody has waited for a while. Nothing depends on
it: who is not told looks (see ``waits``).
"""

from __future__ import annotations

import hashlib
import logging
import os
import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Any

import psycopg
from psycopg import sql

from flowpg.postgres.calls import psycopg_sql
from flowpg.postgres.pool import LEFT_BEHIND, connection_options
from flowpg.postgres.session import break_connection
from flowpg.postgres.waits import ended_channel

logger = logging.getLogger("flowpg.postgres.end_notices")

_PROBE_TIMEOUT = 2.0
_UNUSED = 30.0
_TRY_AGAIN = 10.0

Connection = psycopg.Connection[Any]


class EndNotices:
    """Tells who waits for a run that it has ended.

    ``dsn`` must lead to the server itself: a PgBouncer in transaction mode takes a LISTEN and never
    delivers. That is found out, and everybody then looks instead.
    """

    def __init__(self, dsn: str, schema: str) -> None:
        self._dsn = dsn
        self._schema = schema
        self._begin()

    def _begin(self) -> None:
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._waiting: dict[str, list[Callable[[], None]]] = {}
        self._thread: threading.Thread | None = None
        self._connection: Connection | None = None
        self._stop = threading.Event()
        self._unused_since = monotonic()
        self.healthy = False
        """Whether ends that are asked for now will be told."""

    @contextmanager
    def watch(self, run_id: str, tell: Callable[[], None]) -> Iterator[EndNotices]:
        """While inside, call ``tell``, from another thread, when this run may have ended, and when
        ``healthy`` becomes true."""
        if self._process != os.getpid():  # the thread stayed with the parent, and so does its end
            LEFT_BEHIND.append(self._connection)
            self._begin()
        mark = hashlib.md5(run_id.encode(), usedforsecurity=False).hexdigest()[:16]
        with self._lock:
            self._waiting.setdefault(mark, []).append(tell)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="flowpg-ends", daemon=True)
                self._thread.start()
        try:
            yield self
        finally:
            with self._lock:
                left = self._waiting[mark]
                left.remove(tell)
                if not left:
                    del self._waiting[mark]
                self._unused_since = monotonic()

    def close(self) -> None:
        """Stop listening. Who waits looks from now on."""
        self._stop.set()
        connection, thread = self._connection, self._thread
        if self._process != os.getpid() or thread is None:
            return
        if connection is not None:
            break_connection(connection)
        thread.join(1.0)

    # -- in the thread --------------------------------------------------------------------------

    def _work(self) -> None:
        complained = False
        while not self._stop.is_set():
            try:
                if self._listen():
                    return
            except (psycopg.Error, OSError, TimeoutError) as error:
                if not complained and not self._stop.is_set():
                    logger.info("ends of runs are not told (%s), but looked for", _why(error))
                complained = True
            self.healthy = False
            self._stop.wait(_TRY_AGAIN)
            if self._over():
                return

    def _listen(self) -> bool:
        """Listen until nobody has waited for a while: True. Raises what ends it sooner."""
        options = connection_options(self._dsn, prepare=False)
        connection = psycopg.connect(self._dsn, autocommit=True, **options)
        self._connection = connection
        try:
            row = connection.execute(psycopg_sql(ended_channel().function, self._schema)).fetchone()
            channel = str(row[0]) if row else ""
            connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))
            self._probe(connection, channel)
            self.healthy = True
            with self._lock:
                everybody = [tell for tells in self._waiting.values() for tell in tells]
            for tell in everybody:
                tell()
            while not self._stop.is_set():
                for notify in connection.notifies(timeout=_UNUSED, stop_after=1):
                    self._tell(notify.payload)
                if self._over():
                    return True
            return True
        finally:
            self.healthy = False
            self._connection = None
            connection.close()

    def _probe(self, connection: Connection, channel: str) -> None:
        """Have oneself notified over another connection. TimeoutError if that does not come."""
        awaited = f"probe {secrets.token_hex(8)}"
        options = connection_options(self._dsn, prepare=False)
        with psycopg.connect(self._dsn, autocommit=True, **options) as other:
            other.execute("SELECT pg_notify(%s, %s)", (channel, awaited))
        end = monotonic() + _PROBE_TIMEOUT
        while (left := end - monotonic()) > 0:
            for notify in connection.notifies(timeout=left, stop_after=1):
                if notify.payload == awaited:
                    return
        raise TimeoutError

    def _tell(self, mark: str) -> None:
        with self._lock:
            tells = list(self._waiting.get(mark, ()))
        for tell in tells:
            tell()

    def _over(self) -> bool:
        """Whether nobody has waited for a while; the next who waits starts another thread."""
        with self._lock:
            if self._waiting or monotonic() - self._unused_since < _UNUSED:
                return self._stop.is_set()
            self._thread = None
            self.healthy = False
            return True


def _why(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "notifications do not come through: is a pooler in between?"
    return type(error).__name__
