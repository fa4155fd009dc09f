"""How pydantic reads JSON as a type: what it makes of the type is kept."""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter

_adapters: dict[Any, TypeAdapter[Any]] = {}


def adapter_of(kind: Any) -> TypeAdapter[Any]:
    """The adapter that reads values as ``kind``, made once a type. Raises what pydantic raises
    for a type that it cannot read."""
    try:
        return _adapters[kind]
    except KeyError:
        made = _adapters[kind] = TypeAdapter(kind)
        return made
    except TypeError:  # not hashable
        return TypeAdapter(kind)
