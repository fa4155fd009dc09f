"""Workflows that are plain functions: each runs on a stack of its own and waits by leaving it.

The task of such a workflow is a coroutine that runs the function until it waits for something,
awaits that in its place, and goes on with the result. So all that is said of tasks is true of it:
when it is woken, how it is cancelled, what its calls are named.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, cast

from greenlet import getcurrent

from flowpg.authoring.errors import OutsideWorkflow
from flowpg.authoring.unwinding import Strand, drop_abroad

T = TypeVar("T")


async def carry_out(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Run a plain function that may ``wait``, and return what it returns."""
    drop_abroad()
    strand = Strand(function)
    # The function sees, and changes, the context of its task.
    strand.gr_context = getcurrent().gr_context
    awaited = strand.switch(*args, **kwargs)
    while not strand.dead:
        try:
            result = await awaited
        except BaseException as error:  # noqa: BLE001  raised where the function waits
            awaited = strand.throw(error)
        else:
            awaited = strand.switch(result)
    return awaited


def waiting_allowed() -> bool:
    """Whether the caller is a plain function that can wait."""
    return isinstance(getcurrent(), Strand)


def wait(awaitable: Awaitable[T]) -> T:
    """Wait for ``awaitable`` and return its result, or raise its error. A step that was called
    plainly has waited already: what cannot be awaited is returned as it is."""
    strand = getcurrent()
    if not isinstance(strand, Strand):
        if inspect.iscoroutine(awaitable):
            awaitable.close()
        raise OutsideWorkflow(
            "sync.wait()", "only a workflow that is a plain function waits so; others await"
        )
    if not inspect.isawaitable(awaitable):
        return cast("T", awaitable)
    result: T = strand.parent.switch(awaitable)
    return result
