"""What the store in PostgreSQL is asked and that changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TypeVar

from flowpg.model.arguments import MAX_PAGE
from flowpg.model.events import FlowEventEnvelope
from flowpg.model.inspection import (
    ActiveHookSnapshot,
    RunRow,
    ScheduledWakeup,
    WakeupKind,
    WorkflowRunSummary,
    WorkflowRunSuspension,
)
from flowpg.model.records import LoadedRun
from flowpg.model.snapshot import RunStatus
from flowpg.postgres import reads, step_verbs
from flowpg.postgres.calls import Call
from flowpg.postgres.enlist import run_enlisted
from flowpg.postgres.pool import AsyncPool
from flowpg.store.protocol import Enlisted

T = TypeVar("T")


class PostgresReads:
    """The reading half of a ``FlowEventStore`` on a migrated schema."""

    _pool: AsyncPool

    async def _run(self, call: Call[T], connection: Enlisted = None) -> T:
        if connection is None:
            return await self._pool.run(call)
        return await run_enlisted(connection, call, self._pool.schema)

    async def load_runs(
        self, run_ids: Sequence[str], after: Sequence[int] | None = None
    ) -> dict[str, LoadedRun]:
        """The histories of these runs."""
        return await self._run(reads.load_runs(run_ids, after)) if run_ids else {}

    async def history_page(
        self, run_id: str, after: int = 0, limit: int = 1000
    ) -> list[FlowEventEnvelope]:
        """Events after sequence ``after``."""
        return await self._run(reads.history_page(run_id, after, limit))

    async def list_run_ids(self, after: str = "", limit: int = 1000) -> list[str]:
        """Run ids above ``after``."""
        return await self._run(reads.list_run_ids(after, limit))

    async def run_builds(self, run_ids: Sequence[str]) -> dict[str, str | None]:
        """The builds that these runs are pinned to."""
        return await self._run(reads.run_builds(run_ids)) if run_ids else {}

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
        """Runs, newest first."""
        call = reads.list_runs(status, workflow_name, queue, blocked, after, limit)
        return await self._run(call)

    async def run_info(self, run_id: str) -> RunRow:
        """One run's row."""
        return await self._run(reads.run_info(run_id))

    async def run_summary(self) -> WorkflowRunSummary:
        """Counts over all runs."""
        return await self._run(reads.run_summary())

    async def list_open_suspensions(
        self, *, run_id: str | None = None, as_of: datetime | None = None
    ) -> list[WorkflowRunSuspension]:
        """What non-terminal runs wait for."""
        return await self._pages(lambda after: reads.open_suspensions(run_id, after, as_of))

    async def list_active_hooks(self, *, run_id: str | None = None) -> list[ActiveHookSnapshot]:
        """Hooks that can be answered."""
        return await self._pages(lambda after: reads.active_hooks(run_id, after))

    async def _pages(self, page: Callable[[T | None], Call[list[T]]]) -> list[T]:
        found: list[T] = []
        while True:
            rows = await self._run(page(found[-1] if found else None))
            found += rows
            if len(rows) < MAX_PAGE:
                return found

    async def list_due_wakeups(
        self,
        *,
        as_of: datetime | None = None,
        kind: WakeupKind | None = None,
        limit: int = 1000,
    ) -> list[ScheduledWakeup]:
        """Deadlines that have passed."""
        return await self._run(reads.due_wakeups(as_of, kind, limit))

    async def next_wakeup(self) -> ScheduledWakeup | None:
        """The earliest deadline."""
        return await self._run(reads.next_wakeup())

    async def step_heartbeat(self, run_id: str, step_id: str) -> str | None:
        """What the latest heartbeat of a step said."""
        return await self._run(step_verbs.step_heartbeat(run_id, step_id))

    async def now(self) -> datetime:
        """The database's clock."""
        return await self._run(reads.now())
