"""Playing one scenario with the workflow's coroutine kept, replayed at every turn, and killed."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from flowpg import FlowApp, FlowEventEnvelope, WorkflowRunSnapshot
from flowpg.testing import Call, Fault, TestedRun, WorkflowEnvironment, every_fault

Scenario = Callable[[WorkflowEnvironment, TestedRun[Any]], Awaitable[None]]
"""What others do to the run of a test before it is left to end by itself."""

HOUR = timedelta(hours=1)
SECOND = timedelta(seconds=1)


@dataclass
class Seen:
    """A run that has ended."""

    snapshot: WorkflowRunSnapshot
    history: list[FlowEventEnvelope]
    calls: dict[str, list[Call]]
    took: timedelta
    workflow: Any

    @property
    def result(self) -> Any:
        """What the workflow returned; raises how the run ended otherwise."""
        return self.workflow.result(self.snapshot)

    @property
    def types(self) -> list[str]:
        """The types of its events."""
        return [event.type for event in self.history]

    def lines(self) -> list[str]:
        """Its history as text. Scenarios give their hooks tokens, so it is the same each time."""
        return [f"{e.sequence} {e.recorded_at} {e.type} {e.payload}" for e in self.history]


async def left_alone(env: WorkflowEnvironment, run: TestedRun[Any]) -> None:
    """Nobody does anything."""


async def once(
    app: FlowApp, *args: Any, scenario: Scenario = left_alone, **environment: Any
) -> Seen:
    """The only workflow of ``app``, from its start to its end."""
    [workflow] = app.workflows.values()
    async with WorkflowEnvironment(app, **environment) as env:
        run = await env.start(workflow, *args)
        began = env.now
        await scenario(env, run)
        snapshot = await run.finish()
        calls = {name: env.calls(name) for name in app.steps}
        return Seen(snapshot, await run.history(), calls, env.now - began, workflow)


async def both(app: FlowApp, *args: Any, scenario: Scenario = left_alone) -> Seen:
    """Kept and replayed at every turn: the histories must be the same to the letter."""
    kept = await once(app, *args, scenario=scenario)
    replayed = await once(app, *args, scenario=scenario, always_replay=True)
    assert kept.lines() == replayed.lines()
    return kept


async def everywhere(app: FlowApp, *args: Any, scenario: Scenario = left_alone) -> Seen:
    """The same, and then with a process that dies before or after each of its commits: another
    process must bring the run to the same end, with the same steps."""
    kept = await both(app, *args, scenario=scenario)
    async for faults in every_fault(Fault.DIES_BEFORE, Fault.DIES_AFTER):
        seen = await once(app, *args, scenario=scenario, faults=faults)
        assert (seen.snapshot.status, seen.snapshot.output) == (
            kept.snapshot.status,
            kept.snapshot.output,
        ), (faults.at, faults.fault)
        completed = sorted(e.subject or "" for e in kept.history if e.type == "step_completed")
        again = sorted(e.subject or "" for e in seen.history if e.type == "step_completed")
        assert completed == again, (faults.at, faults.fault)
    return kept
