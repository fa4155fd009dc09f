"""Code that runs inside a workflow."""

from collections.abc import Callable
from typing import Any, TypeVar

from flowpg.authoring.context import hook, uuid4

F = TypeVar("F", bound=Callable[..., Any])


def durable(code: F) -> F:
    """A function that workflows of a test await, so that its ``sleep`` is a durable timer in
    virtual time. ``tests/unit/test_sleeps.py`` sees the decorators of an app by itself."""
    return code


async def forever() -> None:
    """Wait until somebody ends this: a hook that nobody answers. For workflows that have to wait
    for something, where no timer is what is tested."""
    await hook("forever", token=f"forever {uuid4()}")  # the same in each replay
