"""A TCP proxy before PostgreSQL that cuts connections at chosen moments.

``cut_before`` loses a request: the server never sees it. ``cut_after`` loses a reply: the server
has done the work, and committed it, when the connection breaks. Both act once, on the next request
whose bytes hold the marker (the name of a function, say), which a prepared statement does not:
connect with ``prepare=False``.
"""

import contextlib
import socket
import threading
from collections.abc import Iterator
from types import TracebackType
from typing import Self

from psycopg.conninfo import conninfo_to_dict, make_conninfo

# ReadyForQuery outside a transaction: the statement before it is committed.
_READY = b"Z\x00\x00\x00\x05I"


class Proxy:
    """Listens on a port of this machine and passes everything on to the server of ``dsn``."""

    def __init__(self, dsn: str) -> None:
        parameters = conninfo_to_dict(dsn)
        self._target = (str(parameters.get("host") or ""), int(parameters.get("port") or 5432))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.dsn = make_conninfo(dsn, host="127.0.0.1", port=self._listener.getsockname()[1])
        self.cuts = 0
        self._armed: tuple[str, bytes] | None = None
        self._guard = threading.Lock()
        self._open: set[socket.socket] = set()
        self._refusing = False
        self._deaf = threading.Event()
        self._deaf.set()
        self._dead: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def cut_before(self, marker: str) -> None:
        """Lose the next request that holds ``marker``."""
        self._armed = ("before", marker.encode())

    def cut_after(self, marker: str) -> None:
        """Lose the reply to the next request that holds ``marker``."""
        self._armed = ("after", marker.encode())

    def cut_all(self) -> None:
        """Break every open connection now."""
        with self._guard:
            connections, self._open = self._open, set()
        for connection in connections:
            _close(connection)

    @contextlib.contextmanager
    def away(self) -> Iterator[None]:
        """The server is unreachable for a while: connections break and new ones are closed."""
        self._refusing = True
        self.cut_all()
        try:
            yield
        finally:
            self._refusing = False

    @contextlib.contextmanager
    def black_hole(self) -> Iterator[None]:
        """For a while nothing passes and nothing breaks: no end of a connection is seen. What was
        open then stays dead; what is opened later passes."""
        self._deaf.clear()
        with self._guard:
            self._dead |= self._open
        try:
            yield
        finally:
            self._deaf.set()

    def is_dead(self, connection: socket.socket) -> bool:
        """Whether what comes from here goes nowhere, after waiting while nothing passes."""
        if not self._deaf.is_set():
            self._deaf.wait()
        return connection in self._dead

    def close(self) -> None:
        """Stop listening and break what is open."""
        self._deaf.set()
        _close(self._listener)
        self.cut_all()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self._refusing:
                _close(client)
                continue
            try:
                server = self._connect()
            except OSError:  # a server that is away closes the door, not the proxy
                _close(client)
                continue
            with self._guard:
                self._open |= {client, server}
            link = _Link(self, client, server)
            threading.Thread(target=link.requests, daemon=True).start()
            threading.Thread(target=link.replies, daemon=True).start()

    def _connect(self) -> socket.socket:
        host, port = self._target
        if not host.startswith("/"):
            return socket.create_connection((host, port))
        server = socket.socket(socket.AF_UNIX)
        server.connect(f"{host}/.s.PGSQL.{port}")
        return server

    def take_order(self, request: bytes) -> str | None:
        """What to do about a request: nothing, or cut before or after it."""
        with self._guard:
            if self._armed is None or self._armed[1] not in request:
                return None
            order, self._armed = self._armed[0], None
            self.cuts += 1
            return order


class _Link:
    """One connection of a client, and the one to the server that belongs to it."""

    def __init__(self, proxy: Proxy, client: socket.socket, server: socket.socket) -> None:
        self._proxy, self._client, self._server = proxy, client, server
        self._swallow = threading.Event()

    def requests(self) -> None:
        while chunk := _receive(self._client):
            if self._proxy.is_dead(self._client):
                continue
            order = self._proxy.take_order(chunk)
            if order == "before":
                break
            if order == "after":
                # Replies are kept back from here on; their end tells that the work is done.
                self._swallow.set()
            if not _send(self._server, chunk):
                break
        if not self._swallow.is_set():
            self._close()

    def replies(self) -> None:
        swallowed = b""
        while chunk := _receive(self._server):
            if self._proxy.is_dead(self._server):
                continue
            if self._swallow.is_set():
                swallowed += chunk
                if swallowed.endswith(_READY):
                    break
            elif not _send(self._client, chunk):
                break
        self._close()

    def _close(self) -> None:
        _close(self._client)
        _close(self._server)


def _receive(connection: socket.socket) -> bytes:
    try:
        return connection.recv(1 << 16)
    except OSError:
        return b""


def _send(connection: socket.socket, chunk: bytes) -> bool:
    try:
        connection.sendall(chunk)
    except OSError:
        return False
    return True


def _close(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()
