"""Claiming: what a worker asks the queue for, and what it reads of the runs it was given."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from enum import Enum
from time import monotonic

from flowpg.engine.flow_engine import FlowEngine
from flowpg.engine.tip import RunTip
from flowpg.errors import StoreError, StoreUnavailable
from flowpg.fleet.stray_leases import StrayLeases
from flowpg.model.records import Capabilities, LoadedRun, RunLease
from flowpg.replay.runtime import known

logger = logging.getLogger("flowpg.fleet.worker")


class Due(Enum):
    """When to look for deadlines that have passed: in one call with the claim, which is right for a
    worker that has nothing to do; after it, where there is room left; or at a later look, because
    somebody waits for what this one finds."""

    WITH = "with"
    AFTER = "after"
    LATER = "later"


_DUE_AT_LEAST = {Due.WITH: 0.25, Due.AFTER: 0.25, Due.LATER: 1.0}
"""Seconds after which deadlines are looked for all the same."""

Begin = Callable[[RunLease, LoadedRun | None, RunTip | None], None]


class Claims:
    """Claims runs of some queues for ``engine``, all in one call; ``begin`` is called with each of
    them, whatever happens after the claim. ``schedule``: make work of what is due; ``held``: the
    leases that are driven."""

    def __init__(
        self,
        engine: FlowEngine,
        queues: Sequence[str],
        max_crashes: int,
        *,
        schedule: bool,
        begin: Begin,
        held: Callable[[], Sequence[RunLease]],
    ) -> None:
        self._engine = engine
        lease = engine.options.lease
        self.strays = StrayLeases(engine.store, queues, engine.owner, lease, held)
        self._queues = queues
        self._max_crashes = max_crashes
        self._schedule = schedule
        self._begin = begin
        self._last_due = 0.0
        self._apart = False

    async def take(self, free: int, *, due: Due = Due.AFTER) -> int:
        """Claim up to ``free`` runs and begin to drive them; returns how many. StoreError."""
        await self.strays.give_back()
        if not self._schedule:
            return await self._claim_and_begin(free)
        if due is Due.WITH and not self._apart:
            try:
                claimed = await self._claim_and_begin(free, due=True)
            except StoreUnavailable:
                raise
            except StoreError as error:
                # What is broken about a deadline must not keep work from being claimed.
                self._apart = True
                logger.warning("what is due is looked for apart from now on: %s", _said(error))
            else:
                self._last_due = monotonic()
                return claimed
        claimed = await self._claim_and_begin(free)
        # Looked for only now, so that nothing that was claimed waits for it, but not put off for
        # ever where there is always enough to do.
        enough = due is Due.LATER or claimed >= free
        if enough and monotonic() - self._last_due < _DUE_AT_LEAST[due]:
            return claimed
        self._last_due = monotonic()
        try:
            if await self._engine.store.enqueue_due() and claimed < free:
                claimed += await self._claim_and_begin(free - claimed)
        except Exception as error:
            if not claimed:
                raise
            logger.warning("what is due is looked for later: %s", _said(error))
        return claimed

    async def _claim_and_begin(self, limit: int, *, due: bool = False) -> int:
        leases = await self._claim(limit, due)
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

    async def _claim(self, limit: int, due: bool) -> list[RunLease]:
        engine, options = self._engine, self._engine.options
        may = Capabilities(
            options.runtime_builds,
            options.accept_unpinned,
            known(engine.runtime, "workflows"),
            self._max_crashes,
        )
        asked = self._queues, limit, self.strays.owner, options.lease, may
        return await engine.store.claim_runs(*asked, due=due)


def _said(error: Exception) -> str:
    return str(error) if isinstance(error, StoreError) else type(error).__name__
