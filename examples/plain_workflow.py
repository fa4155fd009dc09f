"""A workflow without async: plain steps, a timeout that is closed, work side by side, a patch."""

import asyncio
from typing import Any

from flowpg import FlowApp, open_engine, patched, set_attributes, sync

app = FlowApp("parcels")


@app.step
def weigh(item: str) -> int:
    """Runs in a thread, at least once; its result is kept."""
    return 100 * len(item)


@app.step
def label(item: str, grams: int) -> str:
    """Another one."""
    return f"{item}: {grams} g"


@app.workflow
def send(items: list[str]) -> list[str]:
    """Weigh everything side by side, wait a moment, and print the labels."""
    with sync.timeout(3600):  # a durable timer, closed as soon as the block is left
        weights = sync.gather(*(lambda item=item: weigh(item) for item in items))
    set_attributes(parcels=len(items), grams=sum(weights))
    sync.sleep(0.1)  # the run waits, no thread does
    if patched("heaviest-first"):  # runs that came here before this line was written go without
        pairs = sorted(zip(items, weights, strict=True), key=lambda pair: -pair[1])
    else:
        pairs = list(zip(items, weights, strict=True))
    return [label(item, grams) for item, grams in pairs]


async def main() -> Any:
    """Start it, wait until it is done, and show its attributes beside the result."""
    async with open_engine(app) as engine:
        run_id = await send.start(engine, ["book", "piano", "tea"])
        await asyncio.sleep(0.2)  # a worker would be told; here the timer just has to be due
        snapshot = await engine.drive(run_id)
        return send.result(snapshot), (await engine.run_info(run_id)).attributes


if __name__ == "__main__":
    print(asyncio.run(main()))
