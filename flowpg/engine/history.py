"""The history of a driven run: what was loaded, and what the drive has added since.

Workflow code that decides from the snapshot never looks at the events, so an event of the drive is
made an envelope when somebody reads it, and not before.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any, overload
from uuid import UUID

from flowpg.model.events import FlowEventEnvelope, NewEvent


class RunHistory(Sequence[FlowEventEnvelope]):
    """Stored events, followed by ``pending`` ones, which have a provisional time."""

    __slots__ = ("_made", "_pending", "_previewed", "_provisional", "_run_id", "_stored", "_unmade")

    def __init__(self, run_id: str, stored: Iterable[FlowEventEnvelope]) -> None:
        self._run_id = run_id
        self._made = list(stored)
        self._stored = len(self._made)  # how many events are stored, made or not
        self._unmade: list[tuple[Sequence[NewEvent], datetime]] = []
        self._pending: Sequence[NewEvent] = ()
        self._previewed = 0  # how many of the pending events are made
        self._provisional: datetime

    def __len__(self) -> int:
        return self._stored + len(self._pending)

    @overload
    def __getitem__(self, index: int) -> FlowEventEnvelope: ...
    @overload
    def __getitem__(self, index: slice) -> list[FlowEventEnvelope]: ...
    def __getitem__(self, index: int | slice) -> FlowEventEnvelope | list[FlowEventEnvelope]:
        return self._all()[index]

    def __iter__(self) -> Iterator[FlowEventEnvelope]:
        return iter(self._all())

    def take_in(self, news: Sequence[FlowEventEnvelope]) -> None:
        """Add events that others have stored, with nothing pending."""
        self._all().extend(news)
        self._stored += len(news)

    def pend(self, events: Sequence[NewEvent], now: datetime) -> None:
        """``events`` are now all that is pending: those so far, and new ones after them, read as
        of ``now`` until they are stored. The list is referred to, not copied."""
        self._pending = events
        self._provisional = now

    def replace_pending(self, place: int) -> None:
        """The pending event at ``place`` is another one now."""
        if place < self._previewed:
            event, at = self._pending[place], self._stored + place
            self._all()[at] = _Driven(
                self._run_id, at + 1, self._provisional, event.type, event.data
            )

    def drop_pending(self) -> None:
        """What was pending will not be stored."""
        del self._made[len(self._made) - self._previewed :]
        self._pending = ()
        self._previewed = 0

    def stored(self, recorded_at: datetime) -> None:
        """What was pending is stored, all of it at that time."""
        events, self._pending = self._pending, ()
        self._stored += len(events)
        if not self._previewed:
            self._unmade.append((events, recorded_at))
            return
        made = self._made
        for envelope in made[len(made) - self._previewed :]:
            envelope.recorded_at = recorded_at
        self._make(events[self._previewed :], recorded_at)
        self._previewed = 0

    def latest(self, count: int) -> list[FlowEventEnvelope]:
        """The last ``count`` events."""
        made = self._all()
        return made[len(made) - count :]

    def _all(self) -> list[FlowEventEnvelope]:
        if self._unmade:
            for events, recorded_at in self._unmade:
                self._make(events, recorded_at)
            self._unmade.clear()
        if self._previewed < len(self._pending):
            self._make(self._pending[self._previewed :], self._provisional)
            self._previewed = len(self._pending)
        return self._made

    def _make(self, events: Sequence[NewEvent], recorded_at: datetime) -> None:
        made, run_id = self._made, self._run_id
        for event in events:
            sequence = len(made) + 1
            made.append(_Driven(run_id, sequence, recorded_at, event.type, event.data))


class _Driven(FlowEventEnvelope):
    """An event of this drive. Its id is the one the store derives, made when someone asks: few do,
    and it costs as much as folding the event."""

    __slots__ = ()

    def __init__(
        self, run_id: str, sequence: int, recorded_at: datetime, type: str, data: dict[str, Any]
    ) -> None:
        self.run_id = run_id
        self.sequence = sequence
        self.recorded_at = recorded_at
        self.type = type
        self.schema_version = None
        self._payload = self._timestamp = None
        self._data = data

    @property
    def event_id(self) -> str:
        """What a store derives for an event that brings no id: MD5 of run and sequence."""
        digest = hashlib.md5(f"{self.run_id}/{self.sequence}".encode(), usedforsecurity=False)
        return str(UUID(bytes=digest.digest()))

    @event_id.setter
    def event_id(self, value: str) -> None:
        """Ignored."""
