"""A worker of several queues: one claim for all, told of any."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from flowpg.errors import InvalidArgument
from flowpg.fleet.worker import FlowWorker
from flowpg.store.postgres import PostgresEventStore
from tests.engine.support import SPEC, EngineStore, Script, echo, one_step, wrapping
from tests.fleet.commands import worker_process
from tests.fleet.watching import until_ended
from tests.waiting import until_async


async def test_a_worker_serves_several_queues_with_one_claim(engine_store: EngineStore) -> None:
    calls: list[str] = []

    async def note(name: str, args: Any) -> None:
        calls.append(name)

    runtime = Script(one_step(input=1), {"work": echo})
    engine = await engine_store.engine(runtime, wrap=wrapping(before=note))
    for queue in ("a", "b", "a", "c"):
        await engine.start(SPEC, queue=queue, drive=False)
    calls.clear()
    assert await FlowWorker(engine, ["a", "b"]).run_once() == 3
    assert calls.count("claim_runs") == 1
    assert await FlowWorker(engine, ["a", "b"]).run_once() == 0
    assert await FlowWorker(engine, "c").run_once() == 1


async def test_a_worker_needs_a_queue_and_counts_one_named_twice_once(
    engine_store: EngineStore,
) -> None:
    engine = await engine_store.engine(Script(one_step(), {"work": echo}))
    assert FlowWorker(engine, ["a", "b", "a"]).queues == ("a", "b")
    assert FlowWorker(engine).queues == ("default",)
    for wrong in ([], [""], ["a", " "]):
        with pytest.raises(InvalidArgument):
            FlowWorker(engine, wrong)


async def test_an_idle_worker_of_several_queues_is_told_of_work_in_any(
    postgres_only: EngineStore, direct_dsn: str
) -> None:
    engine = await postgres_only.engine(Script(one_step(), {"work": echo}))
    seldom = timedelta(hours=1)
    worker = FlowWorker(engine, ["a", "b"], poll=seldom, direct_dsn=direct_dsn)
    working = asyncio.ensure_future(worker.run())

    async def told() -> bool:
        services = worker._services
        return services is not None and services.told and services._hinted_until > 0

    for queue in ("a", "b", "a"):
        await until_async(told, "the worker says that it waits")
        await until_ended(engine, await engine.start(SPEC, queue=queue, drive=False))
    worker.stop()
    await working


async def test_the_command_takes_several_queues(
    postgres_only: EngineStore, direct_dsn: str
) -> None:
    client = await postgres_only.engine(None)
    assert isinstance(client.store, PostgresEventStore)
    runs = [await client.start(SPEC, "quick", queue=queue) for queue in ("a", "b")]
    async with worker_process(direct_dsn, "--queue", "a", "--queue", "b"):
        await until_ended(client, *runs)
