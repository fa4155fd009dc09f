"""Durability: the engine and its process go away, the run does not."""

import asyncio
from secrets import token_urlsafe
from typing import Any

from examples.hook_approval import SPEC, Approval
from flowpg import open_engine


async def main() -> Any:
    """Start with one engine, look with a second, finish with a third."""
    token = token_urlsafe()
    async with open_engine(Approval()) as engine:
        run_id = await engine.start(SPEC, {"token": token})
    async with open_engine(Approval()) as engine:
        between = (await engine.snapshot(run_id)).status
    async with open_engine(Approval()) as engine:
        await engine.resume_hook_by_token(token, {"approved": True})
        end = await engine.snapshot(run_id)
    return {"between": str(between), "end": str(end.status)}


if __name__ == "__main__":
    print(asyncio.run(main()))
