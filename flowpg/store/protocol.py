"""What a store is: appends with an expected sequence, client verbs, leases, and reads.

Two stores implement it: ``InMemoryEventStore``, the readable reference model for tests, and
``PostgresEventStore``, a thin caller of the functions in ``sql/``. One conformance suite runs
against both. A store, not the engine, owns every transition that comes from outside a workflow.

Every verb may raise ``StoreUnavailable`` (the outcome is then unknown; verbs are idempotent, so
repeat them) besides the errors its docstring names.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Protocol

from flowpg.model.events import FlowEventEnvelope
from flowpg.model.inspection import (
    ActiveHookSnapshot,
    RunRow,
    ScheduledWakeup,
    WakeupKind,
    WorkflowRunSummary,
    WorkflowRunSuspension,
)
from flowpg.model.operations import ChildOperationReference, WorkflowProgress
from flowpg.model.records import (
    Append,
    AppendResult,
    Capabilities,
    Heartbeat,
    LoadedRun,
    RunLease,
    StartRequest,
    StartResult,
    StepHeartbeat,
    VerbResult,
)
from flowpg.model.snapshot import RunStatus

Enlisted = Any
"""A psycopg ``Connection`` or ``AsyncConnection``, or a SQLAlchemy ``Connection``,
``AsyncConnection``, ``Session`` or ``AsyncSession``: the verb runs inside its transaction."""


class FlowEventStore(Protocol):
    """Everything the engine asks of a store."""

    # -- appends --------------------------------------------------------------------------------
    async def append(self, append: Append) -> AppendResult:
        """Store the events of one run. May share a transaction with other calls; a refusal is an
        outcome, not an exception. PayloadTooLarge and SerializationError are raised before
        anything is sent."""
        ...

    async def append_many(self, appends: Sequence[Append]) -> list[AppendResult]:
        """Store the events of many runs in one transaction, each on its own merits, in order."""
        ...

    # -- client verbs ---------------------------------------------------------------------------
    async def start(self, request: StartRequest, *, connection: Enlisted = None) -> VerbResult:
        """Create the run and enqueue it. The same id with an equal spec and input is
        ``applied=False``; RunConflict ("workflow spec differs", "workflow input differs") with
        another; InvalidRunId; InvalidWorkflow."""
        ...

    async def start_many(
        self, requests: Sequence[StartRequest], *, connection: Enlisted = None
    ) -> list[StartResult]:
        """Start many runs in one transaction, each on its own merits, in order."""
        ...

    async def resume_wait(
        self, run_id: str, wait_id: str, *, connection: Enlisted = None
    ) -> VerbResult:
        """Complete a due timer. InvalidTransition before its deadline; RunTerminal or
        InvalidTransition for an unknown wait; a completed or cancelled one is ``applied=False``."""
        ...

    async def resume_due_waits(
        self, *, as_of: datetime | None = None, run_id: str | None = None, limit: int = 1000
    ) -> list[ScheduledWakeup]:
        """Complete every timer due at ``as_of`` (default: the store's now), of one run or of all;
        returns only those this call completed."""
        ...

    async def dispose_expired_hooks(
        self, *, as_of: datetime | None = None, run_id: str | None = None, limit: int = 1000
    ) -> list[ScheduledWakeup]:
        """Dispose every hook whose expiry has passed; returns only those this call disposed."""
        ...

    async def resume_hook(
        self,
        run_id: str,
        hook_id: str,
        payload: Any,
        *,
        checked: str | None = None,
        connection: Enlisted = None,
    ) -> VerbResult:
        """Answer a hook. The same payload again is ``applied=False``; HookConflict for another
        payload, or a disposed or cancelled hook; RunTerminal; InvalidTransition if unknown.

        A store checks no payload. ``checked`` is the text of the schema that the caller has checked
        it against, empty for none: an active hook that has another schema is left as it is, and
        the result has that one as its ``payload_schema``. None does not ask."""
        ...

    async def resume_hook_by_token(
        self,
        token: str,
        payload: Any,
        *,
        checked: str | None = None,
        connection: Enlisted = None,
    ) -> VerbResult:
        """Answer the active hook with this token, as ``resume_hook`` does. HookTokenNotFound if
        there is none (any more)."""
        ...

    async def dispose_hook(
        self, run_id: str, hook_id: str, *, connection: Enlisted = None
    ) -> VerbResult:
        """Withdraw a hook. Again is ``applied=False``; HookConflict if it was answered."""
        ...

    async def dispose_hook_by_token(self, token: str, *, connection: Enlisted = None) -> VerbResult:
        """Withdraw the active hook with this token. HookTokenNotFound if there is none."""
        ...

    async def request_cancellation(
        self, run_id: str, reason: str | None = None, *, connection: Enlisted = None
    ) -> VerbResult:
        """Ask a run to clean up and end. RunConflict if another reason was recorded before."""
        ...

    async def force_cancel(
        self, run_id: str, reason: str | None = None, *, connection: Enlisted = None
    ) -> VerbResult:
        """End a run at once, without cleanup. ``applied=False`` if it has ended already."""
        ...

    async def terminate_for_timeout(
        self,
        run_id: str,
        deadline: datetime,
        reason: str | None = None,
        *,
        connection: Enlisted = None,
    ) -> VerbResult:
        """End a run at once because its deadline passed."""
        ...

    async def terminate_for_host_shutdown(
        self, run_id: str, reason: str | None = None, *, connection: Enlisted = None
    ) -> VerbResult:
        """End a run at once because its host will never resume it. Not for an ordinary stop."""
        ...

    async def record_progress(
        self, run_id: str, progress: WorkflowProgress, *, connection: Enlisted = None
    ) -> VerbResult:
        """Record a progress report. NonDeterministic if its id holds another value; RunTerminal."""
        ...

    async def link_child_operation(
        self, run_id: str, child: ChildOperationReference, *, connection: Enlisted = None
    ) -> VerbResult:
        """Record a link. RunNotFound if it names a run that does not exist; NonDeterministic if
        its id holds another value; RunTerminal."""
        ...

    async def wake_run(self, run_id: str, *, connection: Enlisted = None) -> None:
        """Enqueue the run to be driven."""
        ...

    # -- leases ---------------------------------------------------------------------------------
    async def acquire_run(self, run_id: str, owner: str, lease: timedelta) -> RunLease | None:
        """The lease of this run, or None if it has ended or someone else holds a live one."""
        ...

    async def claim_runs(
        self,
        queues: str | Sequence[str],
        limit: int,
        owner: str,
        lease: timedelta,
        capabilities: Capabilities | None = None,
        *,
        due: bool = False,
    ) -> list[RunLease]:
        """Leases of up to ``limit`` runs that have work to do, oldest first within a queue, and
        that a worker of these capabilities (default: all of them) may be given. With ``due``, as
        ``enqueue_due`` does it, deadlines that have passed become work first."""
        ...

    async def heartbeat(self, leases: Sequence[RunLease], lease: timedelta) -> list[Heartbeat]:
        """Extend leases to ``lease`` from now."""
        ...

    async def record_heartbeats(self, beats: Sequence[StepHeartbeat]) -> list[str]:
        """Keep what steps at work say, or forget it, one outcome a beat: "recorded"; "busy", to be
        said again; "lost", if the lease is another's or the run has ended."""
        ...

    async def step_heartbeat(self, run_id: str, step_id: str) -> str | None:
        """What the latest heartbeat of a step said, as JSON text; None if there was none."""
        ...

    async def release_run(self, lease: RunLease) -> bool:
        """Give a lease back, with nothing left to do; again is True as well. False if the run was
        woken since ``lease.wakes`` was read (the lease is kept: reload and drive again) or the
        lease is not held any more."""
        ...

    async def give_back(
        self,
        lease: RunLease,
        *,
        delay: timedelta = timedelta(0),
        blocked_reason: str | None = None,
        missing_step: str | None = None,
    ) -> bool:
        """Give up a lease with work left: claimable again after ``delay``. ``blocked_reason`` is
        shown on the run until the next event is stored; ``missing_step`` is the step that is not
        known here, if that is why. False if the lease was lost."""
        ...

    async def enqueue_due(
        self,
        *,
        as_of: datetime | None = None,
        limit: int = 1000,
        timeout: timedelta | None = None,
    ) -> list[ScheduledWakeup]:
        """Turn due wake-ups into one drive task per run; returns those this call moved. What takes
        longer than ``timeout`` is given up by the server, and moves nothing: StoreUnavailable."""
        ...

    # -- reads ----------------------------------------------------------------------------------
    async def load_runs(
        self, run_ids: Sequence[str], after: Sequence[int] | None = None
    ) -> dict[str, LoadedRun]:
        """The histories of these runs, whole or only the events after the sequences of ``after``,
        one a run; unknown runs are left out."""
        ...

    async def history_page(
        self, run_id: str, after: int = 0, limit: int = 1000
    ) -> list[FlowEventEnvelope]:
        """Events after sequence ``after``, at most ``limit`` (1 to 1000, else InvalidArgument).
        RunNotFound."""
        ...

    async def list_run_ids(self, after: str = "", limit: int = 1000) -> list[str]:
        """Run ids above ``after`` in byte order."""
        ...

    async def run_builds(self, run_ids: Sequence[str]) -> dict[str, str | None]:
        """The builds that these runs are pinned to, None where any will do. Runs that do not exist
        are left out."""
        ...

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
        """Runs, newest first; ``after`` is the last row of the page before."""
        ...

    async def run_info(self, run_id: str) -> RunRow:
        """One run's row. RunNotFound."""
        ...

    async def run_summary(self) -> WorkflowRunSummary:
        """Counts over all runs."""
        ...

    async def list_open_suspensions(
        self, *, run_id: str | None = None, as_of: datetime | None = None
    ) -> list[WorkflowRunSuspension]:
        """What non-terminal runs wait for, ordered by run, kind (in the order of
        SuspensionKind) and subject."""
        ...

    async def list_active_hooks(self, *, run_id: str | None = None) -> list[ActiveHookSnapshot]:
        """Hooks that can be answered, ordered by run and hook."""
        ...

    async def list_due_wakeups(
        self,
        *,
        as_of: datetime | None = None,
        kind: WakeupKind | None = None,
        limit: int = 1000,
    ) -> list[ScheduledWakeup]:
        """Deadlines that have passed, ordered by kind, run, subject."""
        ...

    async def next_wakeup(self) -> ScheduledWakeup | None:
        """The earliest deadline, or None."""
        ...

    async def import_history(
        self, history: Sequence[FlowEventEnvelope], *, queue: str = "default"
    ) -> None:
        """Store a complete history under its own ids and times. RunConflict if the run exists;
        InvalidTransition if the history is not a valid one."""
        ...

    async def now(self) -> datetime:
        """The store's clock, the only one deadlines are compared with."""
        ...

    async def close(self) -> None:
        """Give all connections back."""
        ...
