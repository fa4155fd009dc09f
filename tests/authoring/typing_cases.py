"""What must and what must not type-check. Every line that must not carries an ignore, and mypy
complains of an ignore that is not needed."""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, assert_type

import psycopg
from sqlalchemy.orm import Session

from flowpg import FlowApp, Hook, Retry, Workflow, hook, sync
from flowpg.authoring.steps import SyncStep
from flowpg.engine.flow_engine import FlowEngine
from flowpg.model.snapshot import WorkflowRunSnapshot
from flowpg.model.timeouts import StepTimeouts

app = FlowApp("typing")


@dataclass
class Receipt:
    id: str


@dataclass
class Approval:
    ok: bool


@app.step
async def charge(order_id: str, cents: int, *, note: str = "") -> Receipt:
    return Receipt(order_id)


@app.step(retry=Retry.exponential(5, initial=timedelta(seconds=1)), name="render.pdf")
def render(receipt: Receipt) -> bytes:
    return receipt.id.encode()


@app.step(transactional=True)
async def book(connection: psycopg.AsyncConnection[Any], order_id: str) -> Receipt:
    return Receipt(order_id)


@app.step(transactional=True, retry=Retry.none())
def erase(session: Session, receipt: Receipt) -> int:
    return 1


@app.step(queue="gpu")
async def draw(order_id: str) -> bytes:
    return b""


@app.step(queue="gpu", retry=Retry.none())
def shade(drawing: bytes) -> int:
    return 1


@app.step(transactional=True, queue="ledger")
async def enter(connection: psycopg.AsyncConnection[Any], cents: int) -> Receipt:
    return Receipt(str(cents))


@app.step(queue=5)  # type: ignore[call-overload, untyped-decorator]
async def nowhere() -> None: ...


@app.workflow
async def elsewhere(order_id: str) -> int:
    drawing = await draw(order_id)
    assert_type(drawing, bytes)
    assert_type(await draw.options(queue=None)(order_id), bytes)
    assert_type(await enter.options(queue="other")(5), Receipt)
    await draw.options(queue=5)(order_id)  # type: ignore[arg-type]
    await shade.options(queue=None).run(order_id)  # type: ignore[arg-type]
    return await shade.run(drawing)


@app.workflow
async def in_transactions(order_id: str) -> int:
    receipt = await book(order_id)
    assert_type(receipt, Receipt)
    limits = StepTimeouts(start_to_close=timedelta(seconds=5))
    assert_type(await book.options(timeouts=limits)(order_id), Receipt)
    assert_type(await erase.run(receipt), int)

    await book()  # type: ignore[call-arg]
    await book(5)  # type: ignore[arg-type]
    await book(None, order_id)  # type: ignore[call-arg, arg-type]
    await erase.run("no receipt")  # type: ignore[arg-type]
    await book.options(timeouts=5)(order_id)  # type: ignore[arg-type]
    return await erase.run(receipt)


@app.workflow
async def checkout(order_id: str, cents: int = 5) -> Receipt:
    receipt, again = await asyncio.gather(charge(order_id, cents), charge("x", 1, note="y"))
    assert_type(receipt, Receipt)
    assert_type(again, Receipt)
    assert_type(await charge(order_id, cents), Receipt)
    assert_type(await render.run(receipt), bytes)
    assert_type(await asyncio.to_thread(render, receipt), bytes)
    assert_type(await charge.options(retry=Retry.none())(order_id, cents), Receipt)
    assert_type(await render.options(retry=Retry.none()).run(receipt), bytes)
    assert_type(await charge.options(id="mine", queue="slow")(order_id, cents), Receipt)
    async with hook("approval", Approval, expires=timedelta(days=3)) as approval:
        assert_type(approval, Hook[Approval])
        assert_type(await approval, Approval)
    assert_type(await hook("approval", Approval), Approval)
    assert_type(await asyncio.wait_for(hook("number", int), 5), int)
    assert_type(await hook("anything"), Any)
    async with hook("lock", bool, token="t", on_conflict="wait") as lock:
        assert_type(await lock, bool)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(charge("x", 1))
    assert_type(task.result(), Receipt)

    await charge(order_id)  # type: ignore[call-arg]
    await charge(5, cents)  # type: ignore[arg-type]
    await charge(order_id, cents, unknown=1)  # type: ignore[call-arg]
    await charge.options(retry=5)(order_id, cents)  # type: ignore[arg-type]
    await charge.options(speed=5)(order_id, cents)  # type: ignore[call-arg]
    await render.run("no receipt")  # type: ignore[arg-type]
    await asyncio.to_thread(render, "no receipt")  # type: ignore[arg-type]
    await render(receipt)  # type: ignore[misc]
    await hook(5, Approval)  # type: ignore[call-overload]
    number: int = await charge(order_id, cents)  # type: ignore[assignment]
    del number
    return receipt


@app.workflow
def plain(order_id: str) -> Receipt:
    assert_type(render(Receipt(order_id)), bytes)
    assert_type(sync.wait(charge(order_id, 5)), Receipt)
    assert_type(sync.gather(lambda: render(Receipt(order_id))), list[bytes])
    assert_type(sync.spawn(render, Receipt(order_id)).result(), bytes)
    sync.spawn(render, order_id)  # type: ignore[arg-type]
    with sync.hook("approval", Approval) as approval:
        assert_type(approval.result(), Approval)
    return Receipt(order_id)


@app.workflow(name="class.style", version="2")
class Subscription:
    """A workflow that keeps state."""

    def __init__(self) -> None:
        self.paid = 0

    async def run(self, customer: str, months: int) -> int:
        for _ in range(months):
            await charge(customer, 100)
            self.paid += 100
        return self.paid


subscription = app.of(Subscription)


def results(snapshot: WorkflowRunSnapshot) -> None:
    """What a client reads."""
    assert_type(checkout.result(snapshot), Receipt)
    assert_type(subscription.result(snapshot), int)


def calls() -> None:
    """What a test calls without an engine."""
    assert_type(render(Receipt("x")), bytes)
    one: Coroutine[Any, Any, Receipt] = charge("x", 1)
    two: Coroutine[Any, Any, Receipt] = checkout("x", 5)
    three: Coroutine[Any, Any, int] = subscription("x", 5)
    del one, two, three
    assert_type(plain("x"), Receipt)
    plain(5)  # type: ignore[arg-type]
    assert_type(plain.input("x"), dict[str, Any])
    assert_type(Subscription().paid, int)
    assert_type(checkout.input("x", cents=5), dict[str, Any])


async def starting(engine: FlowEngine) -> None:
    """What starts runs."""
    assert_type(await checkout.start(engine, "x", cents=5), str)
    assert_type(await subscription.start_with_id(engine, "mine", "x", 5), str)
    await checkout.start(engine, 5)  # type: ignore[arg-type]
    slow = checkout.options(queue="slow", run_id="mine", build="b")
    assert_type(await slow.start(engine, "x"), str)
    await slow.start(engine, 5)  # type: ignore[arg-type]
    checkout.options(speed=5)  # type: ignore[call-arg]
    await checkout.start_with_id(engine, "mine")  # type: ignore[call-arg]


def misuse() -> None:
    """What must not pass."""
    checkout.input(5)  # type: ignore[arg-type]
    checkout.input()  # type: ignore[call-arg]
    checkout.request("x", speed=1)  # type: ignore[call-arg]
    subscription.input("x")  # type: ignore[call-arg]
    subscription.input("x", "y")  # type: ignore[arg-type]
    app.of(Receipt)  # type: ignore[arg-type]
    render(5)  # type: ignore[arg-type]

    app.step(retry="often")  # type: ignore[call-overload]
    app.workflow(retries=5)  # type: ignore[call-overload]

    def takes_workflow(workflow: Workflow[[str], Receipt]) -> None: ...

    takes_workflow(subscription)  # type: ignore[arg-type]

    def takes_step(step: SyncStep[[Receipt], bytes]) -> None: ...

    takes_step(render)
    takes_step(charge)  # type: ignore[arg-type]
