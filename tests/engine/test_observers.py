"""Observers: every event this engine committed, in order, and never in its way."""

import asyncio
import contextlib
from datetime import timedelta

import pytest

from flowpg.engine.observer import (
    FanoutFlowEventObserver,
    InMemoryFlowEventObserver,
)
from flowpg.model.commands import Decision
from flowpg.model.events import STEP_COMPLETED, WAIT_COMPLETED, WAIT_CREATED, FlowEventEnvelope
from flowpg.model.snapshot import RunStatus
from flowpg.replay.context import WorkflowContext
from tests.engine.support import MINUTE, SPEC, EngineStore, LostOnce, Script, echo, in_order


def everything(ctx: WorkflowContext) -> Decision:
    if not ctx.step_completed("s"):
        return ctx.schedule_step("s", "work", {"a": [1, 2]})
    if not ctx.wait_completed("w"):
        return ctx.sleep("w", MINUTE)
    if not ctx.hook_received("h"):
        return ctx.create_hook("h", "token", expires_in=MINUTE)
    return ctx.complete()


async def test_an_observer_receives_committed_events_as_they_are_stored(
    engine_store: EngineStore,
) -> None:
    seen = InMemoryFlowEventObserver()
    engine = await engine_store.engine(Script(everything, {"work": echo}), observer=seen)
    run_id = await engine.start(SPEC, {"n": 1})
    engine_store.advance(MINUTE)
    await engine.resume_due_waits()
    await engine.resume_hook(run_id, "h", "ok")
    await engine.resume_hook(run_id, "h", "ok")
    assert await engine.start_with_id(run_id, SPEC, {"n": 1}) == run_id
    history = await engine.history(run_id)
    assert seen.events == history
    assert [e.payload for e in seen.events] == [e.payload for e in history]
    assert [e.event_id for e in seen.events] == [e.event_id for e in history]
    assert seen.keys(run_id) == [event.key for event in history]


@pytest.mark.parametrize("event_type", [STEP_COMPLETED, WAIT_CREATED, WAIT_COMPLETED])
async def test_an_observer_also_hears_of_events_whose_append_lost_its_answer(
    engine_store: EngineStore, event_type: str
) -> None:
    seen = InMemoryFlowEventObserver()
    fault = LostOnce(event_type, stored=True)
    engine = await engine_store.engine(
        Script(everything, {"work": echo}), observer=seen, wrap=fault.wrap
    )
    run_id = await engine.start(SPEC)
    engine_store.advance(MINUTE)
    await engine.drive(run_id)
    assert fault.failed == 1
    assert seen.events == await engine.history(run_id)


async def test_an_observer_hears_of_a_step_only_when_its_start_is_durable(
    engine_store: EngineStore,
) -> None:
    class Checking:
        async def observe(self, envelope: FlowEventEnvelope) -> None:
            page = await client.history_page(envelope.run_id, envelope.sequence - 1, 1)
            stored.append(page == [envelope])

    stored: list[bool] = []
    client = await engine_store.engine(None)
    engine = await engine_store.engine(Script(in_order("a"), {"work": echo}), observer=Checking())
    await engine.start(SPEC)
    assert stored == [True] * 6


class Raising:
    async def observe(self, envelope: FlowEventEnvelope) -> None:
        raise RuntimeError("the mirror is broken")


class Exiting:
    async def observe(self, envelope: FlowEventEnvelope) -> None:
        raise SystemExit(3)


class Hanging:
    async def observe(self, envelope: FlowEventEnvelope) -> None:
        await asyncio.Event().wait()


class Stubborn:
    """Hangs and does not let itself be cancelled, until it is let go."""

    def __init__(self) -> None:
        self.let_go = asyncio.Event()

    async def observe(self, envelope: FlowEventEnvelope) -> None:
        while not self.let_go.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await self.let_go.wait()


@pytest.mark.parametrize("kind", [Raising, Exiting, Hanging, Stubborn])
async def test_an_observer_that_fails_or_hangs_changes_no_transition(
    engine_store: EngineStore, kind: type[Raising]
) -> None:
    observer = kind()
    engine = await engine_store.engine(
        Script(in_order("a"), {"work": echo}),
        observer=observer,
        observer_timeout=timedelta(milliseconds=10),
    )
    assert (await engine.snapshot(await engine.start(SPEC))).status is RunStatus.COMPLETED
    if isinstance(observer, Stubborn):
        observer.let_go.set()


async def test_an_observer_that_is_left_behind_is_cancelled(engine_store: EngineStore) -> None:
    cancelled = asyncio.Event()

    class Waiting:
        async def observe(self, envelope: FlowEventEnvelope) -> None:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.set()
                raise

    engine = await engine_store.engine(
        Script(lambda ctx: ctx.complete()),
        observer=Waiting(),
        observer_timeout=timedelta(milliseconds=1),
    )
    await engine.start(SPEC)
    await cancelled.wait()


async def test_a_fan_out_hands_every_event_to_every_observer(engine_store: EngineStore) -> None:
    left, right = InMemoryFlowEventObserver(), InMemoryFlowEventObserver()
    fan = FanoutFlowEventObserver().with_observer(left).with_observer(Raising())
    fan = fan.with_observer(right)
    engine = await engine_store.engine(Script(in_order("a"), {"work": echo}), observer=fan)
    run_id = await engine.start(SPEC)
    assert left.events == right.events == await engine.history(run_id)


async def test_a_fan_out_hands_over_side_by_side(engine_store: EngineStore) -> None:
    """Two observers that wait for one another: one after the other they would never end."""
    barrier = asyncio.Barrier(2)

    class Meeting:
        async def observe(self, envelope: FlowEventEnvelope) -> None:
            await barrier.wait()

    fan = FanoutFlowEventObserver([Meeting(), Meeting()])
    engine = await engine_store.engine(
        Script(in_order("a"), {"work": echo}), observer=fan, observer_timeout=timedelta(0)
    )
    assert (await engine.snapshot(await engine.start(SPEC))).status is RunStatus.COMPLETED


async def test_what_an_observer_raises_is_logged_without_the_payload(
    engine_store: EngineStore, caplog: pytest.LogCaptureFixture
) -> None:
    class Quoting:
        async def observe(self, envelope: FlowEventEnvelope) -> None:
            raise ValueError(envelope.payload)

    engine = await engine_store.engine(Script(in_order("a"), {"work": echo}), observer=Quoting())
    await engine.start(SPEC, "a secret")
    assert "Quoting failed with ValueError" in caplog.text
    assert "a secret" not in caplog.text
