"""A ledger of what steps really did, outside the schema of the engine and past every fault.

One row an execution of a step's code: written before it does anything, closed when it has ended.
The clock is the machine's monotonic one, the same for all processes of a storm.
"""

import asyncio
import itertools
import os
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass

import psycopg

from flowpg.authoring.step_context import step_context
from tests.waiting import until
from tests.weather import pause, pause_in_thread

LEDGER_DSN = "FLOWPG_STORM_LEDGER"
"""Environment variable: where the ledger is. Never through a proxy."""
WORKER = "FLOWPG_STORM_WORKER"
"""Environment variable: the name of this process, which no other process of the storm has."""

_PATIENCE = 300

_TABLE = """
CREATE TABLE public.storm_ledger (
    entry uuid PRIMARY KEY, worker text NOT NULL, run_id text NOT NULL, step_id text NOT NULL,
    step_name text NOT NULL, attempt integer NOT NULL, began double precision NOT NULL,
    ended double precision, result text
)
"""
_BEGIN = """
INSERT INTO public.storm_ledger (entry, worker, run_id, step_id, step_name, attempt, began)
VALUES (%s, %s, %s, %s, %s, %s, %s) ON CONFLICT (entry) DO NOTHING
"""
_END = "UPDATE public.storm_ledger SET ended = %s, result = %s WHERE entry = %s"
_ALL = """
SELECT worker, run_id, step_id, step_name, attempt, began, ended, result
  FROM public.storm_ledger ORDER BY run_id, step_id, began
"""


@dataclass(frozen=True)
class Entry:
    """One execution of a step. ``ended`` is None and ``result`` empty if nobody saw its end."""

    worker: str
    run_id: str
    step_id: str
    step_name: str
    attempt: int
    began: float
    ended: float | None
    result: str | None


class Ledger:
    """The ledger as the steps of one process write it; waits for a server that is away."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._connection: psycopg.Connection | None = None

    def begin(self, run_id: str, step_id: str, name: str, attempt: int) -> str:
        """Say that a step begins; returns the entry."""
        entry = str(uuid.uuid4())
        worker = os.environ.get(WORKER, "")
        self._write(_BEGIN, entry, worker, run_id, step_id, name, attempt, time.monotonic())
        return entry

    def end(self, entry: str, result: str) -> None:
        """Say how it ended."""
        self._write(_END, time.monotonic(), result, entry)

    def _write(self, statement: str, *values: object) -> None:
        # Writing twice changes nothing, so a lost reply is answered by writing again.
        def written() -> bool:
            try:
                if self._connection is None or self._connection.closed:
                    dsn = os.environ[LEDGER_DSN]
                    self._connection = psycopg.connect(dsn, autocommit=True)
                self._connection.execute(statement, values)
            except psycopg.OperationalError:
                if self._connection is not None:
                    self._connection.close()
                return False
            return True

        with self._guard:
            until(written, "the ledger can be written", _PATIENCE)


ledger = Ledger()


async def witnessed(seconds: float, fails: bool = False) -> None:
    """The work of an asynchronous step, with its two rows."""
    entry = await asyncio.to_thread(_begin)
    try:
        await pause(seconds)
    except asyncio.CancelledError:
        await asyncio.to_thread(ledger.end, entry, "cancelled")
        raise
    await asyncio.to_thread(_finish, entry, fails)


def witnessed_in_thread(seconds: float, fails: bool = False) -> None:
    """The work of a step that is a plain function."""
    entry = _begin()
    pause_in_thread(seconds)
    _finish(entry, fails)


def create(dsn: str) -> None:
    """Make the table of a storm."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(_TABLE)


def entries(dsn: str) -> list[Entry]:
    """Everything, by run, step and time."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        return [Entry(*row) for row in connection.execute(_ALL).fetchall()]


def repeats(
    found: list[Entry], excuse: Callable[[Entry, Entry], bool]
) -> tuple[list[tuple[Entry, Entry]], int]:
    """Pairs of executions of one step of which nothing explains the second, and how many pairs
    ``excuse`` explains. The attempt after one that failed on purpose is no repetition."""
    unexplained, explained = [], 0
    for first, second in itertools.pairwise(found):
        if (first.run_id, first.step_id) != (second.run_id, second.step_id):
            continue
        if first.result == "failed" and second.attempt == first.attempt + 1:
            continue
        if excuse(first, second):
            explained += 1
        else:
            unexplained.append((first, second))
    return unexplained, explained


def _begin() -> str:
    step = step_context()
    return ledger.begin(step.run_id, step.step_id, step.step_name, step.attempt)


def _finish(entry: str, fails: bool) -> None:
    ledger.end(entry, "failed" if fails else "done")
    if fails:
        raise RuntimeError("on purpose")
