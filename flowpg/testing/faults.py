"""What a process may suffer between a workflow and its database: death, refusal, a lost answer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from enum import StrEnum
from typing import Any, cast

from flowpg.errors import StoreUnavailable
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
