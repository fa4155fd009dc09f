"""Worker processes of a storm, and everything that is done to them."""

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from tests.chaos.witness import LEDGER_DSN, WORKER, Entry
from tests.proxy import Proxy
from tests.weather import pause

LEASE = 5.0
"""Seconds a lease of the fleet lasts without a heartbeat."""
LOSING_STALL = LEASE / 2
"""A process that stands still for so long may have lost its leases: beats come three a lease."""
_READY_SECONDS = 60
_TRIES = 5
_EXIT_SECONDS = 60


@dataclass
class Journal:
    """What was done to whom and when, to tell excused repetitions from others."""

    killed: dict[str, float] = field(default_factory=dict)
    stalls: list[tuple[str, float, float]] = field(default_factory=list)
    outages: list[tuple[float, float]] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    died: list[str] = field(default_factory=list)
    excused: Counter[str] = field(default_factory=Counter)

    def excuses(self, first: Entry, second: Entry) -> bool:
        """Whether a crash or a stall explains the second execution; counts by which."""
        cause = self._cause(first, second)
        if cause:
            self.excused[cause] += 1
        return bool(cause)

    def _cause(self, first: Entry, second: Entry) -> str:
        if self.killed.get(first.worker, float("inf")) <= second.began:
            return "killed"
        since = first.began - LEASE
        for worker, begin, end in self.stalls:
            stalled = worker in (first.worker, second.worker) and end - begin >= LOSING_STALL
            if stalled and begin <= second.began and end >= since:
                return "stalled"
        if any(begin <= second.began and end >= since for begin, end in self.outages):
            return "server away"
        return ""


class Place:
    """A place in the fleet: one worker process after the other, each behind the same proxy."""

    def __init__(
        self, number: int, dsn: str, journal: Journal, logs: Path, app: str, *options: str
    ) -> None:
        self._number = number
        self._dsn = dsn
        self._journal = journal
        self._logs = logs
        self._command = [sys.executable, "-m", "flowpg", "worker", "--app", app]
        self._command += ["--lease", f"{LEASE:g}", "--poll", "0.5", "--max-crashes", "1000"]
        self._command += options
        self._generation = 0
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self._expected: set[str] = set()
        self._ready = asyncio.Event()
        self._stalled = False
        self.name = ""
        self.proxy = Proxy(dsn)

    @property
    def ready(self) -> bool:
        """Whether a worker serves here, and nothing is being done to it."""
        process = self._process
        lives = process is not None and process.returncode is None and self._ready.is_set()
        return lives and not self._stalled and self.name not in self._expected

    @property
    def empty(self) -> bool:
        """Whether no process is here, and none is about to be."""
        process = self._process
        ended = process is not None and process.returncode is not None
        return ended and self.name not in self._expected

    async def start(self) -> None:
        """Start the next process, if there is none."""
        if self._process is not None and self._process.returncode is None:
            return
        self._generation += 1
        self.name = f"w{self._number}.{self._generation}"
        self._ready = asyncio.Event()
        self._process = await asyncio.create_subprocess_exec(
            *self._command,
            env={
                **os.environ,
                "FLOWPG_DSN": self.proxy.dsn,
                # A marker to cut at is only in requests that are not prepared.
                "FLOWPG_PREPARE": "01"[self._number % 2],
                LEDGER_DSN: self._dsn,
                WORKER: self.name,
            },
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        self._reading = asyncio.ensure_future(self._read(self._process, self.name, self._ready))

    async def until_ready(self) -> None:
        """Wait until a worker serves; one that could not begin, the server being away, is started
        again."""
        name = self.name
        for _ in range(_TRIES):
            name, process, ready = self.name, self._process, self._ready
            assert process is not None
            waits = {asyncio.ensure_future(process.wait()), asyncio.ensure_future(ready.wait())}
            try:
                async with asyncio.timeout(_READY_SECONDS):
                    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for wait in waits:
                    wait.cancel()
            if ready.is_set():
                return
            await self.start()
        said = (self._logs / f"{name}.log").read_text(errors="replace")
        raise AssertionError(f"no worker could begin: {said[-2000:]}")

    def kill(self) -> None:
        """SIGKILL, and no goodbye."""
        self._expected.add(self.name)
        self._send(signal.SIGKILL)
        self._journal.killed[self.name] = time.monotonic()
        self._journal.faults["killed"] += 1

    async def stall(self, seconds: float) -> None:
        """Stand still for a while, as in a paused container."""
        name, began = self.name, time.monotonic()
        self._journal.faults["stalled"] += 1
        # Written before it is over, so that it can explain what happens meanwhile.
        self._journal.stalls.append((name, began, began + seconds))
        self._stalled = True
        self._send(signal.SIGSTOP)
        try:
            await pause(seconds)
        finally:
            self._send(signal.SIGCONT)
            self._stalled = False
            self._journal.stalls.append((name, began, time.monotonic()))

    def cut(self, marker: str | None = None) -> None:
        """Break every connection, or lose the reply to the next request that holds ``marker``."""
        self._journal.faults["cut" if marker is None else "reply lost"] += 1
        if marker is None:
            self.proxy.cut_all()
        else:
            self.proxy.cut_after(marker)

    async def deploy(self) -> None:
        """SIGTERM, wait for the end, and start the next one. Explains no repetition."""
        self._journal.faults["deployed"] += 1
        await self.end()
        await self.start()

    async def end(self) -> None:
        """SIGTERM and wait; a worker that does not end by itself is one that died."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        self._expected.add(self.name)
        self._send(signal.SIGTERM)
        try:
            code = await asyncio.wait_for(process.wait(), _EXIT_SECONDS)
        except TimeoutError:
            self._journal.died.append(f"{self.name} did not end on SIGTERM")
            process.kill()
            code = await process.wait()
        if code != 0:
            self._journal.died.append(f"{self.name} ended with {code} on SIGTERM")

    async def close(self) -> None:
        """Leave nothing behind."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()
        if self._reading is not None:
            await self._reading
        self.proxy.close()

    def _send(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    async def _read(
        self, process: asyncio.subprocess.Process, name: str, ready: asyncio.Event
    ) -> None:
        assert process.stderr is not None
        with (self._logs / f"{name}.log").open("wb") as log:
            while line := await process.stderr.readline():
                log.write(line)
                log.flush()
                if b"worker on queue" in line:
                    ready.set()
        code = await process.wait()
        if not ready.is_set():
            self._journal.faults["could not begin"] += 1
        elif name not in self._expected:
            self._journal.died.append(f"{name} ended by itself with {code}")
