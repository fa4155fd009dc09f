"""Claiming: what a worker asks the queue for, and what it reads of the runs it was given."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from time import monotonic

from flowpg.engine.flow_engine import FlowEngine
from flowpg.engine.tip import RunTip
from flowpg.errors import StoreError
from flowpg.fleet.registry import known
from flowpg.model.records import Capabilities, LoadedRun, RunLease

logger = logging.getLogger("flowpg.fleet.worker")

_DUE_AT_LEAST = 0.25
"""Seconds after which due deadlines are looked for although every claim fills the worker."""

Begin = Callable[[RunLease, LoadedRun | None, RunTip | None], None]


class Claims:
    """Claims runs of some queues for ``engine``, all in one call; ``begin`` is called with each of
    them, whatever happens after the claim. ``schedule``: make work of what is due."""

    def __init__(
        self,
        engine: FlowEngine,
        queues: Sequence[str],
        max_crashes: int,
        schedule: bool,
        begin: Begin,
    ) -> None:
        self._engine = engine
        self._queues = queues
        self._max_crashes = max_crashes
        self._schedule = schedule
        self._begin = begin
        self._last_due = 0.0

    async def take(self, free: int) -> int:
        """Claim up to ``free`` runs and begin to drive them; returns how many. StoreError."""
        claimed = await self._claim_and_begin(free)
        # What is due becomes work. Looked for only now, so that nothing that was claimed waits for
        # it, but not put off for ever where there is always enough to do.
        late = monotonic() - self._last_due > _DUE_AT_LEAST
        if self._schedule and (claimed < free or late):
            self._last_due = monotonic()
            try:
                if await self._engine.store.enqueue_due() and claimed < free:
                    claimed += await self._claim_and_begin(free - claimed)
            except Exception as error:
                if not claimed:
                    raise
                logger.warning("what is due is looked for later: %s", _said(error))
        return claimed

    async def _claim_and_begin(self, limit: int) -> int:
        leases = await self._claim(limit)
        loaded: dict[str, tuple[LoadedRun, RunTip | None]] = {}
        try:
            # One read for all of them, and of those that wait in memory only the news.
            if leases:
                loaded = await self._engine.load_claimed(leases)
        except Exception as error:  # noqa: BLE001
            # Each drive then reads its own, with patience, and one that is broken harms no other.
            logger.warning("%d claimed runs are read one by one: %s", len(leases), _said(error))
        finally:
            for lease in leases:
                if lease.previous_owner is not None:
                    logger.info(
                        "run %r is taken over from %s, whose lease ran out",
                        lease.run_id,
                        lease.previous_owner,
                    )
                self._begin(lease, *loaded.get(lease.run_id, (None, None)))
        return len(leases)

    async def _claim(self, limit: int) -> list[RunLease]:
        engine, options = self._engine, self._engine.options
        may = Capabilities(
            options.runtime_builds,
            options.accept_unpinned,
            known(engine.runtime, "workflows"),
            self._max_crashes,
        )
        return await engine.store.claim_runs(self._queues, limit, engine.owner, options.lease, may)


def _said(error: Exception) -> str:
    return str(error) if isinstance(error, StoreError) else type(error).__name__
