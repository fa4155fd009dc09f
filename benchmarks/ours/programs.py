"""The programs of the benchmark as a hand-written runtime, the way a user would write them."""

from __future__ import annotations

import asyncio
import random
from datetime import UTC, datetime
from typing import Any

from benchmarks.harness.ledger import Ledger
from flowpg.model.commands import Decision
from flowpg.model.spec import WorkflowSpec
from flowpg.replay.runtime import StepInvocation, WorkflowInvocation

SPECS = {name: WorkflowSpec.python(name) for name in ("steps", "timer", "signal", "fan", "chain")}

HOOK = "message"


def token(run_id: str) -> str:
    """The token of the hook of a ``signal`` run."""
    return f"token-of-{run_id}"


class Programs:
    """Runs every program; steps report to the ledger if there is one."""

    def __init__(self, ledger: Ledger) -> None:
        self._note = ledger.note

    def run_workflow(self, invocation: WorkflowInvocation) -> Decision:
        """The next command of a run."""
        decide = getattr(self, "_" + invocation.spec.name)
        command: Decision = decide(invocation)
        return command

    async def run_step(self, step: StepInvocation) -> Any:
        """A step without work, or with a nap."""
        self._note(step.run_id, step.step_id)
        nap = step.input["sleep_ms"] if step.input else 0
        if nap:
            await asyncio.sleep(random.uniform(0, nap) / 1000)
        return {"step": step.step_id}

    def _steps(self, invocation: WorkflowInvocation) -> Decision:
        ctx = invocation.context()
        wanted = invocation.input
        for number in range(wanted["steps"]):
            step_id = f"step-{number}"
            if not ctx.step_completed(step_id):
                return ctx.schedule_step(step_id, "work", {"sleep_ms": wanted["sleep_ms"]})
        return ctx.complete({"done": wanted["steps"]})

    def _chain(self, invocation: WorkflowInvocation) -> Decision:
        # The same as a poll loop is written: it looks at the last step only, since looking at
        # all of them ten thousand times would measure the loop and not the engine.
        ctx = invocation.context()
        done = len(invocation.snapshot.steps)
        if done and not ctx.step_completed(f"step-{done - 1}"):
            done -= 1
        if done < invocation.input["steps"]:
            return ctx.schedule_step(f"step-{done}", "work", {"sleep_ms": 0})
        return ctx.complete({"done": done})

    def _fan(self, invocation: WorkflowInvocation) -> Decision:
        ctx = invocation.context()
        wanted = invocation.input["steps"]
        if any(not ctx.step_completed(f"step-{number}") for number in range(wanted)):
            return ctx.schedule_steps(
                ctx.step(f"step-{number}", "work") for number in range(wanted)
            )
        return ctx.complete({"done": wanted})

    def _timer(self, invocation: WorkflowInvocation) -> Decision:
        ctx = invocation.context()
        if not ctx.wait_completed("nap"):
            due = datetime.fromtimestamp(invocation.input["due"], UTC)
            return ctx.wait_until("nap", due)
        return ctx.complete({"done": 1})

    def _signal(self, invocation: WorkflowInvocation) -> Decision:
        ctx = invocation.context()
        if not ctx.hook_received(HOOK):
            return ctx.create_hook(HOOK, token(invocation.run_id))
        if not ctx.step_completed("after"):
            return ctx.schedule_step("after", "work", None)
        return ctx.complete({"done": 1})
