"""An application as a user would have it, for the tests of what users test with."""

import asyncio
from dataclasses import dataclass
from datetime import timedelta

from flowpg import FlowApp, Retry, hook

app = FlowApp("shop")


@dataclass
class Receipt:
    """What a charge gives."""

    number: str
    cents: int


class Declined(Exception):
    """The bank says no."""


@app.step(retry=Retry.fixed(3, timedelta(minutes=10)), fatal=(Declined,))
async def charge(order: str, cents: int) -> Receipt:
    """Needs a bank, which no test has."""
    raise AssertionError("a test must not charge")


@app.step
def print_label(order: str) -> str:
    """A plain function."""
    return f"label of {order}"


@app.workflow
async def checkout(order: str, cents: int) -> str:
    """Charge and print side by side, wait for thirty days, ask a person."""
    receipt, label = await asyncio.gather(charge(order, cents), print_label.run(order))
    await asyncio.sleep(30 * 24 * 3600)
    async with hook("approval", bool) as approval:
        try:
            async with asyncio.timeout(7 * 24 * 3600):
                approved = await approval
        except TimeoutError:
            return f"{receipt.number}: nobody answered"
    return f"{receipt.number}: {label}, {'approved' if approved else 'refused'}"


@app.workflow
async def impatient(order: str) -> str:
    """Gives a charge one hour."""
    try:
        async with asyncio.timeout(3600):
            return (await charge(order, 1)).number
    except TimeoutError:
        return "too slow"
