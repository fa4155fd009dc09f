"""Looking at runs: an engine's inspection methods. None of them changes a run."""

from __future__ import annotations

import logging
from datetime import datetime, timedelta

from flowpg.engine.core import EngineCore
from flowpg.engine.waiting import wait_for_end
from flowpg.errors import InvalidTransition, SerializationError
from flowpg.model.arguments import MAX_PAGE, check_timeout
from flowpg.model.events import FlowEventEnvelope
from flowpg.model.ids import check_run_id
from flowpg.model.inspection import (
    ActiveHookSnapshot,
    RunRow,
    ScheduledWakeup,
    WakeupKind,
    WorkflowRunSummary,
    WorkflowRunSuspension,
)
from flowpg.model.snapshot import RunStatus, WorkflowRunSnapshot
from flowpg.replay.projection import snapshot_of

logger = logging.getLogger("flowpg.engine")

_SNAPSHOTS_AT_ONCE = 100
_UNREADABLE = (SerializationError, InvalidTransition)


class EngineReads(EngineCore):
    """The inspection methods of ``FlowEngine``."""

    async def history(self, run_id: str) -> list[FlowEventEnvelope]:
        """All events of a run, in order. RunNotFound."""
        found: list[FlowEventEnvelope] = []
        while True:
            # Not by how many there are: a stream that someone has cut has gaps.
            after = found[-1].sequence if found else 0
            page = await self.history_page(run_id, after, MAX_PAGE)
            found += page
            if len(page) < MAX_PAGE:
                return found

    async def history_page(
        self, run_id: str, after: int = 0, limit: int = MAX_PAGE
    ) -> list[FlowEventEnvelope]:
        """Events after sequence ``after``, at most ``limit`` (1 to 1000, else InvalidArgument).
        RunNotFound."""
        check_run_id(run_id)
        return await self.store.history_page(run_id, after, limit)

    async def list_run_ids(self) -> list[str]:
        """The ids of all runs, sorted in byte order."""
        found: list[str] = []
        while True:
            page = await self.store.list_run_ids(found[-1] if found else "", MAX_PAGE)
            found += page
            if len(page) < MAX_PAGE:
                return found

    async def list_snapshots(self) -> list[WorkflowRunSnapshot]:
        """The snapshots of all runs, ordered by id; ``list_runs`` is much cheaper. A run whose
        history cannot be read is left out, which is logged."""
        ids = await self.list_run_ids()
        found: list[WorkflowRunSnapshot] = []
        for start in range(0, len(ids), _SNAPSHOTS_AT_ONCE):
            page = ids[start : start + _SNAPSHOTS_AT_ONCE]
            try:
                found += await self._snapshots(page)
            except _UNREADABLE:
                for run_id in page:
                    try:
                        found += await self._snapshots([run_id])
                    except _UNREADABLE as error:
                        logger.warning("run %r is left out, for its history: %s", run_id, error)
        return found

    async def _snapshots(self, run_ids: list[str]) -> list[WorkflowRunSnapshot]:
        loaded = await self.store.load_runs(run_ids)
        return [snapshot_of(loaded[run_id]) for run_id in sorted(loaded)]

    async def list_runs(
        self,
        *,
        status: RunStatus | None = None,
        workflow_name: str | None = None,
        queue: str | None = None,
        blocked: bool | None = None,
        after: RunRow | None = None,
        limit: int = 100,
    ) -> list[RunRow]:
        """One page of runs, newest first; ``after`` is the last row of the page before."""
        return await self.store.list_runs(
            status=status,
            workflow_name=workflow_name,
            queue=queue,
            blocked=blocked,
            after=after,
            limit=limit,
        )

    async def run_info(self, run_id: str) -> RunRow:
        """One run's row: status, queue, times, and why it is blocked, if it is. RunNotFound."""
        check_run_id(run_id)
        return await self.store.run_info(run_id)

    async def wait(self, run_id: str, timeout: timedelta | None = None) -> WorkflowRunSnapshot:
        """Wait until the run has ended, and return its snapshot; who drives it does not matter.

        On PostgreSQL this is told of the end. Where notifications do not come through, it looks:
        the wait is then at most a tenth longer than it had to be, and never more than a second.
        TimeoutError after ``timeout``; RunNotFound; InvalidArgument unless it is a timedelta.
        """
        check_run_id(run_id)
        seconds = check_timeout(timeout)
        if not await wait_for_end(self.store, run_id, seconds):
            raise TimeoutError(f"run {run_id!r} has not ended within {seconds:g} s")
        return await self.snapshot(run_id)

    async def run_summary(self) -> WorkflowRunSummary:
        """Counts over all runs, by status and by what they wait for."""
        return await self.store.run_summary()

    async def list_open_suspensions(
        self, *, run_id: str | None = None, as_of: datetime | None = None
    ) -> list[WorkflowRunSuspension]:
        """What non-terminal runs wait for, ordered by run, kind (as SuspensionKind lists them) and
        subject; ``due`` tells whether the deadline has passed at ``as_of`` (default: the store's
        now)."""
        return await self.store.list_open_suspensions(run_id=run_id, as_of=as_of)

    async def list_active_hooks(self, *, run_id: str | None = None) -> list[ActiveHookSnapshot]:
        """Hooks that can be answered, ordered by run and hook. The tokens are credentials."""
        return await self.store.list_active_hooks(run_id=run_id)

    async def list_due_wakeups(
        self,
        *,
        as_of: datetime | None = None,
        kind: WakeupKind | None = None,
        limit: int = MAX_PAGE,
    ) -> list[ScheduledWakeup]:
        """Deadlines that have passed at ``as_of``, ordered by kind, run and subject."""
        return await self.store.list_due_wakeups(as_of=as_of, kind=kind, limit=limit)

    async def next_wakeup(self) -> ScheduledWakeup | None:
        """The earliest deadline of all runs, passed or not, or None."""
        return await self.store.next_wakeup()
