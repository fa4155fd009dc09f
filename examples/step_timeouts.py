"""A step that hangs is timed out, and its next attempt goes on where the last one was."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

from flowpg import FlowApp, Retry, StartToCloseTimeout, StepTimeouts, open_engine, step_context

app = FlowApp("copies")

ROWS = 6


@app.step(
    retry=Retry.fixed(3),
    timeouts=StepTimeouts(heartbeat=timedelta(seconds=0.3), schedule_to_close=timedelta(minutes=1)),
)
async def copy_rows() -> dict[str, int]:
    """Says after each row how far it is. The first attempt hangs in the middle, the second does
    not begin from the start again."""
    context = step_context()
    start = context.heartbeat_details or 0
    for row in range(start, ROWS):
        if context.attempt == 1 and row == 3:
            await asyncio.Event().wait()
        context.heartbeat(row + 1)
    return {"attempt": context.attempt, "began_at": start}


@app.step(retry=Retry.none(), timeouts=StepTimeouts(start_to_close=timedelta(seconds=0.2)))
async def ask_the_oracle() -> str:
    """Never answers."""
    await asyncio.Event().wait()
    return "42"


@app.workflow
async def patient() -> dict[str, Any]:
    """A timeout is an exception like any other."""
    copied = await copy_rows()
    try:
        answer = await ask_the_oracle()
    except StartToCloseTimeout:
        answer = "no answer"
    return {**copied, "oracle": answer}


async def main() -> Any:
    """Run it on FLOWPG_DSN, or on the embedded server."""
    async with open_engine(app) as engine:
        run_id = await engine.start(patient.spec, patient.input())
        return patient.result(await engine.drive(run_id))


if __name__ == "__main__":
    print(asyncio.run(main()))
