"""Leases that were granted to a claim whose answer nobody waited for.

Whether a claim that was cancelled took anything is known to the server alone. So the claims after
it are made under another name, and what its own name still holds, beyond what its process drives,
is given back: other workers need not wait for the leases to run out.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from datetime import timedelta
from time import monotonic
from typing import Any

from flowpg.errors import FlowError
from flowpg.model.records import RunLease
from flowpg.postgres.fleet_verbs import release_strays
from flowpg.store.postgres import PostgresEventStore

logger = logging.getLogger("flowpg.fleet.worker")

_AGAIN = 1.0
"""Seconds between two looks at what a claim left behind."""


class StrayLeases:
    """The name that claims of ``queues`` are made under, and what earlier names have left.

    ``held`` tells which leases this process has. A claim that comes through after it was given up,
    in a network that keeps messages, is found for as long as a ``lease`` lasts.
    """

    def __init__(
        self,
        store: object,
        queues: Sequence[str],
        owner: str,
        lease: timedelta,
        held: Callable[[], Sequence[RunLease]],
    ) -> None:
        self._store = store if isinstance(store, PostgresEventStore) else None
        self._queues = queues
        self._first = self.owner = owner
        self._lease = lease.total_seconds()
        self._held = held
        self._names = 0
        self._left: dict[str, tuple[asyncio.Task[Any], float]] = {}
        self._looked = -_AGAIN

    def abandoned(self, claim: asyncio.Task[Any]) -> None:
        """This claim, made under ``owner``, was cancelled."""
        if self._store is None:
            return
        self._left[self.owner] = (claim, monotonic() + self._lease)
        self._names += 1
        self.owner = f"{self._first}#{self._names}"
        self._looked = -_AGAIN

    async def give_back(self) -> None:
        """Give back what was left behind by claims that have ended. Raises nothing: what is not
        given back runs out by itself."""
        now = monotonic()
        if not self._left or self._store is None or now - self._looked < _AGAIN:
            return
        self._looked = now
        held = self._held()
        for owner, (claim, until) in list(self._left.items()):
            if not claim.done():
                continue  # it may still begin what it took
            try:
                given, busy = await self._store.call(release_strays(self._queues, owner, held))
            except FlowError as error:
                logger.warning("what a claim may have left behind is kept: %s", error)
                continue
            if given:
                logger.info("%d leases of a claim without an answer were given back", given)
            if monotonic() > until and not busy:
                del self._left[owner]
