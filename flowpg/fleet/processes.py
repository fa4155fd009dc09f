"""Several worker processes under one that starts them, restarts them, and ends with them.

Parent and child hold the two ends of a socket. The child says on it that it serves; its end tells
a child that the parent is gone, however that happened, and the child then drains as on SIGTERM. So
no child outlives its parent for long, and no process id is ever guessed.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import signal
import socket
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from time import monotonic

logger = logging.getLogger("flowpg.fleet.processes")

SOCKET = "FLOWPG_WORKER_SOCKET"
"""Environment variable that names the child's end of the socket, and tells it its number."""

_SERVES = b"s"
_STEADY = 60.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0


class WorkerProcesses:
    """Runs ``count`` processes of ``command``, each as a worker that calls ``child_serves``.

    A child that dies is started again, later each time unless it lived for a minute. A child that
    ends with an error before it ever served ends the others too: it would only fail again.
    """

    def __init__(self, command: Sequence[str], count: int, environ: Mapping[str, str]) -> None:
        self._command = list(command)
        self._count = count
        self._environ = dict(environ)
        self._children: dict[int, asyncio.subprocess.Process] = {}
        self._stopping = asyncio.Event()
        self._signals: list[int] = []
        self._failed = 0

    async def run(self) -> int:
        """Until every child has ended after ``signal``; returns the exit code for the parent."""
        await asyncio.gather(*(self._keep(number) for number in range(self._count)))
        return self._failed

    def signal(self, number: int) -> None:
        """Pass a signal on to every child, and start none again."""
        self._signals.append(number)
        self._stopping.set()
        for child in self._children.values():
            if child.returncode is None:
                child.send_signal(number)

    async def _keep(self, number: int) -> None:
        pause = _FIRST_PAUSE
        while not self._stopping.is_set():
            began = monotonic()
            code, served = await self._one(number)
            if self._stopping.is_set():
                self._failed = self._failed or (code if code > 0 else 0)
                return
            if not served and code > 0:
                logger.error("worker %d could not begin (exit code %d)", number, code)
                self._failed = code
                self.signal(signal.SIGTERM)
                return
            pause = (
                _FIRST_PAUSE if monotonic() - began > _STEADY else min(_LONGEST_PAUSE, pause * 2)
            )
            how = f"exit code {code}" if code >= 0 else signal.Signals(-code).name
            logger.error("worker %d ended (%s); another is started", number, how)
            with suppress(TimeoutError):
                async with asyncio.timeout(pause * random.uniform(0.5, 1.0)):
                    await self._stopping.wait()

    async def _one(self, number: int) -> tuple[int, bool]:
        """One child from start to end: its exit code, and whether it ever served."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        try:
            child = await asyncio.create_subprocess_exec(
                *self._command,
                env={**self._environ, SOCKET: f"{theirs.fileno()}:{number}"},
                pass_fds=(theirs.fileno(),),
                # Ctrl-C in a terminal reaches the parent alone, which passes it on once.
                start_new_session=True,
            )
            theirs.close()
            self._children[number] = child
            for missed in self._signals:  # while it was being started
                child.send_signal(missed)
            code = await child.wait()
            try:
                served = ours.recv(1) == _SERVES
            except OSError:
                served = False
            return code, served
        finally:
            self._children.pop(number, None)
            ours.close()
            theirs.close()


def child_number(environ: Mapping[str, str]) -> int | None:
    """Which of several workers this process is, from 0; None if it was not started as one."""
    named = environ.get(SOCKET)
    return int(named.partition(":")[2]) if named else None


def child_serves(environ: Mapping[str, str]) -> None:
    """Tell the parent that this worker serves, and watch from now on whether the parent lives."""
    named = environ.get(SOCKET)
    if not named:
        return
    end = socket.socket(fileno=int(named.partition(":")[0]))
    end.set_inheritable(False)
    with suppress(OSError):  # the parent is gone already, which the thread finds out
        end.sendall(_SERVES)
    threading.Thread(target=_outlive, args=(end,), name="flowpg-parent", daemon=True).start()


def _outlive(end: socket.socket) -> None:
    while True:
        try:
            said = end.recv(1)
        except OSError:
            said = b""
        if not said:
            logger.warning("the parent of this worker is gone; stopping")
            os.kill(os.getpid(), signal.SIGTERM)
            return
