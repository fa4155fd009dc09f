"""A store that answers at once, so that what a drive costs is the engine and the program."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, cast

from flowpg.model import events
from flowpg.model.events import FlowEventEnvelope
from flowpg.model.records import (
    Append,
    AppendOutcome,
    AppendResult,
    Capabilities,
    Heartbeat,
    LoadedRun,
    RunLease,
    StartRequest,
)
from flowpg.model.snapshot import RunStatus
from flowpg.store.protocol import FlowEventStore


class InstantStore:
    """Of a ``FlowEventStore`` what a drive needs. Appends that come together are answered together,
    as by a group commit; nothing is kept or checked."""

    def __init__(self) -> None:
        self._waiting: list[tuple[Append, asyncio.Future[AppendResult]]] = []
        self._loaded: dict[str, LoadedRun] = {}

    @classmethod
    def make(cls) -> FlowEventStore:
        """One of them."""
        return cast("FlowEventStore", cls())

    async def start_many(self, requests: Sequence[StartRequest]) -> None:
        """Take runs up."""
        now = datetime.now(UTC)
        for request in requests:
            run_id = request.run_id or ""
            data = {"spec": request.spec.wire(), "input": request.input}
            first = FlowEventEnvelope(run_id, 1, "", now, events.RUN_CREATED, data=data)
            self._loaded[run_id] = LoadedRun(run_id, 1, RunStatus.PENDING, 0, now, [first])

    async def claim_runs(
        self, queue: str, limit: int, owner: str, lease: timedelta, able: Capabilities | None = None
    ) -> list[RunLease]:
        """The runs that were started."""
        return [RunLease(run_id, 1, 0, 1, run.now) for run_id, run in self._loaded.items()]

    async def load_runs(
        self, run_ids: Sequence[str], after: Sequence[int] | None = None
    ) -> dict[str, LoadedRun]:
        """Their histories, once."""
        return {run_id: self._loaded.pop(run_id) for run_id in run_ids}

    async def append(self, append: Append) -> AppendResult:
        """Say yes."""
        loop = asyncio.get_running_loop()
        if not self._waiting:
            loop.call_soon(self._answer)
        answer: asyncio.Future[AppendResult] = loop.create_future()
        self._waiting.append((append, answer))
        return await answer

    async def heartbeat(self, *_: Any) -> list[Heartbeat]:
        """Say nothing."""
        return []

    async def close(self) -> None:
        """Do nothing."""

    def _answer(self) -> None:
        waiting, self._waiting = self._waiting, []
        now = datetime.now(UTC)
        for append, answer in waiting:
            head = (append.expected or 0) + len(append.events)
            released = append.release is not None
            answer.set_result(
                AppendResult(append.run_id, AppendOutcome.APPENDED, head, now, released)
            )
