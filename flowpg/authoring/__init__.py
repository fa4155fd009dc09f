"""Durable asyncio: workflows and steps as plain functions, over the same commands and events.

::

    app = FlowApp("billing")

    @app.step(retry=Retry.exponential(5, initial=timedelta(seconds=1)))
    async def charge(order_id: str, cents: int) -> Receipt: ...

    @app.workflow
    async def checkout(order: Order) -> Result:
        receipt, stock = await asyncio.gather(charge(order.id, order.cents), reserve(order))
        async with hook("approval", Approval, expires=timedelta(days=3)) as approval:
            async with asyncio.timeout(3600):
                decision = await approval
        return Result(receipt=receipt, approved=decision.ok)
"""
