"""The store in memory: the readable reference model, for tests and for a first try.

It says what every verb means: each decides by folding its run's history, and nothing is awaited
inside a verb, so on one event loop every transition is atomic. Nothing survives the process.

Unlike PostgreSQL, which guards the stream (sequence, lease, end, tokens, links), it also refuses,
as ``invalid``, events that folding refuses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

from flowpg.errors import InvalidArgument, RunConflict
from flowpg.model import arguments
from flowpg.model.events import (
    RUN_HOST_SHUTDOWN,
    FlowEventEnvelope,
    NewEvent,
    run_cancelled,
    run_timed_out,
)
from flowpg.model.ids import check_id, check_run_id, check_token
from flowpg.model.inspection import (
    ScheduledWakeup,
    WakeupKind,
)
from flowpg.model.operations import ChildOperationReference, WorkflowProgress
from flowpg.model.records import (
    Append,
    AppendOutcome,
    AppendResult,
    Capabilities,
    Heartbeat,
    RunLease,
    StartOutcome,
    StartRequest,
    StartResult,
    VerbResult,
)
from flowpg.store import memory_append, memory_queue, memory_reads, memory_verbs
from flowpg.store.imports import check_history
from flowpg.store.memory_state import State
from flowpg.store.memory_steps import StepMemory
from flowpg.store.memory_views import MemoryReads
from flowpg.store.protocol import Enlisted


class InMemoryEventStore(StepMemory, MemoryReads):
    """A ``FlowEventStore`` whose time is ``clock`` (default: the machine's) plus what ``advance``
    added. It has no transactions: ``connection=`` is refused with InvalidArgument."""

    def __init__(self, *, clock: Callable[[], datetime] | None = None) -> None:
        self._state = State(clock)

    def advance(self, by: timedelta) -> None:
        """Let time pass."""
        self._state.advance(by)

    async def append(self, append: Append) -> AppendResult:
        """Store the events of one run."""
        return (await self.append_many([append]))[0]

    async def append_many(self, appends: Sequence[Append]) -> list[AppendResult]:
        """Store the events of many runs, each on its own merits, in order."""
        arguments.check_batch(appends)
        for append in appends:
            arguments.check_append(append)
        now, seen, results = self._state.now(), set[str](), []
        heads = {append.run_id: self._head(append.run_id) for append in appends}
        for append in appends:
            if append.run_id in seen:
                reason = "the run occurs more than once in the batch"
                detail = {"sqlstate": "WF010", "reason": reason}
                head = heads[append.run_id]
                result = AppendResult(
                    append.run_id, AppendOutcome.INVALID, head, now, detail=detail
                )
            else:
                result = memory_append.append(self._state, append, now)
                if result.outcome is not AppendOutcome.INVALID:
                    seen.add(append.run_id)
            results.append(result)
        return results

    def _head(self, run_id: str) -> int:
        run = self._state.runs.get(run_id)
        return run.head if run is not None else 0

    async def start(self, request: StartRequest, *, connection: Enlisted = None) -> VerbResult:
        """Create a run, or recognise it."""
        _no_transactions(connection)
        return memory_verbs.start(self._state, request)

    async def start_many(
        self, requests: Sequence[StartRequest], *, connection: Enlisted = None
    ) -> list[StartResult]:
        """Create many runs, each on its own merits."""
        _no_transactions(connection)
        arguments.check_batch(requests)
        for request in requests:
            arguments.check_start(request)
        woken = set[str]()
        return [self._start_one(request, woken) for request in requests]

    def _start_one(self, request: StartRequest, woken: set[str]) -> StartResult:
        try:
            result = memory_verbs.start(self._state, request, woken)
        except RunConflict as error:
            return StartResult(error.run_id, StartOutcome.RUN_CONFLICT, error.reason)
        outcome = StartOutcome.CREATED if result.applied else StartOutcome.EXISTS
        return StartResult(result.run_id, outcome)

    async def resume_wait(
        self, run_id: str, wait_id: str, *, connection: Enlisted = None
    ) -> VerbResult:
        """Complete a due timer."""
        _no_transactions(connection)
        check_run_id(run_id)
        return memory_verbs.resume_wait(self._state, run_id, check_id(wait_id, "wait id"))

    async def resume_due_waits(
        self, *, as_of: datetime | None = None, run_id: str | None = None, limit: int = 1000
    ) -> list[ScheduledWakeup]:
        """Complete every due timer."""
        return self._sweep(WakeupKind.WAIT, as_of, limit, run_id)

    async def dispose_expired_hooks(
        self, *, as_of: datetime | None = None, run_id: str | None = None, limit: int = 1000
    ) -> list[ScheduledWakeup]:
        """Dispose every expired hook."""
        return self._sweep(WakeupKind.HOOK_EXPIRY, as_of, limit, run_id)

    def _sweep(
        self, kind: WakeupKind, as_of: datetime | None, limit: int, run_id: str | None
    ) -> list[ScheduledWakeup]:
        arguments.check_limit(limit)
        arguments.check_time(as_of, "as_of")
        if run_id is not None:
            check_run_id(run_id)
        return memory_verbs.sweep(self._state, kind, as_of, limit, run_id)

    async def resume_hook(
        self,
        run_id: str,
        hook_id: str,
        payload: Any,
        *,
        checked: str | None = None,
        connection: Enlisted = None,
    ) -> VerbResult:
        """Answer a hook."""
        _no_transactions(connection)
        check_run_id(run_id)
        check_id(hook_id, "hook id")
        text = arguments.check_hook_payload(run_id, payload)
        return memory_verbs.resume_hook(self._state, run_id, hook_id, text, checked)

    async def resume_hook_by_token(
        self,
        token: str,
        payload: Any,
        *,
        checked: str | None = None,
        connection: Enlisted = None,
    ) -> VerbResult:
        """Answer the active hook with this token."""
        _no_transactions(connection)
        check_token(token)
        text = arguments.check_hook_payload("", payload)
        run_id, hook_id = memory_verbs.owner_of(self._state, token)
        return memory_verbs.resume_hook(self._state, run_id, hook_id, text, checked)

    async def dispose_hook(
        self, run_id: str, hook_id: str, *, connection: Enlisted = None
    ) -> VerbResult:
        """Withdraw a hook."""
        _no_transactions(connection)
        check_run_id(run_id)
        return memory_verbs.dispose_hook(self._state, run_id, check_id(hook_id, "hook id"))

    async def dispose_hook_by_token(self, token: str, *, connection: Enlisted = None) -> VerbResult:
        """Withdraw the active hook with this token."""
        _no_transactions(connection)
        run_id, hook_id = memory_verbs.owner_of(self._state, check_token(token))
        return memory_verbs.dispose_hook(self._state, run_id, hook_id)

    async def request_cancellation(
        self, run_id: str, reason: str | None = None, *, connection: Enlisted = None
    ) -> VerbResult:
        """Ask a run to clean up and end."""
        _no_transactions(connection)
        check_run_id(run_id)
        arguments.check_text(reason, "reason")
        return memory_verbs.request_cancellation(self._state, run_id, reason)

    async def force_cancel(
        self, run_id: str, reason: str | None = None, *, connection: Enlisted = None
    ) -> VerbResult:
        """End a run at once."""
        return self._end(run_id, reason, run_cancelled(reason), connection)

    async def terminate_for_timeout(
        self,
        run_id: str,
        deadline: datetime,
        reason: str | None = None,
        *,
        connection: Enlisted = None,
    ) -> VerbResult:
        """End a run at once because its deadline passed."""
        arguments.check_time(deadline, "the deadline")
        return self._end(run_id, reason, run_timed_out(deadline, reason), connection)

    async def terminate_for_host_shutdown(
        self, run_id: str, reason: str | None = None, *, connection: Enlisted = None
    ) -> VerbResult:
        """End a run at once because its host will never resume it."""
        event = NewEvent(RUN_HOST_SHUTDOWN, {"reason": reason})
        return self._end(run_id, reason, event, connection)

    def _end(
        self, run_id: str, reason: str | None, event: NewEvent, connection: Enlisted
    ) -> VerbResult:
        _no_transactions(connection)
        check_run_id(run_id)
        arguments.check_text(reason, "reason")
        return memory_verbs.end(self._state, run_id, event)

    async def record_progress(
        self, run_id: str, progress: WorkflowProgress, *, connection: Enlisted = None
    ) -> VerbResult:
        """Record a progress report."""
        _no_transactions(connection)
        arguments.check_progress(run_id, progress)
        return memory_verbs.record_progress(self._state, run_id, progress)

    async def link_child_operation(
        self, run_id: str, child: ChildOperationReference, *, connection: Enlisted = None
    ) -> VerbResult:
        """Record a link."""
        _no_transactions(connection)
        arguments.check_child(run_id, child)
        return memory_verbs.link_child_operation(self._state, run_id, child)

    async def wake_run(self, run_id: str, *, connection: Enlisted = None) -> None:
        """Enqueue the run to be driven."""
        _no_transactions(connection)
        memory_verbs.wake(self._state, check_run_id(run_id))

    async def acquire_run(self, run_id: str, owner: str, lease: timedelta) -> RunLease | None:
        """The lease of this run."""
        check_run_id(run_id)
        check_id(owner, "lease owner")
        return memory_queue.acquire(self._state, run_id, owner, arguments.check_lease(lease))

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
        """Leases of runs that have work to do."""
        names = arguments.check_queues(queues)
        arguments.check_limit(limit)
        check_id(owner, "lease owner")
        arguments.check_lease(lease)
        if due:
            memory_queue.enqueue_due(self._state, None, arguments.MAX_PAGE)
        return memory_queue.claim(
            self._state, names, limit, owner, lease, capabilities or Capabilities()
        )

    async def heartbeat(self, leases: Sequence[RunLease], lease: timedelta) -> list[Heartbeat]:
        """Extend leases."""
        return memory_queue.heartbeat(self._state, leases, arguments.check_lease(lease))

    async def release_run(self, lease: RunLease) -> bool:
        """Give a lease back."""
        return memory_queue.release(self._state, lease.run_id, lease.epoch, lease.wakes)

    async def give_back(
        self,
        lease: RunLease,
        *,
        delay: timedelta = timedelta(0),
        blocked_reason: str | None = None,
        missing_step: str | None = None,
    ) -> bool:
        """Give up a lease with work left. Without a list of workers nobody asks for the step."""
        reason = arguments.check_text(blocked_reason, "blocked reason")
        return memory_queue.give_back(self._state, lease, max(delay, timedelta(0)), reason)

    async def enqueue_due(
        self,
        *,
        as_of: datetime | None = None,
        limit: int = 1000,
        timeout: timedelta | None = None,
    ) -> list[ScheduledWakeup]:
        """Turn due wake-ups into drive tasks. Nothing here takes long enough for a timeout."""
        arguments.check_limit(limit)
        arguments.check_time(as_of, "as_of")
        return memory_queue.enqueue_due(self._state, as_of, limit)

    async def import_history(
        self, history: Sequence[FlowEventEnvelope], *, queue: str = "default"
    ) -> None:
        """Store a complete history under its own ids and times."""
        run_id = check_history(history)
        arguments.check_queue(queue)
        memory_verbs.import_history(self._state, run_id, memory_reads.copies(history), queue)

    async def close(self) -> None:
        """Nothing to give back."""


def _no_transactions(connection: Enlisted) -> None:
    if connection is not None:
        raise InvalidArgument("the store in memory has no transactions: leave connection= out")
