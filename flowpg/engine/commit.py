"""Getting events into the store although the connection may break.

An append whose answer was lost may have been stored or not. The stream itself tells: it is read
again and compared, so nothing is ever written twice.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from time import monotonic
from typing import Any, TypeVar

from flowpg.engine.tip import RunTip
from flowpg.errors import (
    FlowError,
    HookTokenConflict,
    InvalidTransition,
    LeaseLost,
    RunNotFound,
    StoreUnavailable,
)
from flowpg.model import jsontext
from flowpg.model.events import DEADLINE_FIELDS, HOOK_CREATED, FlowEventEnvelope, NewEvent
from flowpg.model.records import Append, AppendOutcome, AppendResult, LoadedRun, RunLease
from flowpg.postgres.append_verbs import ensure_step_tasks, route_steps
from flowpg.postgres.step_verbs import Overdue, expire_steps
from flowpg.replay.plan import Route
from flowpg.store.postgres import PostgresEventStore
from flowpg.store.protocol import FlowEventStore

logger = logging.getLogger("flowpg.engine.commit")

T = TypeVar("T")

_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 2.0


class PatientStore:
    """The calls of a drive, each repeated while the database is unavailable.

    Patience ends ``seconds`` after a call first failed: by then the lease may belong to another
    process, and StoreUnavailable is raised.
    """

    def __init__(self, store: FlowEventStore, seconds: float) -> None:
        self._store = store
        self._seconds = seconds

    async def load(self, run_id: str) -> LoadedRun:
        """The run's history. RunNotFound."""
        found = await self._insist(lambda: self._store.load_runs([run_id]))
        if run_id not in found:
            raise RunNotFound(run_id)
        return found[run_id]

    async def append(
        self, tip: RunTip, lease: RunLease, release: bool, routed: Sequence[Route] = ()
    ) -> AppendResult:
        """Store the tip's pending events, and give the lease back with them if ``release``. The
        attempts ``routed`` begin with them, in other queues."""
        append = Append(
            tip.run_id,
            tuple(tip.pending),
            expected=tip.stored,
            epoch=lease.epoch,
            release=lease.wakes if release else None,
        )
        try:
            return await self._send(append, routed)
        except StoreUnavailable as error:
            since = monotonic()
            await self._pause(error, since, 0)
        attempt = 0
        while True:
            attempt += 1
            found = await self.load(tip.run_id)
            if already_stored(append.events, tip.stored, found):
                return _stored_before(append, found)
            try:
                return await self._send(append, routed)
            except StoreUnavailable as error:
                await self._pause(error, since, attempt)

    def _send(self, append: Append, routed: Sequence[Route]) -> Awaitable[AppendResult]:
        return self._send_routed(append, routed) if routed else self._store.append(append)

    async def _send_routed(self, append: Append, routed: Sequence[Route]) -> AppendResult:
        assert isinstance(self._store, PostgresEventStore)  # what ``routes`` says
        return (await self._store.call(route_steps(append, routed)))[0]

    @property
    def routes(self) -> bool:
        """Whether steps can be left to workers of other queues."""
        return isinstance(self._store, PostgresEventStore)

    async def queue_of(self, run_id: str) -> str:
        """The queue that a run is in."""
        return (await self._insist(lambda: self._store.run_info(run_id))).queue

    async def ensure_tasks(self, run_id: str, steps: Sequence[Route]) -> None:
        """See to it that begun attempts of other queues have their tasks."""
        store = self._store
        assert isinstance(store, PostgresEventStore)
        await self._insist(lambda: store.call(ensure_step_tasks(run_id, steps)))

    async def expire_steps(self, run_id: str, steps: Sequence[Overdue]) -> dict[str, str]:
        """Fail the attempts of other queues that no worker has; what became of each."""
        store = self._store
        assert isinstance(store, PostgresEventStore)
        return await self._insist(lambda: store.call(expire_steps(run_id, steps)))

    async def step_heartbeat(self, run_id: str, step_id: str) -> str | None:
        """What the latest heartbeat of a step said, as JSON text."""
        return await self._insist(lambda: self._store.step_heartbeat(run_id, step_id))

    async def give_back(
        self,
        lease: RunLease,
        delay: timedelta,
        blocked_reason: str | None,
        missing_step: str | None,
    ) -> None:
        """Give up a lease with work left, once and without patience."""
        await self._store.give_back(
            lease, delay=delay, blocked_reason=blocked_reason, missing_step=missing_step
        )

    async def release(self, lease: RunLease) -> bool:
        """Give back the lease of a run with nothing left to do."""
        return await self._insist(lambda: self._store.release_run(lease))

    async def has_ended(self, run_id: str) -> bool:
        """Whether the store says so, whatever can be made of the history. Asked once."""
        return (await self._store.run_info(run_id)).status.terminal

    async def read_clock(self, tip: RunTip) -> None:
        """Tell the tip what time it is in the store."""
        tip.saw(await self._insist(self._store.now))

    async def _insist(self, call: Callable[[], Awaitable[T]]) -> T:
        since = monotonic()
        attempt = 0
        while True:
            try:
                return await call()
            except StoreUnavailable as error:
                await self._pause(error, since, attempt)
                attempt += 1

    async def _pause(self, error: StoreUnavailable, since: float, attempt: int) -> None:
        if monotonic() - since >= self._seconds:
            raise error
        pause = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2 ** min(attempt, 10))
        logger.warning("the database is unavailable (%s); trying again", error)
        await asyncio.sleep(pause * random.uniform(0.5, 1.0))


def concede(tip: RunTip, result: AppendResult) -> bool:
    """If an append was refused because of hooks whose commands would rather know of the conflict
    than wait for its end, put the conflicts in their places and say that the append is to be
    repeated.
    """
    if result.outcome is not AppendOutcome.HOOK_TOKEN_CONFLICT:
        return False
    return tip.concede_hooks(
        {
            refused.get("requested_hook_id", ""): (refused["run_id"], refused["hook_id"])
            for refused in _refused(result.detail)
        }
    )


def fault_of(result: AppendResult, tip: RunTip) -> FlowError:
    """The error that a refused append of the tip's pending events amounts to."""
    detail = result.detail
    if result.outcome is AppendOutcome.HOOK_TOKEN_CONFLICT:
        refused = {hook.get("requested_hook_id"): hook for hook in _refused(detail)}
        for event in tip.pending:
            if event.type == HOOK_CREATED and event.data.get("on_conflict") != "raise":
                owner = refused.get(event.data["hook_id"])
                if owner is not None:
                    return HookTokenConflict(event.data["token"], owner["run_id"], owner["hook_id"])
        return HookTokenConflict("", detail["run_id"], detail["hook_id"])
    if result.outcome is AppendOutcome.LEASE_LOST:
        return LeaseLost(tip.run_id, detail["epoch"])
    if result.outcome is AppendOutcome.RUN_NOT_FOUND:
        return RunNotFound(tip.run_id)
    if result.outcome is AppendOutcome.LINK_NOT_FOUND:
        return RunNotFound(detail["flow_run_id"])
    return InvalidTransition(
        str(detail.get("reason") or f"the store answered {result.outcome.value}"),
        run_id=tip.run_id,
    )


def _refused(detail: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Every hook that a refused append names, with the owner of its token."""
    return [detail, *detail.get("others", ())]


def already_stored(events: Sequence[NewEvent], head: int, found: LoadedRun) -> bool:
    """Whether ``events`` stand in the stream right after ``head``."""
    stored = found.history[head : head + len(events)]
    return 0 < len(stored) == len(events) and all(map(_same, events, stored))


def _same(event: NewEvent, stored: FlowEventEnvelope) -> bool:
    if event.type != stored.type:
        return False
    data = stored.data
    if event.due_in is not None:
        data = {k: v for k, v in data.items() if k != DEADLINE_FIELDS[event.type]}
    return jsontext.equal(event.data, data)


def _stored_before(append: Append, found: LoadedRun) -> AppendResult:
    last = found.history[(append.expected or 0) + len(append.events) - 1]
    # Whether the release was granted is unknown. Saying no is safe: it is asked for again.
    return AppendResult(
        append.run_id,
        AppendOutcome.APPENDED,
        last.sequence,
        last.recorded_at,
        released=False,
        wakes=found.wakes,
    )
