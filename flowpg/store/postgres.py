"""The store in PostgreSQL: a thin caller of the functions in ``sql/``, one round trip a verb.

Every rule is the database's; this class chooses the connection, shares calls between appends, and
raises the errors of ``flowpg.errors``. It runs no DDL and keeps no state in sessions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Self, TypeVar

from flowpg.model.arguments import check_queue
from flowpg.model.events import FlowEventEnvelope
from flowpg.model.inspection import (
    ScheduledWakeup,
)
from flowpg.model.operations import ChildOperationReference, WorkflowProgress
from flowpg.model.records import (
    Append,
    AppendResult,
    Capabilities,
    Heartbeat,
    RunLease,
    StartRequest,
    StartResult,
    StepHeartbeat,
    VerbResult,
)
from flowpg.postgres import append_verbs, claim_verbs, step_verbs, verbs
from flowpg.postgres.calls import Call
from flowpg.postgres.end_notices import EndNotices
from flowpg.postgres.group_commit import GroupCommit
from flowpg.postgres.lease_returns import LeaseReturns
from flowpg.postgres.pool import AsyncPool
from flowpg.postgres.schema_check import verify_async
from flowpg.postgres.session import DirectSession
from flowpg.postgres.step_sessions import StepSessions
from flowpg.postgres.task_verbs import release_tasks
from flowpg.store.imports import check_history
from flowpg.store.postgres_reads import PostgresReads
from flowpg.store.protocol import Enlisted

T = TypeVar("T")


class PostgresEventStore(PostgresReads):
    """A ``FlowEventStore`` on a migrated schema; make one with ``connect``.

    A verb given ``connection=`` runs in that connection's transaction: it is visible to others
    after the commit and gone after a rollback. An error fails the transaction, as any error in
    PostgreSQL does; open a savepoint around the verb to be able to go on after one.
    """

    def __init__(self, pool: AsyncPool, direct_dsn: str | None = None) -> None:
        self._pool = pool
        self._direct_dsn = direct_dsn or pool.dsn
        self._ends: EndNotices | None = None
        self._appends = GroupCommit(self._send)
        self._returns = LeaseReturns(
            lambda leases: self._pool.run(release_tasks(leases)),
            lambda lease: self._pool.run(verbs.give_back(lease, timedelta(0), None)),
        )

    @classmethod
    async def connect(
        cls,
        dsn: str,
        *,
        schema: str = "flowpg",
        max_size: int = 4,
        prepare: bool = True,
        timeout: float = 30.0,
        direct_dsn: str | None = None,
    ) -> Self:
        """Connect and verify the schema; nothing is created or changed.

        There are at most ``max_size`` connections; ``timeout`` is how many seconds a verb waits
        for one that others use. ``prepare=False`` is for PgBouncer in transaction mode;
        ``direct_dsn`` leads to the server past it, for who waits to be told of ends. Raises
        StoreUnavailable, PermissionDenied, or the SchemaError that says what to migrate.
        """
        pool = AsyncPool(
            dsn,
            schema=schema,
            max_size=max_size,
            prepare=prepare,
            timeout=timeout,
        )
        try:
            await pool.open(lambda connection: verify_async(connection, schema))
        except BaseException:
            await pool.close()
            raise
        return cls(pool, direct_dsn)

    @property
    def schema(self) -> str:
        """The schema this store works in."""
        return self._pool.schema

    @property
    def dsn(self) -> str:
        """Where this store connects to; may hold a password."""
        return self._pool.dsn

    def end_notices(self) -> EndNotices:
        """Who tells of the ends of runs."""
        if self._ends is None:
            self._ends = EndNotices(self._direct_dsn, self._pool.schema)
        return self._ends

    def session(self, *, dsn: str | None = None, timeout: float = 10.0) -> DirectSession:
        """A connection apart from the pool, for a thread of its own: to the same database, or by
        another ``dsn`` to it. A call of it takes at most ``timeout`` seconds."""
        pool = self._pool
        return DirectSession(dsn or pool.dsn, pool.schema, prepare=pool.prepare, timeout=timeout)

    def step_sessions(self, source: Any = None) -> StepSessions:
        """Transactions for the code of steps, apart from the pool: in the database of this store,
        or by another DSN or an engine of SQLAlchemy (``source``) to the same database."""
        pool = self._pool
        if isinstance(source, str):
            return StepSessions(source, prepare=pool.prepare)
        return StepSessions(pool.dsn, prepare=pool.prepare, engine=source)

    def pool_stats(self) -> dict[str, int]:
        """How many connections there are (``pool_size``), are free (``pool_available``), and how
        many calls wait for one (``requests_waiting``)."""
        return self._pool.stats()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def call(self, call: Call[T]) -> T:
        """Send a call of a function of the schema that is no verb of a store."""
        return await self._pool.run(call)

    async def notify(self, channel: str, payload: str) -> None:
        """Send a notification to whoever listens to ``channel``."""
        await self._pool.notify(channel, payload)

    async def _send(self, appends: Sequence[Append]) -> list[AppendResult]:
        return await self._pool.run(append_verbs.append_many(appends))

    async def append(self, append: Append) -> AppendResult:
        """Store the events of one run, sharing a call with other appends of this process."""
        append.text = append_verbs.append_text(append)
        return await self._appends.append(append)

    async def append_many(self, appends: Sequence[Append]) -> list[AppendResult]:
        """Store the events of many runs in one transaction, each on its own merits, in order."""
        return await self._run(append_verbs.append_many(appends)) if appends else []

    async def start(self, request: StartRequest, *, connection: Enlisted = None) -> VerbResult:
        """Create a run, or recognise it."""
        return await self._run(verbs.start(request), connection)

    async def start_many(
        self, requests: Sequence[StartRequest], *, connection: Enlisted = None
    ) -> list[StartResult]:
        """Create many runs in one transaction, each on its own merits."""
        return await self._run(verbs.start_many(requests), connection) if requests else []

    async def resume_wait(
        self, run_id: str, wait_id: str, *, connection: Enlisted = None
    ) -> VerbResult:
        """Complete a due timer."""
        return await self._run(verbs.resume_wait(run_id, wait_id), connection)

    async def resume_due_waits(
        self, *, as_of: datetime | None = None, run_id: str | None = None, limit: int = 1000
    ) -> list[ScheduledWakeup]:
        """Complete every due timer."""
        return await self._run(verbs.resume_due_waits(as_of, limit, run_id))

    async def dispose_expired_hooks(
        self, *, as_of: datetime | None = None, run_id: str | None = None, limit: int = 1000
    ) -> list[ScheduledWakeup]:
        """Dispose every expired hook."""
        return await self._run(verbs.dispose_expired_hooks(as_of, limit, run_id))

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
        return await self._run(verbs.resume_hook(run_id, hook_id, payload, checked), connection)

    async def resume_hook_by_token(
        self,
        token: str,
        payload: Any,
        *,
        checked: str | None = None,
        connection: Enlisted = None,
    ) -> VerbResult:
        """Answer the active hook with this token."""
        return await self._run(verbs.resume_hook_by_token(token, payload, checked), connection)

    async def dispose_hook(
        self, run_id: str, hook_id: str, *, connection: Enlisted = None
    ) -> VerbResult:
        """Withdraw a hook."""
        return await self._run(verbs.dispose_hook(run_id, hook_id), connection)

    async def dispose_hook_by_token(self, token: str, *, connection: Enlisted = None) -> VerbResult:
        """Withdraw the active hook with this token."""
        return await self._run(verbs.dispose_hook_by_token(token), connection)

    async def request_cancellation(
        self, run_id: str, reason: str | None = None, *, connection: Enlisted = None
    ) -> VerbResult:
        """Ask a run to clean up and end."""
        return await self._run(verbs.request_cancellation(run_id, reason), connection)

    async def force_cancel(
        self, run_id: str, reason: str | None = None, *, connection: Enlisted = None
    ) -> VerbResult:
        """End a run at once."""
        return await self._run(verbs.force_cancel(run_id, reason), connection)

    async def terminate_for_timeout(
        self,
        run_id: str,
        deadline: datetime,
        reason: str | None = None,
        *,
        connection: Enlisted = None,
    ) -> VerbResult:
        """End a run at once because its deadline passed."""
        return await self._run(verbs.terminate_for_timeout(run_id, deadline, reason), connection)

    async def terminate_for_host_shutdown(
        self, run_id: str, reason: str | None = None, *, connection: Enlisted = None
    ) -> VerbResult:
        """End a run at once because its host will never resume it."""
        return await self._run(verbs.terminate_for_host_shutdown(run_id, reason), connection)

    async def record_progress(
        self, run_id: str, progress: WorkflowProgress, *, connection: Enlisted = None
    ) -> VerbResult:
        """Record a progress report."""
        return await self._run(verbs.record_progress(run_id, progress), connection)

    async def link_child_operation(
        self, run_id: str, child: ChildOperationReference, *, connection: Enlisted = None
    ) -> VerbResult:
        """Record a link."""
        return await self._run(verbs.link_child_operation(run_id, child), connection)

    async def wake_run(self, run_id: str, *, connection: Enlisted = None) -> None:
        """Enqueue the run to be driven."""
        await self._run(verbs.wake_run(run_id), connection)

    async def acquire_run(self, run_id: str, owner: str, lease: timedelta) -> RunLease | None:
        """The lease of this run."""
        return await self._run(verbs.acquire_run(run_id, owner, lease))

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
        call = claim_verbs.claim_runs(queues, limit, owner, lease, capabilities, due=due)
        return await self._run(call)

    async def heartbeat(self, leases: Sequence[RunLease], lease: timedelta) -> list[Heartbeat]:
        """Extend leases."""
        call = verbs.heartbeat(leases, lease)
        return await self._run(call) if leases else []

    async def record_heartbeats(self, beats: Sequence[StepHeartbeat]) -> list[str]:
        """Keep what steps at work say."""
        return await self._run(step_verbs.record_heartbeats(beats)) if beats else []

    async def release_run(self, lease: RunLease) -> bool:
        """Give a lease back."""
        return await self._run(verbs.release_run(lease))

    async def give_back(
        self,
        lease: RunLease,
        *,
        delay: timedelta = timedelta(0),
        blocked_reason: str | None = None,
        missing_step: str | None = None,
    ) -> bool:
        """Give up a lease with work left."""
        if not delay and blocked_reason is None and lease.task_id:
            return await self._returns.give_back(lease)
        return await self._run(verbs.give_back(lease, delay, blocked_reason, missing_step))

    async def enqueue_due(
        self,
        *,
        as_of: datetime | None = None,
        limit: int = 1000,
        timeout: timedelta | None = None,
    ) -> list[ScheduledWakeup]:
        """Turn due wake-ups into drive tasks."""
        return await self._pool.run(verbs.enqueue_due(as_of, limit), timeout)

    async def import_history(
        self, history: Sequence[FlowEventEnvelope], *, queue: str = "default"
    ) -> None:
        """Store a complete history under its own ids and times."""
        run_id = check_history(history)
        await self._run(verbs.import_history(run_id, history, check_queue(queue)))

    async def close(self) -> None:
        """Wait for appends in flight and close the connections."""
        await self._appends.close()
        if self._ends is not None:
            await asyncio.to_thread(self._ends.close)
        await self._pool.close()
