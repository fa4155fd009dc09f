"""A driven run in memory: its snapshot folded forward, its history, and the store's clock.

Events are folded before they are stored, so that an outcome and the decision that follows from it
share one append. Whatever is folded and not stored in the end makes the whole tip useless: it is
then loaded again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from time import monotonic
from uuid import UUID

from flowpg.model.events import DEADLINE_FIELDS, FlowEventEnvelope, NewEvent
from flowpg.model.records import LoadedRun
from flowpg.model.snapshot import WorkflowRunSnapshot
from flowpg.replay import projection
from flowpg.replay.plan import StepLaunch
from flowpg.replay.repair import due_events, due_retries, next_deadline, repair_events

# How a store writes a deadline that it computed.
_STORED_TIME = "%Y-%m-%dT%H:%M:%S.%fZ"


class RunTip:
    """The newest known state of one run, stored events and those about to be."""

    def __init__(self, loaded: LoadedRun) -> None:
        """Project a loaded history. SerializationError or InvalidTransition if that is broken."""
        self.run_id = loaded.run_id
        self.history: list[FlowEventEnvelope] = list(loaded.history)
        self.snapshot: WorkflowRunSnapshot = projection.project(self.run_id, self.history)
        self.stored = self.snapshot.last_sequence
        self.pending: list[NewEvent] = []
        self._repaired = False
        self._now = loaded.now
        self._read_at = monotonic()

    def resume(self, loaded: LoadedRun) -> bool:
        """Take in what was stored since this tip was put aside; ``loaded`` begins with the last
        event that the tip knows. False, and the tip is useless, if the store does not know that
        event: it was restored, or failed over, to another history.
        """
        last = self.history[-1]
        found = loaded.history[0] if loaded.history else None
        if (
            found is None
            or (found.sequence, found.type) != (last.sequence, last.type)
            or found.recorded_at != last.recorded_at
        ):
            return False
        news = loaded.history[1:]
        projection.fold_onto(self.snapshot, news)
        self.history += news
        self.stored = self.snapshot.last_sequence
        self._repaired = False
        self._now = max(self._now, loaded.now)
        self._read_at = monotonic()
        return True

    @property
    def now(self) -> datetime:
        """The latest known reading of the store's clock: it is at least this late there."""
        return self._now

    def saw(self, now: datetime) -> None:
        """Take a new reading of the store's clock."""
        self._now = max(self._now, now)
        self._read_at = monotonic()

    @property
    def terminal(self) -> bool:
        """Whether the run has ended, the pending events included."""
        return self.snapshot.terminal

    def fold(self, events: Sequence[NewEvent]) -> None:
        """Fold events and keep them for the next append. InvalidTransition if they may not be."""
        snapshot, run_id, now = self.snapshot, self.run_id, self._now
        for event in events:
            projection.apply_new(snapshot, run_id, event, now)
            self.history.append(
                _Driven(run_id, snapshot.last_sequence, "", now, event.type, data=event.data)
            )
        self.pending += events

    def fold_repairs(self) -> None:
        """Complete what an interrupted writer left undone; looked for once after each load."""
        if not self._repaired:
            self._repaired = True
            self.fold(repair_events(self.snapshot))

    def fold_due(self, now: datetime) -> bool:
        """Complete timers and dispose hooks whose time has come. Says whether the time of a
        delayed retry has come too: a replay is to start that, so that code which does not fit the
        history burns no attempts."""
        if self.terminal or not self.snapshot.open.suspends:
            return False
        self.fold(due_events(self.snapshot, now))
        return bool(due_retries(self.snapshot, now).launches)

    def fold_retries(self, now: datetime) -> list[StepLaunch]:
        """Start the delayed retries whose time has come and that the replay did not ask for;
        returns the steps to launch."""
        if self.terminal or not self.snapshot.open.suspends:
            return []
        retries = due_retries(self.snapshot, now)
        self.fold(retries.events)
        return retries.launches

    def something_is_due(self) -> bool:
        """Whether a deadline is not after the latest reading of the clock."""
        deadline = next_deadline(self.snapshot) if self.snapshot.open.suspends else None
        return deadline is not None and deadline <= self._now

    def committed(self, recorded_at: datetime) -> list[FlowEventEnvelope]:
        """The pending events are stored: set their times and return their envelopes."""
        events, self.pending = self.pending, []
        if not events:
            return []
        projection.restamp(self.snapshot, events, recorded_at)
        envelopes = self.history[-len(events) :]
        for event, envelope in zip(events, envelopes, strict=True):
            envelope.recorded_at = recorded_at
            if event.due_in is not None:
                member = DEADLINE_FIELDS[event.type]
                due = (recorded_at + event.due_in).astimezone(UTC)
                event.data[member] = due.strftime(_STORED_TIME)
        self.stored = self.snapshot.last_sequence
        self.saw(recorded_at)
        return envelopes

    def seconds_to_deadline(self) -> float | None:
        """How long until the store's clock should reach the run's next deadline, None without one.

        An estimate by this process's monotonic clock; the store's own has the last word.
        """
        deadline = next_deadline(self.snapshot) if self.snapshot.open.suspends else None
        if deadline is None:
            return None
        elapsed = timedelta(seconds=monotonic() - self._read_at)
        return max(0.0, (deadline - self._now - elapsed).total_seconds())


class _Driven(FlowEventEnvelope):
    """An event of this drive. Its id is the one the store derives, made when someone asks: few do,
    and it costs as much as folding the event."""

    __slots__ = ()

    @property
    def event_id(self) -> str:
        """What a store derives for an event that brings no id: MD5 of run and sequence."""
        digest = hashlib.md5(f"{self.run_id}/{self.sequence}".encode(), usedforsecurity=False)
        return str(UUID(bytes=digest.digest()))

    @event_id.setter
    def event_id(self, value: str) -> None:
        """Ignored."""
