"""Durable asyncio on both stores: end to end, from process to process, through every crash."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest

from flowpg import FlowApp, Retry, hook, now, progress, random, uuid4
from flowpg.errors import FlowError
from flowpg.fleet.worker import FlowWorker
from flowpg.model.snapshot import RunStatus
from tests.authoring.shapes import Line
from tests.engine.support import EngineStore, Mortal
from tests.waiting import until_async

Ran = Counter[tuple[str, str]]


def order_app(ran: Ran, *, always_replay: bool = False) -> FlowApp:
    """A workflow with something of everything; ``ran`` counts what its steps really did."""
    app = FlowApp("order", always_replay=always_replay)

    @app.step
    async def reserve(line: Line) -> Line:
        ran["reserve", line.sku] += 1
        return line

    @app.step(retry=Retry.fixed(3))
    async def charge(total: Decimal, key: str) -> str:
        ran["charge", key] += 1
        if ran["charge", key] < 2:
            raise ConnectionError("the bank did not answer")
        return f"R-{total}"

    @app.step
    def render(receipt: str) -> bytes:
        ran["render", receipt] += 1
        return receipt.encode()

    @app.workflow
    async def order(lines: list[Line]) -> dict[str, Any]:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(reserve(line)) for line in lines]
        total = sum((task.result().price for task in tasks), start=Decimal(0))
        progress(1, 3)
        key = str(uuid4())
        receipt = await charge(total, key)
        late = False
        async with hook("approval", bool, token=f"approve {random().random()}") as approval:
            try:
                async with asyncio.timeout(60):
                    approved = await approval
            except TimeoutError:
                late = True
                approved = await approval
        document = await render.run(receipt)
        await asyncio.sleep(10)
        return {"late": late, "approved": approved, "document": document, "at": now()}

    return app


LINES = [Line("a", Decimal("1.10")), Line("b", Decimal("2.20")), Line("c", Decimal(3))]


async def play_to_the_end(store: EngineStore, new_app: Callable[[], FlowApp], run_id: str) -> Any:
    """Drive a run that exists, with a new process for every move, until it has ended."""
    for _ in range(30):
        app = new_app()
        engine = await store.engine(app)
        snapshot = await engine.drive(run_id)
        if snapshot.terminal:
            return app.workflows["order"].result(snapshot)
        if snapshot.open.hooks and not snapshot.open.waits:
            await engine.resume_hook(run_id, "approval", True)
        else:
            store.advance(timedelta(seconds=60))
            await engine.resume_scheduled_run(run_id)
    raise AssertionError("the run does not end")


@pytest.mark.parametrize("always_replay", [False, True])
async def test_a_workflow_runs_on_both_stores(
    engine_store: EngineStore, always_replay: bool
) -> None:
    ran: Ran = Counter()
    app = order_app(ran, always_replay=always_replay)
    engine = await engine_store.engine(app)
    order = app.workflows["order"]
    run_id = await engine.start(order.spec, order.input(LINES))
    assert (await engine.snapshot(run_id)).status is RunStatus.SUSPENDED
    await engine.resume_hook(run_id, "approval", True)
    engine_store.advance(timedelta(seconds=11))
    await engine.resume_due_waits()
    result = order.result(await engine.snapshot(run_id))
    assert (result["late"], result["approved"], result["document"]) == (False, True, b"R-6.30")
    assert Counter(kind for kind, _ in ran.elements()) == {"reserve": 3, "charge": 2, "render": 1}
    # The history replays to the same end where nothing of it was seen before.
    fresh = await engine_store.engine(order_app(Counter(), always_replay=True))
    assert (await fresh.drive(run_id)).output == (await engine.snapshot(run_id)).output


async def test_every_move_may_be_another_process(engine_store: EngineStore) -> None:
    ran: Ran = Counter()
    engine = await engine_store.engine(order_app(ran))
    order = order_app(Counter()).workflows["order"]
    run_id = await engine.start(order.spec, order.input(LINES), drive=False)
    result = await play_to_the_end(engine_store, lambda: order_app(ran), run_id)
    assert (result["late"], result["approved"], result["document"]) == (True, True, b"R-6.30")
    assert Counter(kind for kind, _ in ran.elements()) == {"reserve": 3, "charge": 2, "render": 1}


@pytest.mark.parametrize("after", [False, True])
async def test_a_process_may_die_at_every_write(engine_store: EngineStore, after: bool) -> None:
    order = order_app(Counter()).workflows["order"]
    at, died = 0, True
    while died:
        at += 1
        ran: Ran = Counter()
        mortal = Mortal(at, after=after)
        run_id = f"run-{at}-{after}"
        starter = await engine_store.engine(order_app(ran))
        await starter.start_with_id(run_id, order.spec, order.input(LINES), drive=False)
        doomed = await engine_store.engine(order_app(ran), wrap=mortal.wrap)
        # Whatever the dead process makes of its own end is nobody's concern.
        with contextlib.suppress(Exception):
            await doomed.drive(run_id)
            await doomed.resume_hook(run_id, "approval", True)
            engine_store.advance(timedelta(seconds=60))
            await doomed.resume_scheduled_run(run_id)
        died = mortal.dead
        engine_store.leases_run_out()
        result = await play_to_the_end(engine_store, lambda ran=ran: order_app(ran), run_id)  # type: ignore[misc]
        assert result["document"] == b"R-6.30"
        history = await starter.history(run_id)
        counts = Counter(event.type for event in history)
        assert counts["step_completed"] == 5
        assert counts["hook_created"] == counts["hook_received"] == 1
        assert counts["run_progress_recorded"] == counts["run_completed"] == 1
    assert at > 8


async def test_two_processes_that_want_one_run_lose_nothing(engine_store: EngineStore) -> None:
    ran: Ran = Counter()
    apps = [order_app(ran), order_app(ran, always_replay=True)]
    engines = [await engine_store.engine(app) for app in apps]
    order = apps[0].workflows["order"]
    run_ids = [f"run-{number}" for number in range(5)]
    for run_id in run_ids:
        await engines[0].start_with_id(run_id, order.spec, order.input(LINES), drive=False)

    async def drive(engine: Any, run_id: str) -> None:
        with contextlib.suppress(FlowError):
            await engine.drive(run_id)

    await asyncio.gather(*(drive(engine, run_id) for run_id in run_ids for engine in engines))
    for run_id in run_ids:
        await asyncio.gather(
            engines[0].resume_hook(run_id, "approval", True),
            drive(engines[1], run_id),
        )
    engine_store.advance(timedelta(seconds=61))
    for engine in engines:
        await engine.resume_due_waits()
    for run_id in run_ids:
        result = order.result(await engines[0].drive(run_id))
        assert (result["approved"], result["document"]) == (True, b"R-6.30")
    assert Counter(kind for kind, _ in ran.elements())["reserve"] == 15


async def test_a_worker_drives_many_runs(postgres_only: EngineStore) -> None:
    ran: Ran = Counter()
    app = FlowApp("many")

    @app.step
    def work(x: int) -> int:
        ran["work", str(x)] += 1
        return x + 1

    @app.workflow
    async def main(x: int) -> int:
        first, second = await asyncio.gather(work.run(x), work.run(x + 100))
        await asyncio.sleep(0.01)
        return first + second

    engine = await postgres_only.engine(app)
    results = await engine.start_many([main.request(number) for number in range(30)])
    worker = FlowWorker(engine, concurrency=10)
    working = asyncio.create_task(worker.run())

    async def all_ended() -> bool:
        return (await engine.run_summary()).completed == len(results)

    await until_async(all_ended, "all runs complete")
    worker.stop()
    await working
    for number, found in enumerate(results):
        assert main.result(await engine.snapshot(found.run_id)) == 2 * number + 102
    assert set(ran.values()) == {1}


async def test_cancellation_on_both_stores(engine_store: EngineStore) -> None:
    cleaned: list[str] = []
    app = FlowApp("cancelling")

    @app.step
    async def release(what: str) -> None:
        cleaned.append(what)

    @app.workflow
    async def main() -> None:
        try:
            await hook("go", token="t")
        except asyncio.CancelledError as error:
            await asyncio.gather(release("stock"), release("money"))
            await release(str(error))
            raise

    engine = await engine_store.engine(app)
    run_id = await engine.start(main.spec, main.input())
    snapshot = await engine.request_cancellation(run_id, "changed my mind")
    assert (snapshot.status, snapshot.error) == (RunStatus.CANCELLED, "changed my mind")
    assert cleaned == ["stock", "money", "changed my mind"]


async def test_a_long_run_replays_in_time_that_grows_with_its_length(
    engine_store: EngineStore,
) -> None:
    app = FlowApp("long")
    replayed = FlowApp("long")

    def declare(app: FlowApp) -> None:
        @app.step
        async def work(x: int) -> int:
            return x

        @app.workflow
        async def main(steps: int) -> int:
            total = 0
            for number in range(steps):
                total += await work(number)
            await hook("go", token="t")
            return total

    declare(app)
    declare(replayed)
    engine = await engine_store.engine(app)
    main = app.workflows["main"]
    run_id = await engine.start(main.spec, main.input(300))
    other = await engine_store.engine(replayed)
    assert main.result(await other.resume_hook(run_id, "go", None)) == sum(range(300))
