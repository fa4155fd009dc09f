"""Withdrawing a callback: the workflow sees it, and a late answer is refused."""

import asyncio
from secrets import token_urlsafe
from typing import Any

from examples.hook_approval import SPEC, Approval
from flowpg import HookTokenNotFound, open_engine


async def main() -> Any:
    """Open the hook, withdraw it, and answer too late."""
    async with open_engine(Approval()) as engine:
        token = token_urlsafe()
        run_id = await engine.start(SPEC, {"token": token})
        await engine.dispose_hook_by_token(token)
        try:
            await engine.resume_hook_by_token(token, {"approved": True})
            late = "accepted"
        except HookTokenNotFound:
            late = "refused"
        return {"late": late, **(await engine.snapshot(run_id)).output}


if __name__ == "__main__":
    print(asyncio.run(main()))
