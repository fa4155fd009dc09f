"""What the tests of the engine say again and again."""

import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, cast

from flowpg.engine.flow_engine import FlowEngine
from flowpg.engine.lease import LeaseKeeper
from flowpg.engine.observer import FlowEventObserver
from flowpg.errors import StoreUnavailable, UnknownStep
from flowpg.model.commands import Decision
from flowpg.model.events import FlowEventEnvelope
from flowpg.model.spec import WorkflowSpec
from flowpg.replay.context import WorkflowContext
from flowpg.replay.runtime import StepInvocation, WorkflowInvocation
from flowpg.store.protocol import FlowEventStore

SPEC = WorkflowSpec.python("order")
SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
LEASE = timedelta(seconds=30)

Workflow = Callable[[WorkflowContext], Decision]
Step = Callable[[StepInvocation], Any]


@dataclass
class EngineStore:
    """Where the engines of one test keep their runs, and the way to let time pass there."""

    name: str
    connect: Callable[[], Awaitable[FlowEventStore]]
    advance: Callable[[timedelta], None]
    dsn: str | None = None
    engines: list[FlowEngine] = field(default_factory=list)

    async def engine(
        self,
        runtime: Any,
        *,
        wrap: Callable[[FlowEventStore], FlowEventStore] | None = None,
        observer: FlowEventObserver | None = None,
        observer_timeout: timedelta = 5 * SECOND,
        max_replays: int | None = None,
        builds: Iterable[str] = (),
        unpinned: bool = False,
        grace: timedelta = 5 * SECOND,
    ) -> FlowEngine:
        """One more engine on these runs, as another process would have it."""
        store = await self.connect()
        builder = FlowEngine.builder(runtime).with_store(wrap(store) if wrap else store)
        # A heartbeat that is too rare to help a test along.
        builder.with_lease(LEASE, heartbeat=LEASE).with_cancel_grace(grace)
        if observer is not None:
            builder.with_observer(observer, observer_timeout)
        if max_replays is not None:
            builder.with_max_replays(max_replays)
        for build in builds:
            builder.with_runtime_build(build, accept_unpinned=unpinned)
        engine = builder.build()
        self.engines.append(engine)
        return engine

    def leases_run_out(self) -> None:
        """Let so much time pass that whoever holds a lease has lost it."""
        self.advance(LEASE + SECOND)


def keeper_of(engine: FlowEngine) -> LeaseKeeper:
    """Who extends the leases of an engine, to do so at a moment of the test's choice."""
    keeper = engine._keeper
    assert isinstance(keeper, LeaseKeeper)
    return keeper


class Script:
    """A runtime made of one function that decides and one function per step name."""

    def __init__(self, workflow: Workflow, steps: Mapping[str, Step] | None = None) -> None:
        self.workflow = workflow
        self.steps = dict(steps or {})
        self.replays = 0
        self.calls: list[tuple[str, int]] = []

    def run_workflow(self, invocation: WorkflowInvocation) -> Decision:
        self.replays += 1
        return self.workflow(invocation.context())

    async def run_step(self, step: StepInvocation) -> Any:
        self.calls.append((step.step_id, step.attempt))
        handler = self.steps.get(step.step_name)
        if handler is None:
            raise UnknownStep(step.step_name)
        result = handler(step)
        return await result if inspect.isawaitable(result) else result


def one_step(**options: Any) -> Workflow:
    """A workflow that runs the step ``s`` of name ``work`` and completes with its output."""

    def workflow(ctx: WorkflowContext) -> Decision:
        if not ctx.step_completed("s"):
            return ctx.schedule_step("s", "work", **options)
        return ctx.complete(ctx.step_output("s"))

    return workflow


def in_order(*step_ids: str) -> Workflow:
    """A workflow of sequential steps, each of name ``work`` and with its own id as the input."""

    def workflow(ctx: WorkflowContext) -> Decision:
        for step_id in step_ids:
            if not ctx.step_completed(step_id):
                return ctx.schedule_step(step_id, "work", step_id)
        return ctx.complete([ctx.step_output(step_id) for step_id in step_ids])

    return workflow


def echo(step: StepInvocation) -> Any:
    """A step that returns its input."""
    return step.input


def short(history: Iterable[FlowEventEnvelope]) -> list[str]:
    """The keys of events without the prefix they share, and with what they are about."""
    return [
        event.key.removeprefix("flow.") + (f" {event.subject}" if event.subject else "")
        for event in history
    ]


Hook = Callable[[str, tuple[Any, ...]], Awaitable[None]]


class WrappedStore:
    """Passes every call on, and lets a test step in before and after it."""

    def __init__(
        self, inner: FlowEventStore, before: Hook | None = None, after: Hook | None = None
    ) -> None:
        self._inner = inner
        self._before = before
        self._after = after

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._inner, name)

        async def call(*args: Any, **kwargs: Any) -> Any:
            if self._before is not None:
                await self._before(name, args)
            result = await method(*args, **kwargs)
            if self._after is not None:
                await self._after(name, args)
            return result

        return call


def wrapping(
    before: Hook | None = None, after: Hook | None = None
) -> Callable[[FlowEventStore], FlowEventStore]:
    """For ``EngineStore.engine(wrap=...)``."""
    return lambda store: cast("FlowEventStore", WrappedStore(store, before, after))


def appends_nothing(args: tuple[Any, ...]) -> bool:
    """Whether an append only gives a lease back."""
    return not args[0].events


class ProcessDied(Exception):
    """The process ends here; nothing it still wants to do happens."""


class Mortal:
    """A store of a process that dies at its ``at``-th writing call (from 1), just before or just
    after that call has had its effect."""

    WRITES = frozenset(
        {
            "append",
            "start",
            "resume_hook",
            "resume_wait",
            "request_cancellation",
            "acquire_run",
            "give_back",
            "release_run",
        }
    )

    def __init__(self, at: int, *, after: bool) -> None:
        self.at = at
        self.writes = 0
        self.dead = False
        self._after = after

    def wrap(self, store: FlowEventStore) -> FlowEventStore:
        return wrapping(self.before, self.after)(store)

    async def before(self, name: str, args: tuple[Any, ...]) -> None:
        if self.dead and name != "close":
            raise ProcessDied
        if name in self.WRITES:
            self.writes += 1
            if self.writes == self.at and not self._after:
                self.dead = True
                raise ProcessDied

    async def after(self, name: str, args: tuple[Any, ...]) -> None:
        if name in self.WRITES and self.writes == self.at and self._after:
            self.dead = True
        if self.dead and name != "close":
            raise ProcessDied


class LostOnce:
    """Lets the first append that holds an event of type ``event_type`` fail once: either nothing
    is stored, or it is and only the answer is lost."""

    def __init__(self, event_type: str, *, stored: bool) -> None:
        self.event_type = event_type
        self.stored = stored
        self.failed = 0

    def wrap(self, store: FlowEventStore) -> FlowEventStore:
        if self.stored:
            return wrapping(after=self._fail)(store)
        return wrapping(before=self._fail)(store)

    async def _fail(self, name: str, args: tuple[Any, ...]) -> None:
        if name != "append" or self.failed:
            return
        if any(event.type == self.event_type for event in args[0].events):
            self.failed += 1
            raise StoreUnavailable("the connection was lost")
