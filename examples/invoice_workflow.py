"""An invoice approval in durable asyncio: the workflow of ``make demo``.

load, then two checks side by side, then a posting that fails twice and is retried, then a timer,
then a person's approval, then the payment. ``invoice_approval.py`` is the same by hand.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from datetime import timedelta

import psycopg

from flowpg import FlowApp, HookMetadata, Retry, hook, info, step_context

app = FlowApp("invoices")


@dataclass
class Invoice:
    """What the first step reads."""

    id: str
    vendor: str
    cents: int


@dataclass
class Approval:
    """What the approver sends."""

    approved: bool
    by: str = "unknown"


def approval_token(run_id: str) -> str:
    """The token an approver holds. A real application would make it unguessable."""
    return f"approve-{run_id}"


@app.workflow
async def approve_invoice(invoice_id: str) -> str:
    """Decides what happens, and does nothing itself: that is what steps are for."""
    invoice = await load(invoice_id)
    affordable, trusted = await asyncio.gather(
        check_budget(invoice.cents), check_vendor(invoice.vendor)
    )
    if not (affordable and trusted):
        return f"{invoice.id} refused"
    await post_to_ledger(invoice.id)
    await asyncio.sleep(2)  # a durable timer: the run waits, no process does

    metadata = HookMetadata.human_approval(f"invoice {invoice.id}")
    token = approval_token(info().run_id)
    async with hook("approval", Approval, token=token, metadata=metadata) as approval:
        answer = await approval
    if not answer.approved:
        return f"{invoice.id} rejected by {answer.by}"
    receipt = await pay(invoice)
    return f"{invoice.id} paid, approved by {answer.by}, receipt {receipt}"


@app.step
async def load(invoice_id: str) -> Invoice:
    """Reads the invoice."""
    await _witness()
    await asyncio.sleep(0.2)
    return Invoice(invoice_id, "Acme GmbH", 125_000)


@app.step
async def check_budget(cents: int) -> bool:
    """Runs beside the other check."""
    await _witness()
    await asyncio.sleep(0.2)
    return cents < 1_000_000


@app.step
async def check_vendor(vendor: str) -> bool:
    """Slow enough to be killed in the middle."""
    await _witness()
    await asyncio.sleep(1.5)
    return bool(vendor)


@app.step(retry=Retry.fixed(4, timedelta(seconds=1)))
async def post_to_ledger(invoice_id: str) -> str:
    """Fails twice; the pause before the next attempt is durable too."""
    await _witness()
    attempt = step_context().attempt
    if attempt <= 2:
        raise ConnectionError(f"the ledger did not answer (attempt {attempt})")
    return f"L-{invoice_id}"


@app.step
async def pay(invoice: Invoice) -> str:
    """The key is the same however often this runs: the bank dedupes by it."""
    await _witness()
    return f"R-{step_context().idempotency_key[:8]}"


async def _witness() -> None:
    # Each execution leaves a row in the witness table of the demo.
    dsn = os.environ.get("FLOWPG_DSN")
    if dsn is None:
        return
    step = step_context()
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
        await connection.execute(
            "INSERT INTO demo_witness (run_id, step, attempt, pid) VALUES (%s, %s, %s, %s)",
            (step.run_id, step.step_name, step.attempt, os.getpid()),
        )
