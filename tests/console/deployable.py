"""Two releases of one application, and runs that the first one left open."""

import asyncio

from flowpg.authoring.app import FlowApp
from flowpg.authoring.context import hook
from flowpg.engine.flow_engine import FlowEngine
from flowpg.model.spec import WorkflowSpec
from flowpg.store.postgres import PostgresEventStore

TOKEN = "nobody-may-see-this"

first = FlowApp("shop")
second = FlowApp("shop")


@first.step(name="charge")
async def _charge(order: str) -> str:
    return order


@first.workflow(name="order")
async def _order(order: str) -> str:
    await _charge(order)
    return await hook("approval", str, token=f"{TOKEN}-{order}")


@second.step(name="charge")
async def _charge_later(order: str) -> str:
    return order


@second.workflow(name="order")
async def _order_later(order: str) -> str:
    await asyncio.sleep(60)
    return await _charge_later(order)


async def start_runs(dsn: str, run_ids: list[str]) -> None:
    """Let the first release drive these runs until they wait, and start one of another app."""
    store = await PostgresEventStore.connect(dsn)
    async with FlowEngine(store, first) as engine:
        for run_id in run_ids:
            await _order.start_with_id(engine, run_id, run_id)
    store = await PostgresEventStore.connect(dsn)
    async with FlowEngine(store, None) as engine:
        await engine.start_with_id("parcel-1", WorkflowSpec.python("parcel"), None)
