"""An application whose step runs in the queue ``slow``, for tests with worker processes."""

import asyncio
import os
from pathlib import Path

from flowpg import FlowApp, Retry
from tests.fleet.apps import GATE_SECONDS
from tests.waiting import until_async

app = FlowApp("routed")
gate = Path(os.environ.get("FLOWPG_TEST_GATE", "/nonexistent/gate"))
name = os.environ.get("FLOWPG_TEST_NAME", "nobody")


async def _gate_is_open() -> bool:
    return gate.exists()  # noqa: ASYNC240


@app.step(retry=Retry.none())
async def crunch(patient: bool) -> str:
    """Says who it is; a patient one waits for the gate first."""
    print("entered", flush=True)
    try:
        if patient:
            await until_async(_gate_is_open, "the gate is open", GATE_SECONDS)
    except asyncio.CancelledError:
        print("cancelled", flush=True)
        raise
    return name


@app.step(retry=Retry.fixed(3))
async def flaky(path: str) -> str:
    """Fails until it finds what an earlier attempt left."""
    mark = Path(path)
    if not mark.exists():  # noqa: ASYNC240
        mark.touch()  # noqa: ASYNC240
        raise RuntimeError("on purpose")
    return name


@app.workflow
async def one(patient: bool) -> str:
    """One step elsewhere."""
    return await crunch.options(queue="slow")(patient)


@app.workflow
async def again(path: str) -> str:
    """One that is tried again."""
    return await flaky.options(queue="slow")(path)


@app.workflow
async def many(count: int) -> list[str]:
    """As many steps at once."""
    work = crunch.options(queue="slow")
    return list(await asyncio.gather(*(work(False) for _ in range(count))))
