"""Applications that the tests of ``flowpg worker`` name."""

import asyncio
import time
from typing import Any

from flowpg.model.commands import Decision
from flowpg.replay.runtime import StepInvocation, WorkflowInvocation


class Marked:
    """One step that says on standard output when it begins and when it is cancelled."""

    def run_workflow(self, invocation: WorkflowInvocation) -> Decision:
        """The step, then the end."""
        ctx = invocation.context()
        if not ctx.step_completed("s"):
            return ctx.schedule_step("s", ctx.input)
        return ctx.complete(ctx.step_output("s"))

    def run_step(self, step: StepInvocation) -> Any:
        """``quick`` returns, ``forever`` never does, ``deaf`` sleeps in its thread."""
        print("entered", step.step_name, flush=True)
        match step.step_name:
            case "forever":
                return self._forever()
            case "deaf":
                time.sleep(600)
        return step.step_name

    async def _forever(self) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            print("cleaned up", flush=True)


class NeedsArguments(Marked):
    """Cannot be made without being told something."""

    def __init__(self, needed: str) -> None:
        self.needed = needed


class Quick(Marked):
    """Serves any step by returning its name: what a worker with fixed code would do."""

    def run_step(self, step: StepInvocation) -> Any:
        """Return at once."""
        return step.step_name


marked = Marked()
number = 7


def factory() -> Marked:
    """Makes the runtime."""
    return Marked()


def makes_none() -> object:
    """Makes something else."""
    return object()
