"""Replaying recorded histories over other code: what it would do to each run, without doing it."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from flowpg.authoring.app import FlowApp
from flowpg.authoring.context import hook
from flowpg.engine.flow_engine import FlowEngine
from flowpg.engine.rehearsal import Rehearsal, Verdict, rehearse
from flowpg.model.commands import Decision
from flowpg.model.records import LoadedRun
from flowpg.model.spec import WorkflowSpec
from flowpg.replay.runtime import StepInvocation, WorkflowInvocation
from flowpg.store.memory import InMemoryEventStore

Body = Callable[[Any], Any]


def app_of(body: Body, name: str = "order") -> FlowApp:
    """An app with a step and one workflow of the given body."""
    app = FlowApp("shop")

    @app.step
    async def work(x: int) -> int:
        return x

    @app.workflow(name=name)
    async def order() -> Any:
        return await body(work)

    return app


async def waits(work: Any) -> str:
    await work(1)
    await hook("approval", token="secret-token")
    return "done"


async def ends(work: Any) -> str:
    await work(1)
    return "done"


async def recorded(body: Body) -> LoadedRun:
    """The history of a run driven with ``body`` as far as it goes."""
    app = app_of(body)
    store = InMemoryEventStore()
    async with FlowEngine(store, app) as engine:
        spec = app.workflows["order"].spec
        await engine.start_with_id("run-1", spec, {})
        before = await engine.history("run-1")
        loaded = (await store.load_runs(["run-1"]))["run-1"]
        assert [event.type for event in loaded.history] == [event.type for event in before]
        return loaded


async def verdict(made_by: Body, read_by: Body, name: str = "order") -> Rehearsal:
    return await rehearse(app_of(read_by, name), await recorded(made_by))


async def other_input(work: Any) -> str:
    await work(2)
    return "done"


async def raises(work: Any) -> str:
    await work(1)
    raise ValueError("the secret of the user")


async def stuck(work: Any) -> str:
    await work(1)
    await asyncio.Event().wait()
    return "done"


async def other_result(work: Any) -> str:
    await work(1)
    return "else"


@pytest.mark.parametrize("body", [waits, ends, raises])
async def test_code_that_did_not_change_fits_what_it_recorded(body: Body) -> None:
    assert await verdict(body, body) == Rehearsal("run-1", "order", Verdict.FITS)


async def test_a_changed_call_diverges_and_says_where() -> None:
    found = await verdict(waits, other_input)
    assert found.verdict is Verdict.DIVERGES
    assert "(step_created)" in found.reason
    assert "expected" in found.reason
    assert "test_rehearsal.py:" in found.reason


async def test_code_that_raises_before_a_recorded_call_diverges_and_its_message_is_not_shown() -> (
    None
):
    found = await verdict(waits, raises)
    assert found.verdict is Verdict.DIVERGES
    assert "secret" not in found.reason


async def test_code_that_waits_for_nothing_would_block_the_run() -> None:
    assert (await verdict(ends, stuck)).verdict is Verdict.BLOCKED


async def test_a_run_that_has_ended_must_come_to_the_same_end() -> None:
    found = await verdict(ends, other_result)
    assert found.verdict is Verdict.DIVERGES
    assert "another result" in found.reason
    assert "done" not in found.reason
    found = await verdict(ends, waits)
    assert found.verdict is Verdict.DIVERGES
    assert "found hook_created approval" in found.reason


async def test_a_workflow_that_the_code_does_not_have_is_named() -> None:
    found = await verdict(waits, waits, name="parcel")
    assert found == Rehearsal(
        "run-1", "order", Verdict.UNSERVED, "no workflow named 'order' is registered here"
    )


async def test_a_run_that_nobody_has_begun_is_begun_in_the_rehearsal_only() -> None:
    app = app_of(waits)
    store = InMemoryEventStore()
    async with FlowEngine(store, None) as engine:
        await engine.start_with_id("run-1", app.workflows["order"].spec, {})
        loaded = (await store.load_runs(["run-1"]))["run-1"]
        assert (await rehearse(app, loaded)).verdict is Verdict.FITS
        assert len(await engine.history("run-1")) == 1


async def test_a_history_that_is_broken_is_reported_as_what_blocks_the_run() -> None:
    loaded = await recorded(waits)
    broken = replace(loaded, history=[loaded.history[0], *loaded.history[2:]])
    assert (await rehearse(app_of(waits), broken)).verdict is Verdict.BLOCKED


class ByHand:
    """A hand-written runtime that waits after a step."""

    workflows = ("order",)

    def __init__(self, step: str, *, breaks: bool = False) -> None:
        self._step, self._breaks = step, breaks

    def run_workflow(self, invocation: WorkflowInvocation) -> Decision:
        ctx = invocation.context()
        if not ctx.step_completed("first"):
            return ctx.schedule_step("first", self._step, None)
        if self._breaks:
            raise KeyError("the secret of the user")
        return ctx.wait_until("pause", datetime(2100, 1, 1, tzinfo=UTC))

    async def run_step(self, step: StepInvocation) -> None:
        return None


async def test_a_hand_written_runtime_is_asked_for_its_next_decision() -> None:
    store = InMemoryEventStore()
    async with FlowEngine(store, ByHand("work")) as engine:
        await engine.start_with_id("run-1", WorkflowSpec.python("order"), None)
        loaded = (await store.load_runs(["run-1"]))["run-1"]
    assert (await rehearse(ByHand("work"), loaded)).verdict is Verdict.FITS
    found = await rehearse(ByHand("work", breaks=True), loaded)
    assert found.verdict is Verdict.FAILS
    assert found.reason.startswith("KeyError at ")
    assert "secret" not in found.reason
