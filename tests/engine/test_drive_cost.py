"""A step costs the same however long the history is: nothing is loaded or folded again."""

from collections import Counter
from typing import Any

import pytest

from flowpg.engine import drive, tip
from flowpg.model.commands import Decision
from flowpg.replay import projection
from flowpg.replay.context import WorkflowContext
from tests.engine.support import SPEC, EngineStore, Script, echo, wrapping

EVENTS_A_STEP = 3


def long_run(steps: int) -> Any:
    """A workflow that asks for one step after the other without looking at all of them."""

    def workflow(ctx: WorkflowContext) -> Decision:
        done = (len(ctx.history) - 2) // EVENTS_A_STEP
        if done < steps:
            return ctx.schedule_step(f"s{done}", "work", done)
        return ctx.complete(done)

    return workflow


async def test_folds_and_calls_a_step_are_the_same_for_a_short_and_a_long_run(
    engine_store: EngineStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: Counter[str] = Counter()

    def counting(name: str, function: Any) -> Any:
        def call(*args: Any, **named: Any) -> Any:
            counted[name] += 1
            return function(*args, **named)

        return call

    for module, name in (
        (projection, "_fold"),
        (projection, "project"),
        (projection, "restamp"),
        (drive, "settle"),
        (tip, "repair_events"),
        (tip, "due_events"),
        (tip, "due_retries"),
    ):
        monkeypatch.setattr(module, name, counting(name, getattr(module, name)))

    async def count(name: str, args: Any) -> None:
        counted[name] += 1
        if name == "append":
            counted["events"] += len(args[0].events)

    engine = await engine_store.engine(
        Script(long_run(20), {"work": echo}), wrap=wrapping(before=count)
    )
    costs = []
    for steps in (20, 60):
        engine.runtime = Script(long_run(steps), {"work": echo})
        run_id = f"r{steps}"
        await engine.start_with_id(run_id, SPEC, drive=False)
        counted.clear()
        snapshot = await engine.drive(run_id)
        assert snapshot.output == steps
        costs.append(Counter(counted))
    short, long = costs
    more = {name: long[name] - short[name] for name in long if long[name] != short[name]}
    store_folds = 1 if engine_store.name == "memory" else 0
    assert more == {
        "append": 40,
        "settle": 40,
        "events": 40 * EVENTS_A_STEP,
        "_fold": 40 * EVENTS_A_STEP * (1 + store_folds),
    }
    assert short["load_runs"] == long["load_runs"] == 1
