"""The part of an engine that drives: leases, locks, and the drives at work in this process."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import itertools
import logging
import os
import secrets
import socket
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import asynccontextmanager
from datetime import datetime
from types import TracebackType
from typing import Self

from flowpg.engine.commit import PatientStore
from flowpg.engine.drive import RunDrive
from flowpg.engine.lease import Keeper, LeaseKeeper
from flowpg.engine.observer import ObserverGate
from flowpg.engine.options import EngineOptions
from flowpg.engine.parked import ParkedRuns, load_claimed
from flowpg.engine.parts import DriveParts
from flowpg.engine.routed import RoutedStep
from flowpg.engine.step_heartbeats import StepHeartbeats
from flowpg.engine.tip import RunTip
from flowpg.engine.transactional import StepTransactions
from flowpg.errors import InvalidArgument, InvalidTransition, RunNotFound, SerializationError
from flowpg.model.codecs import NO_CODECS, CodecChain
from flowpg.model.ids import check_run_id
from flowpg.model.inspection import ScheduledWakeup
from flowpg.model.records import LoadedRun, RunLease, StepLease, VerbResult
from flowpg.model.snapshot import WorkflowRunSnapshot
from flowpg.replay.projection import snapshot_of
from flowpg.replay.runtime import FlowRuntime, known
from flowpg.store.postgres import PostgresEventStore
from flowpg.store.protocol import FlowEventStore

logger = logging.getLogger("flowpg.engine")

_GIVING_BACK = 5.0
"""Seconds in which the drives of an engine that is closed may give their leases back."""

STEP_THREADS = "flowpg-step"
"""How the names of the threads begin in which plain step functions run."""


class _RunLock:
    __slots__ = ("lock", "users")

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.users = 0


class EngineCore:
    """A store, a runtime, and the drives between them. Used through ``FlowEngine``."""

    def __init__(
        self,
        store: FlowEventStore,
        runtime: FlowRuntime | None = None,
        options: EngineOptions | None = None,
    ) -> None:
        known(runtime)  # InvalidArgument here rather than at the first run
        self.store = store
        self.runtime = runtime
        self.options = options or EngineOptions()
        self.codecs: CodecChain = self.options.codecs or getattr(runtime, "codecs", NO_CODECS)
        self._mark = secrets.token_hex(4)
        self._drive_numbers = itertools.count(1)
        self._drives: dict[str, RunDrive] = {}
        self._locks: dict[str, _RunLock] = {}
        self._threads: ThreadPoolExecutor | None = None
        self._heartbeats: StepHeartbeats | None = None
        self._transactions: StepTransactions | None = None
        self._parts: DriveParts | None = None
        self._closing: asyncio.Event | None = None  # set when the last drive has ended
        self._parked = ParkedRuns(self.options.parked_runs)
        self._keeper: Keeper = LeaseKeeper(store, self.options.lease, self.options.beat)
        self._gate = ObserverGate(self.options.observer, self.options.observer_timeout)

    @property
    def owner(self) -> str:
        """The name under which this engine holds leases; another one in each forked process, since
        the same owner may take its own lease again."""
        return f"{socket.gethostname()}:{os.getpid()}:{self._mark}"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Cancel the steps at work here and give their runs back at once, stop extending leases,
        let go of threads, and close the store."""
        await self._end_drives()
        await self._keeper.close()
        await self._gate.close()
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
            self._threads = None
        if self._heartbeats is not None:
            await self._heartbeats.close()
        if self._transactions is not None:
            await self._transactions.close()
        await self.store.close()

    # -- driving --------------------------------------------------------------------------------

    async def drive(self, run_id: str, *, as_of: datetime | None = None) -> WorkflowRunSnapshot:
        """Drive a run until it has ended or waits for something from outside.

        Harmless to repeat. If another process drives the run now, its current snapshot comes back:
        that process was told. Deadlines up to ``as_of`` count as passed if they stand in the
        history already (default: the store's now).

        Raises RunNotFound; the fault that keeps this engine from driving the run (EngineFault,
        NonDeterministic, InvalidTransition, HookTokenConflict, ReplayLimitExceeded: the run is
        then blocked and says why); LeaseLost; StoreError.
        """
        self._needs_runtime()
        check_run_id(run_id)
        self.poke(run_id)
        async with self._alone(run_id):
            # A name of its own for each drive: a lease is never shared with another drive of
            # this engine that claimed the run meanwhile.
            owner = f"{self.owner}/{next(self._drive_numbers)}"
            lease = await self.store.acquire_run(run_id, owner, self.options.lease)
            if lease is None:
                return await self.snapshot(run_id)
            return await self._drive_leased(lease, None, as_of)

    async def load_claimed(
        self, leases: Sequence[RunLease]
    ) -> dict[str, tuple[LoadedRun, RunTip | None]]:
        """Read the runs of a claim in one call, for ``drive_claimed``. Raises StoreError, and
        SerializationError if one of them cannot be decoded."""
        return await load_claimed(self.store, self._parked, leases)

    async def drive_claimed(
        self,
        lease: RunLease,
        loaded: LoadedRun | None = None,
        parked: RunTip | None = None,
    ) -> float | None:
        """Drive a run whose lease was claimed already, as a worker does; raises as ``drive``.

        ``loaded`` and ``parked`` are what ``load_claimed`` found after the claim, if that was
        asked. The lease is given back in any case. Returns how many seconds it should take until
        the run's next deadline, None if it waits for none.
        """
        self._needs_runtime()
        async with self._alone(lease.run_id):
            drive = RunDrive(self._drive_parts(), lease)
            try:
                await self._run_drive(drive, loaded, None, parked)
            except (SerializationError, InvalidTransition) as error:
                if not drive.over:
                    raise
                # It was ended from outside, and what else its history says moves nothing.
                logger.info("run %r has ended (%s)", lease.run_id, type(error).__name__)
                return None
            # Nobody else has its snapshot, so it may be folded forward by the next drive.
            self._parked.park(drive.tip)
            return None if drive.tip.terminal else drive.seconds_to_deadline()

    def routed_step(self, lease: StepLease) -> RoutedStep:
        """An attempt that another queue's run has left to a worker of this engine."""
        if not isinstance(self.store, PostgresEventStore):
            raise InvalidArgument("steps of other queues need an engine on PostgreSQL")
        return RoutedStep(self._drive_parts(), self.store, lease)

    def poke(self, run_id: str) -> None:
        """Let a drive of this run in this engine look for news at once."""
        drive = self._drives.get(run_id)
        if drive is not None:
            drive.poke()

    def resting(self, run_id: str) -> bool:
        """Whether a drive of this run in this engine only waits: for a step to settle, for a
        deadline, or for news."""
        drive = self._drives.get(run_id)
        return drive is not None and drive.resting

    def drain(self, run_id: str) -> None:
        """Let a drive of this run in this engine finish the steps at work, decide nothing new, and
        give the run back."""
        drive = self._drives.get(run_id)
        if drive is not None:
            drive.drain()

    async def snapshot(self, run_id: str) -> WorkflowRunSnapshot:
        """The state of a run as its history says. RunNotFound."""
        check_run_id(run_id)
        loaded = await self.store.load_runs([run_id])
        if run_id not in loaded:
            raise RunNotFound(run_id)
        return snapshot_of(loaded[run_id])

    def keep_leases_with(self, keeper: Keeper) -> None:
        """Let ``keeper`` extend the leases of the drives that begin from now on, in place of a
        task of the event loop; it is closed with the engine."""
        self._keeper = keeper
        self._parts = None

    def supports_runtime_build(self, build: str | None) -> bool:
        """Whether runs pinned to ``build`` (None: not pinned) are driven by this engine."""
        return self.options.supports(build)

    async def _drive_leased(
        self, lease: RunLease, loaded: LoadedRun | None, as_of: datetime | None
    ) -> WorkflowRunSnapshot:
        return await self._run_drive(RunDrive(self._drive_parts(), lease), loaded, as_of)

    async def _run_drive(
        self,
        drive: RunDrive,
        loaded: LoadedRun | None,
        as_of: datetime | None,
        parked: RunTip | None = None,
    ) -> WorkflowRunSnapshot:
        self._drives[drive.run_id] = drive
        if self._closing is not None:
            drive.abandon()
        try:
            return await drive.run(loaded, as_of, parked)
        finally:
            del self._drives[drive.run_id]

    async def _end_drives(self) -> None:
        self._closing = asyncio.Event()
        for drive in self._drives.values():
            drive.abandon()
        if self._locks:  # also of those that take a lease just now: they give it back
            patience = self.options.cancel_grace.total_seconds() + _GIVING_BACK
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(patience):
                    await self._closing.wait()
        self._closing = None

    def _drive_parts(self) -> DriveParts:
        runtime = self._needs_runtime()
        if self._parts is None or self._parts.runtime is not runtime:
            self._parts = DriveParts(
                store=PatientStore(self.store, self.options.lease.total_seconds()),
                runtime=runtime,
                in_loop=inspect.iscoroutinefunction(runtime.run_step),
                options=self.options,
                keeper=self._keeper,
                gate=self._gate,
                executor=self._executor,
                transactions=self._step_transactions,
                heartbeats=self._step_heartbeats,
            )
        return self._parts

    def _needs_runtime(self) -> FlowRuntime:
        if self.runtime is None:
            raise InvalidArgument(
                "this engine has no runtime and drives nothing; build it with one, or leave the "
                "driving to a worker"
            )
        return self.runtime

    def _step_transactions(self) -> StepTransactions | None:
        if self._transactions is None and isinstance(self.store, PostgresEventStore):
            # An application may bring an engine of SQLAlchemy, or a DSN, to the same database.
            sessions = self.store.step_sessions(getattr(self.runtime, "transactions", None))
            patience = self.options.lease.total_seconds()
            self._transactions = StepTransactions(sessions, self.store.schema, patience)
        return self._transactions

    def _step_heartbeats(self) -> StepHeartbeats:
        if self._heartbeats is None or self._heartbeats.loop is not asyncio.get_running_loop():
            self._heartbeats = StepHeartbeats(self.store)
        return self._heartbeats

    def _executor(self) -> Executor:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(
                self.options.step_threads, thread_name_prefix=STEP_THREADS
            )
        return self._threads

    @asynccontextmanager
    async def _alone(self, run_id: str) -> AsyncIterator[None]:
        entry = self._locks.get(run_id)
        if entry is None:
            entry = self._locks[run_id] = _RunLock()
        entry.users += 1
        try:
            async with entry.lock:
                yield
        finally:
            entry.users -= 1
            if not entry.users:
                del self._locks[run_id]
                if self._closing is not None and not self._locks:
                    self._closing.set()

    # -- after a verb ---------------------------------------------------------------------------

    async def _follow(self, result: VerbResult, drive: bool) -> WorkflowRunSnapshot:
        """A verb has committed: tell the observer, and drive unless that is left to workers."""
        await self._observe(result)
        if drive and self.runtime is not None:
            return await self.drive(result.run_id)
        self.poke(result.run_id)
        return await self.snapshot(result.run_id)

    async def _observe(self, result: VerbResult) -> None:
        if self._gate.active and result.applied:
            await self._gate.deliver(
                await self.store.history_page(result.run_id, result.head_sequence - 1, 1)
            )

    async def _observe_settled(self, settled: Sequence[ScheduledWakeup], event_type: str) -> None:
        """Tell the observer of the timers or hooks that a scan of this engine has closed."""
        if not self._gate.active or not settled:
            return
        closed = {(wakeup.run_id, wakeup.subject_id) for wakeup in settled}
        loaded = await self.store.load_runs(sorted({run_id for run_id, _ in closed}))
        for run_id in sorted(loaded):
            await self._gate.deliver(
                event
                for event in loaded[run_id].history
                if event.type == event_type and (run_id, event.subject) in closed
            )
