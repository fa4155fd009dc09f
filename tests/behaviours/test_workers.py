"""Workers that come and go; databases that go away, are put back, or hold what few can read."""

import asyncio
import gc
import threading

import psycopg
import pytest
from psycopg import sql

from flowpg import (
    Compression,
    FlowApp,
    FlowEngine,
    FlowWorker,
    PostgresEventStore,
    Retry,
    RunStatus,
    WorkflowSpec,
    hook,
)
from flowpg.authoring.step_context import step_context
from flowpg.testing.servers import PostgresServer
from tests.clock import DatabaseClock
from tests.engine.support import MINUTE, SPEC, EngineStore, Script, echo, one_step
from tests.fleet.commands import worker_process
from tests.fleet.watching import until_ended
from tests.proxy import Proxy
from tests.waiting import until_async

app = FlowApp("behaviours")


@app.step(retry=Retry.fixed(2, MINUTE))
async def wobble(number: int) -> int:
    """Fails once, and is tried again a minute later."""
    if step_context().attempt == 1:
        raise ConnectionError("once")
    return number


@app.workflow
async def pausing(number: int) -> list[int]:
    """A timer of a minute beside a step that has to be tried again, and another step."""
    _, found = await asyncio.gather(asyncio.sleep(60), wobble(number))
    return [found, await wobble(number + 1)]


PAUSING = "tests.behaviours.test_workers:app"


async def test_a_timer_and_a_retry_outlive_the_process_that_began_them(
    postgres_only: EngineStore, direct_dsn: str
) -> None:
    client = await postgres_only.engine(None)
    run_id = await client.start(pausing.spec, pausing.input(1))

    async def waits() -> bool:
        return "step_retrying" in [event.type for event in await client.history(run_id)]

    async with worker_process(direct_dsn, "--lease", "1", "--poll", "0.05", app=PAUSING) as first:
        await until_async(waits, "the run waits for both")
        first.kill()
        await first.wait()
    before = await client.history(run_id)
    postgres_only.advance(MINUTE * 0.9)
    engine = await postgres_only.engine(app)
    await FlowWorker(engine).run_until_idle()
    assert len(await client.history(run_id)) == len(before), "nothing is due yet"
    postgres_only.advance(MINUTE * 10)  # long past due: at once
    worker = FlowWorker(engine)
    await worker.run_until_idle()
    postgres_only.advance(MINUTE)
    await worker.run_until_idle()
    snapshot = await client.snapshot(run_id)
    assert snapshot.output == [1, 2]
    assert [step.attempt for step in snapshot.steps.values()] == [2, 2]
    assert [e.type for e in await client.history(run_id)].count("wait_completed") == 1


async def test_what_came_due_while_the_database_was_away_happens_once_when_it_is_back(
    postgres_only: EngineStore, direct_dsn: str
) -> None:
    client = await postgres_only.engine(None)
    with Proxy(direct_dsn) as proxy:
        store = await PostgresEventStore.connect(proxy.dsn)
        engine = FlowEngine.builder(app).with_store(store).build()
        postgres_only.engines.append(engine)
        worker = FlowWorker(engine, poll=MINUTE / 600)
        working = asyncio.ensure_future(worker.run())
        runs = [await client.start(pausing.spec, pausing.input(n)) for n in range(20)]
        for run_id in runs:

            async def suspended(run_id: str = run_id) -> bool:
                return (await client.run_info(run_id)).status is RunStatus.SUSPENDED

            await until_async(suspended, "the run waits")
        with proxy.away():
            postgres_only.advance(2 * MINUTE)

        async def wait_again() -> bool:
            histories = [await client.history(run_id) for run_id in runs]
            return all(
                [event.type for event in history].count("step_retrying") == 2
                for history in histories
            )

        await until_async(wait_again, "the second steps wait for their second attempt")
        postgres_only.advance(2 * MINUTE)
        await until_ended(client, *runs)
        worker.stop()
        await working
    for number, run_id in enumerate(runs):
        snapshot = await client.snapshot(run_id)
        assert snapshot.output == [number, number + 1]
        types = [event.type for event in await client.history(run_id)]
        assert types.count("wait_completed") == 1
        assert types.count("step_retrying") == 2


sleepers = FlowApp("sleepers")


@sleepers.workflow
async def sleeper(number: int) -> int:
    """One timer."""
    await asyncio.sleep(3600)
    return number


async def due_together(store: EngineStore, runs: int) -> None:
    """Timers of many runs due at the same moment, two workers with a scheduler each."""
    client = await store.engine(None)
    workers = [FlowWorker(await store.engine(sleepers), concurrency=100) for _ in range(2)]
    ids = [await client.start(sleeper.spec, sleeper.input(n)) for n in range(runs)]
    await asyncio.gather(*(worker.run_until_idle() for worker in workers))
    store.advance(MINUTE * 60)
    working = [asyncio.ensure_future(worker.run()) for worker in workers]
    await until_ended(client, *ids)
    for worker in workers:
        worker.stop()
    await asyncio.gather(*working)
    for number, run_id in enumerate(ids):
        history = [event.type for event in await client.history(run_id)]
        assert history.count("wait_completed") == 1
        assert (await client.snapshot(run_id)).output == number


async def test_timers_of_many_runs_that_are_due_together_all_end_and_each_once(
    postgres_only: EngineStore,
) -> None:
    await due_together(postgres_only, 100)


@pytest.mark.storm
@pytest.mark.timeout(900)
async def test_timers_of_thousands_of_runs_that_are_due_together_all_end_and_each_once(
    postgres_only: EngineStore,
) -> None:
    await due_together(postgres_only, 2000)


async def test_how_many_coroutines_are_kept_makes_no_difference_to_fifty_runs_at_once(
    postgres_only: EngineStore,
) -> None:
    seen = []
    for parked in (0, 1, 1000):
        small = FlowApp("small", max_parked=parked)

        @small.step
        async def work(number: int) -> int:
            return number + 1

        @small.workflow
        async def main(number: int) -> list[int]:
            first = await work(number)
            answer = await hook("go", int, token=f"go {number} {first}")
            return [first, answer, await work(answer)]

        engine = await postgres_only.engine(small)
        worker = FlowWorker(engine, concurrency=10)
        ids = [f"{parked}-{number}" for number in range(50)]
        for number, run_id in enumerate(ids):
            await engine.start_with_id(run_id, main.spec, main.input(number), drive=False)
        await worker.run_until_idle()
        for number, run_id in enumerate(ids):
            await engine.resume_hook(run_id, "go", number * 2, drive=False)
        await worker.run_until_idle()
        seen.append([(await engine.snapshot(run_id)).output for run_id in ids])
    assert seen == [[[n + 1, n * 2, n * 2 + 1] for n in range(50)]] * 3


async def test_a_worker_keeps_nothing_of_the_runs_that_have_ended(
    postgres_only: EngineStore, direct_dsn: str
) -> None:
    small = FlowApp("small")

    @small.step
    async def work(number: int) -> int:
        return number

    @small.workflow
    async def main(number: int) -> int:
        return await work(number)

    engine = await postgres_only.engine(small)
    worker = FlowWorker(engine)

    async def measured() -> tuple[int, int, int, int]:
        for number in range(150):
            await engine.start(main.spec, main.input(number), drive=False)
        await worker.run_until_idle()
        gc.collect()
        with psycopg.connect(direct_dsn) as connection:
            found = connection.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
            ).fetchone()
        assert found is not None
        tasks, threads = len(asyncio.all_tasks()), threading.active_count()
        return len(gc.get_objects()), tasks, threads, found[0]

    await measured()
    first = await measured()
    second = await measured()
    # 150 runs more leave less than one object each, and no task, thread or connection.
    assert second[0] - first[0] < 150
    assert all(later <= before for later, before in zip(second[1:], first[1:], strict=True))


async def test_a_database_put_back_to_an_earlier_moment_goes_on_from_there(
    pg_server: PostgresServer, database: str, direct_dsn: str
) -> None:
    begun: list[str] = []
    three = FlowApp("three")

    @three.step
    async def work(number: int) -> int:
        begun.append(step_context().step_id)
        return number

    @three.workflow
    async def main(number: int) -> list[int]:
        return [await work(number), await hook("go", int, token=f"{number}"), await work(number)]

    async def engine_on(dsn: str) -> FlowEngine:
        store = await PostgresEventStore.connect(dsn)
        return FlowEngine.builder(three).with_store(store).build()

    engine = await engine_on(direct_dsn)
    ids = [
        await engine.start_with_id(f"r{n}", main.spec, main.input(n), drive=False) for n in range(8)
    ]
    # When the copy is made four wait, a worker holds two, and two have not begun.
    for run_id in ids[:4]:
        await engine.drive(run_id)
    await engine.store.claim_runs("default", 2, "a worker of then", MINUTE)
    await engine.close()
    with (
        pg_server.database() as copy,
        psycopg.connect(pg_server.admin_dsn, autocommit=True) as admin,
    ):
        names = {"copy": sql.Identifier(copy), "original": sql.Identifier(database)}
        admin.execute(sql.SQL("DROP DATABASE {copy}").format(**names))
        admin.execute(sql.SQL("CREATE DATABASE {copy} TEMPLATE {original}").format(**names))

        # Life goes on: everything is answered and ends.
        engine = await engine_on(direct_dsn)
        for run_id in ids[:4]:
            await engine.resume_hook(run_id, "go", 1)
        assert (await engine.snapshot("r0")).status is RunStatus.COMPLETED
        await engine.close()

        # Then the copy is all there is, with a process whose coroutines are further on.
        engine = await engine_on(pg_server.dsn_of(copy))
        DatabaseClock(pg_server.dsn_of(copy)).advance(2 * MINUTE)  # leases of then run out
        begun.clear()
        worker = FlowWorker(engine)
        working = asyncio.ensure_future(worker.run())
        for number, run_id in enumerate(ids):

            async def opened(run_id: str = run_id) -> bool:
                return bool((await engine.snapshot(run_id)).open.hooks)

            await until_async(opened, "the run waits for its answer")
            await engine.resume_hook(run_id, "go", number + 100, drive=False)
        await until_ended(engine, *ids)
        worker.stop()
        await working
        for number, run_id in enumerate(ids):
            assert (await engine.run_info(run_id)).blocked_reason is None
            assert (await engine.snapshot(run_id)).output == [number, number + 100, number]
        assert begun.count("work#1") == 4
        assert begun.count("work#2") == len(ids)
        await engine.close()


async def test_a_run_that_cannot_be_read_is_blocked_until_it_can_and_others_go_on(
    postgres_only: EngineStore,
) -> None:
    def build(codecs: tuple[Compression, ...], known: bool) -> FlowApp:
        made = FlowApp("codecs", codecs=codecs)

        @made.workflow(name="plain")
        async def plain(text: str) -> int:
            await hook("go", token=f"token {text[:3]}")
            return len(text)

        if known:

            @made.workflow(name="rare")
            async def rare() -> str:
                return "rare"

        return made

    packed = build((Compression(),), known=True)
    start = await postgres_only.engine(packed)
    workflow = packed.workflows["plain"]
    broken = await start.start(workflow.spec, workflow.input("abc" * 5000), drive=False)
    rare = await start.start(packed.workflows["rare"].spec, {}, drive=False)
    bare = build((), known=False)
    engine = await postgres_only.engine(bare)
    sound = [
        await engine.start(workflow.spec, bare.workflows["plain"].input(f"{n:03}"), drive=False)
        for n in range(10)
    ]
    await FlowWorker(engine).run_until_idle()
    for number in range(len(sound)):
        await engine.resume_hook_by_token(f"token {number:03}", None, drive=False)
    await FlowWorker(engine).run_until_idle()
    for run_id in sound:
        assert (await engine.run_info(run_id)).status is RunStatus.COMPLETED
    assert "zlib" in ((await engine.run_info(broken)).blocked_reason or "")
    info = await engine.run_info(rare)
    assert not info.status.terminal
    postgres_only.advance(10 * MINUTE)
    worker = FlowWorker(await postgres_only.engine(packed))
    await worker.run_until_idle()
    await start.resume_hook(broken, "go", None, drive=False)
    await worker.run_until_idle()
    assert (await start.snapshot(broken)).status is RunStatus.COMPLETED
    assert (await start.snapshot(rare)).output is not None


async def test_a_workflow_and_a_step_that_no_worker_knows_wait_visibly_for_one(
    postgres_only: EngineStore,
) -> None:
    client = await postgres_only.engine(None)
    unknown = await client.start(WorkflowSpec.python("nobody knows it"))
    lacking = await postgres_only.engine(Script(one_step()))
    known = await client.start(SPEC)
    await FlowWorker(lacking).run_until_idle()
    reason = (await client.run_info(known)).blocked_reason or ""
    assert "work" in reason
    assert not (await client.run_info(unknown)).status.terminal
    postgres_only.advance(MINUTE)
    heir = await postgres_only.engine(Script(one_step(), {"work": echo}))
    await FlowWorker(heir).run_until_idle()
    for run_id in (known, unknown):
        info = await client.run_info(run_id)
        assert info.status is RunStatus.COMPLETED
        assert info.blocked_reason is None
