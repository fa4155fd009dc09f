"""Observers: told of every event an engine has committed, after it is durable.

An observer is a mirror for logs, metrics and audit, never a part of a transition: what it raises is
logged, and one that does not answer in time is left behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable
from datetime import timedelta
from typing import Protocol

from flowpg.model.events import FlowEventEnvelope

logger = logging.getLogger("flowpg.engine.observer")


class FlowEventObserver(Protocol):
    """Receives the events that one engine commits, in the order of their run's stream."""

    async def observe(self, envelope: FlowEventEnvelope) -> None:
        """Take one committed event. Whatever it raises is logged and changes nothing."""
        ...


class InMemoryFlowEventObserver:
    """Keeps every event in ``events``, for tests and debugging."""

    def __init__(self) -> None:
        self.events: list[FlowEventEnvelope] = []

    async def observe(self, envelope: FlowEventEnvelope) -> None:
        """Keep the event."""
        self.events.append(envelope)

    def keys(self, run_id: str | None = None) -> list[str]:
        """The dotted keys of the events seen, of one run or of all."""
        return [e.key for e in self.events if run_id is None or e.run_id == run_id]


class FanoutFlowEventObserver:
    """Hands each event to several observers at once; one that raises disturbs no other."""

    def __init__(self, observers: Iterable[FlowEventObserver] = ()) -> None:
        self._observers = tuple(observers)

    def with_observer(self, observer: FlowEventObserver) -> FanoutFlowEventObserver:
        """The same fan-out with one observer more."""
        return FanoutFlowEventObserver((*self._observers, observer))

    async def observe(self, envelope: FlowEventEnvelope) -> None:
        """Hand the event to every observer, side by side."""
        answers = await asyncio.gather(
            *(observer.observe(envelope) for observer in self._observers), return_exceptions=True
        )
        for observer, answer in zip(self._observers, answers, strict=True):
            if isinstance(answer, BaseException):
                _log_failure(observer, envelope, answer)


class ObserverGate:
    """Between an engine and its observer: keeps order, time and failures apart from the drive."""

    def __init__(self, observer: FlowEventObserver | None, timeout: timedelta) -> None:
        """``timeout`` is the longest wait for one event; zero waits for ever."""
        self._observer = observer
        self._timeout = timeout.total_seconds() or None
        self._late: set[asyncio.Task[None]] = set()
        self.active = observer is not None

    async def deliver(self, envelopes: Iterable[FlowEventEnvelope]) -> None:
        """Hand over committed events in order."""
        if self._observer is None or not self.active:
            return
        for envelope in envelopes:
            await self._deliver_one(self._observer, envelope)

    async def _deliver_one(self, observer: FlowEventObserver, envelope: FlowEventEnvelope) -> None:
        # A task of its own: an observer that swallows its cancellation cannot hold the drive, and
        # a cancelled drive does not tear an observer in the middle of an event.
        task = asyncio.ensure_future(self._guarded(observer, envelope))
        self._late.add(task)
        task.add_done_callback(self._late.discard)
        done, _ = await asyncio.wait({task}, timeout=self._timeout)
        if not done:
            logger.warning(
                "observer %s took longer than %s s for event %d of run %r and was left behind",
                type(observer).__name__,
                self._timeout,
                envelope.sequence,
                envelope.run_id,
            )
            task.cancel()

    async def _guarded(self, observer: FlowEventObserver, envelope: FlowEventEnvelope) -> None:
        try:
            await observer.observe(envelope)
        except asyncio.CancelledError:
            raise
        except (Exception, SystemExit) as error:  # noqa: BLE001  an observer may raise anything
            _log_failure(observer, envelope, error)

    async def close(self) -> None:
        """End the deliveries that were left behind."""
        for task in tuple(self._late):
            task.cancel()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1):
                await asyncio.gather(*self._late, return_exceptions=True)


def _log_failure(
    observer: FlowEventObserver, envelope: FlowEventEnvelope, error: BaseException
) -> None:
    # The error's own text is left out: it may quote the payload.
    logger.warning(
        "observer %s failed with %s on event %d (%s) of run %r",
        type(observer).__name__,
        type(error).__name__,
        envelope.sequence,
        envelope.type,
        envelope.run_id,
    )
