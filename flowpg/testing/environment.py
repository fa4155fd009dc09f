"""Workflows in a test: in this process, in memory, and with a clock that jumps.

Runs are driven as an engine drives them. Where all of them wait, nothing happens until the test
answers, or until it awaits a result: then the clock jumps to the next deadline, and to the next,
so that a workflow of thirty days takes a few milliseconds.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar

from flowpg.authoring.app import FlowApp
from flowpg.authoring.workflows import WorkflowBase
from flowpg.engine.flow_engine import FlowEngine
from flowpg.engine.lease import OnHeartbeat
from flowpg.errors import InvalidArgument, StoreUnavailable
from flowpg.model.records import RunLease, StartRequest
from flowpg.model.spec import WorkflowSpec
from flowpg.replay.runtime import FlowRuntime
from flowpg.store.memory import InMemoryEventStore
from flowpg.store.sealing import sealed_request
from flowpg.testing.faults import Mishap, ProcessDied
from flowpg.testing.mocks import OWN_WORK, Call, StandIn, StepRef, make_mock, step_name
from flowpg.testing.runs import TestedRun

P = ParamSpec("P")
R = TypeVar("R")

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
"""What time it is when an environment is made, unless said otherwise."""

LEASE = timedelta(seconds=1)
"""How long, in virtual time, the lease of a process that died keeps others from its runs."""


class WorkflowEnvironment:
    """Everything a test of workflows needs: ``async with WorkflowEnvironment(app) as env``.

    ``runtime`` is a FlowApp or a hand-written FlowRuntime. ``start_time`` is what the clock shows
    at first; it stands still until it is let jump. ``always_replay`` replays a workflow from its
    history at every turn, which finds code that does not replay. ``faults`` are what the process is
    to suffer, see ``flowpg.testing.faults``. A ``ticking`` clock shows a millisecond more whenever
    the engine looks at it, which finds code that takes a moment for another.
    """

    def __init__(
        self,
        runtime: FlowRuntime,
        *,
        start_time: datetime = EPOCH,
        always_replay: bool = False,
        faults: Mishap | None = None,
        ticking: bool = False,
    ) -> None:
        if start_time.tzinfo is None:
            raise InvalidArgument("start_time needs a time zone, such as UTC")
        if always_replay and not isinstance(runtime, FlowApp):
            raise InvalidArgument("always_replay is for a FlowApp; others are always replayed")
        self._runtime = runtime
        self._always_replay = always_replay
        self._replayed_before = False
        self._steps = StandIn(runtime)
        self._steps.sleep = self._sleep
        self._faults = faults
        self._now = start_time
        self._tick = timedelta(milliseconds=1 if ticking else 0)
        self._store = InMemoryEventStore(clock=self._look)
        self._engine = self._new_engine()
        self._drives: dict[str, asyncio.Task[Any]] = {}
        self._errors: dict[str, BaseException] = {}
        self._order = itertools.count()
        # What is to happen when: sleeping mocks and actions of the test.
        self._later: list[tuple[datetime, int, Callable[[], Awaitable[None]]]] = []
        self._names = itertools.count(1)
        self._asleep = 0  # mocks that let time pass

    async def __aenter__(self) -> Self:
        if isinstance(self._runtime, FlowApp):
            self._replayed_before = self._runtime.always_replay
            self._runtime.always_replay = self._always_replay or self._replayed_before
            self._runtime.parked.clear()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for task in self._drives.values():
            task.cancel()
        await asyncio.gather(*self._drives.values(), return_exceptions=True)
        await self._engine.close()
        if isinstance(self._runtime, FlowApp):
            self._runtime.always_replay = self._replayed_before
            self._runtime.parked.clear()

    # -- runs -----------------------------------------------------------------------------------

    async def start(
        self, workflow: WorkflowBase[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> TestedRun[R]:
        """Start a run of ``workflow`` with these arguments, under an id made up here.
        InvalidArgument."""
        _check_declared(workflow)
        run_id = f"{workflow.name}-{next(self._names)}"
        return await self._start(workflow.spec, workflow.input(*args, **kwargs), run_id, workflow)

    async def start_with_id(
        self, run_id: str, workflow: WorkflowBase[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> TestedRun[R]:
        """Start a run under this id. InvalidArgument."""
        _check_declared(workflow)
        return await self._start(workflow.spec, workflow.input(*args, **kwargs), run_id, workflow)

    async def start_spec(
        self, spec: WorkflowSpec, input: Any = None, run_id: str | None = None
    ) -> TestedRun[Any]:
        """Start a run by its spec and JSON input, as for a hand-written runtime."""
        run_id = run_id or f"{spec.name}-{next(self._names)}"
        return await self._start(spec, input, run_id, None)

    async def _start(
        self, spec: WorkflowSpec, input: Any, run_id: str, workflow: WorkflowBase[..., Any] | None
    ) -> TestedRun[Any]:
        request = StartRequest(spec, input, run_id)
        if isinstance(self._runtime, FlowApp):
            request = sealed_request(self._runtime.codecs, request)
        await self._store.start(request)
        self.drive(run_id)
        return TestedRun(self, run_id, workflow)

    # -- time -----------------------------------------------------------------------------------

    @property
    def now(self) -> datetime:
        """What the clock shows."""
        return self._now

    async def settle(self) -> None:
        """Wait until nothing happens any more without an answer or a later time. Steps at work are
        waited for, in real time."""
        while working := [task for task in self._drives.values() if not task.done()]:
            if self._only_time_passes():
                return
            self._steps.changed.clear()
            if self._steps.working:
                change = asyncio.ensure_future(self._steps.changed.wait())
                await asyncio.wait([*working, change], return_when=asyncio.FIRST_COMPLETED)
                change.cancel()
            else:
                await asyncio.sleep(0)
        self._collect()
        await self._recover()

    async def advance(self, by: timedelta) -> None:
        """Let time pass, and let happen what falls due on the way, in its order. InvalidArgument
        if ``by`` is negative."""
        if by < timedelta(0):
            raise InvalidArgument("time goes forward only")
        await self.settle()
        end = self._now + by
        while (due := await self._next()) is not None and due <= end:
            await self._jump(due)
        await self._jump(end)

    async def skip(self) -> bool:
        """Jump to the next deadline and let happen what happens there; False if there is none."""
        await self.settle()
        due = await self._next()
        if due is None:
            return False
        await self._jump(due)
        return True

    def after(self, delay: timedelta, action: Callable[[], Awaitable[Any]]) -> None:
        """Let ``action``, such as an answer to a hook, happen when ``delay`` of virtual time has
        passed: ``env.after(hours(2), lambda: run.answer("approval", True))``."""

        async def act() -> None:
            await action()

        self._plan(self._now + delay, act)

    # -- steps ----------------------------------------------------------------------------------

    def mock(
        self,
        step: StepRef,
        *,
        returns: Any = OWN_WORK,
        raises: BaseException | type[BaseException] | list[Any] | None = None,
        side_effect: Callable[..., Any] | None = None,
        failures: int | None = None,
        takes: timedelta = timedelta(0),
    ) -> None:
        """Let a step (or the step of this name) do something else from now on.

        ``returns`` a value, ``raises`` an error (of several, one a call, the last one for ever), or
        calls ``side_effect`` with the step's arguments. With ``failures`` it raises so often and
        then does the rest, its own work if nothing else was said. ``takes`` lets so much virtual
        time pass first. What it returns is encoded and decoded as a step's result is; its retry
        policy applies. Of a hand-written runtime ``side_effect`` gets the StepInvocation.
        InvalidArgument if the app has no such step.
        """
        self._steps.check_known(step_name(step))
        mock = make_mock(step, returns, raises, side_effect, failures, takes)
        self._steps.mocks[mock.name] = mock

    def unmock(self, step: StepRef) -> None:
        """Let a step do its own work again."""
        self._steps.mocks.pop(step_name(step), None)

    def calls(self, step: StepRef) -> list[Call]:
        """The attempts of a step so far, of all runs, in the order in which they began."""
        name = step_name(step)
        self._steps.check_known(name)
        return [call for called, call in self._steps.calls if called == name]

    # -- for TestedRun --------------------------------------------------------------------------

    @property
    def engine(self) -> FlowEngine:
        """The engine that drives now; another one after a process has died."""
        return self._engine

    def drive(self, run_id: str) -> None:
        """Have a run driven, and look for news if it is."""
        task = self._drives.get(run_id)
        if task is not None and not task.done():
            self._engine.poke(run_id)
            return
        self._collect()
        self._drives[run_id] = asyncio.create_task(self._engine.drive(run_id))

    def fault(self, run_id: str) -> BaseException | None:
        """What kept the latest drive of a run from going on."""
        return self._errors.pop(run_id, None)

    # -- helpers --------------------------------------------------------------------------------

    def _look(self) -> datetime:
        self._now += self._tick
        return self._now

    def _new_engine(self) -> FlowEngine:
        store: Any = self._store if self._faults is None else self._faults.wrap(self._store)
        builder = FlowEngine.builder(self._steps).with_store(store)
        engine = builder.with_lease(LEASE, heartbeat=LEASE).build()
        engine.keep_leases_with(_NoKeeper())
        return engine

    def _only_time_passes(self) -> bool:
        if self._steps.working or not self._asleep:
            return False
        return all(
            task.done() or self._engine.resting(run_id) for run_id, task in self._drives.items()
        )

    def _collect(self) -> None:
        for run_id, task in list(self._drives.items()):
            if not task.done():
                continue
            del self._drives[run_id]
            error = None if task.cancelled() else task.exception()
            if error is not None:
                self._errors[run_id] = error

    async def _next(self) -> datetime | None:
        wakeup = await self._store.next_wakeup()
        times = [wakeup.due_at] if wakeup is not None else []
        times += [self._later[0][0]] if self._later else []
        return max(min(times), self._now) if times else None

    async def _jump(self, to: datetime) -> None:
        self._now = max(self._now, to)
        while self._later and self._later[0][0] <= to:
            _, _, act = heapq.heappop(self._later)
            await act()
            await self.settle()
        due = {wakeup.run_id for wakeup in await self._store.enqueue_due()}
        due |= {run_id for run_id, task in self._drives.items() if not task.done()}
        for run_id in sorted(due):
            self.drive(run_id)
        # A drive that was poked has not begun to look yet.
        await asyncio.sleep(0)
        await self.settle()

    async def _recover(self) -> None:
        """Go on after a fault: in another process if this one has died."""
        died = [run_id for run_id, e in self._errors.items() if isinstance(e, ProcessDied)]
        lost = [run_id for run_id, e in self._errors.items() if isinstance(e, StoreUnavailable)]
        for run_id in (*died, *lost):
            del self._errors[run_id]
        if died and self._faults is not None:
            with suppress(ProcessDied):
                await self._engine.close()
            if isinstance(self._runtime, FlowApp):
                self._runtime.parked.clear()
            self._faults.reborn()
            self._engine = self._new_engine()
            lost = await self._store.list_run_ids()
        if not lost:
            return
        # A lease may be held of which nobody knows any more.
        self._now += LEASE
        for run_id in lost:
            self.drive(run_id)
        await self.settle()

    async def _sleep(self, time: timedelta) -> None:
        woken = asyncio.Event()

        async def wake() -> None:
            woken.set()
            await asyncio.sleep(0)

        self._plan(self._now + time, wake)
        self._asleep += 1
        try:
            await woken.wait()
        finally:
            self._asleep -= 1

    def _plan(self, at: datetime, act: Callable[[], Awaitable[None]]) -> None:
        heapq.heappush(self._later, (at, next(self._order), act))


class _NoKeeper:
    """Extends no lease: nobody else wants it, and heartbeats come by another clock than that of the
    test. Each would make a ticking one tick wherever this process stood still for a second."""

    def hold(self, lease: RunLease, on_heartbeat: OnHeartbeat) -> None: ...

    def drop(self, lease: RunLease) -> None: ...

    async def close(self) -> None: ...


def _check_declared(workflow: object) -> None:
    if isinstance(workflow, type):
        raise InvalidArgument(
            f"{workflow.__name__} is a class; its workflow is app.of({workflow.__name__})"
        )
    if not isinstance(workflow, WorkflowBase):
        raise InvalidArgument(
            f"{workflow!r} is no workflow: declare it with @app.workflow, or start a hand-written "
            "one with start_spec"
        )
