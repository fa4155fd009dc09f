"""Changing runs from outside: an engine's client verbs.

Each is one idempotent transaction of the store. Without ``connection`` the run is then driven here
and its snapshot returned; with one, only the verb runs, inside the caller's transaction, and its
``VerbResult`` comes back.
"""

from __future__ import annotations

from datetime import datetime
from functools import partial
from typing import Any, overload

from flowpg.engine.core import EngineCore
from flowpg.errors import HookConflict
from flowpg.model.answers import AnswerCheck
from flowpg.model.operations import (
    CancellationRequest,
    ChildOperationReference,
    WorkflowProgress,
)
from flowpg.model.records import VerbResult
from flowpg.model.snapshot import WorkflowRunSnapshot
from flowpg.store.protocol import Enlisted
from flowpg.store.sealing import same_answer

Snapshot = WorkflowRunSnapshot


class EngineVerbs(EngineCore):
    """The client verbs of ``FlowEngine``."""

    # -- timers and hooks -----------------------------------------------------------------------

    @overload
    async def resume_wait(self, run_id: str, wait_id: str, *, drive: bool = True) -> Snapshot: ...
    @overload
    async def resume_wait(
        self, run_id: str, wait_id: str, *, connection: Enlisted
    ) -> VerbResult: ...
    async def resume_wait(
        self, run_id: str, wait_id: str, *, connection: Enlisted = None, drive: bool = True
    ) -> Snapshot | VerbResult:
        """Complete a due timer. One that is completed or cancelled already is left alone.

        RunNotFound; InvalidTransition before its deadline or for an unknown timer, RunTerminal for
        one if the run has ended; raises as ``drive``.
        """
        result = await self.store.resume_wait(run_id, wait_id, connection=connection)
        return result if connection is not None else await self._follow(result, drive)

    @overload
    async def resume_hook(
        self, run_id: str, hook_id: str, payload: Any, *, drive: bool = True
    ) -> Snapshot: ...
    @overload
    async def resume_hook(
        self, run_id: str, hook_id: str, payload: Any, *, connection: Enlisted
    ) -> VerbResult: ...
    async def resume_hook(
        self,
        run_id: str,
        hook_id: str,
        payload: Any,
        *,
        connection: Enlisted = None,
        drive: bool = True,
    ) -> Snapshot | VerbResult:
        """Answer a hook with any JSON value that the workflow can read as what it waits for, or
        with what pydantic writes as one: a model, a dataclass, a datetime. The same answer may be
        delivered again, also after the run has ended.

        AnswerRejected for an answer that does not fit; HookConflict for another answer, or a hook
        that was disposed or cancelled; RunNotFound; InvalidTransition for an unknown hook;
        RunTerminal; raises as ``drive``.
        """
        check = AnswerCheck(payload, hook_id)
        payload = self.codecs.seal_answer(check.payload, run_id, hook_id)
        try:
            verb = partial(self.store.resume_hook, run_id, hook_id, payload, connection=connection)
            result = await check.send(verb)
        except HookConflict:
            # Sealed with another key, it may be the same answer all the same.
            if not self.codecs or connection is not None:
                raise
            run = await self.snapshot(run_id)
            if not same_answer(self.codecs, run, hook_id, payload):
                raise
            result = VerbResult(run_id, False, run.last_sequence, hook_id)
        return result if connection is not None else await self._follow(result, drive)

    async def resume_hook_by_token(
        self, token: str, payload: Any, *, connection: Enlisted = None, drive: bool = True
    ) -> tuple[str, str]:
        """Answer the active hook with this token; returns its run id and hook id, which a
        redelivery needs: a token is forgotten once its hook is resolved.

        HookTokenNotFound if no active hook has it; AnswerRejected for an answer that does not fit;
        raises as ``drive``.
        """
        check = AnswerCheck(payload)
        payload = self.codecs.seal_answer_by_token(token, check.payload)
        verb = partial(self.store.resume_hook_by_token, token, payload, connection=connection)
        result = await check.send(verb)
        return await self._by_token(result, connection, drive)

    @overload
    async def dispose_hook(self, run_id: str, hook_id: str, *, drive: bool = True) -> Snapshot: ...
    @overload
    async def dispose_hook(
        self, run_id: str, hook_id: str, *, connection: Enlisted
    ) -> VerbResult: ...
    async def dispose_hook(
        self, run_id: str, hook_id: str, *, connection: Enlisted = None, drive: bool = True
    ) -> Snapshot | VerbResult:
        """Withdraw a hook; again is no error.

        HookConflict if it was answered or cancelled; RunNotFound; InvalidTransition for an unknown
        hook; RunTerminal; raises as ``drive``.
        """
        result = await self.store.dispose_hook(run_id, hook_id, connection=connection)
        return result if connection is not None else await self._follow(result, drive)

    async def dispose_hook_by_token(
        self, token: str, *, connection: Enlisted = None, drive: bool = True
    ) -> tuple[str, str]:
        """Withdraw the active hook with this token; returns its run id and hook id.

        HookTokenNotFound if no active hook has it; raises as ``drive``.
        """
        result = await self.store.dispose_hook_by_token(token, connection=connection)
        return await self._by_token(result, connection, drive)

    # -- ending ---------------------------------------------------------------------------------

    @overload
    async def request_cancellation(
        self, run_id: str, reason: CancellationRequest | str | None = None, *, drive: bool = True
    ) -> Snapshot: ...
    @overload
    async def request_cancellation(
        self,
        run_id: str,
        reason: CancellationRequest | str | None = None,
        *,
        connection: Enlisted,
    ) -> VerbResult: ...
    async def request_cancellation(
        self,
        run_id: str,
        reason: CancellationRequest | str | None = None,
        *,
        connection: Enlisted = None,
        drive: bool = True,
    ) -> Snapshot | VerbResult:
        """Ask a run to clean up and end; a run that has ended is left alone.

        What was open is cancelled at once; the workflow sees the request and decides on the
        cleanup. RunConflict if another reason was recorded before; RunNotFound; raises as
        ``drive``.
        """
        text = reason.reason if isinstance(reason, CancellationRequest) else reason
        result = await self.store.request_cancellation(run_id, text, connection=connection)
        return result if connection is not None else await self._follow(result, drive)

    @overload
    async def force_cancel(self, run_id: str, reason: str | None = None) -> Snapshot: ...
    @overload
    async def force_cancel(
        self, run_id: str, reason: str | None = None, *, connection: Enlisted
    ) -> VerbResult: ...
    async def force_cancel(
        self, run_id: str, reason: str | None = None, *, connection: Enlisted = None
    ) -> Snapshot | VerbResult:
        """End a run at once as cancelled, without cleanup; one that has ended is left alone.
        RunNotFound."""
        result = await self.store.force_cancel(run_id, reason, connection=connection)
        return result if connection is not None else await self._follow(result, False)

    cancel = force_cancel

    @overload
    async def terminate_for_timeout(
        self, run_id: str, deadline: datetime, reason: str | None = None
    ) -> Snapshot: ...
    @overload
    async def terminate_for_timeout(
        self, run_id: str, deadline: datetime, reason: str | None = None, *, connection: Enlisted
    ) -> VerbResult: ...
    async def terminate_for_timeout(
        self,
        run_id: str,
        deadline: datetime,
        reason: str | None = None,
        *,
        connection: Enlisted = None,
    ) -> Snapshot | VerbResult:
        """End a run at once because its deadline has passed; one that has ended is left alone.
        RunNotFound."""
        result = await self.store.terminate_for_timeout(
            run_id, deadline, reason, connection=connection
        )
        return result if connection is not None else await self._follow(result, False)

    @overload
    async def terminate_for_host_shutdown(
        self, run_id: str, reason: str | None = None
    ) -> Snapshot: ...
    @overload
    async def terminate_for_host_shutdown(
        self, run_id: str, reason: str | None = None, *, connection: Enlisted
    ) -> VerbResult: ...
    async def terminate_for_host_shutdown(
        self, run_id: str, reason: str | None = None, *, connection: Enlisted = None
    ) -> Snapshot | VerbResult:
        """End a run at once because nobody will ever resume it. An ordinary stop of a process
        must not call this: its runs go on elsewhere. RunNotFound."""
        result = await self.store.terminate_for_host_shutdown(run_id, reason, connection=connection)
        return result if connection is not None else await self._follow(result, False)

    # -- small facts ----------------------------------------------------------------------------

    @overload
    async def record_progress(
        self, run_id: str, progress: WorkflowProgress, *, drive: bool = True
    ) -> Snapshot: ...
    @overload
    async def record_progress(
        self, run_id: str, progress: WorkflowProgress, *, connection: Enlisted
    ) -> VerbResult: ...
    async def record_progress(
        self,
        run_id: str,
        progress: WorkflowProgress,
        *,
        connection: Enlisted = None,
        drive: bool = True,
    ) -> Snapshot | VerbResult:
        """Record a progress report; the same report again is no error.

        NonDeterministic if its id holds another value; RunTerminal; RunNotFound;
        InvalidTransition; raises as ``drive``.
        """
        result = await self.store.record_progress(run_id, progress, connection=connection)
        return result if connection is not None else await self._follow(result, drive)

    @overload
    async def link_child_operation(
        self, run_id: str, child: ChildOperationReference, *, drive: bool = True
    ) -> Snapshot: ...
    @overload
    async def link_child_operation(
        self, run_id: str, child: ChildOperationReference, *, connection: Enlisted
    ) -> VerbResult: ...
    async def link_child_operation(
        self,
        run_id: str,
        child: ChildOperationReference,
        *,
        connection: Enlisted = None,
        drive: bool = True,
    ) -> Snapshot | VerbResult:
        """Record a link to a task of another system; the same link again is no error.

        NonDeterministic if its id links something else; RunNotFound for this run or the linked
        one; RunTerminal; InvalidTransition; raises as ``drive``.
        """
        result = await self.store.link_child_operation(run_id, child, connection=connection)
        return result if connection is not None else await self._follow(result, drive)

    # -- helpers --------------------------------------------------------------------------------

    async def _by_token(
        self, result: VerbResult, connection: Enlisted, drive: bool
    ) -> tuple[str, str]:
        if connection is None:
            await self._follow(result, drive)
        return result.run_id, result.subject_id or ""
