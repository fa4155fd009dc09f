"""Steps that run in another queue: dispatched with their start, settled once, seen by operators."""

import asyncio
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from flowpg.authoring.app import FlowApp
from flowpg.engine.flow_engine import FlowEngine
from flowpg.fleet.task_worker import FlowTaskWorker
from flowpg.fleet.worker import FlowWorker
from flowpg.model.commands import Decision
from flowpg.model.retry import RetryPolicy
from flowpg.model.snapshot import RunStatus
from flowpg.replay.context import WorkflowContext
from flowpg.replay.runtime import StepInvocation
from tests.engine.support import (
    MINUTE,
    SPEC,
    EngineStore,
    Script,
    echo,
    one_step,
    short,
)
from tests.fleet.routed_floor import SLOW, Floor, claim, named, pause, routed, tasks
from tests.waiting import until_async


async def test_a_step_of_another_queue_is_run_by_a_worker_of_that_queue_and_leaves_no_trace_of_it(
    postgres_only: EngineStore, direct_dsn: str
) -> None:
    floor = await Floor.of(postgres_only, routed(), echo)
    run_id = await floor.driver.start(SPEC, drive=False)
    await floor.runs.run_until_idle()
    [(queue, about, needs, payload)] = tasks(direct_dsn)
    assert (queue, about, needs) == (SLOW, run_id, "step:work")
    assert '"in"' not in payload
    # Nobody holds the run meanwhile.
    assert await floor.runs.run_until_idle() == 0
    assert (await floor.driver.run_info(run_id)).lease_owner is None
    here = await floor.settle(run_id)
    assert (await floor.driver.snapshot(run_id)).output == "in"
    assert tasks(direct_dsn) == []

    local = await postgres_only.engine(Script(one_step(input="in"), {"work": echo}))
    twin = await local.start(SPEC)
    assert here == short(await local.history(twin))


async def test_a_step_of_the_queue_that_its_run_is_in_is_an_ordinary_step(
    postgres_only: EngineStore, direct_dsn: str
) -> None:
    engine = await postgres_only.engine(Script(routed(), {"work": echo}))
    run_id = await engine.start(SPEC, queue=SLOW)
    assert (await engine.snapshot(run_id)).output == "in"
    assert tasks(direct_dsn) == []


async def test_a_store_without_tasks_runs_every_step_with_its_run() -> None:
    engine = FlowEngine.builder(Script(routed(), {"work": echo})).build()
    async with engine:
        run_id = await engine.start(SPEC)
        assert (await engine.snapshot(run_id)).output == "in"


@pytest.mark.parametrize("delay", [timedelta(0), MINUTE])
async def test_a_failed_attempt_is_followed_by_another_when_its_time_has_come(
    postgres_only: EngineStore, direct_dsn: str, delay: timedelta
) -> None:
    seen: list[int] = []

    def once(step: StepInvocation) -> str:
        seen.append(step.attempt)
        if step.attempt == 1:
            raise RuntimeError("on purpose")
        return "done"

    policy = RetryPolicy.fixed(3, delay)
    floor = await Floor.of(postgres_only, routed(retry=policy), once)
    run_id = await floor.driver.start(SPEC, drive=False)
    await floor.settle(run_id)
    if delay:
        assert seen == [1]
        assert tasks(direct_dsn) == []
        postgres_only.advance(delay)
        await floor.driver.store.enqueue_due()
    history = await floor.settle(run_id)
    assert seen == [1, 2]
    assert history[-5:] == [
        *("step.started s", "step.retrying s", "step.started s", "step.completed s"),
        "run.completed",
    ]
    assert (await floor.driver.snapshot(run_id)).output == "done"


async def test_a_step_that_has_failed_for_good_ends_its_run_as_a_local_one_does(
    postgres_only: EngineStore,
) -> None:
    def fails(step: StepInvocation) -> None:
        raise ValueError("on purpose")

    policy = RetryPolicy.none()
    floor = await Floor.of(postgres_only, routed(retry=policy), fails)
    run_id = await floor.driver.start(SPEC, drive=False)
    here = await floor.settle(run_id)
    assert (await floor.driver.snapshot(run_id)).status is RunStatus.FAILED
    runtime = Script(one_step(input="in", retry=policy), {"work": fails})
    local = await postgres_only.engine(runtime)
    assert here == short(await local.history(await local.start(SPEC)))


async def test_what_a_worker_that_lost_its_task_has_to_say_is_refused(
    postgres_only: EngineStore,
) -> None:
    gate, begun = asyncio.Event(), asyncio.Event()

    async def late(step: StepInvocation) -> str:
        begun.set()
        await gate.wait()
        return "late"

    floor = await Floor.of(postgres_only, routed(), late)
    run_id = await floor.driver.start(SPEC, drive=False)
    await floor.runs.run_until_idle()
    zombie = asyncio.ensure_future(floor.steps.run_once())
    await begun.wait()
    postgres_only.leases_run_out()
    heir = FlowTaskWorker(
        await postgres_only.engine(Script(routed(), {"work": lambda step: "heir"})), SLOW
    )
    assert await heir.run_once() == 1
    gate.set()
    await zombie
    history = await floor.settle(run_id)
    assert history.count("step.completed s") == history.count("step.started s") == 1
    assert (await floor.driver.snapshot(run_id)).output == "heir"


async def test_a_step_of_a_run_that_has_ended_is_dropped_and_one_at_work_is_told(
    postgres_only: EngineStore, direct_dsn: str
) -> None:
    begun, told = asyncio.Event(), asyncio.Event()

    async def endless(step: StepInvocation) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            assert step.cancelled
            told.set()

    floor = await Floor.of(postgres_only, routed(), endless)
    helper = FlowEngine.builder(floor.helper.runtime).with_store(await postgres_only.connect())
    helper.with_lease(timedelta(seconds=3), heartbeat=timedelta(milliseconds=50))
    async with helper.build() as engine:
        worker = FlowTaskWorker(engine, SLOW)
        at_work = await floor.driver.start(SPEC, drive=False)
        await floor.runs.run_until_idle()
        working = asyncio.ensure_future(worker.run_once())
        await begun.wait()
        await floor.driver.force_cancel(at_work, "enough")
        await told.wait()
        await working
        waiting = await floor.driver.start(SPEC, drive=False)
        await floor.runs.run_until_idle()
        await floor.driver.force_cancel(waiting, "enough")
        begun.clear()
        assert await worker.run_once() == 1
        assert not begun.is_set()
    assert tasks(direct_dsn) == []


async def test_a_step_that_no_worker_of_its_queue_knows_is_named_and_left_alone(
    postgres_only: EngineStore, direct_dsn: str
) -> None:
    floor = await Floor.of(postgres_only, routed(), echo)
    run_id = await floor.driver.start(SPEC, drive=False)
    await floor.runs.run_until_idle()
    info = await floor.driver.run_info(run_id)
    assert info.waiting_for == "no worker for step work on queue slow"
    other = Script(routed(), {"another": echo})
    other.workflows = ["w"]  # type: ignore[attr-defined]
    assert await FlowTaskWorker(await postgres_only.engine(other), SLOW).run_once() == 0
    assert len(tasks(direct_dsn)) == 1
    await floor.driver.store.call(pause(SLOW))  # type: ignore[attr-defined]
    info = await floor.driver.run_info(run_id)
    assert info.waiting_for == "step work waits for queue slow, which is paused"


async def test_a_task_that_took_its_workers_with_it_is_a_dead_letter_that_can_be_redriven(
    postgres_only: EngineStore, direct_dsn: str
) -> None:
    floor = await Floor.of(postgres_only, routed(), echo)
    run_id = await floor.driver.start(SPEC, drive=False)
    await floor.runs.run_until_idle()
    for _ in range(4):  # nobody finishes it
        await claim(direct_dsn)
        postgres_only.leases_run_out()
    assert await floor.steps.run_once() == 0
    info = await floor.driver.run_info(run_id)
    assert info.waiting_for is not None
    assert info.waiting_for.startswith("step work is dead letter ")
    with psycopg.connect(direct_dsn, autocommit=True) as connection:
        connection.execute("SELECT flowpg.flow_redrive(p_queue => 'slow')")
    await floor.settle(run_id)
    assert (await floor.driver.snapshot(run_id)).output == "in"


async def test_a_worker_sets_steps_aside_after_as_many_lost_workers_as_it_does_runs(
    postgres_only: EngineStore, direct_dsn: str
) -> None:
    floor = await Floor.of(postgres_only, routed(), echo)
    run_id = await floor.driver.start(SPEC, drive=False)
    await floor.runs.run_until_idle()
    for _ in range(2):
        await claim(direct_dsn)
        postgres_only.leases_run_out()
    worker = FlowWorker(floor.helper, queues=[SLOW], max_crashes=1)
    working = asyncio.create_task(worker.run())
    try:

        async def set_aside() -> bool:
            waiting_for = (await floor.driver.run_info(run_id)).waiting_for
            return waiting_for is not None and "dead letter" in waiting_for

        await until_async(set_aside, "the step is set aside")
    finally:
        worker.stop()
        await working


async def test_a_transactional_step_elsewhere_commits_its_rows_with_its_completion_or_nothing(
    postgres_only: EngineStore, direct_dsn: str
) -> None:
    app = FlowApp("bank")
    gate, begun = asyncio.Event(), asyncio.Event()

    @app.step(transactional=True)
    async def book(connection: psycopg.AsyncConnection, who: str) -> str:
        first = not begun.is_set()
        await connection.execute("INSERT INTO booked VALUES (%s)", ("first" if first else "heir",))
        begun.set()
        if first:
            await gate.wait()
        return "first" if first else "heir"

    @app.workflow
    async def pay(who: str) -> str:
        return await book.options(queue=SLOW)(who)

    with psycopg.connect(direct_dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE booked (who text)")
    driver = await postgres_only.engine(app)
    floor = Floor(postgres_only, driver, await postgres_only.engine(app))
    run_id = await pay.start(await postgres_only.engine(None), "me")
    await floor.runs.run_until_idle()
    zombie = asyncio.ensure_future(floor.steps.run_once())
    await begun.wait()
    postgres_only.leases_run_out()
    assert await FlowTaskWorker(await postgres_only.engine(app), SLOW).run_once() == 1
    gate.set()
    await zombie
    await floor.settle(run_id)
    assert (await driver.snapshot(run_id)).output == "heir"
    with psycopg.connect(direct_dsn) as connection:
        assert connection.execute("SELECT who FROM booked").fetchall() == [("heir",)]
    assert tasks(direct_dsn) == []


async def test_a_step_whose_task_is_missing_gets_one_when_its_run_is_looked_at_anew(
    postgres_only: EngineStore, direct_dsn: str
) -> None:
    floor = await Floor.of(postgres_only, routed(), echo)
    run_id = await floor.driver.start(SPEC, drive=False)
    await floor.runs.run_until_idle()
    with psycopg.connect(direct_dsn, autocommit=True) as connection:
        connection.execute("DELETE FROM flowpg.flow_tasks WHERE kind = 'run_step'")
    for _ in range(2):  # and no more than one
        other = await postgres_only.engine(Script(routed()))
        await other.drive(run_id)
        assert len(tasks(direct_dsn)) == 1
    await floor.settle(run_id)
    assert (await floor.driver.snapshot(run_id)).output == "in"


async def test_a_hundred_steps_at_once_are_all_run_once(postgres_only: EngineStore) -> None:
    names = [f"s{n}" for n in range(100)]

    def workflow(ctx: WorkflowContext) -> Decision:
        if all(ctx.step_completed(name) for name in names):
            return ctx.complete([ctx.step_output(name) for name in names])
        return ctx.schedule_steps([named(n) for n in names])

    floor = await Floor.of(postgres_only, workflow, echo)
    run_id = await floor.driver.start(SPEC, drive=False)
    await floor.settle(run_id)
    assert (await floor.driver.snapshot(run_id)).output == names
    runtime = floor.helper.runtime
    assert isinstance(runtime, Script)
    assert sorted(runtime.calls) == sorted((name, 1) for name in names)


async def test_what_a_heartbeat_said_reaches_the_worker_that_takes_over(
    postgres_only: EngineStore,
) -> None:
    async def beats(step: StepInvocation) -> Any:
        if step.heartbeat_details is None:
            await step.heartbeat({"done": 7})
            await asyncio.Event().wait()
        return step.heartbeat_details

    floor = await Floor.of(postgres_only, routed(), beats)
    run_id = await floor.driver.start(SPEC, drive=False)
    await floor.runs.run_until_idle()
    first = asyncio.ensure_future(floor.steps.run_once())

    async def said() -> bool:
        return await floor.driver.store.step_heartbeat(run_id, "s") is not None

    await until_async(said, "the heartbeat is stored")
    first.cancel()
    await asyncio.wait([first])
    await floor.settle(run_id)
    assert (await floor.driver.snapshot(run_id)).output == {"done": 7}
    assert await floor.driver.store.step_heartbeat(run_id, "s") is None


async def test_what_a_heartbeat_said_reaches_the_next_attempt_and_goes_with_the_step(
    postgres_only: EngineStore,
) -> None:
    def workflow(ctx: WorkflowContext) -> Decision:
        return ctx.schedule_steps([named("next" if ctx.step_completed("s") else "s")])

    async def said() -> bool:
        return await floor.driver.store.step_heartbeat(run_id, "s") is not None

    async def fails_once(step: StepInvocation) -> Any:
        if step.attempt == 1:
            await step.heartbeat({"done": 7})
            await until_async(said, "the heartbeat is stored")
            raise ValueError("once")
        return step.heartbeat_details

    floor = await Floor.of(postgres_only, workflow, fails_once)
    run_id = await floor.dispatched()
    for _ in range(2):
        await floor.steps.run_once()
        await floor.runs.run_until_idle()
    run = await floor.driver.snapshot(run_id)
    assert run.steps["s"].output == {"done": 7}
    assert not run.terminal
    assert not await said()
