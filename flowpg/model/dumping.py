"""Writing objects as the JSON that pydantic reads them from."""

from __future__ import annotations

import enum
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import PurePath
from typing import Any
from uuid import UUID

from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from flowpg.model import jsontext
from flowpg.model.adapters import adapter_of


def written(value: Any) -> Any:
    """``value`` with JSON in the place of what pydantic can write and JSON cannot carry: models,
    dataclasses, times, sets. What is neither stays, for whoever encodes it to refuse."""
    try:
        return _written(value)
    except RecursionError:
        return value


def _written(value: Any) -> Any:
    if value is None or isinstance(value, (str, int, float)):
        return value
    if isinstance(value, dict):
        return {key: _written(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_written(item) for item in value]
    try:
        found = adapter_of(Any).dump_python(value, by_alias=True, round_trip=True)
        return to_jsonable_python(plain(found))
    except Exception:  # noqa: BLE001  serialisers of a class may raise anything
        return value


def dumped(model: BaseModel) -> Any:
    """A model as it serialises itself, sets in a fixed order. Raises what its serialisers do."""
    if "set" in repr(type(model).__pydantic_core_schema__):
        # pydantic would write a set in the order of this process.
        return plain(model.model_dump(mode="python", by_alias=True, round_trip=True))
    return model.model_dump(mode="json", by_alias=True, round_trip=True)


def plain(value: Any) -> Any:
    """What pydantic dumped as Python, as the JSON that it reads back."""
    if isinstance(value, dict):
        return {_key(key): plain(item) for key, item in value.items()}
    if isinstance(value, (set, frozenset)):
        return in_order([plain(item) for item in value])
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, enum.Enum):
        return plain(value.value)
    if isinstance(value, (datetime, date, time)):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, (UUID, Decimal, PurePath)):
        return str(value)
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, BaseModel):
        return dumped(value)
    return value


def in_order(items: list[Any]) -> list[Any]:
    """The JSON of the members of a set, in an order that every process gives them."""
    return sorted(items, key=jsontext.encode)


def _key(key: Any) -> str:
    return key if isinstance(key, str) else str(plain(key))
