"""Workflows under a clock that jumps, with steps that something stands in for."""

import asyncio
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from flowpg.authoring.app import FlowApp
from flowpg.authoring.errors import WorkflowFailed
from flowpg.errors import InvalidArgument
from flowpg.model.commands import Decision
from flowpg.model.spec import WorkflowSpec
from flowpg.replay.runtime import StepInvocation, WorkflowInvocation
from flowpg.testing import Faults, RunWaits, WorkflowEnvironment, every_fault
from tests.testing import shop
from tests.testing.shop import Declined, Receipt, charge, checkout, impatient, print_label
from tests.waiting import turns

DAY = timedelta(days=1)
PAID = Receipt("R-1", 900)


@pytest.mark.parametrize("always_replay", [False, True])
async def test_a_workflow_of_thirty_days_needs_no_time(always_replay: bool) -> None:
    began = time.monotonic()
    async with WorkflowEnvironment(shop.app, always_replay=always_replay) as env:
        env.mock(charge, returns=PAID)
        run = await env.start(checkout, "order-1", 900)
        start = env.now
        env.after(31 * DAY, lambda: run.answer("approval", True))
        assert await run.result() == "R-1: label of order-1, approved"
        assert env.now - start == 31 * DAY
    assert time.monotonic() - began < 60, "it waited for real"


async def test_an_answer_that_never_comes_times_out_at_its_time() -> None:
    async with WorkflowEnvironment(shop.app) as env:
        env.mock(charge, returns=PAID)
        run = await env.start(checkout, "order-1", 900)
        start = env.now
        assert await run.result() == "R-1: nobody answered"
        assert env.now - start == 37 * DAY


async def test_time_can_be_let_pass_by_hand() -> None:
    async with WorkflowEnvironment(shop.app, start_time=datetime(2030, 1, 1, tzinfo=UTC)) as env:
        env.mock(charge, returns=PAID)
        run = await env.start(checkout, "order-1", 900)
        await env.advance(29 * DAY)
        assert await run.hooks() == []
        await env.advance(DAY)
        assert await run.hooks() == ["approval"]
        assert env.now == datetime(2030, 1, 31, tzinfo=UTC)
        await run.answer("approval", False)
        assert (await run.snapshot()).terminal
        assert await run.result() == "R-1: label of order-1, refused"
        with pytest.raises(InvalidArgument, match="forward"):
            await env.advance(-DAY)


async def test_calls_are_kept_with_their_arguments_attempts_and_results() -> None:
    async with WorkflowEnvironment(shop.app) as env:
        env.mock(charge, returns=PAID, raises=ConnectionError("bank"), failures=2)
        run = await env.start(checkout, order="order-1", cents=900)
        start = env.now
        await env.advance(timedelta(minutes=20))
        calls = env.calls(charge)
        assert [call.attempt for call in calls] == [1, 2, 3]
        assert {call.run_id for call in calls} == {run.id}
        assert all({*call.arguments, *call.options.values()} == {"order-1", 900} for call in calls)
        assert [call.error is None for call in calls] == [False, False, True]
        assert calls[-1].result == PAID
        assert env.now - start == timedelta(minutes=20)
        [label] = env.calls("print_label")
        assert label.result == "label of order-1"


async def test_an_error_of_a_mock_is_treated_as_the_steps_own() -> None:
    async with WorkflowEnvironment(shop.app) as env:
        env.mock(charge, raises=Declined("no money"))
        run = await env.start(checkout, "order-1", 900)
        with pytest.raises(WorkflowFailed) as caught:
            await run.result()
        assert isinstance(caught.value.__cause__, Declined)
        assert len(env.calls(charge)) == 1


async def test_a_side_effect_sees_the_arguments_and_may_be_asynchronous() -> None:
    async def bank(order: str, cents: int) -> Receipt:
        return Receipt(f"{order}/{cents}", cents)

    async with WorkflowEnvironment(shop.app) as env:
        env.mock("charge", side_effect=bank)
        env.mock(print_label, side_effect=str.upper)
        run = await env.start(checkout, "order-1", 900)
        env.after(31 * DAY, lambda: run.answer("approval", True))
        assert await run.result() == "order-1/900: ORDER-1, approved"
        env.unmock(print_label)
        again = await env.start(checkout, "order-2", 1)
        env.after(31 * DAY, lambda: again.answer("approval", True))
        assert await again.result() == "order-2/1: label of order-2, approved"


async def test_a_result_that_does_not_fit_the_annotation_fails_as_in_production() -> None:
    async with WorkflowEnvironment(shop.app) as env:
        env.mock(charge, returns=object())
        with pytest.raises(WorkflowFailed, match="charge"):
            await (await env.start(checkout, "order-1", 900)).result()


@pytest.mark.parametrize(("minutes", "result"), [(59, "R-1"), (61, "too slow")])
async def test_a_step_that_takes_virtual_time_races_a_durable_timeout(
    minutes: int, result: str
) -> None:
    async with WorkflowEnvironment(shop.app) as env:
        env.mock(charge, returns=PAID, takes=timedelta(minutes=minutes))
        run = await env.start(impatient, "order-1")
        start = env.now
        assert await run.result() == result
        assert env.now - start == timedelta(minutes=min(minutes, 60))


async def test_a_run_that_waits_for_an_answer_says_for_which() -> None:
    async with WorkflowEnvironment(Approval()) as env:
        run = await env.start_spec(WorkflowSpec.python("approve"), {"id": 7})
        with pytest.raises(RunWaits, match="'answer'") as caught:
            await run.result()
        assert "secret" not in str(caught.value)
        with pytest.raises(InvalidArgument, match="no hook 'other'"):
            await run.answer("other", 1)
        await run.answer("answer", {"ok": True})
        assert await run.result() == {"done": 7}


class Approval:
    """A hand-written runtime."""

    def run_workflow(self, invocation: WorkflowInvocation) -> Decision:
        ctx = invocation.context()
        if not ctx.hook_received("answer"):
            return ctx.create_hook("answer", "the secret token")
        if not ctx.step_completed("s"):
            return ctx.schedule_step("s", "work", {"id": ctx.input["id"]})
        return ctx.complete({"done": ctx.step_output("s")})

    def run_step(self, step: StepInvocation) -> Any:
        return step.input["id"]


async def test_steps_of_a_hand_written_runtime_can_be_mocked_by_name() -> None:
    async with WorkflowEnvironment(Approval()) as env:
        env.mock("work", side_effect=lambda step: step.input["id"] * 2)
        run = await env.start_spec(WorkflowSpec.python("approve"), {"id": 7}, "mine")
        await run.answer("answer", None)
        assert await run.result() == {"done": 14}
        assert [call.arguments for call in env.calls("work")] == [({"id": 7},)]


async def test_a_cancelled_run_cleans_up() -> None:
    async with WorkflowEnvironment(shop.app) as env:
        env.mock(charge, returns=PAID)
        run = await env.start(checkout, "order-1", 900)
        await run.cancel("no longer wanted")
        with pytest.raises(WorkflowFailed, match="cancelled"):
            await run.result()


async def test_whatever_befalls_its_process_the_run_ends_the_same() -> None:
    happened = 0
    async for faults in every_fault():
        async with WorkflowEnvironment(shop.app, faults=faults) as env:
            env.mock(charge, returns=PAID)
            run = await env.start(checkout, "order-1", 900)
            env.after(32 * DAY, lambda run=run: run.answer("approval", True))  # type: ignore[misc]
            assert await run.result() == "R-1: label of order-1, approved", faults
            types = [event.type for event in await run.history()]
            assert types.count("step_completed") == 2
            happened += faults.happened
    assert happened >= 4 * 5


async def test_a_fault_can_be_placed_at_one_commit() -> None:
    faults = Faults(2)
    async with WorkflowEnvironment(shop.app, faults=faults) as env:
        env.mock(charge, returns=PAID)
        run = await env.start(checkout, "order-1", 900)
        await env.advance(DAY)
        assert faults.happened
        assert (await run.snapshot()).open.waits


async def test_a_process_that_stands_still_at_a_step_changes_no_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    app = FlowApp("stalls")
    stalled: list[float] = []
    times: list[list[datetime]] = []

    @app.step
    async def work() -> None:
        loop = asyncio.get_running_loop()
        if times:
            stalled.append(loop.time() + 10)
            monkeypatch.setattr(loop, "time", lambda: stalled[0])
        await turns(10)

    @app.workflow
    async def main() -> None:
        await work()

    for _ in range(2):
        async with WorkflowEnvironment(app, ticking=True) as env:
            run = await env.start(main)
            await run.result()
            times.append([event.recorded_at for event in await run.history()])
    assert stalled
    assert times[0] == times[1]


async def test_what_is_no_workflow_is_refused_by_what_it_is() -> None:
    async with WorkflowEnvironment(shop.app) as env:
        wrong: list[tuple[Any, str]] = [
            (Receipt, r"Receipt is a class; its workflow is app.of\(Receipt\)"),
            (charge, "declare it with @app.workflow"),
        ]
        for started, words in wrong:
            with pytest.raises(InvalidArgument, match=words):
                await env.start(started)
            with pytest.raises(InvalidArgument, match=words):
                await env.start_with_id("x", started)
