"""Two accounts and a transfer: the rows of a step and its completion commit in one transaction."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg

from flowpg import FlowApp, NonRetryable, open_engine

app = FlowApp("bank")

TABLE = """
CREATE TABLE IF NOT EXISTS public.example_accounts (
    owner text PRIMARY KEY, cents bigint NOT NULL CHECK (cents >= 0)
)
"""
FILL = """
INSERT INTO public.example_accounts VALUES ('ada', 1000), ('bob', 0)
    ON CONFLICT (owner) DO UPDATE SET cents = excluded.cents
"""
MOVE = "UPDATE public.example_accounts SET cents = cents + %s WHERE owner = %s RETURNING cents"


@app.step(transactional=True)
def prepare(connection: psycopg.Connection[Any]) -> None:
    """Plain functions get a synchronous connection, and run in a thread."""
    connection.execute(TABLE)
    connection.execute(FILL)


@app.step(transactional=True)
async def transfer(
    connection: psycopg.AsyncConnection[Any], giver: str, taker: str, cents: int
) -> int:
    """Both accounts and the step's completion are changed together, exactly once."""
    try:
        cursor = await connection.execute(MOVE, (-cents, giver))
    except psycopg.errors.CheckViolation:
        raise NonRetryable(f"{giver} does not have {cents} cents") from None
    row = await cursor.fetchone()
    await connection.execute(MOVE, (cents, taker))
    assert row is not None
    return int(row[0])


@app.workflow
async def pay_twice() -> dict[str, Any]:
    """The workflow calls a transactional step without the connection."""
    await prepare.run()
    left = await transfer("ada", "bob", 800)
    try:
        await transfer("ada", "bob", 800)
    except NonRetryable as error:
        return {"left": left, "second": str(error)}
    return {"left": left, "second": "paid"}


async def main() -> Any:
    """Run it on FLOWPG_DSN, or on the embedded server."""
    async with open_engine(app) as engine:
        run_id = await engine.start(pay_twice.spec, pay_twice.input())
        return pay_twice.result(await engine.drive(run_id))


if __name__ == "__main__":
    print(asyncio.run(main()))
