"""What a contestant has to be able to do: flowpg, and every peer, in the same words.

The work is always one of a few programs, each given its input:

======== ======================================== =========================================
program  input                                    what a run does
======== ======================================== =========================================
steps    ``steps``, ``sleep_ms``                  steps one after the other, no work in them;
                                                  each sleeps 0 to ``sleep_ms`` ms
timer    ``due`` (seconds of Unix)                sleeps durably until then
signal                                            waits for a message, then runs one step
fan      ``steps``                                that many steps at once
======== ======================================== =========================================
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from benchmarks.harness.machine import cpu_seconds, memory_mib

READY = "ready"
"""What a worker process says once it takes work."""


@dataclass(frozen=True)
class WorkerOptions:
    """How a worker process is to be run.

    ``tuned_for`` is what a contestant may tune its polling for: ``throughput``, ``latency``, or
    ``nothing``, its defaults. ``in_flight`` is how many runs the process may have at once, 0 for
    what is best. ``lease`` is in seconds, 0 for the default. ``profile`` names the file into which
    the process writes where its processor time went.
    """

    dsn: str
    tuned_for: str = "throughput"
    in_flight: int = 0
    lease: float = 0.0
    ledger: str | None = None
    number: int = 0
    profile: str | None = None


class Client(Protocol):
    """The side that starts runs and looks at them. Every time is the server's, in Unix seconds."""

    def start(self, program: str, inputs: Sequence[dict[str, Any]]) -> list[str]:
        """Start one run for each input, all in one transaction; returns their ids."""
        ...

    def message(self, run_id: str) -> None:
        """Send a run of ``signal`` the message it waits for."""
        ...

    def result(self, run_id: str) -> None:
        """Wait for the end of a run the way a caller who needs its result does."""
        ...

    def unfinished(self) -> int:
        """How many runs have not completed. Raises RuntimeError when one has failed."""
        ...

    def parked(self) -> int:
        """How many runs wait for a time or a message."""
        ...

    def completed_at(self, run_ids: Sequence[str]) -> dict[str, float]:
        """When each of these runs completed; unfinished ones are left out."""
        ...

    def close(self) -> None:
        """Disconnect."""
        ...


class Contestant(Protocol):
    """One engine."""

    name: str
    packages: tuple[str, ...]
    settings: str
    """The settings it is measured with, in words."""

    def missing(self) -> str | None:
        """Why it cannot be measured here, or None."""
        ...

    def install(self, dsn: str) -> None:
        """Make its tables in an empty database, and leave no connection behind."""
        ...

    def client(self, dsn: str) -> Client:
        """A client of a database made from that one."""
        ...

    def serve(self, options: WorkerOptions) -> None:
        """Be a worker process: call ``say_ready``, work until SIGTERM."""
        ...


AT_READY: list[Callable[[], None]] = []
"""What a worker process does just before it says so."""


def say_ready() -> None:
    """Tell the harness that this worker process takes work."""
    for action in AT_READY:
        action()
    sys.stdout.write(READY + "\n")
    sys.stdout.flush()


class Worker:
    """A worker process of a contestant."""

    def __init__(self, contestant: Contestant, options: WorkerOptions) -> None:
        self.command = [
            sys.executable,
            "-m",
            "benchmarks.harness.child",
            contestant.name,
            json.dumps(asdict(options)),
        ]
        self._name = contestant.name
        root = Path(__file__).resolve().parents[2]
        self._process = subprocess.Popen(
            self.command,
            stdout=subprocess.PIPE,
            cwd=root,
            env={**os.environ, "PYTHONHASHSEED": "0"},
        )
        self._await_ready()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def cpu(self) -> float:
        """Processor seconds it has used so far."""
        return cpu_seconds(self.pid)

    def memory(self, what: str = "VmRSS") -> float:
        """Its resident memory in MiB; ``VmHWM`` for the highest so far."""
        return memory_mib(self.pid, what)

    def pause(self) -> None:
        """Hold it still, as it is."""
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Let it go on after ``pause``."""
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """End it as a crash would."""
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """Ask it to end; kill it if it has not after ten seconds."""
        if self._process.poll() is None:
            self.go_on()
            self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self.kill()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def check(self) -> None:
        """Raise RuntimeError if it has ended by itself."""
        code = self._process.poll()
        if code is not None:
            raise RuntimeError(f"a worker of {self._name} ended with status {code}")

    def _await_ready(self, patience: float = 60.0) -> None:
        assert self._process.stdout is not None
        deadline = time.monotonic() + patience
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while selector.select(max(0.0, deadline - time.monotonic())):
                line = self._process.stdout.readline()
                if line.strip() == READY.encode():
                    return
                if not line:
                    break
        self.stop()
        raise RuntimeError(f"a worker of {self._name} did not get ready; see its errors above")


@contextlib.contextmanager
def workers(contestant: Contestant, options: WorkerOptions, count: int) -> Iterator[list[Worker]]:
    """``count`` worker processes, stopped afterwards."""
    running: list[Worker] = []
    try:
        for number in range(count):
            running.append(Worker(contestant, replace(options, number=number)))  # noqa: PERF401
        yield running
    finally:
        for worker in running:
            worker.stop()


def await_all(client: Client, running: Sequence[Worker], patience: float = 300.0) -> None:
    """Wait until no run is unfinished. Raises RuntimeError when that takes too long."""
    deadline = time.monotonic() + patience
    pause = 0.002
    while left := client.unfinished():
        if time.monotonic() > deadline:
            raise RuntimeError(f"{left} runs are unfinished after {patience:.0f} s")
        for worker in running:
            worker.check()
        time.sleep(pause)
        # Looking costs the server something, so look ever less often.
        pause = min(pause * 1.3, 0.05)


def await_parked(
    client: Client,
    running: Sequence[Worker],
    count: int,
    until: float | None = None,
    patience: float = 120.0,
) -> bool:
    """Wait until ``count`` runs are parked; False if ``until`` (monotonic) comes before that.
    Raises RuntimeError when there is no ``until`` and it takes too long."""
    deadline = time.monotonic() + patience if until is None else until
    while client.parked() < count:
        if time.monotonic() > deadline:
            if until is None:
                raise RuntimeError(f"not all of {count} runs wait after {patience:.0f} s")
            return False
        for worker in running:
            worker.check()
        time.sleep(0.1)
    return True
