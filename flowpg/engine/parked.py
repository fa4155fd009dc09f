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
    """Read the runs of a claim that did not come with it, in one call: of those that are parked
    only what is new, and the last event that is known, to be recognised."""
    found: dict[str, tuple[LoadedRun, RunTip | None]] = {}
    tips: dict[str, RunTip | None] = {}
    for lease in leases:
        tip = parked.take(lease.run_id)
        loaded, lease.loaded = lease.loaded, None
        if loaded is None:
            tips[lease.run_id] = tip
        else:
            found[lease.run_id] = (loaded, tip if tip and _only_news(loaded, tip) else None)
    if tips:
        after = [tip.stored - 1 if tip is not None else 0 for tip in tips.values()]
        for run_id, run in (await store.load_runs(list(tips), after)).items():
            found[run_id] = (run, tips[run_id] if run.after else None)
    return found


def _only_news(loaded: LoadedRun, tip: RunTip) -> bool:
    """Leave of a whole history what a read after the tip would have brought. False, and it stays
    whole, where that is all of it, or where the tip is ahead of it."""
    if not 1 < tip.stored <= len(loaded.history):
        return False
    loaded.after = tip.stored - 1
    del loaded.history[: loaded.after]
    return True
