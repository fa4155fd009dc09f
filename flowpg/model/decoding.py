"""Reading JSON as a type, with errors that hold no part of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

from pydantic import ValidationError

from flowpg.errors import SerializationError
from flowpg.model.adapters import adapter_of
from flowpg.model.payload_check import HIDDEN, names_in
from flowpg.model.payload_schema import schema_of

T = TypeVar("T")


def decode_as(value: Any, kind: type[T], what: str) -> T:
    """``value`` (decoded JSON) validated as ``kind``; SerializationError naming ``what``."""
    try:
        result: T = adapter_of(kind).validate_python(value)
    except ValidationError as error:
        # Workflow code may keep this text, and a replay must come to the same one: its words stay.
        fields = ", ".join(place or "value" for place in places(error, value, kind))
        name = getattr(kind, "__name__", str(kind))
        raise SerializationError(f"{what} does not fit {name}: check {fields}") from None
    return result


def places(error: ValidationError, value: Any, kind: Any) -> Iterator[str]:
    """Where ``value`` does not fit ``kind``, as ``lines.0.cents``; empty for the value itself."""
    # The names in a mapping are the sender's, and hidden. All others are of the type: its fields,
    # and the choices of its unions.
    foreign = set(_keys(value)) - _names_of(kind)
    for item in error.errors(include_url=False, include_input=False, include_context=False):
        yield ".".join(HIDDEN if part in foreign else str(part) for part in item["loc"])


def _names_of(kind: Any) -> set[str]:
    """The names of the members that a type declares, also where its schema says nothing."""
    try:
        described = adapter_of(kind).json_schema()
    except Exception:  # noqa: BLE001  pydantic and the classes it asks may raise anything
        described = {}
    return {*names_in(schema_of(kind)), *names_in(described)}


def _keys(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, member in value.items():
            yield str(key)
            yield from _keys(member)
    elif isinstance(value, (list, tuple)):
        for member in value:
            yield from _keys(member)
