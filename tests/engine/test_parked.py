"""Runs that wait in memory: a shorter way to the same state, and never another state."""

from datetime import timedelta
from typing import Any

import pytest

from flowpg.engine.flow_engine import FlowEngine
from flowpg.engine.parked import ParkedRuns
from flowpg.engine.tip import RunTip
from flowpg.fleet.worker import FlowWorker
from flowpg.model.commands import Decision
from flowpg.model.retry import RetryPolicy
from flowpg.model.snapshot import RunStatus
from flowpg.postgres import claim_verbs
from flowpg.replay.context import WorkflowContext
from flowpg.replay.runtime import StepInvocation
from tests.engine.support import MINUTE, SPEC, EngineStore, Script, echo, wrapping


def rounds(ctx: WorkflowContext) -> Decision:
    """Three rounds of a step, a timer and a hook, and a step that has to be tried twice."""
    for number in range(3):
        if not ctx.step_completed(f"s{number}"):
            retry = RetryPolicy.fixed(2, MINUTE) if number == 1 else None
            return ctx.schedule_step(f"s{number}", "work", number, retry=retry)
        if not ctx.wait_completed(f"w{number}"):
            return ctx.sleep(f"w{number}", MINUTE)
        if not ctx.hook_received(f"h{number}"):
            return ctx.create_hook(f"h{number}", f"{ctx.run_id} {number}")
    return ctx.complete([ctx.hook_payload(f"h{number}") for number in range(3)])


def work(step: StepInvocation) -> Any:
    """Fails the first time in the second round."""
    if step.input == 1 and step.attempt == 1:
        raise ConnectionError
    return step.input


class Counting:
    """Counts the events that are read."""

    def __init__(self) -> None:
        self.loads: list[tuple[list[str], list[int] | None]] = []

    async def __call__(self, name: str, args: Any) -> None:
        if name == "load_runs":
            self.loads.append((list(args[0]), list(args[1]) if len(args) > 1 else None))


async def engine_with(store: EngineStore, places: int, counting: Counting) -> FlowEngine:
    """An engine with so many places for parked runs."""
    wrapped = wrapping(before=counting)(await store.connect())
    builder = FlowEngine.builder(Script(rounds, {"work": work})).with_store(wrapped)
    engine = builder.with_parked_runs(places).build()
    store.engines.append(engine)
    return engine


@pytest.mark.parametrize("places", [0, 1, 1000])
@pytest.mark.parametrize("short", [0, 3, 1000])
async def test_how_many_runs_are_kept_changes_nothing_but_what_is_read(
    engine_store: EngineStore, places: int, short: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claim_verbs, "SHORT_HISTORY", short)
    if engine_store.name == "memory":
        short = 0  # that store reads nothing with a claim
    counting = Counting()
    engine = await engine_with(engine_store, places, counting)
    worker = FlowWorker(engine, concurrency=50)
    runs = [await engine.start(SPEC, drive=False) for _ in range(20)]
    for number in range(3):
        await worker.run_until_idle()
        for _ in range(2 if number == 1 else 1):
            engine_store.advance(MINUTE)
            await worker.run_until_idle()
        for run_id in runs:
            await engine.store.resume_hook(run_id, f"h{number}", [run_id, number])
    await worker.run_until_idle()
    for run_id in runs:
        snapshot = await engine.snapshot(run_id)
        assert snapshot.status is RunStatus.COMPLETED
        assert snapshot.output == [[run_id, number] for number in range(3)]
    known = [after for _, afters in counting.loads for after in afters or ()]
    assert any(known) is (places > 0 and short < 1000)
    if places == 1000:
        # Each run was read from its beginning once, by the claim if that reads short histories, and
        # after that only from where it stood.
        assert sum(after == 0 for after in known) == (0 if short else len(runs))


async def test_what_is_kept_is_what_the_history_says(engine_store: EngineStore) -> None:
    engine = await engine_with(engine_store, 1000, Counting())
    worker = FlowWorker(engine)
    run_id = await engine.start(SPEC, drive=False)
    for number in range(3):
        for _ in range(4):
            await worker.run_until_idle()
            tip = engine._parked.take(run_id)
            assert tip is not None
            assert tip.snapshot == await engine.snapshot(run_id)
            history = await engine.history(run_id)
            assert [(e.sequence, e.type, e.recorded_at, e.data) for e in tip.history] == [
                (e.sequence, e.type, e.recorded_at, e.data) for e in history
            ]
            engine._parked.park(tip)
            engine_store.advance(MINUTE)
        await engine.store.resume_hook(run_id, f"h{number}", number)
    await worker.run_until_idle()
    assert (await engine.snapshot(run_id)).output == [0, 1, 2]
    assert len(engine._parked) == 0


async def test_a_run_that_another_worker_drove_meanwhile_goes_on_from_where_it_is(
    engine_store: EngineStore,
) -> None:
    engines = [await engine_with(engine_store, 1000, Counting()) for _ in range(2)]
    run_id = await engines[0].start(SPEC, drive=False)
    turn = 0
    for number in range(3):
        for _ in range(3):
            await FlowWorker(engines[turn % 2]).run_until_idle()
            engine_store.advance(MINUTE)
            turn += 1
        await FlowWorker(engines[turn % 2]).run_until_idle()
        await engines[0].store.resume_hook(run_id, f"h{number}", number)
    await FlowWorker(engines[0]).run_until_idle()
    assert (await engines[1].snapshot(run_id)).output == [0, 1, 2]


async def test_a_history_that_a_failover_took_back_is_read_again(
    engine_store: EngineStore,
) -> None:
    engine = await engine_with(engine_store, 1000, Counting())
    run_id = await engine.start(SPEC, drive=False)
    await FlowWorker(engine).run_until_idle()
    tip = engine._parked.take(run_id)
    assert tip is not None
    # As if the last event that this process remembers had not survived, and another stood there.
    tip.history[-1].recorded_at -= timedelta(seconds=1)
    engine._parked.park(tip)
    engine_store.advance(MINUTE)
    await FlowWorker(engine).run_until_idle()
    again = engine._parked.take(run_id)
    assert again is not None
    assert again is not tip
    assert again.snapshot == await engine.snapshot(run_id)


async def test_runs_are_let_go_by_number_and_by_length(engine_store: EngineStore) -> None:
    engine = await engine_store.engine(Script(rounds, {"work": echo}))
    runs = [await engine.start(SPEC, drive=False) for _ in range(3)]
    loaded = await engine.store.load_runs(runs)
    parked = ParkedRuns(2)
    for run_id in runs:
        parked.park(RunTip(loaded[run_id]))
    assert len(parked) == 2
    assert parked.take(runs[0]) is None
    long = RunTip(loaded[runs[1]])
    long.history.take_in(list(long.history) * 1000)
    parked.park(long)
    assert parked.take(runs[1]) is None
    assert parked.take(runs[2]) is not None
    none = ParkedRuns(0)
    none.park(RunTip(loaded[runs[0]]))
    assert len(none) == 0
