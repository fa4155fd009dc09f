"""Who is there and what it can do; and what becomes of runs that nobody can drive."""

import asyncio
import os
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from flowpg.errors import UnknownStep
from flowpg.fleet.worker import FlowWorker
from flowpg.model.snapshot import RunStatus
from flowpg.model.spec import WorkflowSpec
from flowpg.postgres.fleet_verbs import WorkerRow, live_workers, worker_beat
from flowpg.replay.runtime import known
from flowpg.store.postgres import PostgresEventStore
from tests.engine.support import LEASE, SPEC, EngineStore, Script, echo, one_step, short
from tests.fleet.apps import Quick
from tests.fleet.commands import worker_process
from tests.fleet.watching import until_ended
from tests.waiting import until_async


class Named(Script):
    """A runtime that says which workflows it has."""

    def __init__(self, *names: str) -> None:
        super().__init__(one_step(), {"work": echo})
        self.workflows = dict.fromkeys(names)


async def workers_of(store: Any) -> list[WorkerRow]:
    """The workers that say that they are alive."""
    assert isinstance(store, PostgresEventStore)
    return await store.call(live_workers())


async def test_a_worker_says_what_it_can_do_while_it_works_and_that_it_ends(
    postgres_only: EngineStore,
) -> None:
    engine = await postgres_only.engine(Named("a", "b"), builds=["b2", "b1"], unpinned=True)
    worker = FlowWorker(engine, "special", concurrency=7, listen=False)
    working = asyncio.ensure_future(worker.run())

    async def registered() -> list[WorkerRow]:
        return await workers_of(engine.store)

    [row] = await until_async(registered, "the worker registers")
    assert row.worker_id == engine.owner
    assert row.pid == os.getpid()
    assert row.queues == ("special",)
    assert (row.runtime_build, row.builds, row.accepts_unpinned) == ("b2", ("b2", "b1"), True)
    assert (row.workflows, row.steps) == (("a", "b"), ("work",))
    assert (row.slots, row.running) == (7, 0)
    assert row.last_beat is not None
    worker.stop()
    await working
    assert await workers_of(engine.store) == []


async def test_a_worker_is_given_only_runs_whose_workflow_it_knows(
    engine_store: EngineStore,
) -> None:
    client = await engine_store.engine(None)
    known = await client.start(WorkflowSpec.python("known"), 1)
    unknown = await client.start(WorkflowSpec.python("unknown"), 2)
    assert await FlowWorker(await engine_store.engine(Named("known"))).run_until_idle() == 1
    assert (await client.run_info(known)).status is RunStatus.COMPLETED
    assert (await client.run_info(unknown)).status is RunStatus.PENDING
    assert await FlowWorker(await engine_store.engine(Named("unknown"))).run_until_idle() == 1
    assert (await client.run_info(unknown)).status is RunStatus.COMPLETED


async def test_a_worker_is_given_only_runs_whose_build_it_is(engine_store: EngineStore) -> None:
    client = await engine_store.engine(None)
    pinned = await client.start(WorkflowSpec.python("w").with_runtime_build("b1"))
    free = await client.start(WorkflowSpec.python("w"))
    runtime = Script(one_step(), {"work": echo})
    other = await engine_store.engine(runtime, builds=["b2"])
    assert await FlowWorker(other).run_until_idle() == 0
    either = await engine_store.engine(runtime, builds=["b2"], unpinned=True)
    assert await FlowWorker(either).run_until_idle() == 1
    assert (await client.run_info(free)).status is RunStatus.COMPLETED
    right = await engine_store.engine(runtime, builds=["b0", "b1"])
    assert await FlowWorker(right).run_until_idle() == 1
    assert (await client.run_info(pinned)).status is RunStatus.COMPLETED


async def test_a_run_that_takes_its_workers_with_it_is_set_aside_and_says_so(
    postgres_only: EngineStore, direct_dsn: str
) -> None:
    client = await postgres_only.engine(None)
    poison = await client.start(SPEC, "fatal")
    options = ("--max-crashes", "2", "--no-listen", "--poll", "0.05")
    for _ in range(3):
        async with worker_process(direct_dsn, *options, app="tests.fleet.apps:Marked") as process:
            async with asyncio.timeout(20):
                assert await process.wait() == 137
        postgres_only.leases_run_out()
    async with worker_process(direct_dsn, *options) as process:

        async def set_aside() -> str | None:
            return (await client.run_info(poison)).blocked_reason

        reason = await until_async(set_aside, "the run is set aside")
        # The worker that set it aside lives, and serves others.
        await until_ended(client, await client.start(SPEC, "quick"))
        assert process.returncode is None
    assert "lost 3 workers" in reason
    assert (await client.run_info(poison)).status is RunStatus.RUNNING
    assert short(await client.history(poison)).count("step.started s") == 1


async def test_a_deploy_burns_no_attempt_and_counts_as_no_crash(
    engine_store: EngineStore,
) -> None:
    client = await engine_store.engine(None)
    run_id = await client.start(SPEC)
    for _ in range(10):
        entered = asyncio.Event()

        async def stay(step: Any, entered: asyncio.Event = entered) -> Any:
            entered.set()
            await asyncio.Event().wait()

        engine = await engine_store.engine(Script(one_step(), {"work": stay}))
        worker = FlowWorker(engine, grace=timedelta(0), max_crashes=1)
        working = asyncio.ensure_future(worker.run())
        await entered.wait()
        worker.stop()
        await working
    [lease] = await client.store.claim_runs("default", 1, "me", LEASE)
    await client.store.give_back(lease)
    runtime = Script(one_step(), {"work": echo})
    assert await FlowWorker(await engine_store.engine(runtime)).run_until_idle() == 1
    assert (await client.run_info(run_id)).status is RunStatus.COMPLETED
    assert short(await client.history(run_id)).count("step.started s") == 1


def test_a_runtime_that_names_no_workflows_may_be_given_any() -> None:
    runtime = Quick()
    assert known(runtime, "workflows") is None
    runtime.workflows = None  # type: ignore[attr-defined]
    assert known(runtime, "workflows") is None
    runtime.steps = [print, 1]  # type: ignore[attr-defined]
    assert known(runtime, "steps") is None


@pytest.mark.parametrize("said", [["a"], ("a",), {"a"}, {"a": 1}, [WorkflowSpec.python("a")]])
def test_a_runtime_names_its_workflows_as_any_collection_of_names_or_specs(said: Any) -> None:
    runtime = Quick()
    runtime.workflows = said  # type: ignore[attr-defined]
    assert known(runtime, "workflows") == ("a",)


async def test_a_run_whose_step_no_live_worker_knows_says_so_until_one_appears(
    postgres_only: EngineStore, direct_dsn: str
) -> None:
    def unknown(step: Any) -> Any:
        raise UnknownStep(step.step_name)

    without = Named("order")
    without.steps = {"other": unknown, "work": unknown}
    runtime = Named("order")
    client = await postgres_only.engine(None)
    run_id = await client.start(SPEC)

    def waiting_for() -> str | None:
        with psycopg.connect(direct_dsn) as connection:
            row = connection.execute(
                "SELECT waiting_for FROM flowpg.flow_run_info(%s)", (run_id,)
            ).fetchone()
        assert row is not None
        reason: str | None = row[0]
        return reason

    def row(worker_id: str, *steps: str) -> WorkerRow:
        queues, about = ("default",), (None, None, True, ("order",))
        return WorkerRow(worker_id, "host", 1, queues, *about, steps, slots=1, running=0)

    store = client.store
    assert isinstance(store, PostgresEventStore)
    await store.call(worker_beat(row("w1", "other"), timedelta(minutes=1)))
    assert await FlowWorker(await postgres_only.engine(without)).run_until_idle() == 1
    assert waiting_for() == "no worker for step work"
    assert "no step named 'work'" in str((await client.run_info(run_id)).blocked_reason)
    heir = FlowWorker(await postgres_only.engine(runtime))
    assert await heir.run_until_idle() == 0, "it rests for a while"
    await store.call(worker_beat(row("w2", "other", "work"), timedelta(minutes=1)))
    assert waiting_for() is None
    assert await heir.run_until_idle() == 1, "at once, now that somebody knows the step"
    assert (await client.run_info(run_id)).status is RunStatus.COMPLETED
