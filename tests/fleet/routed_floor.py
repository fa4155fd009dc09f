"""Runs whose steps are for another queue, and the workers at both ends."""

from typing import Any

import psycopg

from flowpg.engine.flow_engine import FlowEngine
from flowpg.fleet.step_tasks import RUN_STEP
from flowpg.fleet.task_worker import FlowTaskWorker
from flowpg.fleet.worker import FlowWorker
from flowpg.model.commands import StepCommand
from flowpg.postgres.calls import Call, Function
from tests.engine.support import LEASE, SPEC, EngineStore, Script, one_step, short

SLOW = "slow"


def routed(**options: Any) -> Any:
    """One step in the queue ``slow``, and its output."""
    return one_step(input="in", queue=SLOW, **options)


class Floor:
    """A run in the default queue whose step is for another, and the two workers."""

    def __init__(self, store: EngineStore, driver: FlowEngine, helper: FlowEngine) -> None:
        self.store = store
        self.driver = driver
        self.helper = helper
        self.runs = FlowWorker(driver)
        self.steps = FlowTaskWorker(helper, SLOW)

    @classmethod
    async def of(cls, store: EngineStore, workflow: Any, step: Any) -> "Floor":
        """Both ends, of which only the second has the step."""
        driver = await store.engine(Script(workflow))
        return cls(store, driver, await store.engine(Script(workflow, {"work": step})))

    async def dispatched(self) -> str:
        """A run that waits for its step."""
        run_id = await self.driver.start(SPEC, drive=False)
        await self.runs.run_until_idle()
        return run_id

    async def settle(self, run_id: str) -> list[str]:
        """Let both work until neither has anything to do; the history."""
        while await self.runs.run_until_idle() + await self.steps.run_until_idle():
            pass
        return short(await self.driver.history(run_id))


def tasks(dsn: str) -> list[tuple[Any, ...]]:
    """The step tasks there are."""
    with psycopg.connect(dsn) as connection:
        return connection.execute(
            "SELECT queue, run_id, workflow_name, payload::text FROM flowpg.flow_tasks"
            " WHERE kind = 'run_step' ORDER BY task_id"
        ).fetchall()


def named(step_id: str) -> StepCommand:
    """A step with its own id as the input."""
    return StepCommand(step_id=step_id, step_name="work", input=step_id, queue=SLOW)


async def claim(dsn: str) -> None:
    """Take the step tasks, as a worker that will be lost."""
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
        await connection.execute(
            "SELECT flowpg.flow_claim_tasks(%s, 10, 'lost', %s, p_kinds => %s)",
            (SLOW, LEASE, [RUN_STEP]),
        )


def pause(queue: str) -> Any:
    """The call that pauses a queue."""
    return Call(Function("flow_pause_queue", ("text",), ()), (queue,), lambda rows: None)
