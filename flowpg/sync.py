"""For workflows that are plain functions: what asyncio gives to the others.

::

    @app.workflow
    def checkout(order_id: str) -> str:
        receipt = charge(order_id)                     # a step: waits, durably
        sync.sleep(timedelta(days=1))
        first, second = sync.gather(lambda: pack(order_id), lambda: bill(order_id))
        with sync.hook("approval", Approval) as approval:
            with sync.timeout(3600):
                decision = approval.result()
        return receipt

Steps that are plain functions are simply called. ``now``, ``uuid4``, ``info``, ``progress``,
``patched``, ``set_attributes`` and the others of ``flowpg`` that are not awaited are the
same in both kinds of workflows. Anything that can be awaited is waited for with ``wait``.

Each raises OutsideWorkflow elsewhere. A request to cancel is raised, as ``asyncio.CancelledError``,
where the workflow waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, Generic, ParamSpec, Self, TypeVar, overload

from flowpg.authoring import context as _context
from flowpg.authoring.errors import OutsideWorkflow
from flowpg.authoring.hooks import Hook
from flowpg.authoring.strands import carry_out, wait, waiting_allowed
from flowpg.model.commands import OnConflict

P = ParamSpec("P")
T = TypeVar("T")

__all__ = [
    "SyncHook",
    "Task",
    "gather",
    "hook",
    "sleep",
    "spawn",
    "timeout",
    "wait",
    "wait_until",
]


def sleep(delay: float | timedelta) -> None:
    """Wait for a durable timer of ``delay``, in seconds or as a timedelta."""
    _check("sync.sleep()", "use time.sleep there")
    seconds = delay.total_seconds() if isinstance(delay, timedelta) else delay
    wait(asyncio.sleep(seconds))


def wait_until(moment: datetime) -> None:
    """Wait until ``moment``, by the database's clock. It needs a time zone."""
    _check("sync.wait_until()", "use time.sleep there")
    wait(_context.wait_until(moment))


class Task(Generic[T]):
    """A function that runs beside the others of its workflow; see ``spawn``."""

    def __init__(self, task: asyncio.Task[T]) -> None:
        self._task = task

    def result(self) -> T:
        """Wait until it is done; what it returned, or raise what it raised. If the waiting is
        given up, the function goes on."""
        found: T = wait(asyncio.shield(self._task))
        return found

    def done(self) -> bool:
        """Whether it has returned or raised."""
        return self._task.done()

    def cancel(self) -> bool:
        """Raise CancelledError where it waits. False if it is done already."""
        return self._task.cancel()


def spawn(function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Task[T]:
    """Run a function beside this one. Both run in turns, each until it waits."""
    _check("sync.spawn()", "use a thread there")
    loop = asyncio.get_running_loop()
    return Task(loop.create_task(carry_out(function, args, kwargs)))


def gather(*functions: Callable[[], T]) -> list[T]:
    """Run functions beside each other and return their results in their order. The first error is
    raised, and what is still at work then is cancelled."""
    _check("sync.gather()", "use a thread pool there")

    async def together() -> list[T]:
        tasks = [asyncio.ensure_future(carry_out(one, (), {})) for one in functions]
        try:
            return list(await asyncio.gather(*tasks))
        finally:
            for task in tasks:
                task.cancel()

    found: list[T] = wait(together())
    return found


class timeout:  # noqa: N801  used like asyncio.timeout
    """``with sync.timeout(seconds):`` raises TimeoutError if the block takes longer, by a durable
    timer; what it waits for then is given up."""

    def __init__(self, delay: float | timedelta | None) -> None:
        _check("sync.timeout()", "it needs the timers of a run")
        seconds = delay.total_seconds() if isinstance(delay, timedelta) else delay
        self._timeout = asyncio.timeout(seconds)

    def __enter__(self) -> Self:
        wait(self._timeout.__aenter__())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        wait(self._timeout.__aexit__(kind, error, trace))

    def expired(self) -> bool:
        """Whether the time was up."""
        return self._timeout.expired()


class SyncHook(Generic[T]):
    """What a workflow waits for from outside; see ``flowpg.hook``. As a ``with`` block it is open
    at once, so that its token can be sent to whoever is to answer."""

    def __init__(self, hook: Hook[T]) -> None:
        self._hook = hook

    @property
    def id(self) -> str:
        """The id under which the run's hook is answered."""
        return self._hook.id

    @property
    def token(self) -> str:
        """The secret under which it is answered."""
        return self._hook.token

    def result(self) -> T:
        """Wait for the answer. HookClosed if it is withdrawn or expires, SerializationError if the
        answer does not fit, HookTokenConflict if its token is held by another hook."""
        found: T = wait(self._hook)
        return found

    def __enter__(self) -> Self:
        wait(self._hook.__aenter__())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        wait(self._hook.__aexit__(kind, error, trace))


@overload
def hook(
    name: str,
    kind: type[T],
    *,
    token: str | None = None,
    expires: timedelta | None = None,
    metadata: Any = None,
    on_conflict: OnConflict = "raise",
) -> SyncHook[T]: ...
@overload
def hook(
    name: str,
    kind: Any = Any,
    *,
    token: str | None = None,
    expires: timedelta | None = None,
    metadata: Any = None,
    on_conflict: OnConflict = "raise",
) -> SyncHook[Any]: ...
def hook(
    name: str,
    kind: Any = Any,
    *,
    token: str | None = None,
    expires: timedelta | None = None,
    metadata: Any = None,
    on_conflict: OnConflict = "raise",
) -> SyncHook[Any]:
    """Something to be answered from outside: ``sync.hook("approval", Approval).result()``. The
    arguments are those of ``flowpg.hook``."""
    _check("sync.hook()", "a test answers it through the engine")
    options: Any = {"expires": expires, "metadata": metadata, "on_conflict": on_conflict}
    return SyncHook(_context.hook(name, kind, token=token, **options))


def _check(call: str, instead: str) -> None:
    if not waiting_allowed():
        raise OutsideWorkflow(call, f"it is for workflows that are plain functions; {instead}")
