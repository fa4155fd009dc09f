"""Runs that wait, kept in memory so that only their news are read when they go on."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from flowpg.engine.tip import RunTip
from flowpg.model.records import LoadedRun, RunLease
from flowpg.store.protocol import FlowEventStore

_EVENTS_A_RUN = 100
"""How many events the kept runs may have on average: long histories are let go first of all."""


class ParkedRuns:
    """The tips of at most ``places`` runs, the latest used. What is kept may be out of date, or of
    a history that a failover took back: ``RunTip.resume`` finds out."""

    def __init__(self, places: int) -> None:
        self._places = places
        self._room = places * _EVENTS_A_RUN
        self._events = 0
        self._tips: OrderedDict[str, RunTip] = OrderedDict()

    def __len__(self) -> int:
        return len(self._tips)

    def park(self, tip: RunTip) -> None:
        """Keep the tip of a run that was given back; it is no longer the caller's."""
        self.take(tip.run_id)
        if tip.terminal or tip.pending or len(tip.history) > self._room:
            return
        self._tips[tip.run_id] = tip
        self._events += len(tip.history)
        while len(self._tips) > self._places or self._events > self._room:
            self._events -= len(self._tips.popitem(last=False)[1].history)

    def take(self, run_id: str) -> RunTip | None:
        """The tip of a run, for its next drive."""
        tip = self._tips.pop(run_id, None)
        if tip is not None:
            self._events -= len(tip.history)
        return tip


async def load_claimed(
    store: FlowEventStore, parked: ParkedRuns, leases: Sequence[RunLease]
) -> dict[str, tuple[LoadedRun, RunTip | None]]:
    """Read all runs of a claim in one call: of those that are parked only what is new, and the last
    event that is known, to be recognised."""
    tips = {lease.run_id: parked.take(lease.run_id) for lease in leases}
    after = [tip.stored - 1 if tip is not None else 0 for tip in tips.values()]
    loaded = await store.load_runs(list(tips), after)
    return {run_id: (run, tips[run_id] if run.after else None) for run_id, run in loaded.items()}
