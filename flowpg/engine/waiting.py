"""Waiting for the end of a run, from an event loop."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext, suppress
from time import monotonic

from flowpg.errors import StoreError
from flowpg.postgres.waits import Pause, await_run, waiting
from flowpg.store.postgres import PostgresEventStore
from flowpg.store.protocol import FlowEventStore


async def wait_for_end(store: FlowEventStore, run_id: str, seconds: float | None) -> bool:
    """Wait until the run has ended, at most ``seconds``; whether it has. RunNotFound, StoreError.

    On PostgreSQL one is told of the end, where notifications come through; else one looks."""
    if (await store.run_info(run_id)).status.terminal:
        return True
    loop, told = asyncio.get_running_loop(), asyncio.Event()

    def tell() -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(told.set)

    notices = store.end_notices() if isinstance(store, PostgresEventStore) else None
    with notices.watch(run_id, tell) if notices is not None else nullcontext() as news:
        steps = waiting(news, monotonic, seconds)
        ended: bool | None = None
        while True:
            try:
                step = steps.send(ended)
            except StopIteration as end:
                return bool(end.value)
            if isinstance(step, Pause):
                with suppress(TimeoutError):
                    async with asyncio.timeout(step.seconds):
                        await told.wait()
                ended = False
            else:
                told.clear()
                ended = await _has_ended(store, run_id, step.ask)


async def _has_ended(store: FlowEventStore, run_id: str, ask: bool) -> bool:
    if ask and isinstance(store, PostgresEventStore):
        # Else a role that may only read, or a standby: looking may work.
        with suppress(StoreError):
            return await store.call(await_run(run_id))
    return (await store.run_info(run_id)).status.terminal
