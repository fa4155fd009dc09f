"""The history of a driven run: what was loaded, and what the drive has added since.

Workflow code that decides from the snapshot never looks at the events, and durable asyncio looks at
those of its own drive as they are: so an event of the drive is made an envelope when somebody reads
it as one, and not before.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import overload
from uuid import UUID

from flowpg.model.events import STEP_STARTED, FlowEventEnvelope, NewEvent
from flowpg.model.records import AnyEvent


class RunHistory(Sequence[FlowEventEnvelope]):
    """Stored events, followed by pending ones, which have a provisional time."""

    __slots__ = ("_made", "_own", "_provisional", "_read", "_run_id", "_stored", "stretch")

    def __init__(self, run_id: str, stored: Iterable[FlowEventEnvelope]) -> None:
        self._run_id = run_id
        self._made = list(stored)
        self._read = len(self._made)  # how many events were read; those that follow are our own
        self._own: list[NewEvent] = []
        self._stored = self._read
        self._provisional: datetime
        self.stretch = object()
        """Another one whenever others were found to have begun steps: nobody here runs these."""

    def __len__(self) -> int:
        return self._read + len(self._own)

    @overload
    def __getitem__(self, index: int) -> FlowEventEnvelope: ...
    @overload
    def __getitem__(self, index: slice) -> list[FlowEventEnvelope]: ...
    def __getitem__(self, index: int | slice) -> FlowEventEnvelope | list[FlowEventEnvelope]:
        return self._all()[index]

    def __iter__(self) -> Iterator[FlowEventEnvelope]:
        return iter(self._all())

    def following(self, stretch: object, sequence: int) -> Sequence[AnyEvent] | None:
        """The events after ``sequence``, for who has seen those up to there in this very history;
        None if that was in another ``stretch``."""
        if stretch is not self.stretch:
            return None
        if sequence < self._read:
            return self._all()[sequence:]
        return self._own[sequence - self._read :]

    def take_in(self, news: Sequence[FlowEventEnvelope]) -> None:
        """Add events that others have stored, with nothing pending."""
        made = self._all()
        made += news
        self._own = []
        self._read = self._stored = len(made)
        if any(event.type == STEP_STARTED for event in news):
            self.stretch = object()

    def pend(self, events: Sequence[NewEvent], now: datetime) -> None:
        """Add events that are about to be stored, read as of ``now`` until they are."""
        self._own += events
        self._provisional = now

    def replace_pending(self, place: int, event: NewEvent) -> None:
        """``event`` takes the place of that pending event."""
        at = self._stored + place
        self._own[at - self._read] = event
        if at < len(self._made):
            self._made[at] = self._envelope(event, at + 1)

    def drop_pending(self) -> None:
        """What was pending will not be stored."""
        del self._own[self._stored - self._read :]
        del self._made[self._stored :]

    def stored(self) -> None:
        """What was pending is stored, and its events have their times."""
        early = self._made[self._stored :]  # was read as it was pending
        if early:
            for envelope, event in zip(early, self._own[self._stored - self._read :], strict=False):
                envelope.recorded_at = event.recorded_at or self._provisional
        self._stored = self._read + len(self._own)

    def latest(self, count: int) -> list[FlowEventEnvelope]:
        """The last ``count`` events."""
        made = self._all()
        return made[len(made) - count :]

    def _all(self) -> list[FlowEventEnvelope]:
        made = self._made
        for event in self._own[len(made) - self._read :]:
            made.append(self._envelope(event, len(made) + 1))
        return made

    def _envelope(self, event: NewEvent, sequence: int) -> FlowEventEnvelope:
        recorded_at = event.recorded_at or self._provisional
        return _Driven(self._run_id, sequence, "", recorded_at, event.type, data=event.data)


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
