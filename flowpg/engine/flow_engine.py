"""The engine: start runs, answer what they wait for, drive them, look at them."""

from __future__ import annotations

import logging
from datetime import datetime
from typing import TYPE_CHECKING, Any

from flowpg.engine.reads import EngineReads
from flowpg.engine.verbs import EngineVerbs
from flowpg.errors import FlowError, RunConflict, StoreError
from flowpg.model.events import HOOK_DISPOSED, WAIT_COMPLETED
from flowpg.model.inspection import ScheduledWakeup, SuspensionKind, WakeupKind
from flowpg.model.records import StartOutcome, StartRequest, StartResult, VerbResult
from flowpg.model.spec import WorkflowSpec
from flowpg.replay.runtime import FlowRuntime
from flowpg.store.protocol import Enlisted
from flowpg.store.sealing import in_conflict, same_start, sealed_request

if TYPE_CHECKING:
    from flowpg.engine.builder import FlowEngineBuilder

logger = logging.getLogger("flowpg.engine")

_WAKEUPS = {
    SuspensionKind.WAIT: WakeupKind.WAIT,
    SuspensionKind.HOOK: WakeupKind.HOOK_EXPIRY,
    SuspensionKind.RETRY: WakeupKind.STEP_RETRY,
    SuspensionKind.STEP: WakeupKind.STEP_DEADLINE,
}


class FlowEngine(EngineVerbs, EngineReads):
    """``FlowEngine(store, runtime)``, or ``FlowEngine.builder(runtime)`` for more choices.

    Every call that changes a run is one transaction of the store, and then drives the run here
    until it has ended or waits again. ``drive=False`` leaves the driving to workers, and so does
    an engine without a runtime. With ``connection=`` the call runs inside the transaction of that
    connection and nothing else happens: workers see it once that transaction commits.

    An error of a drive (see ``drive``) does not undo the call: its event is stored, and the call
    may be repeated.
    """

    @staticmethod
    def builder(runtime: FlowRuntime | None = None) -> FlowEngineBuilder:
        """Choose store, observer, limits, lease and builds; then ``build()``."""
        from flowpg.engine.builder import FlowEngineBuilder

        return FlowEngineBuilder(runtime)

    @classmethod
    def in_memory(cls, runtime: FlowRuntime | None = None) -> FlowEngine:
        """An engine whose runs live and die with this process: for tests and trying out."""
        return cls.builder(runtime).build()

    # -- starting -------------------------------------------------------------------------------

    async def start(
        self,
        spec: WorkflowSpec,
        input: Any = None,
        *,
        queue: str | None = None,
        connection: Enlisted = None,
        drive: bool = True,
    ) -> str:
        """Start a run under a generated id (a UUIDv7) and return that.

        ``input`` is any JSON value, ``queue`` the queue whose workers drive the run. Returns also
        when the run has failed by then: look at its snapshot. Raises InvalidWorkflow,
        SerializationError, PayloadTooLarge, StoreError, and what ``drive`` raises; in that case
        the run exists.
        """
        return await self._start(
            StartRequest(spec, input, None, self._queue(queue)), connection, drive
        )

    async def start_with_id(
        self,
        run_id: str,
        spec: WorkflowSpec,
        input: Any = None,
        *,
        queue: str | None = None,
        connection: Enlisted = None,
        drive: bool = True,
    ) -> str:
        """Start a run under your own id, or find the one started before; returns the id.

        The same id with an equal spec and input is the same run, ended or not. Raises RunConflict
        with another spec or input, InvalidRunId, and as ``start``.
        """
        request = StartRequest(spec, input, run_id, self._queue(queue))
        return await self._start(request, connection, drive)

    async def start_many(
        self, requests: list[StartRequest], *, connection: Enlisted = None
    ) -> list[StartResult]:
        """Start many runs in one transaction, each on its own merits and in order; workers drive
        them. Raises InvalidRunId, InvalidWorkflow, SerializationError or PayloadTooLarge for the
        first malformed request, before anything is started."""
        if self.codecs:
            requests = [sealed_request(self.codecs, request) for request in requests]
        results = await self.store.start_many(requests, connection=connection)
        if connection is None:
            for at, run_id in in_conflict(self.codecs, results).items():
                if same_start(self.codecs, requests[at], await self.snapshot(run_id)):
                    results[at] = StartResult(run_id, StartOutcome.EXISTS)
        return results

    # -- time -----------------------------------------------------------------------------------

    async def resume_due_waits(self, as_of: datetime | None = None) -> list[ScheduledWakeup]:
        """Complete every timer due at ``as_of`` (default: the store's now) and drive its run;
        returns only the timers that this very call completed."""
        completed = await self.store.resume_due_waits(as_of=as_of)
        await self._observe_settled(completed, WAIT_COMPLETED)
        await self._drive_each(completed, as_of)
        return completed

    async def resume_due_retries(self, as_of: datetime | None = None) -> list[ScheduledWakeup]:
        """Drive every run with a delayed retry due at ``as_of``, once; returns those retries."""
        due = await self.store.list_due_wakeups(as_of=as_of, kind=WakeupKind.STEP_RETRY)
        await self._drive_each(due, as_of)
        return due

    async def dispose_expired_hooks(self, as_of: datetime | None = None) -> list[ScheduledWakeup]:
        """Dispose every hook whose expiry has passed at ``as_of`` and drive its run; returns only
        the hooks that this very call disposed."""
        disposed = await self.store.dispose_expired_hooks(as_of=as_of)
        await self._observe_settled(disposed, HOOK_DISPOSED)
        await self._drive_each(disposed, as_of)
        return disposed

    async def resume_scheduled_run(
        self, run_id: str, as_of: datetime | None = None
    ) -> list[ScheduledWakeup]:
        """Handle everything that is due in one run; returns what was due when this began.

        RunNotFound; raises as ``drive``.
        """
        suspensions = await self.store.list_open_suspensions(run_id=run_id, as_of=as_of)
        due = [
            ScheduledWakeup(run_id, _WAKEUPS[item.kind], item.subject_id, item.due_at)
            for item in suspensions
            if item.due and item.due_at is not None
        ]
        await self.drive(run_id, as_of=as_of)
        return due

    # -- helpers --------------------------------------------------------------------------------

    def _queue(self, queue: str | None) -> str:
        return self.options.queue if queue is None else queue

    async def _start(self, request: StartRequest, connection: Enlisted, drive: bool) -> str:
        request = sealed_request(self.codecs, request)
        try:
            result = await self.store.start(request, connection=connection)
        except RunConflict as error:
            # Sealed with another key, it may be the same input all the same.
            if not self.codecs or connection is not None:
                raise
            run = await self.snapshot(error.run_id)
            if not same_start(self.codecs, request, run):
                raise
            result = VerbResult(run.run_id, False, run.last_sequence)
        if connection is None:
            await self._observe(result)
            if drive and self.runtime is not None:
                await self.drive(result.run_id)
        return result.run_id

    async def _drive_each(self, wakeups: list[ScheduledWakeup], as_of: datetime | None) -> None:
        if self.runtime is None:
            return
        for run_id in sorted({wakeup.run_id for wakeup in wakeups}):
            try:
                await self.drive(run_id, as_of=as_of)
            except StoreError:
                raise
            except FlowError as error:
                # That run is blocked and says why; the others are not to wait for it.
                logger.warning("run %r could not be driven: %s", run_id, type(error).__name__)
