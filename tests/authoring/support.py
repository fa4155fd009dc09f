"""Playing workflows to their end on the store in memory, whose clock jumps to each deadline."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from flowpg.authoring.app import FlowApp
from flowpg.authoring.workflows import AnyWorkflow
from flowpg.engine.flow_engine import FlowEngine
from flowpg.model.events import HOOK_CREATED, FlowEventEnvelope
from flowpg.model.snapshot import WorkflowRunSnapshot
from flowpg.replay.projection import project
from flowpg.replay.runtime import WorkflowInvocation
from flowpg.store.memory import InMemoryEventStore

START = datetime(2026, 1, 31, 12, tzinfo=UTC)
RUN_ID = "run-1"

Build = Callable[[FlowApp], None]
"""Declares the steps of a test and one workflow."""


@dataclass
class Stage:
    """One app on one store, as a test plays on it."""

    app: FlowApp
    store: InMemoryEventStore
    engine: FlowEngine
    workflow: AnyWorkflow
    run_id: str = RUN_ID

    async def snapshot(self) -> WorkflowRunSnapshot:
        """The run as it stands."""
        return await self.engine.snapshot(self.run_id)

    async def history(self) -> list[FlowEventEnvelope]:
        """The events of the run."""
        return await self.engine.history(self.run_id)

    async def start(self, *args: Any, **kwargs: Any) -> None:
        """Start the run and drive it as far as it goes."""
        await self.engine.start_with_id(
            self.run_id, self.workflow.spec, self.workflow.input(*args, **kwargs)
        )

    async def pass_time(self) -> bool:
        """Jump to the next deadline and drive on; False if there is none."""
        wakeup = await self.store.next_wakeup()
        if wakeup is None:
            return False
        self.store.advance(max(wakeup.due_at - await self.store.now(), timedelta(0)))
        await self.engine.drive(self.run_id)
        return True


Act = Callable[[Stage], Awaitable[None]]


@dataclass
class Played:
    """A run that was played to its end."""

    history: list[FlowEventEnvelope]
    snapshot: WorkflowRunSnapshot
    workflow: AnyWorkflow

    @property
    def result(self) -> Any:
        """What the workflow returned; raises what it raised."""
        return self.workflow.result(self.snapshot)

    def lines(self) -> list[str]:
        """The history without its tokens, one line an event."""
        return [line_of(event) for event in self.history]

    def types(self) -> list[str]:
        """Type and subject of every event."""
        return [f"{e.type} {e.subject}" if e.subject else e.type for e in self.history]


def line_of(event: FlowEventEnvelope) -> str:
    """An event as text, its token hidden, for it is random."""
    payload = event.payload
    if event.type == HOOK_CREATED:
        payload = payload.replace(event.data["token"], "<token>")
    return f"{event.sequence} {event.recorded_at.isoformat()} {event.type} {payload}"


def stage(build: Build, *, always_replay: bool = False, store: Any = None) -> Stage:
    """A fresh app on a fresh store (or on ``store``)."""
    app = FlowApp("test", always_replay=always_replay)
    build(app)
    [workflow] = app.workflows.values()
    store = store or InMemoryEventStore(clock=lambda: START)
    return Stage(app, store, FlowEngine.builder(app).with_store(store).build(), workflow)


async def play(on: Stage, *args: Any, acts: tuple[Act, ...] = (), **kwargs: Any) -> Played:
    """Play a run to its end: whenever it waits, the next of ``acts`` happens, then time passes."""
    await on.start(*args, **kwargs)
    waiting = list(acts)
    while not (await on.snapshot()).terminal:
        if waiting:
            await waiting.pop(0)(on)
        elif not await on.pass_time():
            raise AssertionError(f"the run waits for ever: {await on.snapshot()}")
    played = Played(await on.history(), await on.snapshot(), on.workflow)
    await on.engine.close()
    on.app.close()
    return played


async def both(build: Build, *args: Any, acts: tuple[Act, ...] = (), **kwargs: Any) -> Played:
    """Play a workflow with its coroutine kept, and replayed at every turn: the histories must be
    the same to the letter."""
    kept = await play(stage(build), *args, acts=acts, **kwargs)
    replayed = await play(stage(build, always_replay=True), *args, acts=acts, **kwargs)
    assert kept.lines() == replayed.lines()
    return kept


async def plain(build: Build, *args: Any, **kwargs: Any) -> Any:
    """The result of the same functions under plain asyncio."""
    app = FlowApp("plain")
    build(app)
    [workflow] = app.workflows.values()
    return await workflow(*args, **kwargs)


async def like_asyncio(build: Build, *args: Any, **kwargs: Any) -> Played:
    """Play both ways, and as plain asyncio: all must return the same."""
    played = await both(build, *args, **kwargs)
    assert played.result == await plain(build, *args, **kwargs)
    return played


def answer(hook_id: str, payload: Any) -> Act:
    """An act: answer a hook."""

    async def act(on: Stage) -> None:
        await on.engine.resume_hook(on.run_id, hook_id, payload)

    return act


def answer_unchecked(hook_id: str, payload: Any) -> Act:
    """The same as someone does who calls the function in SQL: nothing is checked."""

    async def act(on: Stage) -> None:
        await on.store.resume_hook(on.run_id, hook_id, payload)
        await on.engine.drive(on.run_id)

    return act


def cancel(reason: str | None = None) -> Act:
    """An act: ask the run to cancel."""

    async def act(on: Stage) -> None:
        await on.engine.request_cancellation(on.run_id, reason)

    return act


def replay(app: FlowApp, history: list[FlowEventEnvelope]) -> Any:
    """What the app decides at the end of a history."""
    snapshot = project(RUN_ID, history)
    return app.run_workflow(
        WorkflowInvocation(RUN_ID, snapshot.spec, snapshot.input, snapshot, history)
    )
