"""Attributes of a run: a few named values that its workflow sets and that lists can show.

They live in a column of the run's row, so they are small and plain: texts, numbers, true and false.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from flowpg.errors import InvalidArgument
from flowpg.model.ids import check_id

MAX_ATTRIBUTES = 100
"""How many attributes a run can have, and how many can be set at once."""

MAX_NAME = 255
"""Longest name of an attribute, in characters."""

MAX_TEXT = 2_000
"""Longest text of an attribute, in characters."""

_LARGEST = 2**63


def attributes_refusal(changes: Any) -> str | None:
    """What is wrong with attributes about to be set, None if nothing is. Values are not shown."""
    if not isinstance(changes, Mapping):
        return "attributes must be an object of names and values"
    if not changes or len(changes) > MAX_ATTRIBUTES:
        return f"1 to {MAX_ATTRIBUTES} attributes can be set at once, not {len(changes)}"
    for name, value in changes.items():
        try:
            check_id(name, "the name of an attribute", MAX_NAME)
            if isinstance(value, str) and value.strip():
                check_id(value, f"attribute {name!r}", MAX_TEXT)
        except InvalidArgument as error:
            return error.reason
        if not _plain(value):
            return (
                f"attribute {name!r} must be a text, true or false, a number that is finite and of "
                "at most 64 bits, or null to take it away"
            )
    return None


def check_attributes(changes: Any) -> None:
    """InvalidArgument if these cannot be attributes."""
    refusal = attributes_refusal(changes)
    if refusal is not None:
        raise InvalidArgument(refusal)


def merged(before: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes after ``changes``: a null takes one away, what is not named stays."""
    after = {**before, **changes}
    return {name: value for name, value in after.items() if value is not None}


def _plain(value: Any) -> bool:
    if isinstance(value, str):
        return "\x00" not in value and len(value) <= MAX_TEXT
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, int):
        return -_LARGEST <= value < _LARGEST
    return value is None
