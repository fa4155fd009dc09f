"""Timeouts of steps in other queues: who drives the run sees to them where no worker does."""

import asyncio
import re
import threading
from datetime import timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest

from flowpg import dump_history, load_history
from flowpg.engine.commit import PatientStore
from flowpg.engine.flow_engine import FlowEngine
from flowpg.engine.observer import InMemoryFlowEventObserver
from flowpg.engine.routing import Routes
from flowpg.engine.tip import RunTip
from flowpg.fleet.scheduler import FlowScheduler
from flowpg.fleet.task_worker import FlowTaskWorker
from flowpg.fleet.worker import FlowWorker
from flowpg.model.commands import Decision, StepCommand
from flowpg.model.inspection import SuspensionKind, WakeupKind
from flowpg.model.retry import RetryPolicy
from flowpg.model.snapshot import RunStatus
from flowpg.model.timeouts import StepTimeouts
from flowpg.postgres.step_verbs import Overdue, expire_steps
from flowpg.replay.context import WorkflowContext
from flowpg.replay.runtime import StepInvocation
from flowpg.store.postgres import PostgresEventStore
from tests.engine.support import LEASE, MINUTE, SECOND, SPEC, EngineStore, Script, echo, short
from tests.fleet.routed_floor import SLOW, Floor, claim, routed, tasks
from tests.waiting import until, until_async

START = StepTimeouts(schedule_to_start=MINUTE)
CLOSE = StepTimeouts(schedule_to_close=MINUTE)
BOTH = StepTimeouts(schedule_to_start=MINUTE, schedule_to_close=10 * MINUTE)


async def late(floor: Floor, by: timedelta) -> int:
    """Let so much time pass, and have the run driven; how many deadlines were dispatched."""
    floor.store.advance(by)
    tick = await FlowScheduler(floor.driver).enqueue_due_work()
    await floor.runs.run_until_idle()
    return len(tick.due_steps)


async def failure(floor: Floor, run_id: str) -> str:
    """Why the run has failed."""
    snapshot = await floor.driver.snapshot(run_id)
    assert snapshot.status is RunStatus.FAILED
    return snapshot.error or ""


@pytest.mark.parametrize(
    ("limits", "error"),
    [
        (START, "ScheduleToStartTimeout: step 's' was not begun by a worker of queue 'slow'"),
        (CLOSE, "ScheduleToCloseTimeout: step 's' took longer than its schedule_to_close of 60 s"),
        (BOTH, "ScheduleToStartTimeout"),
        (
            StepTimeouts(schedule_to_start=2 * MINUTE, schedule_to_close=MINUTE),
            "ScheduleToCloseTimeout",
        ),
    ],
)
async def test_a_step_that_no_worker_takes_in_time_fails_without_one(
    postgres_only: EngineStore, direct_dsn: str, limits: StepTimeouts, error: str
) -> None:
    floor = await Floor.of(postgres_only, routed(timeouts=limits), echo)
    run_id = await floor.dispatched()
    assert await late(floor, MINUTE - 2 * SECOND) == 0
    assert len(tasks(direct_dsn)) == 1
    assert await late(floor, 3 * SECOND) == 1
    assert error in await failure(floor, run_id)
    assert tasks(direct_dsn) == []
    assert short(await floor.driver.history(run_id))[-2:] == ["step.non_retryable s", "run.failed"]
    assert await floor.steps.run_until_idle() == 0


async def test_a_workflow_may_go_on_after_a_step_that_nobody_took(
    postgres_only: EngineStore,
) -> None:
    def workflow(ctx: WorkflowContext) -> Decision:
        if ctx.step_failed("s"):
            return ctx.complete("without")
        retry = RetryPolicy.fixed(3, SECOND).continue_workflow_on_failure()
        return ctx.schedule_step("s", "work", queue=SLOW, timeouts=START, retry=retry)

    seen = InMemoryFlowEventObserver()
    driver = await postgres_only.engine(Script(workflow), observer=seen)
    floor = Floor(postgres_only, driver, driver)
    run_id = await floor.dispatched()
    assert await late(floor, MINUTE + SECOND) == 1
    assert (await driver.snapshot(run_id)).output == "without"
    [event] = [event for event in seen.events if event.type == "step_non_retryable"]
    assert event.subject == "s"


async def test_each_attempt_has_its_time_to_be_taken_and_all_of_them_that_of_the_step(
    postgres_only: EngineStore,
) -> None:
    def fails(step: StepInvocation) -> None:
        raise ValueError("no")

    retry = RetryPolicy.fixed(9, timedelta(0))
    floor = await Floor.of(postgres_only, routed(timeouts=BOTH, retry=retry), fails)
    run_id = await floor.dispatched()
    postgres_only.advance(MINUTE - SECOND)
    await floor.steps.run_once()
    await floor.runs.run_until_idle()
    assert await late(floor, MINUTE - SECOND) == 0
    assert (await floor.driver.snapshot(run_id)).steps["s"].attempt == 2
    assert await late(floor, 2 * SECOND) == 1
    assert "ScheduleToStartTimeout" in await failure(floor, run_id)


async def test_a_step_that_a_worker_has_is_the_workers_and_the_runs_again_when_it_dies(
    postgres_only: EngineStore, direct_dsn: str
) -> None:
    floor = await Floor.of(postgres_only, routed(timeouts=BOTH), echo)
    run_id = await floor.dispatched()
    await claim(direct_dsn)  # and that worker is never heard of again
    assert await late(floor, MINUTE + SECOND) == 1
    assert len(tasks(direct_dsn)) == 1  # it was taken in time
    assert await late(floor, MINUTE) == 0
    wakeup = await floor.driver.next_wakeup()
    assert wakeup is not None
    assert wakeup.kind is WakeupKind.STEP_DEADLINE
    assert await late(floor, 8 * MINUTE) == 1
    assert "ScheduleToCloseTimeout" in await failure(floor, run_id)
    assert tasks(direct_dsn) == []


async def test_a_step_at_work_when_its_time_is_over_is_looked_at_when_its_lease_ends(
    postgres_only: EngineStore, direct_dsn: str
) -> None:
    floor = await Floor.of(postgres_only, routed(timeouts=CLOSE), echo)
    run_id = await floor.dispatched()
    postgres_only.advance(MINUTE - SECOND)
    await claim(direct_dsn)
    assert await late(floor, 2 * SECOND) == 1
    assert (await floor.driver.snapshot(run_id)).status is RunStatus.SUSPENDED
    assert await late(floor, LEASE) == 1
    assert "ScheduleToCloseTimeout" in await failure(floor, run_id)


async def test_a_dead_letter_does_not_outlive_the_time_of_its_step(
    postgres_only: EngineStore, direct_dsn: str
) -> None:
    floor = await Floor.of(postgres_only, routed(timeouts=BOTH), echo)
    run_id = await floor.dispatched()
    for _ in range(4):
        await claim(direct_dsn)
        postgres_only.leases_run_out()
    await floor.steps.run_once()
    assert tasks(direct_dsn) == []
    await late(floor, timedelta(0))
    assert (await floor.driver.snapshot(run_id)).status is RunStatus.SUSPENDED
    await late(floor, 9 * MINUTE)
    assert "ScheduleToCloseTimeout" in await failure(floor, run_id)


@pytest.mark.parametrize("first", ["claim", "timeout"])
def test_of_a_claim_and_a_timeout_at_the_same_moment_one_wins(
    postgres_floor: tuple[Floor, str], direct_dsn: str, first: str
) -> None:
    _, run_id = postgres_floor
    event = (
        '{"type":"step_non_retryable","subject":"s",'
        '"payload":{"step_id":"s","attempt":1,"error":"too late"}}'
    )
    expire = f'[{{"step_id":"s","attempt":1,"not_begun":{event}}}]'
    calls: dict[str, tuple[str, tuple[Any, ...]]] = {
        "claim": (
            "SELECT task_id FROM flowpg.flow_claim_tasks(%s, 10, 'w', %s, p_kinds => %s)",
            (SLOW, LEASE, ["run_step"]),
        ),
        "timeout": ("SELECT outcome FROM flowpg.flow_expire_steps(%s, %s)", (run_id, expire)),
    }
    second = "timeout" if first == "claim" else "claim"
    found: dict[str, list[Any]] = {}
    with psycopg.connect(direct_dsn) as holder, psycopg.connect(direct_dsn) as other:
        found[first] = holder.execute(*calls[first]).fetchall()  # and does not commit yet

        def go() -> None:
            found[second] = other.execute(*calls[second]).fetchall()
            other.commit()

        thread = threading.Thread(target=go)
        thread.start()
        if first == "claim":
            until(lambda: waits_for_lock(direct_dsn), "the timeout waits for the claim")
        else:
            thread.join(20)  # a claim never waits
        holder.commit()
        thread.join(20)
    if first == "claim":
        assert (len(found["claim"]), found["timeout"]) == (1, [("at_work",)])
    else:
        assert (found["timeout"], found["claim"]) == ([("expired",)], [])
    assert len(tasks(direct_dsn)) == (first == "claim")


def waits_for_lock(dsn: str) -> bool:
    """Whether a session waits for another one."""
    with psycopg.connect(dsn) as connection:
        row = connection.execute(
            "SELECT count(*) FROM pg_stat_activity"
            " WHERE wait_event_type = 'Lock' AND datname = current_database()"
        ).fetchone()
    return row is not None and row[0] > 0


@pytest.fixture
async def postgres_floor(postgres_only: EngineStore) -> tuple[Floor, str]:
    """A run that waits for its step."""
    floor = await Floor.of(postgres_only, routed(), echo)
    return floor, await floor.dispatched()


async def test_a_running_worker_notices_by_itself_also_while_a_step_of_the_run_is_at_work(
    postgres_only: EngineStore,
) -> None:
    gate, begun = asyncio.Event(), asyncio.Event()

    async def works(step: StepInvocation) -> str:
        begun.set()
        await gate.wait()
        return "here"

    soon = StepTimeouts(schedule_to_start=timedelta(seconds=0.3))
    keep = RetryPolicy.none().continue_workflow_on_failure()

    def workflow(ctx: WorkflowContext) -> Decision:
        if ctx.step_failed("there") and ctx.step_completed("here"):
            return ctx.complete(ctx.step_output("here"))
        there = StepCommand(
            step_id="there", step_name="work", queue=SLOW, timeouts=soon, retry=keep
        )
        return ctx.schedule_steps([there, StepCommand(step_id="here", step_name="work")])

    engine = await postgres_only.engine(Script(workflow, {"work": works}))
    worker = FlowWorker(engine)
    working = asyncio.create_task(worker.run())
    try:
        run_id = await engine.start(SPEC, drive=False)
        await begun.wait()

        async def failed() -> bool:
            step = (await engine.snapshot(run_id)).steps["there"]
            return "ScheduleToStartTimeout" in str(step.error)

        await until_async(failed, "the step elsewhere has failed")
        gate.set()
        assert (await engine.wait(run_id)).output == "here"
        alone = await routed_alone(engine, soon)
        assert "ScheduleToStartTimeout" in str((await engine.wait(alone)).error)
    finally:
        gate.set()
        worker.stop()
        await working


async def routed_alone(engine: FlowEngine, limits: StepTimeouts) -> str:
    """A run that is given back while its step waits."""
    engine.runtime.workflow = routed(timeouts=limits)  # type: ignore[union-attr]
    return await engine.start(SPEC, drive=False)


async def test_a_run_that_waits_for_a_step_elsewhere_is_suspended_and_says_for_what(
    postgres_only: EngineStore, direct_dsn: str
) -> None:
    names = ["a", "b"]

    def workflow(ctx: WorkflowContext) -> Decision:
        if all(ctx.step_completed(name) for name in names):
            return ctx.complete() if ctx.wait_completed("w") else ctx.sleep("w", MINUTE)
        limits = {"a": None, "b": START}
        return ctx.schedule_steps(
            StepCommand(step_id=name, step_name="work", queue=SLOW, timeouts=limits[name])
            for name in names
        )

    floor = await Floor.of(postgres_only, workflow, echo)
    driver = floor.driver
    run_id = await driver.start(SPEC)  # driven here, so that its snapshot comes back
    assert (await driver.drive(run_id)).status is RunStatus.SUSPENDED
    assert (await driver.snapshot(run_id)).status is RunStatus.SUSPENDED
    assert [row.run_id for row in await driver.list_runs(status=RunStatus.SUSPENDED)] == [run_id]
    assert await driver.list_runs(status=RunStatus.RUNNING) == []
    assert (await driver.run_summary()).suspended == 1
    waits = await driver.list_open_suspensions()
    assert [(one.kind, one.subject_id, one.due) for one in waits] == [
        (SuspensionKind.STEP, "a", None),
        (SuspensionKind.STEP, "b", False),
    ]
    one_by_one = FlowTaskWorker(floor.helper, SLOW, limit=1)
    await one_by_one.run_once()
    assert (await driver.run_info(run_id)).status is RunStatus.SUSPENDED
    assert len(await driver.list_open_suspensions(run_id=run_id)) == 1
    await one_by_one.run_once()
    assert (await driver.run_info(run_id)).status is RunStatus.RUNNING  # there is work to do
    assert await driver.list_open_suspensions() == []
    await floor.runs.run_until_idle()
    [timer] = await driver.list_open_suspensions()
    assert timer.kind is SuspensionKind.WAIT
    await driver.resume_scheduled_run(run_id, timer.due_at)
    assert (await driver.snapshot(run_id)).status is RunStatus.COMPLETED


async def test_what_is_due_in_one_run_may_be_asked_for_ahead_of_time(
    postgres_only: EngineStore,
) -> None:
    floor = await Floor.of(postgres_only, routed(timeouts=START), echo)
    run_id = await floor.dispatched()
    [step] = await floor.driver.list_open_suspensions(run_id=run_id)
    [due] = await floor.driver.resume_scheduled_run(run_id, step.due_at)
    assert due.kind is WakeupKind.STEP_DEADLINE
    assert "ScheduleToStartTimeout" in await failure(floor, run_id)


async def test_nothing_is_left_to_wait_for_where_a_run_is_cancelled_or_a_step_given_up(
    postgres_only: EngineStore, direct_dsn: str
) -> None:
    floor = await Floor.of(postgres_only, routed(timeouts=START), echo)
    run_id = await floor.dispatched()
    await floor.driver.store.request_cancellation(run_id, "enough")
    assert await floor.driver.list_open_suspensions() == []
    assert await late(floor, MINUTE + SECOND) == 0


async def test_what_a_worker_has_is_not_asked_about_again_before_its_step_is_to_have_ended(
    postgres_only: EngineStore, direct_dsn: str
) -> None:
    floor = await Floor.of(postgres_only, routed(timeouts=BOTH), echo)
    run_id = await floor.dispatched()
    await claim(direct_dsn)
    store = PatientStore(floor.driver.store, 1)
    tip, routes = RunTip(await store.load(run_id)), Routes(store, run_id)
    step = tip.snapshot.steps["s"]
    begun, made = step.started_at, step.created_at
    assert begun is not None
    assert made is not None
    routes.watch(tip)
    assert routes.next_deadline == begun + MINUTE
    assert await routes.expire(tip, begun + MINUTE) is None
    assert routes.next_deadline == made + 10 * MINUTE
    assert await routes.expire(tip, made + 10 * MINUTE) is None
    assert routes.next_deadline is None


async def test_a_step_that_was_begun_before_its_history_was_imported_fails_in_time_too(
    postgres_only: EngineStore, direct_dsn: str
) -> None:
    floor = await Floor.of(postgres_only, routed(timeouts=START), echo)
    run_id = await floor.dispatched()
    lines = dump_history(await floor.driver.history(run_id)).replace(run_id, "imported")
    other = iter(range(9))
    lines = re.sub(r'(?<="event_id":")[^"]*', lambda _: str(UUID(int=next(other))), lines)
    await floor.driver.force_cancel(run_id)
    await floor.driver.store.import_history(load_history(lines))
    assert (await floor.driver.drive("imported")).status is RunStatus.SUSPENDED
    assert "imported" in {run_id for _, run_id, *_ in tasks(direct_dsn)}
    assert await late(floor, MINUTE + SECOND) == 1
    assert "ScheduleToStartTimeout" in await failure(floor, "imported")


async def test_a_run_that_was_ended_by_force_has_no_step_that_could_be_late(
    postgres_only: EngineStore, caplog: pytest.LogCaptureFixture
) -> None:
    floor = await Floor.of(postgres_only, routed(timeouts=START), echo)
    run_id = await floor.dispatched()
    await floor.driver.store.force_cancel(run_id)
    await late(floor, MINUTE + SECOND)
    assert (await floor.driver.snapshot(run_id)).status is RunStatus.CANCELLED
    assert caplog.records == []


async def test_whoever_fails_a_step_that_nobody_has_wakes_its_run(
    postgres_only: EngineStore, direct_dsn: str
) -> None:
    floor = await Floor.of(postgres_only, routed(), echo)
    run_id = await floor.dispatched()
    payload = '{"step_id":"s","attempt":1,"error":"by hand"}'
    event = f'{{"type":"step_non_retryable","subject":"s","payload":{payload}}}'
    call = expire_steps(run_id, [Overdue("s", 1, event, None, None)])
    store = await PostgresEventStore.connect(direct_dsn)
    assert await store.call(call) == {"s": "expired"}
    assert await store.call(call) == {"s": "superseded"}
    await store.close()
    await floor.runs.run_until_idle()
    assert "by hand" in await failure(floor, run_id)
