"""Looking at runs without touching tables: lists, counts, suspensions, hooks, history."""

import asyncio
from secrets import token_urlsafe
from typing import Any

from examples.cancellation import SPEC as RENTAL
from examples.cancellation import Rental
from examples.hook_approval import SPEC as APPROVAL
from examples.hook_approval import Approval
from flowpg import (
    Decision,
    FlowRuntime,
    StepInvocation,
    WorkflowInvocation,
    open_engine,
)


class Both(FlowRuntime):
    """One process may serve many workflows: it looks at the name."""

    workflows = (RENTAL, APPROVAL)

    def __init__(self) -> None:
        self._by_name: dict[str, Rental | Approval] = {
            RENTAL.name: Rental(),
            APPROVAL.name: Approval(),
        }

    def run_workflow(self, invocation: WorkflowInvocation) -> Decision:
        """Hand the run to the runtime of its workflow."""
        return self._by_name[invocation.spec.name].run_workflow(invocation)

    def run_step(self, step: StepInvocation) -> Any:
        """Hand the step to the runtime of its workflow."""
        return self._by_name[step.workflow_name].run_step(step)


async def main() -> Any:
    """Leave one run in a timer, one in a hook, one cancelled, and look at them."""
    async with open_engine(Both()) as engine:
        sleeping = await engine.start(RENTAL)
        asking = await engine.start(APPROVAL, {"token": token_urlsafe()})
        gone = await engine.start(RENTAL)
        await engine.force_cancel(gone, "not needed")

        ids = [sleeping, asking, gone]
        snapshots = {run_id: await engine.snapshot(run_id) for run_id in ids}
        suspended = [await engine.list_open_suspensions(run_id=run_id) for run_id in ids]
        summary = await engine.run_summary()
        wakeup = await engine.next_wakeup()
        events = [event.key for event in await engine.history(asking)]
        return {
            "status": [str(snapshots[run_id].status) for run_id in ids],
            "waits_for": [[str(item.kind) for item in items] for items in suspended],
            "listed": set(ids) <= set(await engine.list_run_ids()),
            "at_least_two_open": summary.suspended >= 2,
            "a_wakeup_is_planned": wakeup is not None,
            "history": events,
        }


if __name__ == "__main__":
    print(asyncio.run(main()))
