"""Exhaustively: a process that dies before or after any of its writes, and another that goes on."""

from typing import Any

import pytest

from flowpg.model.commands import Decision
from flowpg.model.retry import RetryPolicy
from flowpg.model.snapshot import StepStatus, WorkflowRunSnapshot
from flowpg.replay.context import WorkflowContext
from flowpg.replay.runtime import StepInvocation
from tests.engine.support import (
    MINUTE,
    SECOND,
    SPEC,
    EngineStore,
    Mortal,
    ProcessDied,
    Script,
    short,
)


def reference(ctx: WorkflowContext) -> Decision:
    """Two steps in order, a batch, a step that is retried with a pause, a timer, a hook, a step."""
    for name in ("one", "two"):
        if not ctx.step_completed(name):
            return ctx.schedule_step(name, "work", name)
    batch = ("left", "right")
    if not all(map(ctx.step_completed, batch)):
        return ctx.schedule_steps([ctx.step(name, "work", name) for name in batch])
    if not ctx.step_completed("flaky"):
        retry = RetryPolicy.fixed(3, SECOND)
        return ctx.schedule_step("flaky", "flaky", "flaky", retry)
    if not ctx.wait_completed("timer"):
        return ctx.sleep("timer", MINUTE)
    if not ctx.hook_received("hook"):
        return ctx.create_hook("hook", f"token of {ctx.run_id}")
    if not ctx.step_completed("last"):
        return ctx.schedule_step("last", "work", ctx.hook_payload("hook"))
    names = ("one", "two", *batch, "flaky", "last")
    return ctx.complete({name: ctx.step_output(name) for name in names})


OUTPUT = {
    "one": "one",
    "two": "two",
    "left": "left",
    "right": "right",
    "flaky": "flaky",
    "last": {"approved": True},
}


class Process:
    """One process: an engine, and the ledger of the steps it executed."""

    def __init__(self) -> None:
        self.runtime = Script(reference, {"work": self._work, "flaky": self._flaky})
        self.executed: list[tuple[str, int]] = self.runtime.calls

    def _work(self, step: StepInvocation) -> Any:
        return step.input

    def _flaky(self, step: StepInvocation) -> Any:
        if step.attempt == 1:
            raise ConnectionError("once")
        return step.input

    async def carry(
        self, engine_store: EngineStore, run_id: str, mortal: Mortal | None = None
    ) -> WorkflowRunSnapshot:
        """From wherever the run stands to its end."""
        engine = await engine_store.engine(self.runtime, wrap=mortal.wrap if mortal else None)
        try:
            await engine.start_with_id(run_id, SPEC)
            while True:
                snapshot = await engine.drive(run_id)
                if snapshot.terminal:
                    return snapshot
                if snapshot.open.hooks:
                    await engine.resume_hook(run_id, "hook", {"approved": True})
                else:
                    engine_store.advance(MINUTE)
        finally:
            engine_store.engines.remove(engine)
            await engine.close()


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
async def test_a_process_may_die_at_any_write_and_another_ends_the_run_with_the_same_result(
    engine_store: EngineStore, after: bool
) -> None:
    undisturbed = await Process().carry(engine_store, "undisturbed")
    assert undisturbed.output == OUTPUT
    store = await engine_store.connect()
    expected = sorted(short(await store.history_page("undisturbed")))

    deaths = 0
    while True:
        run_id = f"dies-{deaths + 1}"
        mortal = Mortal(deaths + 1, after=after)
        first, second = Process(), Process()
        try:
            await first.carry(engine_store, run_id, mortal)
        except ProcessDied:
            deaths += 1
        else:
            break
        done: set[str] = set()
        if found := await store.load_runs([run_id]):
            events = found[run_id].history
            done = {e.data["step_id"] for e in events if e.type == "step_completed"}
        engine_store.leases_run_out()
        snapshot = await second.carry(engine_store, run_id)

        assert snapshot.output == OUTPUT, f"after death at write {mortal.at}"
        assert sorted(short(await store.history_page(run_id))) == expected
        assert all(step.status is StepStatus.COMPLETED for step in snapshot.steps.values())
        # What was recorded as done is not done again; the rest is, under the attempt it had.
        assert done.isdisjoint(step_id for step_id, _ in second.executed)
        assert {attempt for step, attempt in first.executed + second.executed} <= {1, 2}
    # start, a lease for each drive, an append for each turn, the answer: none was left out.
    assert deaths >= 12
    await store.close()
