"""flowpg: its worker, its client, and where its tables say how far the runs are."""

from __future__ import annotations

import asyncio
import itertools
import secrets
import signal
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import psycopg

from benchmarks.harness.contestant import WorkerOptions, say_ready
from benchmarks.harness.ledger import Ledger
from benchmarks.ours.programs import SPECS, Programs, token
from flowpg.client import FlowClient
from flowpg.engine.flow_engine import FlowEngine
from flowpg.fleet.worker import FlowWorker
from flowpg.model.records import StartRequest
from flowpg.postgres.migrate import upgrade
from flowpg.store.postgres import PostgresEventStore

IN_FLIGHT = 200
"""Runs at once in a worker when a question does not say: enough for two full groups of appends on
their way and as many being decided."""


class OwnClient:
    """Starts runs and looks at them, with ``FlowClient`` and plain reads."""

    def __init__(self, dsn: str) -> None:
        self._connection = psycopg.connect(dsn, autocommit=True)
        self._client = FlowClient(dsn)
        self._mark = secrets.token_hex(3)
        self._numbers = itertools.count()

    def start(self, program: str, inputs: Sequence[dict[str, Any]]) -> list[str]:
        """Start the runs, in one transaction."""
        requests = [
            StartRequest(SPECS[program], given, f"{self._mark}-{next(self._numbers):07d}")
            for given in inputs
        ]
        # Over a connection that stays open, as a service has it: a new one costs some 20 ms.
        with self._connection.transaction():
            for part in range(0, len(requests), 1000):
                part_of_them = requests[part : part + 1000]
                self._client.start_many(part_of_them, connection=self._connection)
        return [str(request.run_id) for request in requests]

    def message(self, run_id: str) -> None:
        """Answer the hook of a run."""
        self._client.resume_hook_by_token(token(run_id), {"answer": 42})

    def result(self, run_id: str) -> None:
        """Wait for the end of a run."""
        self._client.wait(run_id, timedelta(minutes=1))

    def unfinished(self) -> int:
        """How many runs have not ended."""
        open_, failed = self._row(
            "SELECT count(*) FILTER (WHERE ended_at IS NULL),"
            " count(*) FILTER (WHERE status = 'failed' OR blocked_reason IS NOT NULL)"
            " FROM flowpg.flow_runs WHERE status <> 'completed'"
        )
        if failed:
            raise RuntimeError(f"{failed} runs of flowpg failed or are blocked")
        return int(open_)

    def parked(self) -> int:
        """How many runs are suspended."""
        return int(self._row("SELECT count(*) FROM flowpg.flow_runs WHERE status = 'suspended'")[0])

    def completed_at(self, run_ids: Sequence[str]) -> dict[str, float]:
        """When each of these runs ended."""
        rows = self._connection.execute(
            "SELECT run_id, extract(epoch FROM ended_at) FROM flowpg.flow_runs"
            " WHERE run_id = ANY(%s) AND ended_at IS NOT NULL",
            (list(run_ids),),
        )
        return {run_id: float(ended) for run_id, ended in rows}

    def close(self) -> None:
        """Disconnect."""
        self._client.close()
        self._connection.close()

    def _row(self, query: str) -> tuple[Any, ...]:
        row = self._connection.execute(query).fetchone()
        assert row is not None
        return tuple(row)


class FlowPg:
    """See ``Contestant``."""

    name = "flowpg"
    packages = ("flowpg", "psycopg")
    settings = f"defaults, but for a worker's concurrency of {IN_FLIGHT}"

    def missing(self) -> str | None:
        """Nothing: it is always here."""
        return None

    def install(self, dsn: str) -> None:
        """Migrate."""
        upgrade(dsn)

    def client(self, dsn: str) -> OwnClient:
        """A client of a migrated database."""
        return OwnClient(dsn)

    def serve(self, options: WorkerOptions) -> None:
        """Be a worker."""
        asyncio.run(_serve(options))


async def _serve(options: WorkerOptions) -> None:
    store = await PostgresEventStore.connect(options.dsn)
    builder = FlowEngine.builder(Programs(Ledger(options.ledger))).with_store(store)
    if options.lease:
        builder.with_lease(timedelta(seconds=options.lease))
    async with builder.build() as engine:
        worker = FlowWorker(engine, concurrency=options.in_flight or IN_FLIGHT)
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, worker.stop)
        loop.call_later(0.2, say_ready)
        await worker.run()


CONTESTANT = FlowPg()
