"""Absurd, through its public packages ``absurd-sdk`` and, for its schema, ``absurdctl``.

Its workers poll. One client object has one connection, on which everything it does takes turns,
so the fastest process found runs several worker loops, each with a connection of its own.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import random
import signal
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import psycopg

from benchmarks.harness.contestant import WorkerOptions, say_ready
from benchmarks.harness.ledger import Ledger

QUEUE, CHILDREN = "bench", "children"
LOOPS = 8
POLL = {"throughput": 0.05, "latency": 0.01, "nothing": 0.25}


class AbsurdClient:
    """Starts tasks with its SQL function and looks at its tables."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._connection = psycopg.connect(dsn, autocommit=True)
        sdk = importlib.import_module("absurd_sdk")
        self._waiting: Any = sdk.Absurd(psycopg.connect(dsn, autocommit=True), QUEUE)

    def start(self, program: str, inputs: Sequence[dict[str, Any]]) -> list[str]:
        """Spawn one task for each input, in one transaction, as its client does it."""
        sdk = importlib.import_module("absurd_sdk")
        with psycopg.connect(self._dsn) as connection:
            app = sdk.Absurd(connection, QUEUE)
            spawned = [app.spawn(program, given, queue=QUEUE) for given in inputs]
        return [str(task["task_id"]) for task in spawned]

    def message(self, run_id: str) -> None:
        """Emit the event that a task waits for."""
        self._waiting.emit_event(f"message-{run_id}", {"answer": 42})

    def result(self, run_id: str) -> None:
        """Wait for the end of a task."""
        self._waiting.await_task_result(run_id, timeout=60)

    def unfinished(self) -> int:
        """How many tasks have not ended."""
        open_, failed = self._row(
            "SELECT count(*), count(*) FILTER (WHERE state IN ('failed', 'cancelled'))"
            f" FROM absurd.t_{QUEUE} WHERE state <> 'completed'"
        )
        if failed:
            raise RuntimeError(f"{failed} tasks of Absurd failed")
        return int(open_)

    def parked(self) -> int:
        """How many tasks sleep."""
        return int(self._row(f"SELECT count(*) FROM absurd.t_{QUEUE} WHERE state = 'sleeping'")[0])

    def completed_at(self, run_ids: Sequence[str]) -> dict[str, float]:
        """When each of these tasks completed."""
        rows = self._connection.execute(
            f"SELECT task_id::text, extract(epoch FROM completed_at) FROM absurd.r_{QUEUE}"
            " WHERE task_id = ANY(%s::uuid[]) AND completed_at IS NOT NULL",
            (list(run_ids),),
        )
        return {task_id: float(ended) for task_id, ended in rows}

    def close(self) -> None:
        """Disconnect."""
        self._waiting.close()
        self._connection.close()

    def _row(self, query: str) -> tuple[Any, ...]:
        row = self._connection.execute(query).fetchone()
        assert row is not None
        return tuple(row)


class AbsurdPeer:
    """See ``Contestant``."""

    name = "absurd"
    packages = ("absurd-sdk", "absurdctl")
    settings = (
        f"asynchronous worker, {LOOPS} loops with a connection each in one process; polls each "
        "50 ms, for latency each 10 ms, at its defaults each 250 ms with one loop"
    )

    def missing(self) -> str | None:
        """Its packages, if they are not installed."""
        for module, package in (("absurd_sdk", "absurd-sdk"), ("absurdctl", "absurdctl")):
            if importlib.util.find_spec(module) is None:
                return f"not installed: pip install {package}"
        if not getattr(importlib.import_module("absurdctl"), "BUNDLED_SCHEMA_SQL", None):
            return "the installed absurdctl brings no schema"
        return None

    def install(self, dsn: str) -> None:
        """Run the schema that its command line brings, and make the queues."""
        schema: str = importlib.import_module("absurdctl").BUNDLED_SCHEMA_SQL
        with psycopg.connect(dsn) as connection:
            connection.execute(schema.encode())
            for queue in (QUEUE, CHILDREN):
                connection.execute("SELECT absurd.create_queue(%s)", (queue,))

    def client(self, dsn: str) -> AbsurdClient:
        """A client."""
        return AbsurdClient(dsn)

    def serve(self, options: WorkerOptions) -> None:
        """Be a worker."""
        asyncio.run(_serve(options))


async def _serve(options: WorkerOptions) -> None:
    sdk = importlib.import_module("absurd_sdk")
    ledger = Ledger(options.ledger)
    loops = 1 if options.tuned_for == "nothing" else LOOPS
    in_flight = max(1, (options.in_flight or 8 * loops) // loops)
    apps, working = [], []
    for number in range(loops):
        connection = await psycopg.AsyncConnection.connect(options.dsn, autocommit=True)
        app = sdk.AsyncAbsurd(connection, QUEUE)
        for name, handler in _handlers(ledger).items():
            app.register_task(name)(handler)
        apps.append(app)
        working.append(
            app.start_worker(
                worker_id=f"bench-{options.number}-{number}",
                claim_timeout=int(options.lease) or 120,
                concurrency=in_flight,
                poll_interval=POLL[options.tuned_for],
            )
        )
    tasks = [asyncio.ensure_future(work) for work in working]
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    say_ready()
    stopped = asyncio.ensure_future(stop.wait())
    await asyncio.wait([stopped, *tasks], return_when=asyncio.FIRST_COMPLETED)
    for app in apps:
        app.stop_worker()
    await asyncio.gather(*tasks)


def _handlers(ledger: Ledger) -> dict[str, Any]:
    async def work(ctx: Any, name: str, sleep_ms: int) -> Any:
        async def body() -> Any:
            ledger.note(str(ctx.task_id), name)
            if sleep_ms:
                await asyncio.sleep(random.uniform(0, sleep_ms) / 1000)
            return {"step": name}

        return await ctx.step(name, body)

    async def steps(params: dict[str, Any], ctx: Any) -> Any:
        for number in range(params["steps"]):
            await work(ctx, f"step-{number}", params.get("sleep_ms", 0))
        return {"done": params["steps"]}

    async def fan(params: dict[str, Any], ctx: Any) -> Any:
        await asyncio.gather(*(work(ctx, f"step-{n}", 0) for n in range(params["steps"])))
        return {"done": params["steps"]}

    async def timer(params: dict[str, Any], ctx: Any) -> Any:
        await ctx.sleep_until("nap", datetime.fromtimestamp(params["due"], UTC))
        return {"done": 1}

    async def awaiting(params: dict[str, Any], ctx: Any) -> Any:
        await ctx.await_event(f"message-{ctx.task_id}")
        await work(ctx, "after", 0)
        return {"done": 1}

    return {"steps": steps, "chain": steps, "fan": fan, "timer": timer, "signal": awaiting}


CONTESTANT = AbsurdPeer()
