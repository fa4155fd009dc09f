"""What is made of a type, such as how pydantic reads JSON as it, and kept."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from pydantic import TypeAdapter

T = TypeVar("T")


def once_a_type(make: Callable[[Any], T]) -> Callable[[Any], T]:
    """``make``, called once for each type or annotation; each time for one that has no hash, such
    as ``Annotated[int, []]``."""
    made: dict[Any, T] = {}

    @wraps(make)
    def kept(kind: Any) -> T:
        try:
            return made[kind]
        except KeyError:
            found = made[kind] = make(kind)
            return found
        except TypeError:
            return make(kind)

    return kept


@once_a_type
def adapter_of(kind: Any) -> TypeAdapter[Any]:
    """The adapter that reads values as ``kind``. Raises what pydantic raises for a type that it
    cannot read."""
    return TypeAdapter(kind)
