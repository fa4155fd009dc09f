"""What is said of code that runs inside a workflow."""

from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


def durable(code: F) -> F:
    """A function that workflows of a test await, so that its ``sleep`` is a durable timer in
    virtual time. ``tests/unit/test_sleeps.py`` sees the decorators of an app by itself."""
    return code
