"""A process that is killed in the middle of a step: ``python -m tests.engine.victim DSN RUN``.

It says on standard output which step it is in, and stays there.
"""

import asyncio
import sys
from typing import Any

from flowpg.engine.flow_engine import FlowEngine
from flowpg.model.commands import Decision
from flowpg.model.retry import RetryPolicy
from flowpg.replay.context import WorkflowContext
from flowpg.replay.runtime import StepInvocation
from flowpg.store.postgres import PostgresEventStore
from tests.engine.support import SPEC, Script


def workflow(ctx: WorkflowContext) -> Decision:
    """A step that is done, then a batch in which the process is killed."""
    if not ctx.step_completed("first"):
        return ctx.schedule_step("first", "work", "first", RetryPolicy.none())
    batch = ("fast", "stuck")
    if not all(map(ctx.step_completed, batch)):
        return ctx.schedule_steps([ctx.step(n, "work", n, RetryPolicy.none()) for n in batch])
    return ctx.complete([ctx.step_output(name) for name in ("first", *batch)])


async def work(step: StepInvocation) -> Any:
    """Return the input, but for the step in which this process ends."""
    if step.input == "stuck":
        await step.heartbeat(7)
        print("stuck", flush=True)
        await asyncio.Event().wait()
    return step.input


async def main(dsn: str, run_id: str) -> None:
    """Start and drive the run."""
    store = await PostgresEventStore.connect(dsn)
    async with FlowEngine(store, Script(workflow, {"work": work})) as engine:
        await engine.start_with_id(run_id, SPEC)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))
