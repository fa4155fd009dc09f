"""Typed members of event payloads: a missing or mistyped one is an InvalidTransition.

Payloads may come from another engine or from an import, so nothing about them is taken for
granted. The messages name the member and never its value.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from flowpg.errors import InvalidArgument, InvalidRunId, InvalidTransition
from flowpg.model.times import parse_time

Data = dict[str, Any]
M = TypeVar("M", bound=BaseModel)

_MISSING = object()


def wrong(name: str, needed: str) -> InvalidTransition:
    """The error for a member that is missing or not what it must be."""
    return InvalidTransition(f"its payload needs a member {name!r} that is {needed}")


def text(data: Data, name: str) -> str:
    """A string."""
    value = data.get(name)
    if type(value) is not str:
        raise wrong(name, "a string")
    return value


def optional_text(data: Data, name: str) -> str | None:
    """A string, null, or nothing."""
    value = data.get(name)
    if value is not None and type(value) is not str:
        raise wrong(name, "a string or null")
    return value


def whole(data: Data, name: str) -> int:
    """An integer; true and 1.0 are none."""
    value = data.get(name)
    if type(value) is not int:
        raise wrong(name, "an integer")
    return value


def anything(data: Data, name: str) -> Any:
    """Any JSON value, null included, as long as it is there."""
    value = data.get(name, _MISSING)
    if value is _MISSING:
        raise wrong(name, "any JSON value")
    return value


def deadline(data: Data, name: str, computed: datetime | None) -> datetime | None:
    """The deadline in the payload, else the one the store computed, if any."""
    value = data.get(name)
    if value is None:
        return computed
    if type(value) is not str:
        raise wrong(name, "an RFC 3339 time")
    try:
        return parse_time(value)
    except InvalidArgument:
        raise wrong(name, "an RFC 3339 time") from None


def record(data: Data, name: str, kind: type[M], check: Callable[[M], None]) -> M:
    """An object of the model ``kind`` that passes ``check``."""
    try:
        value = kind.model_validate(data.get(name), strict=True)
        check(value)
    except ValidationError as error:
        parts = {".".join(map(str, item["loc"])) for item in error.errors(include_input=False)}
        names = ", ".join(sorted(filter(None, parts))) or "its type"
        raise wrong(name, f"a {kind.__name__}; check {names}") from None
    except InvalidRunId:
        raise wrong(name, f"a {kind.__name__} with a valid run id") from None
    return value
