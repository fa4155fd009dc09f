"""JSON as flowpg stores it: one encoder, one decoder, one equality.

Payloads are kept as text, so everything a JSON text can say survives: big integers, -0.0, key
order, NUL and lone surrogates inside strings. What JSON cannot say (NaN, infinities, keys that
are not strings, cycles, other types) is refused before it reaches the database.
"""

from __future__ import annotations

import json
from typing import Any

from flowpg.errors import SerializationError

_encode_raw = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, separators=(",", ":"), check_circular=True
).encode
_encode_escaped = json.JSONEncoder(
    ensure_ascii=True, allow_nan=False, separators=(",", ":"), check_circular=True
).encode


def encode(value: Any, what: str = "value") -> str:
    """``value`` as compact JSON text, valid as UTF-8.

    Raises SerializationError naming ``what`` (never the value) if JSON cannot carry it unchanged.
    """
    try:
        text = _encode_raw(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise SerializationError(f"{what} cannot be stored as JSON: {_reason(error)}") from None
    if not _keys_are_text(value):
        raise SerializationError(f"{what} cannot be stored as JSON: an object key is not a string")
    try:
        text.encode()
    except UnicodeEncodeError:
        # A lone surrogate has no UTF-8 form; its escape has, and decodes to the same string.
        text = _encode_escaped(value)
    return text


def decode(text: str | bytes, what: str = "value") -> Any:
    """The value of a JSON text. Raises SerializationError naming ``what``."""
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        raise SerializationError(f"{what} is not valid JSON") from None


def equal(left: Any, right: Any) -> bool:
    """JSON equality: numbers by value, true is never 1, key order is free."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, (int, float)) and isinstance(right, (int, float)):
        return left == right
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(equal(v, right[k]) for k, v in left.items())
    if isinstance(left, (list, tuple)) and isinstance(right, (list, tuple)):
        return len(left) == len(right) and all(map(equal, left, right))
    return type(left) is type(right) and bool(left == right)


def copied(value: Any) -> Any:
    """A value of ``decode`` that shares no container with ``value``; scalars are themselves."""
    kind = type(value)
    if kind is dict:
        return {key: copied(member) for key, member in value.items()}
    if kind is list:
        return [copied(member) for member in value]
    return value


def _reason(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    text = str(error)
    if text.startswith("Out of range float"):
        # The message of the standard library goes on with the value itself.
        return "NaN and infinities have no JSON form"
    return text


def _refuse_constant(name: str) -> Any:
    raise ValueError(name)


def _keys_are_text(value: Any) -> bool:
    # json.dumps turns 1, 1.5, True and None into string keys without a word; they would come
    # back as other keys than they went in.
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, dict):
            for key, member in item.items():
                if not isinstance(key, str):
                    return False
                if isinstance(member, (dict, list, tuple)):
                    stack.append(member)
        elif isinstance(item, (list, tuple)):
            stack.extend(member for member in item if isinstance(member, (dict, list, tuple)))
    return True
