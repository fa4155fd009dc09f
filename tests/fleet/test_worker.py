"""A worker: claims what has work, drives it, waits sparingly, and leaves nothing behind."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from flowpg.errors import (
    InvalidArgument,
    PermissionDenied,
    RunNotFound,
    StoreUnavailable,
    UnknownWorkflow,
)
from flowpg.fleet.worker import FlowWorker
from flowpg.model.commands import Decision
from flowpg.model.retry import RetryPolicy
from flowpg.model.snapshot import RunStatus
from flowpg.postgres import claim_verbs
from flowpg.replay.context import WorkflowContext
from flowpg.replay.runtime import StepInvocation
from tests.engine.support import (
    MINUTE,
    SECOND,
    SPEC,
    EngineStore,
    Script,
    echo,
    in_order,
    one_step,
    short,
    wrapping,
)
from tests.waiting import until_async


class Gate:
    """A step that counts who is in it, and lets them go on when told."""

    def __init__(self) -> None:
        self.inside = 0
        self.most = 0
        self.entered = asyncio.Event()
        self.go = asyncio.Event()

    async def __call__(self, step: StepInvocation) -> Any:
        self.inside += 1
        self.most = max(self.most, self.inside)
        self.entered.set()
        try:
            await self.go.wait()
        finally:
            self.inside -= 1
        return step.input


async def test_a_worker_drives_what_was_started_before_it_existed(
    engine_store: EngineStore,
) -> None:
    client = await engine_store.engine(None)
    runs = [await client.start(SPEC, number) for number in range(5)]
    engine = await engine_store.engine(Script(in_order("a", "b"), {"work": echo}))
    assert await FlowWorker(engine).run_until_idle() == 5
    assert {(await client.snapshot(run_id)).status for run_id in runs} == {RunStatus.COMPLETED}
    assert await FlowWorker(engine).run_once() == 0


async def test_a_worker_serves_its_own_queue_only(engine_store: EngineStore) -> None:
    engine = await engine_store.engine(Script(in_order("a"), {"work": echo}))
    usual = await engine.start(SPEC, drive=False)
    special = await engine.start(SPEC, queue="special", drive=False)
    assert await FlowWorker(engine, "special").run_until_idle() == 1
    assert (await engine.snapshot(special)).terminal
    assert (await engine.snapshot(usual)).status is RunStatus.PENDING


async def test_a_worker_resumes_timers_and_retries_when_they_are_due(
    engine_store: EngineStore,
) -> None:
    def workflow(ctx: WorkflowContext) -> Decision:
        if not ctx.wait_completed("w"):
            return ctx.sleep("w", MINUTE)
        if not ctx.step_completed("s"):
            return ctx.schedule_step("s", "work", retry=RetryPolicy.fixed(2, MINUTE))
        return ctx.complete(ctx.step_output("s"))

    def work(step: StepInvocation) -> Any:
        if step.attempt == 1:
            raise ConnectionError
        return step.attempt

    engine = await engine_store.engine(Script(workflow, {"work": work}))
    worker = FlowWorker(engine)
    run_id = await engine.start(SPEC)
    assert await worker.run_once() == 0
    for _ in range(2):
        engine_store.advance(MINUTE)
        assert await worker.run_once() == 1
        assert await worker.run_once() == 0
    assert (await engine.snapshot(run_id)).output == 2


async def test_a_worker_sees_answers_given_elsewhere(engine_store: EngineStore) -> None:
    def workflow(ctx: WorkflowContext) -> Decision:
        if ctx.hook_received("h"):
            return ctx.complete(ctx.hook_payload("h"))
        return ctx.create_hook("h", "token")

    client = await engine_store.engine(None)
    engine = await engine_store.engine(Script(workflow))
    run_id = await client.start(SPEC)
    worker = FlowWorker(engine)
    assert await worker.run_until_idle() == 1
    await client.resume_hook_by_token("token", "yes")
    assert await worker.run_until_idle() == 1
    assert (await client.snapshot(run_id)).output == "yes"


async def test_a_worker_drives_no_more_runs_at_once_than_it_may(engine_store: EngineStore) -> None:
    gate = Gate()
    engine = await engine_store.engine(Script(one_step(input=1), {"work": gate}))
    runs = [await engine.start(SPEC, drive=False) for _ in range(5)]
    worker = FlowWorker(engine, concurrency=2)
    working = asyncio.ensure_future(worker.run())
    await gate.entered.wait()
    gate.go.set()
    for run_id in runs:

        async def ended(run_id: str = run_id) -> bool:
            return (await engine.run_info(run_id)).status.terminal

        await until_async(ended, "the run ends")
    worker.stop()
    await working
    assert gate.most <= 2


async def test_a_run_that_cannot_be_driven_harms_no_other(engine_store: EngineStore) -> None:
    def workflow(ctx: WorkflowContext) -> Decision:
        if ctx.input == "unknown":
            raise UnknownWorkflow("unknown")
        return ctx.complete("fine")

    engine = await engine_store.engine(Script(workflow))
    bad = await engine.start(SPEC, "unknown", drive=False)
    good = [await engine.start(SPEC, number, drive=False) for number in range(3)]
    assert await FlowWorker(engine).run_until_idle() == 4
    assert "unknown" in str((await engine.run_info(bad)).blocked_reason)
    assert {(await engine.snapshot(run_id)).output for run_id in good} == {"fine"}


async def test_a_blocked_run_rests_longer_each_time_and_recovers_when_the_code_is_back(
    engine_store: EngineStore,
) -> None:
    runtime = Script(lambda ctx: ())
    engine = await engine_store.engine(runtime)
    worker = FlowWorker(engine)
    run_id = await engine.start(SPEC, drive=False)
    for rest in (1, 2, 4, 8):
        assert await worker.run_until_idle() == 1
        engine_store.advance(timedelta(seconds=rest) - timedelta(seconds=0.5))
        assert await worker.run_until_idle() == 0
        engine_store.advance(SECOND)
    runtime.workflow = lambda ctx: ctx.complete("mended")
    assert await worker.run_until_idle() == 1
    assert (await engine.snapshot(run_id)).output == "mended"
    assert (await engine.run_info(run_id)).blocked_reason is None


async def test_a_stopped_worker_lets_steps_finish_decides_nothing_new_and_gives_the_run_back(
    engine_store: EngineStore,
) -> None:
    gate = Gate()
    runtime = Script(in_order("a", "b"), {"work": gate})
    engine = await engine_store.engine(runtime)
    run_id = await engine.start(SPEC, drive=False)
    worker = FlowWorker(engine)
    working = asyncio.ensure_future(worker.run())
    await gate.entered.wait()
    worker.stop()
    gate.go.set()
    await working
    assert short(await engine.history(run_id))[-1] == "step.completed a"
    # Another goes on at once: no lease has to run out.
    other = await engine_store.engine(Script(in_order("a", "b"), {"work": echo}))
    assert await FlowWorker(other).run_until_idle() == 1
    assert (await other.snapshot(run_id)).output == ["a", "b"]
    assert runtime.calls == [("a", 1)]


@pytest.mark.parametrize("how", ["grace is over", "a second stop", "cancelled"])
async def test_a_step_that_does_not_finish_is_cancelled_and_its_run_given_back_at_once(
    engine_store: EngineStore, how: str
) -> None:
    gate = Gate()
    engine = await engine_store.engine(Script(one_step(input=1), {"work": gate}))
    run_id = await engine.start(SPEC, drive=False)
    grace = timedelta(0) if how == "grace is over" else timedelta(days=1)
    worker = FlowWorker(engine, grace=grace)
    working = asyncio.ensure_future(worker.run())
    await gate.entered.wait()
    worker.stop()
    if how == "a second stop":
        worker.stop(at_once=True)
    elif how == "cancelled":
        working.cancel()
    await asyncio.wait({working})
    assert working.cancelled() is (how == "cancelled")
    assert gate.inside == 0
    other = await engine_store.engine(Script(one_step(input=1), {"work": echo}))
    assert await FlowWorker(other).run_until_idle() == 1
    assert (await other.snapshot(run_id)).output == 1
    assert short(await other.history(run_id)).count("step.started s") == 1


async def test_a_worker_waits_out_a_database_that_is_away(engine_store: EngineStore) -> None:
    away = 3

    async def fail(name: str, args: Any) -> None:
        nonlocal away
        if name == "claim_runs" and away:
            away -= 1
            raise StoreUnavailable("the connection was lost")

    engine = await engine_store.engine(
        Script(in_order("a"), {"work": echo}), wrap=wrapping(before=fail)
    )
    run_id = await engine.start(SPEC, drive=False)
    snapshot = await FlowWorker(engine).run_until(run_id, timeout=timedelta(seconds=30))
    assert snapshot.output == ["a"]
    assert away == 0


async def test_a_worker_ends_when_the_database_refuses_it(engine_store: EngineStore) -> None:
    async def refuse(name: str, args: Any) -> None:
        if name == "claim_runs":
            raise PermissionDenied("the role may not claim")

    engine = await engine_store.engine(Script(in_order("a")), wrap=wrapping(before=refuse))
    with pytest.raises(PermissionDenied):
        await FlowWorker(engine).run()


async def test_a_claim_whose_histories_cannot_be_read_together_is_driven_all_the_same(
    engine_store: EngineStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claim_verbs, "SHORT_HISTORY", 0)  # none comes with the claim
    failed = 0

    async def fail(name: str, args: Any) -> None:
        nonlocal failed
        if name == "load_runs" and len(args[0]) > 1:
            failed += 1
            raise StoreUnavailable("the connection was lost")

    engine = await engine_store.engine(
        Script(in_order("a"), {"work": echo}), wrap=wrapping(before=fail)
    )
    runs = [await engine.start(SPEC, drive=False) for _ in range(3)]
    assert await FlowWorker(engine).run_until_idle() == 3
    assert failed == 1
    assert {(await engine.snapshot(run_id)).status for run_id in runs} == {RunStatus.COMPLETED}


async def test_two_workers_share_a_queue_and_no_run(engine_store: EngineStore) -> None:
    client = await engine_store.engine(None)
    runs = [await client.start(SPEC, number) for number in range(30)]
    runtimes = [Script(one_step(input=1), {"work": echo}) for _ in range(2)]
    workers = [FlowWorker(await engine_store.engine(runtime)) for runtime in runtimes]
    counts = await asyncio.gather(*(worker.run_until_idle() for worker in workers))
    assert sum(counts) == 30
    assert sum(len(runtime.calls) for runtime in runtimes) == 30
    assert {(await client.snapshot(run_id)).output for run_id in runs} == {1}


async def test_a_run_whose_driver_died_goes_to_another_once_the_lease_has_run_out(
    engine_store: EngineStore,
) -> None:
    client = await engine_store.engine(None)
    run_id = await client.start(SPEC)
    [dead] = await client.store.claim_runs("default", 10, "dead", timedelta(seconds=30))
    engine = await engine_store.engine(Script(one_step(input=1), {"work": echo}))
    worker = FlowWorker(engine)
    assert await worker.run_once() == 0
    engine_store.leases_run_out()
    assert await worker.run_once() == 1
    assert (await client.snapshot(run_id)).output == 1
    assert not await client.store.give_back(dead)


async def test_working_until_an_unknown_run_ends_is_an_error(engine_store: EngineStore) -> None:
    engine = await engine_store.engine(Script(in_order("a")))
    with pytest.raises(RunNotFound):
        await FlowWorker(engine).run_until("nobody")


@pytest.mark.parametrize("concurrency", [0, -1, 1001])
async def test_a_worker_refuses_a_concurrency_that_makes_no_sense(concurrency: int) -> None:
    from flowpg.engine.flow_engine import FlowEngine

    engine = FlowEngine.in_memory(Script(in_order("a")))
    with pytest.raises(InvalidArgument):
        FlowWorker(engine, concurrency=concurrency)
