"""Replaying a recorded history over the code at hand."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from flowpg import FlowApp
from flowpg.errors import InvalidArgument, NonDeterministic
from flowpg.model.commands import Decision, OnConflict
from flowpg.model.jsonl import dump_history
from flowpg.model.spec import WorkflowSpec
from flowpg.replay.runtime import StepInvocation, WorkflowInvocation
from flowpg.testing import WorkflowEnvironment, replay
from tests.testing import shop
from tests.testing.shop import Receipt, charge, impatient


@pytest.fixture
async def exported(tmp_path: Path) -> Path:
    """The history of a run that went well, as `flowpg history --jsonl` prints it."""
    async with WorkflowEnvironment(shop.app) as env:
        env.mock(charge, returns=Receipt("R-1", 1))
        run = await env.start(impatient, "order-1")
        await run.result()
        path = tmp_path / "run.jsonl"
        path.write_text(dump_history(await run.history()))
    return path


def changed(result: str, arguments: tuple[Any, ...]) -> FlowApp:
    """The shop with another body of ``impatient``."""
    app = FlowApp("shop")
    step = app.step(name="charge")(charge.function)

    @app.workflow(name="impatient")
    async def other(order: str) -> str:
        await step(*arguments)
        return result

    return app


async def test_unchanged_code_repeats_a_run_that_was_exported(exported: Path) -> None:
    assert (await replay(shop.app, exported)).verdict == "fits"
    assert (
        await replay(shop.app, await asyncio.to_thread(exported.read_text))
    ).workflow == "impatient"


async def test_another_call_is_shown_with_its_place(exported: Path) -> None:
    with pytest.raises(NonDeterministic, match=r"test_replaying\.py:\d+"):
        await replay(changed("R-1", ("order-1", 2)), exported)


async def test_another_end_is_found_too(exported: Path) -> None:
    app = FlowApp("shop")

    @app.workflow(name="impatient")
    async def other(order: str) -> str:
        return "at once"

    with pytest.raises(NonDeterministic):
        await replay(app, exported)


async def test_a_breakpoint_may_be_stood_at_as_long_as_one_likes() -> None:
    app = shop.app.for_debugging()
    assert app._rules.longest is None
    assert app.workflows is shop.app.workflows


async def test_what_is_no_history_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="no event"):
        await replay(shop.app, [])


class ByHand:
    """Two steps in order, of these names."""

    def __init__(self, *names: str) -> None:
        self._names = names

    def run_workflow(self, invocation: WorkflowInvocation) -> Decision:
        ctx = invocation.context()
        for number, name in enumerate(self._names):
            if not ctx.step_completed(str(number)):
                return ctx.schedule_step(str(number), name, number)
        return ctx.complete(len(self._names))

    def run_step(self, step: StepInvocation) -> Any:
        return None


async def test_a_hand_written_runtime_must_repeat_every_decision() -> None:
    async with WorkflowEnvironment(ByHand("a", "b")) as env:
        run = await env.start_spec(WorkflowSpec.python("two"))
        assert await run.result() == 2
        history = await run.history()
    await replay(ByHand("a", "b"), history)
    with pytest.raises(NonDeterministic, match=r"event 3 \(step_created\).*another definition"):
        await replay(ByHand("c", "b"), history)
    with pytest.raises(NonDeterministic, match=r"event 6 \(step_created\)"):
        await replay(ByHand("a"), history)
    with pytest.raises(NonDeterministic, match="expected the end of the run"):
        await replay(ByHand("a", "b", "c"), history)


class Claiming(ByHand):
    """Claims a token under a hook of this name, and ends when it is taken."""

    def __init__(self, hook: str, on_conflict: OnConflict) -> None:
        self._hook = hook
        self._on_conflict = on_conflict

    def run_workflow(self, invocation: WorkflowInvocation) -> Decision:
        ctx = invocation.context()
        if any(ctx.hook_conflict(hook) for hook in ("lock", "bolt")):
            return ctx.complete("lost")
        return ctx.create_hook(self._hook, "token", on_conflict=self._on_conflict)


async def test_a_hand_written_runtime_must_give_way_to_the_same_hook_again() -> None:
    async with WorkflowEnvironment(Claiming("lock", "raise")) as env:
        await env.start_spec(WorkflowSpec.python("claim"))
        loser = await env.start_spec(WorkflowSpec.python("claim"))
        assert await loser.result() == "lost"
        history = await loser.history()
    await replay(Claiming("lock", "raise"), history)
    for other in (Claiming("lock", "wait"), Claiming("bolt", "raise")):
        with pytest.raises(NonDeterministic, match=r"event 3 \(hook_conflicted\)"):
            await replay(other, history)
