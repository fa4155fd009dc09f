"""What the store in memory is asked and that changes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from flowpg.model import arguments
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
from flowpg.model.records import LoadedRun
from flowpg.model.snapshot import RunStatus
from flowpg.store import memory_reads
from flowpg.store.memory_state import State


class MemoryReads:
    """The reading half of a ``FlowEventStore`` in memory."""

    _state: State

    async def load_runs(
        self, run_ids: Sequence[str], after: Sequence[int] | None = None
    ) -> dict[str, LoadedRun]:
        """The histories of these runs."""
        arguments.check_run_ids(run_ids)
        return memory_reads.load(self._state, run_ids, after)

    async def history_page(
        self, run_id: str, after: int = 0, limit: int = 1000
    ) -> list[FlowEventEnvelope]:
        """Events after sequence ``after``."""
        arguments.check_limit(limit)
        history = self._state.run(check_run_id(run_id)).history
        start = max(after, 0)
        return memory_reads.copies(history[start : start + limit])

    async def list_run_ids(self, after: str = "", limit: int = 1000) -> list[str]:
        """Run ids above ``after``."""
        arguments.check_limit(limit)
        if after:
            check_run_id(after)
        return sorted(run_id for run_id in self._state.runs if run_id > after)[:limit]

    async def run_builds(self, run_ids: Sequence[str]) -> dict[str, str | None]:
        """The builds that these runs are pinned to."""
        arguments.check_run_ids(run_ids)
        found = (run_id for run_id in run_ids if run_id in self._state.runs)
        return {run_id: self._state.run(run_id).snapshot.spec.runtime_build for run_id in found}

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
        arguments.check_limit(limit)
        return memory_reads.list_runs(
            self._state, status, workflow_name, queue, blocked, after, limit
        )

    async def run_info(self, run_id: str) -> RunRow:
        """One run's row."""
        return memory_reads.row(self._state.run(check_run_id(run_id)))

    async def run_summary(self) -> WorkflowRunSummary:
        """Counts over all runs."""
        return memory_reads.summary(self._state)

    async def list_open_suspensions(
        self, *, run_id: str | None = None, as_of: datetime | None = None
    ) -> list[WorkflowRunSuspension]:
        """What non-terminal runs wait for."""
        if run_id is not None:
            check_run_id(run_id)
        arguments.check_time(as_of, "as_of")
        return memory_reads.suspensions(self._state, run_id, as_of)

    async def list_active_hooks(self, *, run_id: str | None = None) -> list[ActiveHookSnapshot]:
        """Hooks that can be answered."""
        if run_id is not None:
            check_run_id(run_id)
        return memory_reads.active_hooks(self._state, run_id)

    async def list_due_wakeups(
        self,
        *,
        as_of: datetime | None = None,
        kind: WakeupKind | None = None,
        limit: int = 1000,
    ) -> list[ScheduledWakeup]:
        """Deadlines that have passed."""
        arguments.check_limit(limit)
        arguments.check_time(as_of, "as_of")
        return memory_reads.due_wakeups(self._state, as_of, kind, limit)

    async def next_wakeup(self) -> ScheduledWakeup | None:
        """The earliest deadline."""
        return memory_reads.next_wakeup(self._state)

    async def now(self) -> datetime:
        """The store's clock."""
        return self._state.now()
