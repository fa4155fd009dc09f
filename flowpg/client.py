"""The client for synchronous code, such as Django and Flask: start, signal, look.

It sends the very calls the asynchronous store sends and drives nothing: workers do that.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import nullcontext
from datetime import datetime, timedelta
from threading import Event, Lock
from typing import Any, Self, TypeVar

import psycopg
from psycopg_pool import ConnectionPool, PoolClosed, PoolTimeout

from flowpg.errors import HookConflict, RunConflict, RunNotFound, StoreError, StoreUnavailable
from flowpg.model.answers import AnswerCheck
from flowpg.model.arguments import MAX_PAGE, check_queue, check_timeout
from flowpg.model.codecs import CodecChain, PayloadCodec
from flowpg.model.events import FlowEventEnvelope
from flowpg.model.inspection import (
    ActiveHookSnapshot,
    RunRow,
    WorkflowRunSummary,
    WorkflowRunSuspension,
)
from flowpg.model.operations import ChildOperationReference, WorkflowProgress
from flowpg.model.records import StartOutcome, StartRequest, StartResult, VerbResult
from flowpg.model.snapshot import RunStatus, WorkflowRunSnapshot
from flowpg.model.spec import WorkflowSpec
from flowpg.postgres import reads, verbs
from flowpg.postgres.calls import Call
from flowpg.postgres.end_notices import EndNotices
from flowpg.postgres.enlist import run_enlisted_sync
from flowpg.postgres.pool import LEFT_BEHIND
from flowpg.postgres.sync_pool import open_pool, statement
from flowpg.postgres.waits import Look, Pause, await_run, waiting
from flowpg.replay.projection import snapshot_of
from flowpg.store.imports import check_history
from flowpg.store.plain_starts import PlainStarts
from flowpg.store.sealing import (
    in_conflict,
    opened_snapshot,
    same_answer,
    same_start,
    sealed_request,
)

T = TypeVar("T")

Steps = Generator[Look | Pause, bool | None, bool]


class FlowClient:
    """Calls the verbs of a migrated schema, from any thread.

    ``source`` is a DSN (a pool of up to ``max_size`` connections is made on first use), a psycopg
    ``ConnectionPool``, or one psycopg ``Connection``, in whose transaction every call then runs.
    A verb's ``connection=`` enlists it in the transaction of a psycopg ``Connection``, a SQLAlchemy
    ``Connection`` or ``Session``, or a DB-API connection such as Django's: not visible before the
    commit, gone after a rollback. An error fails that transaction; use a savepoint to go on.
    ``prepare=False`` is for PgBouncer in transaction mode; ``timeout`` is how many seconds a call
    waits for a connection. ``direct_dsn`` leads to the server past any pooler, to be told there
    what ``wait`` waits for. ``codecs`` are those of the FlowApp: they seal what this client hands
    over, and open the snapshots it returns. Without them, the first run that this client starts of
    a workflow is refused if the newest one has sealed values; ``[]`` says that plain values are
    meant. Errors are those of ``flowpg.errors``; StoreUnavailable means the outcome is unknown, and
    that the call may be repeated.
    """

    def __init__(
        self,
        source: str | psycopg.Connection[Any] | ConnectionPool[Any],
        *,
        schema: str = "flowpg",
        max_size: int = 4,
        prepare: bool = True,
        timeout: float = 30.0,
        direct_dsn: str | None = None,
        codecs: Iterable[PayloadCodec] | None = None,
    ) -> None:
        self._codecs = CodecChain(codecs or ())
        self._plain = PlainStarts() if codecs is None else None
        self._schema = schema
        self._connection = source if isinstance(source, psycopg.Connection) else None
        self._pool = source if isinstance(source, ConnectionPool) else None
        self._dsn = source if isinstance(source, str) else None
        self._max_size = max_size
        self._prepare = prepare
        self._timeout = timeout
        self._listen_dsn = direct_dsn or self._dsn
        self._ends: EndNotices | None = None
        self._closed = False
        self._process = os.getpid()
        self._opening = Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections this client made; those it was given stay open."""
        self._closed = True
        if self._ends is not None:
            self._ends.close()
        if self._dsn is not None and self._pool is not None and self._process == os.getpid():
            self._pool.close()

    # -- starting ---------------------------------------------------------------------------------
    def start(
        self,
        spec: WorkflowSpec,
        input: Any = None,
        *,
        run_id: str | None = None,
        queue: str = "default",
        connection: Any = None,
    ) -> VerbResult:
        """Create a run (without ``run_id``: under a generated id) and hand it to the workers.

        The same id with an equal spec and input is ``applied=False``. Raises RunConflict,
        InvalidRunId, InvalidWorkflow, SerializationError, PayloadTooLarge; InvalidArgument beside
        sealed values.
        """
        request = sealed_request(self._codecs, StartRequest(spec, input, run_id, queue))
        call = verbs.start(request)
        self._check_plain([request], connection)
        try:
            return self._run(call, connection)
        except RunConflict as error:
            # Sealed with another key, it may be the same input all the same.
            if not self._may_look(connection):
                raise
            run = self._stored(error.run_id, connection)
            if not same_start(self._codecs, request, run):
                raise
            return VerbResult(run.run_id, False, run.last_sequence)

    def start_many(
        self, requests: Sequence[StartRequest], *, connection: Any = None
    ) -> list[StartResult]:
        """Create many runs in one transaction, each on its own merits, in order."""
        sealed = [sealed_request(self._codecs, request) for request in requests]
        if not sealed:
            return []
        call = verbs.start_many(sealed)
        self._check_plain(sealed, connection)
        results = self._run(call, connection)
        for at, run_id in in_conflict(self._codecs, results).items():
            if same_start(self._codecs, sealed[at], self._stored(run_id, connection)):
                results[at] = StartResult(run_id, StartOutcome.EXISTS)
        return results

    # -- telling a run something ------------------------------------------------------------------
    def resume_wait(self, run_id: str, wait_id: str, *, connection: Any = None) -> VerbResult:
        """Complete a due timer. InvalidTransition before its deadline."""
        return self._run(verbs.resume_wait(run_id, wait_id), connection)

    def resume_hook(
        self, run_id: str, hook_id: str, payload: Any, *, connection: Any = None
    ) -> VerbResult:
        """Answer a hook, with JSON or with what pydantic writes as such: a model, a dataclass, a
        datetime. The same payload again is ``applied=False``; HookConflict for another payload, or
        a disposed or cancelled hook; AnswerRejected for one that does not fit what the workflow
        waits for; RunTerminal."""
        check = AnswerCheck(payload, hook_id)
        payload = self._codecs.seal_answer(check.payload, run_id, hook_id)
        try:
            while True:
                call = verbs.resume_hook(run_id, hook_id, payload, check.checked)
                if check.done(result := self._run(call, connection)):
                    return result
        except HookConflict:
            if not self._may_look(connection):
                raise
            run = self._stored(run_id, connection)
            if not same_answer(self._codecs, run, hook_id, payload):
                raise
            return VerbResult(run_id, False, run.last_sequence, hook_id)

    def resume_hook_by_token(
        self, token: str, payload: Any, *, connection: Any = None
    ) -> VerbResult:
        """Answer the active hook with this token. HookTokenNotFound if there is none;
        AnswerRejected for an answer that does not fit."""
        check = AnswerCheck(payload)
        payload = self._codecs.seal_answer_by_token(token, check.payload)
        while True:
            call = verbs.resume_hook_by_token(token, payload, check.checked)
            if check.done(result := self._run(call, connection)):
                return result

    def dispose_hook(self, run_id: str, hook_id: str, *, connection: Any = None) -> VerbResult:
        """Withdraw a hook. HookConflict if it was answered."""
        return self._run(verbs.dispose_hook(run_id, hook_id), connection)

    def dispose_hook_by_token(self, token: str, *, connection: Any = None) -> VerbResult:
        """Withdraw the active hook with this token. HookTokenNotFound if there is none."""
        return self._run(verbs.dispose_hook_by_token(token), connection)

    def request_cancellation(
        self, run_id: str, reason: str | None = None, *, connection: Any = None
    ) -> VerbResult:
        """Ask a run to clean up and end. RunConflict if another reason was recorded before."""
        return self._run(verbs.request_cancellation(run_id, reason), connection)

    def force_cancel(
        self, run_id: str, reason: str | None = None, *, connection: Any = None
    ) -> VerbResult:
        """End a run at once, without cleanup."""
        return self._run(verbs.force_cancel(run_id, reason), connection)

    def terminate_for_timeout(
        self, run_id: str, deadline: datetime, reason: str | None = None, *, connection: Any = None
    ) -> VerbResult:
        """End a run at once because its deadline passed."""
        return self._run(verbs.terminate_for_timeout(run_id, deadline, reason), connection)

    def terminate_for_host_shutdown(
        self, run_id: str, reason: str | None = None, *, connection: Any = None
    ) -> VerbResult:
        """End a run at once because its host will never resume it. Not for an ordinary stop."""
        return self._run(verbs.terminate_for_host_shutdown(run_id, reason), connection)

    def record_progress(
        self, run_id: str, progress: WorkflowProgress, *, connection: Any = None
    ) -> VerbResult:
        """Record a progress report. NonDeterministic if its id holds another value."""
        return self._run(verbs.record_progress(run_id, progress), connection)

    def link_child_operation(
        self, run_id: str, child: ChildOperationReference, *, connection: Any = None
    ) -> VerbResult:
        """Record a link. RunNotFound if it names a run that does not exist."""
        return self._run(verbs.link_child_operation(run_id, child), connection)

    # -- looking ----------------------------------------------------------------------------------
    def snapshot(self, run_id: str) -> WorkflowRunSnapshot:
        """The state of a run, folded from its history. RunNotFound."""
        snapshot = self._stored(run_id)
        return opened_snapshot(self._codecs, snapshot) if self._codecs else snapshot

    def history(self, run_id: str) -> list[FlowEventEnvelope]:
        """The whole history of a run, payloads as stored. RunNotFound."""
        return self._pages(
            lambda last: reads.history_page(run_id, last.sequence if last else 0, MAX_PAGE)
        )

    def history_page(
        self, run_id: str, after: int = 0, limit: int = MAX_PAGE
    ) -> list[FlowEventEnvelope]:
        """Events after sequence ``after``, at most ``limit`` (1 to 1000). RunNotFound."""
        return self._run(reads.history_page(run_id, after, limit))

    def run_info(self, run_id: str) -> RunRow:
        """One run's row. RunNotFound."""
        return self._run(reads.run_info(run_id))

    def list_runs(
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
        return self._run(reads.list_runs(status, workflow_name, queue, blocked, after, limit))

    def summary(self) -> WorkflowRunSummary:
        """Counts over all runs."""
        return self._run(reads.run_summary())

    def now(self) -> datetime:
        """The database's time, which all recorded times are of."""
        return self._run(reads.now())

    def list_active_hooks(self, run_id: str | None = None) -> list[ActiveHookSnapshot]:
        """Hooks that can be answered, of one run or of all."""
        return self._pages(lambda last: reads.active_hooks(run_id, last))

    def list_open_suspensions(self, run_id: str | None = None) -> list[WorkflowRunSuspension]:
        """What one run waits for, or all."""
        return self._pages(lambda last: reads.open_suspensions(run_id, last, None))

    def import_history(
        self, history: Sequence[FlowEventEnvelope], *, queue: str = "default"
    ) -> None:
        """Store a complete history under its own ids and times. RunConflict if the run exists;
        InvalidTransition if the history is not a valid one."""
        self._run(verbs.import_history(check_history(history), history, check_queue(queue)))

    def wait(self, run_id: str, timeout: timedelta | None = None) -> WorkflowRunSnapshot:
        """Wait until the run has ended, and return its snapshot.

        A client that was given a DSN is told of the end. Others, and where notifications do not
        come through, look for it: the wait is then at most a tenth longer than it had to be, and
        never more than a second. TimeoutError after ``timeout``; RunNotFound; InvalidArgument
        unless it is a timedelta. In a REPEATABLE READ transaction of the caller it would wait for
        ever.
        """
        seconds = check_timeout(timeout)
        if self.run_info(run_id).status.terminal:
            return self.snapshot(run_id)
        told = Event()
        notices = self._notices()
        with notices.watch(run_id, told.set) if notices else nullcontext() as news:
            if not self._wait(run_id, waiting(news, time.monotonic, seconds), told):
                raise TimeoutError(f"run {run_id!r} has not ended within {seconds:g} s")
        return self.snapshot(run_id)

    def _wait(self, run_id: str, steps: Steps, told: Event) -> bool:
        ended: bool | None = None
        while True:
            try:
                step = steps.send(ended)
            except StopIteration as end:
                return bool(end.value)
            told.wait(step.seconds) if isinstance(step, Pause) else told.clear()
            ended = isinstance(step, Look) and self._has_ended(run_id, step.ask)

    def _has_ended(self, run_id: str, ask: bool) -> bool:
        if ask:
            try:
                return self._run(await_run(run_id))
            except StoreError:
                pass  # a role that may only read, or a standby: looking may work
        return self.run_info(run_id).status.terminal

    def _notices(self) -> EndNotices | None:
        with self._opening:
            if self._ends is None and self._listen_dsn is not None and not self._closed:
                self._ends = EndNotices(self._listen_dsn, self._schema)
            return self._ends

    def _stored(self, run_id: str, connection: Any = None) -> WorkflowRunSnapshot:
        loaded = self._run(reads.load_runs([run_id]), connection).get(run_id)
        if loaded is None:
            raise RunNotFound(run_id)
        return snapshot_of(loaded)

    def _check_plain(self, requests: Sequence[StartRequest], connection: Any) -> None:
        if self._plain is not None:
            self._plain.check(requests, lambda call: self._run(call, connection))

    def _may_look(self, connection: Any) -> bool:
        # The values of a conflict can be compared only where they can be opened, and where the
        # conflict has not failed the transaction of the caller.
        if not self._codecs:
            return False
        own = connection if connection is not None else self._connection
        if own is None:
            return True
        idle = psycopg.pq.TransactionStatus.IDLE
        return isinstance(own, psycopg.Connection) and own.info.transaction_status == idle

    # -- sending ----------------------------------------------------------------------------------
    def _run(self, call: Call[T], connection: Any = None) -> T:
        own = connection if connection is not None else self._connection
        if own is not None:
            return run_enlisted_sync(own, call, self._schema)
        try:
            with self._ready_pool().connection(self._timeout) as pooled, statement(pooled):
                return run_enlisted_sync(pooled, call, self._schema, enlisted=False)
        except PoolTimeout:
            raise StoreUnavailable(
                f"no database connection became free within {self._timeout:g} s: the server is "
                "away, or all connections of the pool are busy"
            ) from None
        except PoolClosed:
            raise StoreError("the client's connection pool is closed") from None

    def _pages(self, page: Callable[[T | None], Call[list[T]]]) -> list[T]:
        found: list[T] = []
        while True:
            rows = self._run(page(found[-1] if found else None))
            found += rows
            if len(rows) < MAX_PAGE:
                return found

    def _ready_pool(self) -> ConnectionPool[Any]:
        # Made on first use, and again in a process that was forked off: a web server forks after
        # importing the module that holds the client, and perhaps after the first call.
        with self._opening:
            if self._closed:
                raise StoreError("the client is closed")
            if self._dsn is not None and self._process != os.getpid():
                LEFT_BEHIND.append(self._pool)
                self._pool, self._process = None, os.getpid()
            if self._pool is None:
                assert self._dsn is not None
                self._pool = open_pool(self._dsn, self._max_size, self._prepare)
            return self._pool
