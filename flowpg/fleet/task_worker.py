"""A worker of tasks: claims those that carry out a verb, does what they say, and says how it went.

One runs beside each worker of runs. It also carries out the steps that runs of other queues have
left to its own, as many at a time as it may have tasks. Every verb may be carried out twice, so a
task whose worker was lost is simply claimed again; only the first to commit names what it did.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Sequence
from datetime import timedelta

from flowpg.engine.flow_engine import FlowEngine
from flowpg.errors import FlowError, InvalidArgument, StoreError, StoreUnavailable
from flowpg.fleet.pacing import Pace
from flowpg.fleet.step_tasks import RUN_STEP, StepTasks, capabilities
from flowpg.fleet.tasks import VERB_KINDS, FlowTaskOutcome, carry_out, read_task, retryable
from flowpg.model.arguments import check_limit, check_queues
from flowpg.model.records import Capabilities
from flowpg.postgres.task_verbs import (
    TaskDone,
    TaskRow,
    claim_tasks,
    complete_tasks,
    extend_tasks,
    release_tasks,
)
from flowpg.replay.runtime import known
from flowpg.store.postgres import PostgresEventStore

logger = logging.getLogger("flowpg.fleet.tasks")

_BUSY_POLL = 0.5
_AT_MOST = timedelta(minutes=5)
"""How long a task may take that has no timeout of its own."""

Observer = Callable[[FlowTaskOutcome], None]


class FlowTaskWorker:
    """Carries out tasks of ``queues`` (default: the engine's), at most ``limit`` at a time.

    ``poll`` is the longest pause between two looks at an empty queue, unless ``look`` is called.
    ``on_outcome`` is told what each task did. While ``busy`` nobody may be told of new tasks, so
    they are looked for twice a second. ``on_step`` is called when a step has ended.
    """

    def __init__(
        self,
        engine: FlowEngine,
        queues: str | Sequence[str] | None = None,
        *,
        limit: int = 50,
        poll: timedelta = timedelta(seconds=5),
        max_crashes: int = 3,
        on_outcome: Observer | None = None,
        busy: Callable[[], bool] = lambda: False,
        on_step: Callable[[], None] = lambda: None,
    ) -> None:
        if not isinstance(engine.store, PostgresEventStore):
            raise InvalidArgument("tasks need an engine on PostgreSQL")
        if poll <= timedelta(0):
            raise InvalidArgument("the poll interval must be positive")
        self._engine = engine
        self._store = engine.store
        self._queues = check_queues(engine.options.queue if queues is None else queues)
        self._limit = check_limit(limit)
        self._max_crashes = max_crashes
        self._on_outcome = on_outcome
        self._busy = busy
        self._pace = Pace(min(0.05, poll.total_seconds()), poll.total_seconds())
        self._stopping = False
        self._news = asyncio.Event()
        self._on_step = on_step
        self._steps = StepTasks(engine, engine.store, limit, self._step_ended)

    async def run(self) -> None:
        """Work until ``stop`` is called; while the database is unavailable, wait. Any other
        StoreError is raised."""
        try:
            while not self._stopping:
                self._news.clear()
                try:
                    self._pace.found(busy=await self._look_once() > 0)
                except StoreUnavailable as error:
                    self._pace.failed()
                    logger.warning("the database is unavailable (%s); trying again", error)
                if not self._stopping:
                    pause = self._pace.seconds()
                    busy = self._busy() or self._steps.busy
                    try:
                        async with asyncio.timeout(min(pause, _BUSY_POLL) if busy else pause):
                            await self._news.wait()
                    except TimeoutError:
                        pass
            await self._steps.idle()
        finally:
            await self._steps.close()

    def look(self) -> None:
        """There may be tasks: look now."""
        self._news.set()

    def stop(self) -> None:
        """Claim nothing more; ``run`` ends when what was claimed is done, steps included."""
        self._stopping = True
        self._news.set()

    @property
    def busy(self) -> bool:
        """Whether a step is at work."""
        return self._steps.busy

    async def run_once(self) -> int:
        """Claim once and carry out what was claimed; returns how many tasks that were."""
        try:
            claimed = await self._look_once()
            await self._steps.idle()
        finally:
            await self._steps.close()
        return claimed

    async def _look_once(self) -> int:
        """Claim once and carry out the verbs; steps have begun then, and are at work."""
        options, runtime = self._engine.options, self._engine.runtime
        workflows, steps = known(runtime, "workflows"), known(runtime, "steps")
        kinds: Sequence[str] = VERB_KINDS
        limit = self._limit
        # A worker that says which workflows it has, and not which steps, is given none.
        if runtime is not None and self._steps.free and (workflows is None or steps):
            kinds, limit = (*VERB_KINDS, RUN_STEP), self._steps.free
        may = Capabilities(
            options.runtime_builds,
            options.accept_unpinned,
            capabilities(workflows, steps),
            self._max_crashes,
        )
        rows = await self._store.call(
            claim_tasks(self._queues, limit, self._engine.owner, options.lease, may, kinds)
        )
        claimed = len(rows)
        for row in rows:
            if row.kind == RUN_STEP:
                self._steps.begin(row)
        rows = [row for row in rows if row.kind != RUN_STEP]
        if rows:
            beats = asyncio.ensure_future(self._keep(rows))
            try:
                done = await asyncio.gather(*map(self._one, rows))
            except asyncio.CancelledError:
                await self._give_back(rows)
                raise
            finally:
                beats.cancel()
            await self._store.call(complete_tasks(done))
        return claimed

    async def run_until_idle(self) -> int:
        """``run_once`` until there is nothing to claim; returns how many tasks that were."""
        total = 0
        while claimed := await self.run_once():
            total += claimed
        return total

    def _step_ended(self) -> None:
        self._news.set()
        self._on_step()

    async def _one(self, row: TaskRow) -> TaskDone:
        bound = _AT_MOST if row.timeout is None else row.timeout
        try:
            payload = {} if row.payload is None else json.loads(row.payload)
            about = {} if row.run_id is None else {"run_id": row.run_id}
            task = read_task({**payload, **about, "type": row.kind})
            async with asyncio.timeout(bound.total_seconds()):
                outcome = await carry_out(self._store, task)
        except Exception as error:  # noqa: BLE001  one task must not end the others
            # Errors of this project hold no token and no payload; of others only the type is said.
            text = str(error) if isinstance(error, FlowError) else ""
            said = f"{type(error).__name__}: {text}" if text else type(error).__name__
            level = logging.WARNING if isinstance(error, FlowError) else logging.ERROR
            logger.log(level, "task %d (%s) failed: %s", row.task_id, row.kind, said)
            return TaskDone(row.task_id, row.epoch, said, dead=not retryable(error))
        if self._on_outcome is not None:
            self._on_outcome(outcome)
        return TaskDone(row.task_id, row.epoch)

    async def _keep(self, rows: Sequence[TaskRow]) -> None:
        """Extend the leases until cancelled. One that is lost all the same costs nothing but a
        second time: who has it now carries the task out again."""
        options = self._engine.options
        while True:
            await asyncio.sleep(options.beat.total_seconds())
            try:
                held = await self._store.call(extend_tasks(rows, options.lease))
            except StoreError as error:
                logger.warning("the leases of %d tasks are not extended: %s", len(rows), error)
                continue
            if not all(held.values()):
                lost = sorted(task for task, is_held in held.items() if not is_held)
                logger.warning("the leases of tasks %s were lost", lost)
                return

    async def _give_back(self, rows: Sequence[TaskRow]) -> None:
        try:
            await asyncio.shield(self._store.call(release_tasks(rows)))
        except StoreError as error:  # the leases then run out by themselves
            logger.warning("%d tasks were not given back: %s", len(rows), error)
