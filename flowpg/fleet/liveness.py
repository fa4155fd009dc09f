"""Whether a worker does its work, for whoever restarts those that do not.

What counts is the last claim that succeeded. A running thread, an open port or a heartbeat proves
nothing: a worker whose claims hang has all of them.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class Liveness:
    """One look at a worker. ``since_claim`` is the seconds since a claim last succeeded (or all
    slots were taken), ``alive`` that this was not long ago, ``ready`` that the worker takes runs.
    """

    alive: bool
    ready: bool
    since_claim: float
    running: int
    slots: int
    stopping: bool


@asynccontextmanager
async def served(look: Callable[[], Liveness], port: int, host: str = "") -> AsyncIterator[int]:
    """Answer HTTP on ``port`` (0: any free one; yields which): ``/health`` with 200 or 503 by
    ``alive``, ``/ready`` by ``ready``, both with the Liveness as JSON."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(
            OSError, TimeoutError, asyncio.LimitOverrunError, asyncio.IncompleteReadError
        ):
            async with asyncio.timeout(5):
                request = await reader.readuntil(b"\r\n\r\n")
                writer.write(_response(request, look()))
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, host or None, port, limit=8192)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


def _response(request: bytes, now: Liveness) -> bytes:
    path = request.split(b" ", 2)[1:2]
    if path not in ([b"/health"], [b"/ready"]):
        return b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    good = now.ready if path == [b"/ready"] else now.alive
    body = json.dumps(asdict(now)).encode()
    status = b"200 OK" if good else b"503 Service Unavailable"
    return (
        b"HTTP/1.1 %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n"
        b"Connection: close\r\n\r\n%s" % (status, len(body), body)
    )
