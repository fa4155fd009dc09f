"""Three kinds of crash: an append is refused, its answer is lost, or the process dies."""

import asyncio
from typing import Any

import pytest

from flowpg.errors import StoreUnavailable
from flowpg.model import events
from flowpg.model.commands import Decision
from flowpg.model.retry import RetryPolicy
from flowpg.model.snapshot import RetryExhaustedOutcome, RunStatus, StepStatus
from flowpg.replay.context import WorkflowContext
from flowpg.store.protocol import FlowEventStore
from tests.engine.histories import left_behind
from tests.engine.support import (
    MINUTE,
    SPEC,
    EngineStore,
    LostOnce,
    Mortal,
    ProcessDied,
    Script,
    echo,
    in_order,
    one_step,
    short,
    wrapping,
)
from tests.waiting import turns

ONCE = RetryPolicy.none().wire()


def everything(ctx: WorkflowContext) -> Decision:
    """A step, a batch, a timer, a hook and a report."""
    if not ctx.step_completed("a"):
        return ctx.schedule_step("a", "work", "a")
    if not (ctx.step_completed("b") and ctx.step_completed("c")):
        return ctx.schedule_steps([ctx.step(name, "work", name) for name in "bc"])
    if not ctx.wait_completed("w"):
        return ctx.sleep("w", MINUTE)
    if not ctx.hook_received("h"):
        return ctx.create_hook("h", "token")
    return ctx.complete(ctx.hook_payload("h"))


@pytest.mark.parametrize("stored", [False, True], ids=["refused", "answer lost"])
@pytest.mark.parametrize(
    "event_type",
    [
        events.RUN_STARTED,
        events.STEP_COMPLETED,
        events.WAIT_CREATED,
        events.WAIT_COMPLETED,
        events.HOOK_CREATED,
        events.RUN_COMPLETED,
    ],
)
async def test_a_lost_append_is_made_good_in_the_same_drive(
    engine_store: EngineStore, event_type: str, stored: bool
) -> None:
    runtime = Script(everything, {"work": echo})
    fault = LostOnce(event_type, stored=stored)
    engine = await engine_store.engine(runtime, wrap=fault.wrap)
    await engine.start_with_id("r", SPEC)
    engine_store.advance(MINUTE)
    await engine.drive("r")
    assert (await engine.resume_hook("r", "h", "ok")).output == "ok"
    assert fault.failed == 1
    assert sorted(runtime.calls) == [("a", 1), ("b", 1), ("c", 1)]
    history = short(await engine.history("r"))
    assert len(history) == len(set(history)) == 16


async def test_a_start_whose_answer_was_lost_may_be_repeated(engine_store: EngineStore) -> None:
    lost = 0

    async def lose(name: str, args: Any) -> None:
        nonlocal lost
        if name == "start" and not lost:
            lost += 1
            raise StoreUnavailable("the connection was lost")

    engine = await engine_store.engine(
        Script(one_step(), {"work": echo}), wrap=wrapping(after=lose)
    )
    with pytest.raises(StoreUnavailable):
        await engine.start_with_id("r", SPEC, {"n": 1})
    assert await engine.start_with_id("r", SPEC, {"n": 1}) == "r"
    assert short(await engine.history("r")).count("run.created") == 1


async def dies_at(
    engine_store: EngineStore, runtime: Script, event_type: str, *, stored: bool = False
) -> None:
    """A process that dies at its first append with such an event; its leases then run out."""
    mortal = Mortal(0, after=stored)

    async def arm(name: str, args: Any) -> None:
        if name == "append" and any(e.type == event_type for e in args[0].events):
            mortal.at = mortal.writes + 1

    def wrap(store: FlowEventStore) -> FlowEventStore:
        return wrapping(before=arm)(mortal.wrap(store))

    engine = await engine_store.engine(runtime, wrap=wrap)
    with pytest.raises(ProcessDied):
        await engine.start_with_id("r", SPEC)
    engine_store.leases_run_out()


async def test_a_running_step_is_delivered_again_under_its_attempt_when_its_outcome_was_lost(
    engine_store: EngineStore,
) -> None:
    runtime = Script(in_order("a"), {"work": echo})
    await dies_at(engine_store, runtime, events.STEP_COMPLETED)
    engine = await engine_store.engine(runtime)
    assert (await engine.drive("r")).output == ["a"]
    assert runtime.calls == [("a", 1), ("a", 1)]
    history = short(await engine.history("r"))
    assert history.count("step.started a") == history.count("step.completed a") == 1


async def test_worker_losses_burn_no_attempt(engine_store: EngineStore) -> None:
    """Five crashes in a step with a budget of one."""
    workflow = one_step(input=1, retry=RetryPolicy.none())
    runtime = Script(workflow, {"work": echo})
    for _ in range(5):
        await dies_at(engine_store, runtime, events.STEP_COMPLETED)
    engine = await engine_store.engine(runtime)
    assert (await engine.drive("r")).output == 1
    assert runtime.calls == [("s", 1)] * 6


async def test_a_completed_step_is_not_executed_again_when_its_process_dies_right_after(
    engine_store: EngineStore,
) -> None:
    runtime = Script(in_order("a", "b"), {"work": echo})
    await dies_at(engine_store, runtime, events.STEP_COMPLETED, stored=True)
    engine = await engine_store.engine(runtime)
    assert (await engine.drive("r")).output == ["a", "b"]
    # The commit that held a's outcome also held b's start; b itself had not begun.
    assert runtime.calls == [("a", 1), ("b", 1)]


async def test_a_run_that_was_created_and_never_started_is_taken_up_within_the_replay_limit(
    engine_store: EngineStore,
) -> None:
    runtime = Script(one_step(input=1), {"work": echo})
    await dies_at(engine_store, runtime, events.RUN_STARTED)
    engine = await engine_store.engine(runtime, max_replays=2)
    assert short(await engine.history("r")) == ["run.created"]
    assert (await engine.drive("r")).output == 1


async def test_an_exhausted_step_without_its_end_of_the_run_is_completed_before_any_replay(
    engine_store: EngineStore,
) -> None:
    await left_behind(
        await engine_store.connect(),
        "r",
        events.run_started(),
        events.step_created("s", "work", None, ONCE),
        events.step_started("s", 1),
        events.step_failed("s", 1, "ConnectionError: no"),
    )
    runtime = Script(one_step(), {"work": echo})
    engine = await engine_store.engine(runtime)
    snapshot = await engine.drive("r")
    assert snapshot.terminal_outcome == RetryExhaustedOutcome(
        step_id="s", attempt=1, error="ConnectionError: no"
    )
    assert runtime.replays == 0


@pytest.mark.parametrize("settled", [False, True])
async def test_an_interrupted_settlement_of_a_batch_is_completed(
    engine_store: EngineStore, settled: bool
) -> None:
    new = [
        events.run_started(),
        *(events.step_created(name, "work", None, ONCE) for name in "abc"),
        *(events.step_started(name, 1) for name in "abc"),
        events.step_non_retryable("a", 1, "NonRetryable: no"),
    ]
    if settled:
        new.append(events.step_cancelled("b", 1, "outcome unknown"))
    await left_behind(await engine_store.connect(), "r", *new)
    runtime = Script(one_step(), {"work": echo})
    engine = await engine_store.engine(runtime)
    snapshot = await engine.drive("r")
    assert (snapshot.status, snapshot.error) == (RunStatus.FAILED, "NonRetryable: no")
    assert {snapshot.steps[name].status for name in "bc"} == {StepStatus.CANCELLED}
    assert runtime.replays == 0
    assert short(await engine.history("r"))[-2:] == ["step.cancelled c", "run.failed"]


async def test_an_exhausted_step_wins_over_a_cancellation_that_came_between(
    engine_store: EngineStore,
) -> None:
    await left_behind(
        await engine_store.connect(),
        "r",
        events.run_started(),
        events.step_created("s", "work", None, ONCE),
        events.step_started("s", 1),
        events.step_failed("s", 1, "ConnectionError: no"),
    )
    runtime = Script(lambda ctx: ctx.cancel())
    engine = await engine_store.engine(runtime)
    await engine.request_cancellation("r", "meanwhile", drive=False)
    snapshot = await engine.drive("r")
    assert snapshot.status is RunStatus.FAILED
    assert isinstance(snapshot.terminal_outcome, RetryExhaustedOutcome)
    assert runtime.replays == 0


async def test_a_pending_step_whose_start_was_lost_is_started(engine_store: EngineStore) -> None:
    retry = RetryPolicy().wire()
    await left_behind(
        await engine_store.connect(),
        "r",
        events.run_started(),
        events.step_created("s", "work", None, retry),
    )
    runtime = Script(one_step(), {"work": lambda step: "ran"})
    engine = await engine_store.engine(runtime)
    assert (await engine.drive("r")).output == "ran"
    assert runtime.calls == [("s", 1)]


async def test_a_drive_that_is_cancelled_gives_the_run_back_at_once_and_burns_no_attempt(
    engine_store: EngineStore,
) -> None:
    entered = asyncio.Event()
    cleaned = asyncio.Event()

    async def forever(step: Any) -> None:
        entered.set()
        try:
            await asyncio.Event().wait()
        finally:
            await turns(20)  # a cleanup of several awaits, all of which the drive waits for
            cleaned.set()

    first = await engine_store.engine(Script(one_step(input=1), {"work": forever}))
    driving = asyncio.ensure_future(first.start_with_id("r", SPEC))
    await entered.wait()
    driving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await driving
    assert cleaned.is_set()
    # No lease has to run out.
    runtime = Script(one_step(input=1), {"work": echo})
    second = await engine_store.engine(runtime)
    assert (await second.drive("r")).output == 1
    assert runtime.calls == [("s", 1)]
    assert short(await second.history("r")).count("step.started s") == 1


async def test_a_drive_gives_up_when_the_database_stays_away_for_longer_than_its_lease(
    engine_store: EngineStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    passed = iter(range(0, 1000, 20))
    monkeypatch.setattr("flowpg.engine.commit.monotonic", lambda: float(next(passed)))
    monkeypatch.setattr("flowpg.engine.commit._FIRST_PAUSE", 0.0)

    async def away(name: str, args: Any) -> None:
        if name == "append":
            raise StoreUnavailable("the connection was lost")

    runtime = Script(one_step(input=1), {"work": echo})
    engine = await engine_store.engine(runtime, wrap=wrapping(before=away))
    with pytest.raises(StoreUnavailable):
        await engine.start_with_id("r", SPEC)
    assert runtime.calls == []
    other = await engine_store.engine(runtime)
    assert (await other.run_info("r")).blocked_reason is None
    assert (await other.drive("r")).output == 1
