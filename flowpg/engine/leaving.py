"""The end of a drive: its handlers are stopped and its lease goes back, whatever ended it."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta

from flowpg.engine.errortext import blocked_delay, blocked_reason
from flowpg.engine.handlers import StepHandlers
from flowpg.engine.parts import DriveParts
from flowpg.errors import StoreError, UnknownStep
from flowpg.model.records import RunLease

logger = logging.getLogger("flowpg.engine.drive")


async def leave(
    parts: DriveParts,
    lease: RunLease,
    handlers: StepHandlers,
    error: BaseException | None,
    *,
    owned: bool,
) -> bool:
    """Cancel what is at work and give the lease back if it is still ``owned``, even if this task
    is cancelled meanwhile. Says whether the run turned out to have ended already."""
    if error is None and not owned and not handlers.busy:
        parts.keeper.drop(lease)
        return False
    handlers.abandon_all()
    leaving = asyncio.ensure_future(_close(parts, lease, handlers, error, owned=owned))
    try:
        return await asyncio.shield(leaving)
    except asyncio.CancelledError:
        if error is None:
            raise
        return False


async def _close(
    parts: DriveParts,
    lease: RunLease,
    handlers: StepHandlers,
    error: BaseException | None,
    *,
    owned: bool,
) -> bool:
    await handlers.gone(parts.options.cancel_grace)
    parts.keeper.drop(lease)
    if not owned:
        return False
    delay, reason = timedelta(0), None
    if isinstance(error, Exception):
        delay = blocked_delay(lease.attempts)
        reason = None if isinstance(error, StoreError) else blocked_reason(error)
    try:
        if reason is not None and await parts.store.has_ended(lease.run_id):
            return await parts.store.release(lease)
        missing = error.name if isinstance(error, UnknownStep) else None
        await parts.store.give_back(lease, delay, reason, missing)
    except Exception as failure:  # noqa: BLE001  the lease then runs out by itself
        logger.warning(
            "the lease of run %r could not be given back (%s); it runs out by itself",
            lease.run_id,
            type(failure).__name__,
        )
    return False
