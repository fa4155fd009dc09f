"""Tasks of every kind: carried out later, once, and reported by whoever committed."""

import asyncio
import json
import logging
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from flowpg.engine.flow_engine import FlowEngine
from flowpg.errors import InvalidArgument, RunNotFound
from flowpg.fleet import tasks
from flowpg.fleet.policy import TaskDeduplication, TaskPolicy
from flowpg.fleet.task_worker import FlowTaskWorker
from flowpg.fleet.tasks import EnqueuedTask, FlowTaskOutcome, FlowTaskQueue, carry_out, read_task
from flowpg.fleet.worker import FlowWorker
from flowpg.model.commands import Decision
from flowpg.model.retry import RetryPolicy
from flowpg.replay.context import WorkflowContext
from flowpg.store.memory import InMemoryEventStore
from tests.engine.support import MINUTE, SECOND, SPEC, EngineStore, Script
from tests.waiting import until_async

TOKEN = "sesame-7f3a"
WIRES: list[dict[str, Any]] = [
    {"type": "drive_run", "run_id": "r"},
    {"type": "resume_wait", "run_id": "r", "wait_id": "w"},
    {"type": "resume_hook", "run_id": "r", "hook_id": "h", "payload": {"a": [1]}},
    {"type": "resume_hook_by_token", "token": TOKEN, "payload": None},
    {"type": "dispose_hook", "run_id": "r", "hook_id": "h"},
    {"type": "dispose_hook_by_token", "token": TOKEN},
    {"type": "resume_scheduled_run", "run_id": "r"},
    {"type": "resume_due_waits"},
    {"type": "resume_due_retries"},
]


def hooked(ctx: WorkflowContext) -> Decision:
    """Two hooks, one after the other; withdrawn ones are passed over."""
    for name, token in (("h", TOKEN), ("later", "other")):
        if not (ctx.hook_received(name) or ctx.hook_disposed(name)):
            return ctx.create_hook(name, token)
    return ctx.complete([ctx.hook_received("h"), ctx.hook_received("later")])


def timed(ctx: WorkflowContext) -> Decision:
    """A timer of a minute, then a step that is tried again a minute later."""
    if not ctx.wait_completed("w"):
        return ctx.sleep("w", MINUTE)
    if not ctx.step_completed("s"):
        return ctx.schedule_step("s", "work", None, RetryPolicy.fixed(2, MINUTE))
    return ctx.complete("done")


def twice(step: Any) -> int:
    """Fails once."""
    if step.attempt == 1:
        raise RuntimeError("on purpose")
    return int(step.attempt)


class Bench:
    """A run, the queue its tasks go to, and a worker of tasks that keeps what they did."""

    def __init__(self, engine: FlowEngine, run_id: str, policy: TaskPolicy) -> None:
        self.engine = engine
        self.run_id = run_id
        self.queue = FlowTaskQueue(engine.store, policy=policy)
        self.outcomes: list[FlowTaskOutcome] = []
        self.worker = FlowTaskWorker(engine, on_outcome=self.outcomes.append)

    async def do(self, task: tasks.AnyTask) -> FlowTaskOutcome:
        """Enqueue a task, carry it out, and say what it did."""
        await self.queue.dispatch(task)
        assert await self.worker.run_until_idle() == 1
        return self.outcomes[-1]


async def _bench(
    store: EngineStore, workflow: Any = hooked, policy: TaskPolicy | None = None
) -> Bench:
    engine = await store.engine(Script(workflow, {"work": twice}))
    return Bench(engine, await engine.start(SPEC), policy or TaskPolicy())


def _all(dsn: str, table: str) -> str:
    """Every row of a table, as text."""
    with psycopg.connect(dsn) as connection:
        statement = f"SELECT row_to_json(t)::text FROM flowpg.{table} AS t"
        return "\n".join(row[0] for row in connection.execute(statement.encode()))


# -- what they are --------------------------------------------------------------------------------


@pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire["type"])
def test_every_kind_has_its_wire_form(wire: dict[str, Any]) -> None:
    task = read_task(wire)
    assert task.model_dump() == wire
    assert task.target_run_id == wire.get("run_id")
    assert TOKEN not in f"{task!r} {task}"
    assert "'a'" not in repr(task)


@pytest.mark.parametrize(
    ("wire", "where"),
    [
        ({}, "type"),
        ({"type": "sing"}, "type"),
        ({"type": "resume_wait", "run_id": "r"}, "wait_id"),
        ({"type": "dispose_hook_by_token", "token": [TOKEN]}, "token"),
    ],
)
def test_what_is_no_task_is_refused_without_quoting_it(wire: dict[str, Any], where: str) -> None:
    with pytest.raises(InvalidArgument, match=where) as refused:
        read_task(wire)
    assert TOKEN not in str(refused.value)


def test_tasks_need_a_database() -> None:
    with pytest.raises(InvalidArgument, match="PostgreSQL"):
        FlowTaskQueue(InMemoryEventStore())
    with pytest.raises(InvalidArgument, match="PostgreSQL"):
        FlowTaskWorker(FlowEngine.in_memory())


# -- what they do ---------------------------------------------------------------------------------


async def test_an_answer_by_task_names_the_hook_once(postgres_only: EngineStore) -> None:
    bench = await _bench(postgres_only)
    answer = tasks.ResumeHookByToken(token=TOKEN, payload="yes")
    assert (await bench.do(answer)).resumed_hook == (bench.run_id, "h")
    again = await bench.do(tasks.ResumeHook(run_id=bench.run_id, hook_id="h", payload="yes"))
    assert (again.resumed_hook, again.run_ids) == (None, (bench.run_id,))

    await FlowWorker(bench.engine).run_until_idle()
    withdrawal = tasks.DisposeHookByToken(token="other")
    assert (await bench.do(withdrawal)).disposed_hooks == ((bench.run_id, "later"),)
    again = await bench.do(tasks.DisposeHook(run_id=bench.run_id, hook_id="later"))
    assert again.disposed_hooks == ()

    await FlowWorker(bench.engine).run_until_idle()
    assert (await bench.engine.snapshot(bench.run_id)).output == [True, False]


@pytest.mark.parametrize("targeted", [True, False])
async def test_timers_and_retries_by_task_name_what_they_settled(
    postgres_only: EngineStore, targeted: bool
) -> None:
    bench = await _bench(postgres_only, timed)
    scheduled = tasks.ResumeScheduledRun(run_id=bench.run_id)
    postgres_only.advance(MINUTE)
    outcome = await bench.do(scheduled if targeted else tasks.ResumeDueWaits())
    assert outcome.resumed_waits == ((bench.run_id, "w"),)
    assert (await bench.do(scheduled)).resumed_waits == ()
    await FlowWorker(bench.engine).run_until_idle()

    postgres_only.advance(MINUTE)
    outcome = await bench.do(tasks.ResumeDueRetries())
    assert outcome.resumed_retries == ((bench.run_id, "s"),)
    assert (await bench.do(tasks.ResumeDueRetries())).resumed_retries == ()
    await FlowWorker(bench.engine).run_until_idle()
    snapshot = await bench.engine.snapshot(bench.run_id)
    assert (snapshot.output, snapshot.steps["s"].attempt) == ("done", 2)


async def test_of_many_tasks_for_one_timer_one_names_it(engine_store: EngineStore) -> None:
    engine = await engine_store.engine(Script(timed))
    run_id = await engine.start(SPEC)
    engine_store.advance(MINUTE)
    one = tasks.ResumeWait(run_id=run_id, wait_id="w")
    every: list[tasks.AnyTask] = [
        one,
        tasks.ResumeScheduledRun(run_id=run_id),
        tasks.ResumeDueWaits(),
    ]
    outcomes = await asyncio.gather(*(carry_out(engine.store, task) for task in every * 3))
    named = [wait for outcome in outcomes for wait in outcome.resumed_waits]
    assert named == [(run_id, "w")]


async def test_a_drive_task_gives_its_run_to_the_workers_of_runs(
    postgres_only: EngineStore,
) -> None:
    bench = await _bench(postgres_only)
    await FlowWorker(bench.engine).run_until_idle()
    assert (await bench.queue.dispatch(tasks.DriveRun(run_id=bench.run_id))).enqueued
    assert await bench.worker.run_once() == 0
    assert await FlowWorker(bench.engine).run_until_idle() == 1


# -- how they fail --------------------------------------------------------------------------------


async def test_a_task_that_fails_is_retried_by_its_own_budget_and_then_set_aside(
    postgres_only: EngineStore, direct_dsn: str
) -> None:
    policy = TaskPolicy(attempts=2, retry_delay=SECOND)
    bench = await _bench(postgres_only, timed, policy)
    await bench.queue.dispatch(tasks.ResumeWait(run_id=bench.run_id, wait_id="w"))
    assert await bench.worker.run_until_idle() == 1
    assert await bench.worker.run_once() == 0, "its delay has not passed"
    postgres_only.advance(SECOND)
    assert await bench.worker.run_until_idle() == 1
    (letter,) = map(json.loads, _all(direct_dsn, "flow_dead_letters").splitlines())
    assert (letter["kind"], letter["attempts"]) == ("resume_wait", 2)

    # The budget of the step is another one.
    postgres_only.advance(MINUTE)
    await FlowWorker(bench.engine).run_until_idle()
    postgres_only.advance(MINUTE)
    await FlowWorker(bench.engine).run_until_idle()
    assert (await bench.engine.snapshot(bench.run_id)).output == "done"


async def test_a_failure_that_no_retry_can_cure_is_not_retried(
    postgres_only: EngineStore, direct_dsn: str
) -> None:
    bench = await _bench(postgres_only, policy=TaskPolicy(attempts=5))
    await bench.engine.resume_hook(bench.run_id, "h", "yes")
    await bench.queue.dispatch(
        tasks.ResumeHook(run_id=bench.run_id, hook_id="h", payload="another")
    )
    assert await bench.worker.run_until_idle() == 1
    (letter,) = map(json.loads, _all(direct_dsn, "flow_dead_letters").splitlines())
    assert letter["last_error"].startswith("HookConflict")


async def test_a_token_is_in_no_key_letter_log_or_error(
    postgres_only: EngineStore, direct_dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    policy = TaskPolicy(deduplication=TaskDeduplication.UNTIL_TERMINAL)
    bench = await _bench(postgres_only, policy=policy)
    secret = "nobody-has-this-token"
    await bench.queue.dispatch(tasks.ResumeHookByToken(token=secret, payload="swordfish"))
    assert secret not in str([json.loads(row)["dedupe_key"] for row in _rows(direct_dsn)])
    assert await bench.worker.run_until_idle() == 1
    letters = _all(direct_dsn, "flow_dead_letters")
    assert "HookTokenNotFound" in letters
    for text in (letters, caplog.text):
        assert secret not in text
    assert "swordfish" not in caplog.text


async def test_an_open_task_takes_in_another_for_the_same_target(
    postgres_only: EngineStore,
) -> None:
    policy = TaskPolicy(deduplication=TaskDeduplication.UNTIL_TERMINAL)
    bench = await _bench(postgres_only, policy=policy)
    first = await bench.queue.dispatch(tasks.ResumeHookByToken(token=TOKEN, payload=1))
    again = await bench.queue.dispatch(tasks.ResumeHookByToken(token=TOKEN, payload=2))
    assert again == EnqueuedTask(first.task_id, False)
    other = tasks.ResumeHook(run_id=bench.run_id, hook_id="h", payload=1)
    assert (await bench.queue.dispatch(other)).enqueued
    assert await bench.worker.run_until_idle() == 2


async def test_a_task_is_made_with_the_transaction_it_is_enlisted_in(
    postgres_only: EngineStore, direct_dsn: str
) -> None:
    bench = await _bench(postgres_only)
    task = tasks.ResumeHookByToken(token=TOKEN, payload="yes")
    async with await psycopg.AsyncConnection.connect(direct_dsn) as connection:
        await bench.queue.dispatch(task, connection=connection)
        await connection.rollback()
        assert await bench.worker.run_once() == 0
        await bench.queue.dispatch(task, connection=connection)
        await connection.commit()
    assert await bench.worker.run_once() == 1
    with pytest.raises(RunNotFound):
        await bench.queue.dispatch(tasks.DriveRun(run_id="none"))


async def test_the_loop_takes_tasks_as_they_come_until_it_is_stopped(
    postgres_only: EngineStore,
) -> None:
    bench = await _bench(postgres_only)
    working = asyncio.ensure_future(bench.worker.run())
    await bench.queue.dispatch(tasks.ResumeHookByToken(token=TOKEN, payload="yes"))
    bench.worker.look()

    async def done() -> bool:
        return bool(bench.outcomes)

    await until_async(done, "the task is carried out")
    bench.worker.stop()
    await working


@pytest.mark.parametrize("tasks_too", [True, False])
async def test_a_worker_of_runs_carries_out_tasks_too_unless_told_not_to(
    postgres_only: EngineStore, tasks_too: bool
) -> None:
    bench = await _bench(postgres_only)
    await bench.engine.resume_hook(bench.run_id, "h", "yes")
    worker = FlowWorker(bench.engine, tasks=tasks_too)
    working = asyncio.ensure_future(worker.run())
    await bench.queue.dispatch(tasks.ResumeHookByToken(token="other", payload="yes"))
    if not tasks_too:
        await bench.engine.dispose_hook_by_token("other")

    async def ended() -> bool:
        return (await bench.engine.run_info(bench.run_id)).status.terminal

    await until_async(ended, "the run ends")
    worker.stop()
    await working
    assert (await bench.engine.snapshot(bench.run_id)).output == [True, tasks_too]
    assert await bench.worker.run_once() == (0 if tasks_too else 1)


async def test_tasks_of_a_worker_that_is_cancelled_are_given_back_unused(
    postgres_only: EngineStore, monkeypatch: pytest.MonkeyPatch, direct_dsn: str
) -> None:
    bench = await _bench(postgres_only)
    await bench.queue.dispatch(tasks.ResumeHookByToken(token=TOKEN, payload="yes"))
    entered = asyncio.Event()

    async def hangs(*_: Any) -> Any:
        entered.set()
        await asyncio.Event().wait()

    monkeypatch.setattr("flowpg.fleet.task_worker.carry_out", hangs)
    working = asyncio.ensure_future(bench.worker.run_once())
    await entered.wait()
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await working
    (row,) = map(json.loads, _rows(direct_dsn))
    assert (row["lease_owner"], row["attempts"], row["crashes"]) == (None, 0, 0)


async def test_the_lease_of_a_task_is_extended_while_it_is_carried_out(
    postgres_only: EngineStore, monkeypatch: pytest.MonkeyPatch, direct_dsn: str
) -> None:
    bench = await _bench(postgres_only)
    await bench.queue.dispatch(tasks.ResumeHookByToken(token=TOKEN, payload="yes"))
    entered, leave = asyncio.Event(), asyncio.Event()
    really = tasks.carry_out

    async def slow(*arguments: Any) -> Any:
        entered.set()
        await leave.wait()
        return await really(*arguments)

    monkeypatch.setattr("flowpg.fleet.task_worker.carry_out", slow)
    monkeypatch.setattr(
        type(bench.engine.options), "beat", property(lambda _: timedelta(seconds=0.05))
    )
    working = asyncio.ensure_future(bench.worker.run_once())
    await entered.wait()

    def lease() -> str:
        (row,) = map(json.loads, _rows(direct_dsn))
        return str(row["lease_expires_at"])

    begun = lease()
    # Its lease would have run out by then, if it were not for the heartbeats.
    postgres_only.leases_run_out()

    async def extended() -> bool:
        return lease() > begun

    await until_async(extended, "a heartbeat extends the lease")
    assert await FlowTaskWorker(bench.engine).run_once() == 0
    leave.set()
    assert await working == 1
    assert bench.outcomes[-1].resumed_hook is not None
    assert _rows(direct_dsn) == []


async def test_a_task_that_takes_longer_than_its_timeout_has_failed(
    postgres_only: EngineStore, monkeypatch: pytest.MonkeyPatch, direct_dsn: str
) -> None:
    bench = await _bench(postgres_only, policy=TaskPolicy(timeout=timedelta(milliseconds=20)))
    await bench.queue.dispatch(tasks.ResumeHookByToken(token=TOKEN, payload="yes"))

    async def hangs(*_: Any) -> Any:
        await asyncio.Event().wait()

    monkeypatch.setattr("flowpg.fleet.task_worker.carry_out", hangs)
    assert await bench.worker.run_once() == 1
    (letter,) = map(json.loads, _all(direct_dsn, "flow_dead_letters").splitlines())
    assert letter["last_error"] == "TimeoutError"


def _rows(dsn: str) -> list[str]:
    """The open tasks that are no drive tasks."""
    rows = _all(dsn, "flow_tasks").splitlines()
    return [row for row in rows if json.loads(row)["kind"] != "drive_run"]
