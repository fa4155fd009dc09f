"""``flowpg worker``: drive the runs of some queues until told to stop."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Sequence
from contextlib import AsyncExitStack
from datetime import timedelta
from enum import StrEnum
from typing import Annotated

import typer

from flowpg.authoring.watchdog import interrupt_by_signal
from flowpg.console.logs import log_to_stderr
from flowpg.console.target import DsnOption, SchemaOption, open_target
from flowpg.console.usercode import load_runtime
from flowpg.engine.core import STEP_THREADS
from flowpg.engine.flow_engine import FlowEngine
from flowpg.fleet.liveness import served
from flowpg.fleet.processes import WorkerProcesses, child_number, child_serves
from flowpg.fleet.shutdown import Shutdown
from flowpg.fleet.worker import FlowWorker
from flowpg.postgres.revisions import DEFAULT_SCHEMA
from flowpg.store.postgres import PostgresEventStore


class LogLevel(StrEnum):
    """From where on log lines are printed."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


_THREAD_ENDS = 0.2
"""Seconds an idle thread may take to end."""


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command(name="worker")(worker)


def worker(
    application: Annotated[
        str,
        typer.Option("--app", help="module:attribute, a FlowRuntime, its class or its factory."),
    ],
    dsn: DsnOption = None,
    schema: SchemaOption = DEFAULT_SCHEMA,
    queue: Annotated[
        list[str] | None,
        typer.Option(help="A queue to serve; may be repeated.", show_default="default"),
    ] = None,
    concurrency: Annotated[
        int, typer.Option(min=1, max=1000, help="How many runs to drive at once.")
    ] = 20,
    lease: Annotated[
        float, typer.Option(min=0.1, help="Seconds until a dead worker's runs go to another.")
    ] = 30.0,
    grace: Annotated[
        float, typer.Option(min=0, help="Seconds that steps may take to finish after SIGTERM.")
    ] = 20.0,
    build: Annotated[
        list[str] | None,
        typer.Option(help="Serve runs pinned to this build; may be repeated."),
    ] = None,
    unpinned: Annotated[
        bool, typer.Option(help="With --build: serve runs without a pinned build too.")
    ] = False,
    prepare: Annotated[
        bool,
        typer.Option(
            envvar="FLOWPG_PREPARE", help="Prepare statements; not for PgBouncer before 1.21."
        ),
    ] = True,
    processes: Annotated[
        int, typer.Option(min=1, max=256, help="How many processes work under this one.")
    ] = 1,
    poll: Annotated[
        float, typer.Option(min=0.01, help="Longest pause in seconds between looks at the queue.")
    ] = 1.0,
    max_wedged: Annotated[
        float,
        typer.Option(min=0, help="Seconds that code may block the loop before runs are given up."),
    ] = 600.0,
    max_crashes: Annotated[
        int, typer.Option(min=1, help="Lost workers after which a run is set aside.")
    ] = 3,
    listen: Annotated[
        bool, typer.Option(help="Be notified of work; without it, looking must do.")
    ] = True,
    schedule: Annotated[
        bool, typer.Option(help="Make work of what is due; without it, schedulers must.")
    ] = True,
    tasks: Annotated[bool, typer.Option(help="Carry out queued tasks too.")] = True,
    direct_dsn: Annotated[
        str | None,
        typer.Option(
            envvar="FLOWPG_DIRECT_DSN",
            help="The server past any pooler, for notifications.",
            show_default=False,
        ),
    ] = None,
    health_port: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=65535,
            help="Answer HTTP /health and /ready here; process n of several on port + n.",
        ),
    ] = None,
    log_level: Annotated[
        LogLevel,
        typer.Option(help="debug shows the traceback of every failed attempt, not just the last."),
    ] = LogLevel.INFO,
) -> None:
    """Drive the runs of one queue or several.

    SIGTERM or Ctrl-C stops claiming, lets steps finish within the grace period, and gives the rest
    back; a second one does not wait.
    """
    log_to_stderr(log_level.upper())
    interrupt_by_signal()
    queues = queue or ["default"]
    number = child_number(os.environ)
    if processes > 1 and number is None:
        with open_target(dsn, schema=schema) as target:
            code = asyncio.run(_supervise(processes, target.dsn))
        raise typer.Exit(code)
    runtime = load_runtime(application)
    with open_target(dsn, schema=schema) as target:

        async def work() -> Shutdown:
            store = await PostgresEventStore.connect(target.dsn, schema=schema, prepare=prepare)
            builder = FlowEngine.builder(runtime).with_store(store).with_queue(queues[0])
            builder.with_lease(timedelta(seconds=lease))
            for name in build or ():
                builder.with_runtime_build(name, accept_unpinned=unpinned)
            async with builder.build() as engine:
                flow_worker = FlowWorker(
                    engine,
                    queues,
                    concurrency,
                    grace=timedelta(seconds=grace),
                    poll=timedelta(seconds=poll),
                    max_crashes=max_crashes,
                    schedule=schedule,
                    tasks=tasks,
                    listen=listen,
                    direct_dsn=direct_dsn,
                    max_wedged=timedelta(seconds=max_wedged),
                    exits=True,
                )
                port = None if health_port is None else health_port + (number or 0)
                return await run_until_signalled(flow_worker, port)

        shutdown = asyncio.run(work())
    _leave_threads_behind()
    shutdown.ended()


async def run_until_signalled(worker: FlowWorker, health_port: int | None = None) -> Shutdown:
    """Run a worker until SIGTERM or SIGINT; the second signal does not wait for steps.

    What is returned bounds the end of the process until its ``ended`` is called.
    """
    shutdown = Shutdown(worker)
    shutdown.install()
    async with AsyncExitStack() as stack:
        if health_port is not None:
            await stack.enter_async_context(served(worker.liveness, health_port))
        typer.echo(
            f"flowpg: worker on {_said(worker.queues)}, up to {worker.concurrency} runs at once; "
            "Ctrl-C stops it",
            err=True,
        )
        child_serves(os.environ)
        await worker.run()
    return shutdown


def _said(queues: Sequence[str]) -> str:
    return f"queue{'s' if len(queues) > 1 else ''} {', '.join(map(repr, queues))}"


async def _supervise(count: int, dsn: str) -> int:
    """Run this very command ``count`` times, each as a process of its own."""
    processes = WorkerProcesses(
        [sys.executable, "-m", "flowpg", *sys.argv[1:]], count, {**os.environ, "FLOWPG_DSN": dsn}
    )
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, processes.signal, number)
    typer.echo(f"flowpg: {count} worker processes; Ctrl-C stops them", err=True)
    return await processes.run()


def _leave_threads_behind() -> None:
    """End the process if a step still runs in a thread: it cannot be cancelled, its run was given
    back, and an ordinary exit would wait for it."""
    threads = [t for t in threading.enumerate() if t.name.startswith(STEP_THREADS)]
    for thread in threads:
        thread.join(_THREAD_ENDS)
    if any(thread.is_alive() for thread in threads):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
