"""Polling another system: check, sleep durably, check again, with stable ids per round."""

import asyncio
from datetime import timedelta
from typing import Any

from flowpg import (
    Decision,
    FlowRuntime,
    FlowWorker,
    StepInvocation,
    WorkflowInvocation,
    WorkflowSpec,
    open_engine,
)

SPEC = WorkflowSpec.python("examples.polling_loop")
PAUSE = timedelta(milliseconds=200)


class Poll(FlowRuntime):
    """Ask every 200 ms until the job is done."""

    workflows = (SPEC,)

    def run_workflow(self, invocation: WorkflowInvocation) -> Decision:
        """Round n has the step ``check-n`` and the wait ``pause-n``."""
        ctx = invocation.context()
        for turn in range(100):
            if not ctx.step_completed(f"check-{turn}"):
                return ctx.schedule_step(f"check-{turn}", "check_job", {"round": turn})
            if ctx.step_output(f"check-{turn}") == "done":
                return ctx.complete({"rounds": turn + 1})
            if not ctx.wait_completed(f"pause-{turn}"):
                return ctx.sleep(f"pause-{turn}", PAUSE)
        return ctx.fail("the job was not done after 100 rounds")

    def run_step(self, step: StepInvocation) -> Any:
        """A job that is done at the third look."""
        return "done" if step.input["round"] == 2 else "working"


async def main() -> Any:
    """Start it and let a worker carry it over its timers."""
    async with open_engine(Poll(), queue="examples-polling") as engine:
        run_id = await engine.start(SPEC)
        await FlowWorker(engine).run_until(run_id)
        return (await engine.snapshot(run_id)).output


if __name__ == "__main__":
    print(asyncio.run(main()))
