"""Waiting for what a worker does, from beside it."""

from flowpg.engine.flow_engine import FlowEngine
from flowpg.errors import StoreUnavailable
from tests.waiting import until_async


async def until_ended(engine: FlowEngine, *run_ids: str) -> None:
    """Wait until these runs have ended, whatever happens to the engine's own connections."""
    for run_id in run_ids:

        async def ended(run_id: str = run_id) -> bool:
            try:
                return (await engine.run_info(run_id)).status.terminal
            except StoreUnavailable:
                return False

        await until_async(ended, f"run {run_id} ends")
