"""Coroutines of runs that wait, kept so that the next event need not replay the whole history."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from threading import Lock

from flowpg.authoring.turns import RunTurns

_SEEN_PER_PLACE = 16


class ParkingLot:
    """Keeps at most ``places`` coroutines, the latest used; the others are put aside and replayed
    when their run goes on. It also remembers, for more runs than that, how far they were seen, so
    that a replay is silent about it. Safe to use from several threads."""

    def __init__(self, places: int) -> None:
        self._places = places
        self._parked: OrderedDict[str, RunTurns] = OrderedDict()
        self._seen: OrderedDict[str, int] = OrderedDict()
        self._lock = Lock()
        # A lot that is dropped, or the end of the process, must not run cleanup code either.
        weakref.finalize(self, _put_aside, self._parked)

    def __len__(self) -> int:
        return len(self._parked)

    def take(self, run_id: str) -> RunTurns | None:
        """The coroutine of a run, for whoever drives it now."""
        return self._parked.pop(run_id, None)

    def park(self, turns: RunTurns) -> None:
        """Keep a coroutine until its run goes on."""
        parked = self._parked
        if len(parked) < self._places and turns.run_id not in parked:
            parked[turns.run_id] = turns
            return
        surplus = []
        with self._lock:
            replaced = self._parked.pop(turns.run_id, None)
            if replaced is not None:
                surplus.append(replaced)
            self._parked[turns.run_id] = turns
            while len(self._parked) > self._places:
                surplus.append(self._parked.popitem(last=False)[1])
        for item in surplus:
            self.saw(item.run_id, item.consumed, False)
            item.forget()

    def seen(self, run_id: str) -> int:
        """The sequence up to which workflow code of this process has seen the run."""
        return self._seen.get(run_id, 0)

    def saw(self, run_id: str, sequence: int, ended: bool) -> None:
        """Workflow code has seen the run up to ``sequence``."""
        with self._lock:
            before = self._seen.pop(run_id, 0)
            if not ended:
                self._seen[run_id] = max(before, sequence)
            while len(self._seen) > _SEEN_PER_PLACE * max(self._places, 64):
                self._seen.popitem(last=False)

    def clear(self) -> None:
        """Put every coroutine aside."""
        with self._lock:
            known = [(turns.run_id, turns.consumed) for turns in self._parked.values()]
            _put_aside(self._parked)
        for run_id, sequence in known:
            self.saw(run_id, sequence, False)


def _put_aside(parked: OrderedDict[str, RunTurns]) -> None:
    while parked:
        parked.popitem()[1].forget()
