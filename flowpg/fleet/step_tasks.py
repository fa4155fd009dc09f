"""The steps that a worker carries out for runs of other queues.

Each is a task with a lease of its own. It is extended while the step is at work, and each time it
is asked whether somebody still waits for the step.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Sequence

from flowpg.engine.flow_engine import FlowEngine
from flowpg.engine.routed import RoutedStep
from flowpg.errors import FlowError, LeaseLost, StoreError, StoreUnavailable
from flowpg.model.records import StepLease
from flowpg.postgres.step_verbs import superseded_steps
from flowpg.postgres.task_verbs import (
    TaskDone,
    TaskRow,
    complete_tasks,
    extend_tasks,
    release_tasks,
)
from flowpg.store.postgres import PostgresEventStore

logger = logging.getLogger("flowpg.fleet.tasks")

RUN_STEP = "run_step"
"""The kind of these tasks."""


class StepTasks:
    """Those of one worker, at most ``limit`` at a time; ``on_end`` is called when one has ended."""

    def __init__(
        self,
        engine: FlowEngine,
        store: PostgresEventStore,
        limit: int,
        on_end: Callable[[], None],
    ) -> None:
        self._engine = engine
        self._store = store
        self._limit = limit
        self._on_end = on_end
        self._at_work: dict[asyncio.Task[None], tuple[TaskRow, RoutedStep]] = {}
        self._beats: asyncio.Task[None] | None = None

    @property
    def free(self) -> int:
        """How many more may begin."""
        return self._limit - len(self._at_work)

    @property
    def busy(self) -> bool:
        """Whether a step is at work."""
        return bool(self._at_work)

    def begin(self, row: TaskRow) -> None:
        """Carry out a task that was claimed."""
        payload = json.loads(row.payload or "{}")
        about = row.run_id or "", payload["step_id"], payload["attempt"]
        lease = StepLease(*about, row.task_id, row.epoch, again=row.epoch > 1)
        step = self._engine.routed_step(lease)
        task = asyncio.ensure_future(self._carry_out(row, step))
        self._at_work[task] = row, step
        task.add_done_callback(self._ended)
        if self._beats is None or self._beats.done():
            self._beats = asyncio.ensure_future(self._keep())

    async def idle(self) -> None:
        """Wait until no step is at work."""
        while self._at_work:
            await asyncio.wait(self._at_work)

    async def close(self) -> None:
        """Cancel the steps at work and give their tasks back."""
        for task in self._at_work:
            task.cancel()
        await self.idle()
        if self._beats is not None:
            self._beats.cancel()

    def _ended(self, task: asyncio.Task[None]) -> None:
        del self._at_work[task]
        self._on_end()

    async def _carry_out(self, row: TaskRow, step: RoutedStep) -> None:
        try:
            done = await self._outcome(row, step)
            if done is not None:
                await self._store.call(complete_tasks([done]))
        except asyncio.CancelledError:
            await self._give_back(row)
        except StoreUnavailable as error:
            # The lease runs out by itself, and the attempt is delivered once more.
            logger.warning("%s is left to another worker: %s", _name(step), error)
        except Exception as error:  # noqa: BLE001  one step must not end the others
            logger.error("%s failed here: %s", _name(step), type(error).__name__)

    async def _outcome(self, row: TaskRow, step: RoutedStep) -> TaskDone | None:
        """How the task ended, None if it is gone, or somebody else's."""
        try:
            if await step.run():
                return None
        except LeaseLost:
            logger.warning("the task of %s was lost; another worker has it", _name(step))
            return None
        except StoreUnavailable:
            raise
        except FlowError as error:
            # Not the step failed but what is around it; the task is tried again, later each time.
            said = f"{type(error).__name__}: {error}"
            logger.warning("%s cannot be carried out here: %s", _name(step), said)
            return TaskDone(row.task_id, row.epoch, said)
        return TaskDone(row.task_id, row.epoch)

    async def _keep(self) -> None:
        options = self._engine.options
        while self._at_work:
            await asyncio.sleep(options.beat.total_seconds())
            steps = {row.task_id: (row, step) for row, step in self._at_work.values()}
            if not steps:
                return
            try:
                rows = [row for row, _ in steps.values()]
                held = await self._store.call(extend_tasks(rows, options.lease))
                leases = [step.lease for _, step in steps.values()]
                over = await self._store.call(superseded_steps(leases))
            except StoreError as error:
                logger.warning("the leases of %d steps are not extended: %s", len(steps), error)
                continue
            left = {row.task_id for row, _ in self._at_work.values()}
            for task_id, (_, step) in steps.items():
                if task_id not in left or step.recording:
                    continue  # it has ended meanwhile, and taken its task with it
                if not held.get(task_id, False):
                    logger.warning("the task of %s was lost; another worker has it", _name(step))
                elif task_id not in over:
                    continue
                step.abandon()

    async def _give_back(self, row: TaskRow) -> None:
        try:
            await asyncio.shield(self._store.call(release_tasks([row])))
        except StoreError as error:  # the lease then runs out by itself
            logger.warning("task %d was not given back: %s", row.task_id, error)


def capabilities(
    workflows: Sequence[str] | None, steps: Sequence[str] | None
) -> tuple[str, ...] | None:
    """What a claim of tasks and steps is to name: workflows, and each step as its tasks do. None
    if the runtime does not say what it has."""
    if workflows is None:
        return None
    return (*workflows, *(f"step:{name}" for name in steps or ()))


def _name(step: RoutedStep) -> str:
    lease = step.lease
    return f"attempt {lease.attempt} of step {lease.step_id!r} of run {lease.run_id!r}"
