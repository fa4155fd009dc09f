"""DBOS, through its public package ``dbos``.

Work reaches a worker process through one of its queues, which is polled. Plain functions are its
fastest workflows; the coroutine kind is used where a run has to sleep, wait, or do many things at
once without holding a thread.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import logging
import random
import signal
import threading
import time
from collections.abc import Sequence
from typing import Any

import psycopg

from benchmarks.harness.contestant import WorkerOptions, say_ready
from benchmarks.harness.ledger import Ledger

QUEUE = "bench"
POLL = {"throughput": 0.1, "latency": 0.01, "nothing": 1.0}
IN_FLIGHT = 100
_NAMES = {"chain": "steps"}


class DbosClient:
    """Enqueues workflows with its client and looks at its tables."""

    def __init__(self, dsn: str) -> None:
        dbos = _package()
        self._engine = importlib.import_module("sqlalchemy").create_engine(_url(dsn))
        self._client: Any = dbos.DBOSClient(
            system_database_engine=self._engine, application_name="bench"
        )
        self._handles: dict[str, Any] = {}
        self._connection = psycopg.connect(dsn, autocommit=True)

    def start(self, program: str, inputs: Sequence[dict[str, Any]]) -> list[str]:
        """Enqueue one workflow for each input, in one transaction."""
        options = {"workflow_name": _NAMES.get(program, program), "queue_name": QUEUE}
        with self._engine.begin() as connection:
            handles = [
                self._client.enqueue_in_transaction(connection, options, given) for given in inputs
            ]
        found = {handle.get_workflow_id(): handle for handle in handles}
        self._handles |= found
        return list(found)

    def message(self, run_id: str) -> None:
        """Send what a workflow waits for."""
        self._client.send(run_id, {"answer": 42})

    def result(self, run_id: str) -> None:
        """Wait for the end of a workflow."""
        self._handles[run_id].get_result()

    def unfinished(self) -> int:
        """How many workflows have not ended."""
        open_, failed = self._row(
            "SELECT count(*), count(*) FILTER (WHERE status NOT IN ('PENDING', 'ENQUEUED',"
            " 'DELAYED')) FROM dbos.workflow_status WHERE status <> 'SUCCESS'"
        )
        if failed:
            raise RuntimeError(f"{failed} workflows of DBOS failed")
        return int(open_)

    def parked(self) -> int:
        """How many workflows sleep or wait for a message: each has recorded until when."""
        return int(
            self._row(
                "SELECT count(*) FROM dbos.operation_outputs JOIN dbos.workflow_status"
                " USING (workflow_uuid) WHERE function_name = 'DBOS.sleep' AND status = 'PENDING'"
            )[0]
        )

    def completed_at(self, run_ids: Sequence[str]) -> dict[str, float]:
        """When each of these workflows completed."""
        rows = self._connection.execute(
            "SELECT workflow_uuid, completed_at FROM dbos.workflow_status"
            " WHERE workflow_uuid = ANY(%s) AND completed_at IS NOT NULL",
            (list(run_ids),),
        )
        return {run_id: ended / 1000 for run_id, ended in rows}

    def close(self) -> None:
        """Disconnect."""
        self._client.destroy()
        self._engine.dispose()
        self._connection.close()

    def _row(self, query: str) -> tuple[Any, ...]:
        row = self._connection.execute(query).fetchone()
        assert row is not None
        return tuple(row)


class DbosPeer:
    """See ``Contestant``."""

    name = "dbos"
    packages = ("dbos", "SQLAlchemy")
    settings = (
        f"queue with worker_concurrency={IN_FLIGHT}, polled each 100 ms, for latency each 10 ms, "
        "at its defaults each second; plain functions as workflows, coroutines for timer, signal "
        "and fan"
    )

    def missing(self) -> str | None:
        """Its package, if it is not installed."""
        found = importlib.util.find_spec("dbos")
        return None if found is not None else "not installed: pip install dbos"

    def install(self, dsn: str) -> None:
        """Migrate."""
        _package().DBOS.migrate(_url(dsn))

    def client(self, dsn: str) -> DbosClient:
        """A client."""
        return DbosClient(dsn)

    def serve(self, options: WorkerOptions) -> None:
        """Be a worker."""
        dbos = _package()
        app = dbos.DBOS
        app(
            config={
                "name": "bench",
                "system_database_url": _url(options.dsn),
                # Without its proprietary conductor a process takes over the runs of a dead one
                # only if it has the same id.
                "executor_id": "bench" if options.lease else f"bench-{options.number}",
                "application_version": "bench",
                "log_level": "ERROR",
            }
        )
        _register(app, Ledger(options.ledger))
        app.launch()
        app.register_queue(
            QUEUE,
            worker_concurrency=options.in_flight or IN_FLIGHT,
            polling_interval_sec=POLL[options.tuned_for],
        )
        ended = threading.Event()
        signal.signal(signal.SIGTERM, lambda *_: ended.set())
        say_ready()
        ended.wait()
        app.destroy()


def _package() -> Any:
    logging.getLogger("dbos").setLevel(logging.ERROR)
    return importlib.import_module("dbos")


def _url(dsn: str) -> str:
    return dsn.replace("postgresql://", "postgresql+psycopg://", 1)


def _register(app: Any, ledger: Ledger) -> None:
    def work(run: str, name: str, sleep_ms: int) -> Any:
        ledger.note(run, name)
        if sleep_ms:
            time.sleep(random.uniform(0, sleep_ms) / 1000)
        return {"step": name}

    async def work_async(run: str, name: str) -> Any:
        ledger.note(run, name)
        return {"step": name}

    step = app.step(name="work")(work)
    step_async = app.step(name="work_async")(work_async)

    def steps(params: dict[str, Any]) -> Any:
        for number in range(params["steps"]):
            step(app.workflow_id, f"step-{number}", params.get("sleep_ms", 0))
        return {"done": params["steps"]}

    async def fan(params: dict[str, Any]) -> Any:
        run = app.workflow_id
        await asyncio.gather(*(step_async(run, f"step-{n}") for n in range(params["steps"])))
        return {"done": params["steps"]}

    async def timer(params: dict[str, Any]) -> Any:
        await app.sleep_async(max(0.0, params["due"] - time.time()))
        return {"done": 1}

    async def awaiting(params: dict[str, Any]) -> Any:
        await app.recv_async(timeout_seconds=600)
        await step_async(app.workflow_id, "after")
        return {"done": 1}

    programs = {"steps": steps, "fan": fan, "timer": timer, "signal": awaiting}
    for name, program in programs.items():
        app.workflow(name=name)(program)


CONTESTANT = DbosPeer()
