"""Durable asyncio: steps side by side, a person's answer with a deadline, and plain Python."""

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from flowpg import FlowApp, Retry, WorkflowRunSnapshot, hook, open_engine

app = FlowApp("purchases")


@dataclass
class Offer:
    """What a vendor asks for; dataclasses travel as JSON, by their annotations."""

    vendor: str
    cents: int


@dataclass
class Approval:
    """What the approver sends."""

    approved: bool


@app.step(retry=Retry.fixed(3, timedelta(0)))
async def ask(vendor: str, item: str) -> Offer:
    """A call to a vendor; retried where it stands when it fails."""
    return Offer(vendor, len(vendor) * 100 + len(item))


@app.step
async def buy(offer: Offer) -> str:
    """Runs at least once, its result is recorded once."""
    return f"bought from {offer.vendor} for {offer.cents} cents"


@app.workflow
async def purchase(item: str, vendors: list[str]) -> str:
    """Ask everybody at once, take the cheapest, have it approved within an hour, buy."""
    offers = await asyncio.gather(*(ask(vendor, item) for vendor in vendors))
    best = min(offers, key=lambda offer: offer.cents)
    async with hook("approval", Approval) as approval:
        try:
            async with asyncio.timeout(3600):  # a durable timer
                answer = await approval
        except TimeoutError:
            return "nobody answered"
    return await buy(best) if answer.approved else "rejected"


async def main() -> Any:
    """Run it up to the hook, answer, and return its result."""
    async with open_engine(app) as engine:
        run_id = await purchase.start(engine, "a desk", ["Acme", "Wood Inc", "Oak"])
        [waiting] = await engine.list_active_hooks(run_id=run_id)
        end: WorkflowRunSnapshot = await engine.resume_hook(
            run_id, waiting.hook_id, {"approved": True}
        )
        return purchase.result(end)


if __name__ == "__main__":
    print(asyncio.run(main()))
