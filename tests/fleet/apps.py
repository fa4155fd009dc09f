"""Applications that the tests of ``flowpg worker`` name."""

import asyncio
import inspect
import os
import threading
from pathlib import Path
from typing import Any

from flowpg.model.commands import Decision
from flowpg.replay.runtime import FlowRuntime, StepInvocation, WorkflowInvocation
from tests.waiting import until, until_async

GATE_SECONDS = 600
"""How long a step waits at the gate: longer than any test."""


class Marked:
    """One step that says on standard output when it begins and when it is cancelled."""

    def run_workflow(self, invocation: WorkflowInvocation) -> Decision:
        """The step, then the end."""
        ctx = invocation.context()
        if not ctx.step_completed("s"):
            return ctx.schedule_step("s", ctx.input)
        return ctx.complete(ctx.step_output("s"))

    def run_step(self, step: StepInvocation) -> Any:
        """``quick`` returns, ``forever`` never does, ``deaf`` holds its thread, ``patient``
        returns and ``blocking`` lets go of the event loop once a file exists, ``fatal`` ends the
        process."""
        print("entered", step.step_name, flush=True)
        match step.step_name:
            case "forever":
                return self._forever()
            case "deaf":
                threading.Event().wait()
            case "patient":
                return self._patient()
            case "blocking":
                return self._blocking()
            case "fatal":
                os._exit(137)
        return step.step_name

    async def _patient(self) -> str:
        async def is_open() -> bool:
            return gate().exists()

        await until_async(is_open, "the gate is open", GATE_SECONDS)
        return "patient"

    async def _blocking(self) -> str:
        # What this step does wrong is its purpose.
        until(gate().exists, "the gate is open", GATE_SECONDS)
        return "blocking"

    async def _forever(self) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            print("cleaned up", flush=True)


class InLoop(Marked):
    """The same steps, called in the event loop."""

    async def run_step(self, step: StepInvocation) -> Any:
        """As for ``Marked``."""
        result = super().run_step(step)
        return await result if inspect.isawaitable(result) else result


def gate() -> Path:
    """The file that lets the steps ``patient`` and ``blocking`` end."""
    return Path(os.environ["FLOWPG_TEST_GATE"])


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


class Stepless(FlowRuntime):
    """Inherits ``run_step`` and so cannot run any."""

    def run_workflow(self, invocation: WorkflowInvocation) -> Decision:
        """The end."""
        return invocation.context().complete()
