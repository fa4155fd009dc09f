"""What a process may suffer between a workflow and its database: death, refusal, a lost answer."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Callable
from enum import StrEnum
from typing import Any, Protocol, cast

from flowpg.errors import StoreUnavailable
from flowpg.model.operations import WorkflowProgress
from flowpg.model.records import Append, AppendResult
from flowpg.replay.projection import project
from flowpg.store.protocol import FlowEventStore

WRITES = frozenset({"append", "acquire_run", "give_back", "release_run"})
"""The calls of a store that change something on behalf of a drive."""


class ProcessDied(BaseException):
    """The process ends here; nothing it still wants to do happens."""


class Fault(StrEnum):
    """What happens to one commit."""

    DIES_BEFORE = "dies before"
    """The process dies, and nothing was stored."""
    DIES_AFTER = "dies after"
    """It was stored, and then the process dies."""
    REFUSED = "refused"
    """The database is unavailable for a moment, and nothing was stored."""
    REPLY_LOST = "reply lost"
    """It was stored, and the answer never came."""


class Mishap(Protocol):
    """What befalls the process of an environment."""

    def wrap(self, store: FlowEventStore) -> FlowEventStore:
        """The store as that process sees it."""
        ...

    def reborn(self) -> None:
        """Another process takes over."""
        ...


class Faults:
    """One fault at the ``at``-th commit of an environment (from 1); a process that died is followed
    by another one, to which nothing happens."""

    def __init__(self, at: int, fault: Fault = Fault.DIES_AFTER) -> None:
        self.at = at
        self.fault = fault
        self.commits = 0
        self._dead = False

    @property
    def happened(self) -> bool:
        """Whether there were enough commits for it."""
        return self.commits >= self.at

    def wrap(self, store: FlowEventStore) -> FlowEventStore:
        """``store`` with this fault."""
        return cast("FlowEventStore", _Faulty(store, self))

    def reborn(self) -> None:
        """Another process takes over."""
        self._dead = False

    def before(self, name: str) -> None:
        """A call begins."""
        if self._dead and name != "close":
            raise ProcessDied
        if name not in WRITES:
            return
        self.commits += 1
        if self.commits != self.at:
            return
        if self.fault is Fault.DIES_BEFORE:
            self._dead = True
            raise ProcessDied
        if self.fault is Fault.REFUSED:
            raise StoreUnavailable("the connection was lost (a test's fault)")

    def after(self, name: str, number: int) -> None:
        """A call has had its effect; it was the commit of this number."""
        if self._dead and name != "close":
            raise ProcessDied
        if name not in WRITES or number != self.at:
            return
        if self.fault is Fault.DIES_AFTER:
            self._dead = True
            raise ProcessDied
        if self.fault is Fault.REPLY_LOST:
            raise StoreUnavailable("the connection was lost (a test's fault)")


class _Faulty:
    def __init__(self, inner: FlowEventStore, faults: Faults) -> None:
        self._inner = inner
        self._faults = faults

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._inner, name)

        async def call(*args: Any, **kwargs: Any) -> Any:
            self._faults.before(name)
            number = self._faults.commits
            result = await method(*args, **kwargs)
            self._faults.after(name, number)
            return result

        return call


class Interference:
    """Between a decision and its append someone else may be first: with a report, an answer, or now
    and then a request to cancel. What happens where is settled by ``seed``."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)

    def wrap(self, store: FlowEventStore) -> FlowEventStore:
        """``store`` with others at work on it."""
        return cast("FlowEventStore", _Shared(store, self._interfere))

    def reborn(self) -> None:
        """Nobody dies of it."""

    async def _interfere(self, store: FlowEventStore, append: Append) -> None:
        run_id = append.run_id
        if not append.events or self._chance.random() >= 0.4:
            return
        run = project(run_id, (await store.load_runs([run_id]))[run_id].history)
        if run.terminal:
            return
        what = self._chance.randrange(8)
        if what < 4 and run.open.hooks:
            hook_id = self._chance.choice(list(run.open.hooks))
            await store.resume_hook(run_id, hook_id, "first")
        elif what == 7 and run.cancellation is None and self._chance.random() < 0.2:
            await store.request_cancellation(run_id, "now")
        else:
            report = WorkflowProgress(progress_id=f"outside {run.last_sequence}", completed=1)
            await store.record_progress(run_id, report)


class _Shared:
    def __init__(
        self,
        inner: FlowEventStore,
        before_append: Callable[[FlowEventStore, Append], Awaitable[None]],
    ) -> None:
        self._inner = inner
        self._before_append = before_append

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def append(self, append: Append) -> AppendResult:
        await self._before_append(self._inner, append)
        return await self._inner.append(append)


async def every_fault(*kinds: Fault, most: int = 200) -> AsyncIterator[Faults]:
    """Every fault at every commit: run the same scenario for each, in an environment of its own.

    ``async for faults in every_fault(): async with WorkflowEnvironment(app, faults=faults) ...``
    Ends, for each kind, with the first scenario that had no such commit.
    """
    for kind in kinds or tuple(Fault):
        for at in range(1, most + 1):
            faults = Faults(at, kind)
            yield faults
            if not faults.happened:
                break
