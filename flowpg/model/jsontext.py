"""JSON as flowpg stores it: one encoder, one decoder, one equality, one copy.

Payloads are kept as text, so everything a JSON text can say survives: big integers, -0.0, key
order, NUL and lone surrogates inside strings. What JSON cannot say (NaN, infinities, keys that
are not strings, cycles, other types) is refused before it reaches the database, and so is what
no reader could walk through: more than ``MAX_DEPTH`` levels of nesting.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from json import encoder as _json
from typing import Any

from flowpg.errors import SerializationError

MAX_DEPTH = 200
"""Deepest nesting of lists and objects in one value."""

MAX_STORED_DEPTH = MAX_DEPTH + 8
"""The same for a text that is stored or read: there a value stands inside an event, and that inside
an envelope or a history. Without the difference the deepest values could be stored and not read."""

_SCALARS = frozenset({str, int, float, bool, type(None)})


def encode(value: Any, what: str = "value", levels: int = MAX_DEPTH) -> str:
    """``value`` as compact JSON text, valid as UTF-8.

    Raises SerializationError naming ``what`` (never the value) if JSON cannot carry it unchanged,
    or if it is nested more than ``levels`` deep.
    """
    if type(value) is str and value.isascii():
        return quote(value)
    try:
        if type(value) not in _SCALARS:
            _check(value, levels)
        return _text(value)
    except Exception as error:  # noqa: BLE001  a container of a foreign class may raise anything
        raise _unstorable(what, error) from None


def decode(text: str | bytes, what: str = "value") -> Any:
    """The value of a JSON text. Raises SerializationError naming ``what``."""
    try:
        if isinstance(text, bytes):
            text = text.decode()
        value = _decode(text)
        # Deep nesting needs many brackets, and counting them is quick.
        if len(text) > MAX_STORED_DEPTH and text.count("[") + text.count("{") > MAX_STORED_DEPTH:
            _check(value, MAX_STORED_DEPTH)
    except _TooDeep as error:
        raise SerializationError(f"{what} cannot be read: {error}") from None
    except (ValueError, RecursionError):
        raise SerializationError(f"{what} is not valid JSON") from None
    return value


def equal(left: Any, right: Any) -> bool:
    """JSON equality: numbers by value, true is never 1, key order is free."""
    kind = type(left)
    if kind is type(right) and kind in _SCALARS:
        return bool(left == right)
    if kind is dict and kind is type(right):
        return _equal_members(left, right)
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, (int, float)) and isinstance(right, (int, float)):
        return left == right
    if isinstance(left, dict) and isinstance(right, dict):
        return _equal_members(left, right)
    if isinstance(left, (list, tuple)) and isinstance(right, (list, tuple)):
        return len(left) == len(right) and all(map(equal, left, right))
    return isinstance(left, str) and isinstance(right, str) and left == right


def _equal_members(left: dict[str, Any], right: dict[str, Any]) -> bool:
    if left.keys() != right.keys():
        return False
    for key, member in left.items():
        other = right[key]
        kind = type(member)
        if kind is type(other) and kind in _SCALARS:
            if member != other:
                return False
        elif not equal(member, other):
            return False
    return True


def copied(value: Any) -> Any:
    """A value of ``decode`` that shares no container with ``value``; scalars are themselves."""
    kind = type(value)
    if kind is dict:
        return {key: m if type(m) in _SCALARS else copied(m) for key, m in value.items()}
    if kind is list:
        return [m if type(m) in _SCALARS else copied(m) for m in value]
    return value


def stored(value: Any, what: str = "value") -> tuple[str, Any]:
    """The JSON text of ``value``, and the value as it will come back from the store, sharing no
    container with ``value``: a tuple is a list, a member of a string enumeration its string.

    SerializationError naming ``what``.
    """
    try:
        copy = value if type(value) in _SCALARS else _plain_copy(value, MAX_DEPTH)
        return _text(value), copy
    except _NotPlain:
        text = encode(value, what)
        return text, _decode(text)
    except Exception as error:  # noqa: BLE001  as in encode
        raise _unstorable(what, error) from None


quote: Callable[[str], str] = _json.encode_basestring
"""The JSON text of a string that is known to have no lone surrogates."""


class _NotPlain(Exception):
    """A value holds something that comes back as another type."""


class _TooDeep(ValueError):
    def __init__(self) -> None:
        super().__init__(f"it is nested more than {MAX_DEPTH} levels deep, or contains itself")


def _check(value: Any, levels: int) -> None:
    # The encoder turns the keys 1, 1.5, True and None into strings without a word; they would come
    # back as other keys than they went in.
    if isinstance(value, dict):
        if not levels:
            raise _TooDeep
        for key, member in value.items():
            if type(key) is not str and not isinstance(key, str):
                raise ValueError("an object key is not a string")
            if type(member) not in _SCALARS:
                _check(member, levels - 1)
    elif isinstance(value, (list, tuple)):
        if not levels:
            raise _TooDeep
        for member in value:
            if type(member) not in _SCALARS:
                _check(member, levels - 1)


def _plain_copy(value: Any, levels: int) -> Any:
    """A copy of a value that JSON gives back as it is: only dict, list and scalars, none of a
    subclass. What is checked by ``_check`` is checked on the way."""
    kind = type(value)
    if not levels:
        raise _TooDeep
    if kind is dict:
        made = {}
        for key, member in value.items():
            if type(key) is not str:
                raise _NotPlain
            made[key] = member if type(member) in _SCALARS else _plain_copy(member, levels - 1)
        return made
    if kind is list:
        return [m if type(m) in _SCALARS else _plain_copy(m, levels - 1) for m in value]
    raise _NotPlain


def _text(value: Any) -> str:
    text = _encode_raw(value)
    if text.isascii() or _is_text(text):
        return text
    # A lone surrogate has no UTF-8 form; its escape has, and decodes to the same string.
    return _encode_escaped(value)


def _unstorable(what: str, error: Exception) -> SerializationError:
    return SerializationError(f"{what} cannot be stored as JSON: {_reason(error)}")


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _refuse_type(value: Any) -> Any:
    raise TypeError(
        f"Object of type {type(value).__name__} is not JSON serializable; make it of dict, list, "
        "str, int, float, bool and None first, as dataclasses.asdict() does"
    )


def _refuse_constant(name: str) -> Any:
    raise ValueError(name)


def _encoder(*, escape: bool) -> Callable[[Any], str]:
    # JSONEncoder builds its C encoder anew at each call; one that is kept saves a third of the
    # time of a small event. Interpreters without it take the public way.
    make: Any = getattr(_json, "c_make_encoder", None)
    if make is None:
        return json.JSONEncoder(
            ensure_ascii=escape, allow_nan=False, check_circular=False, separators=(",", ":")
        ).encode
    quote = _json.encode_basestring_ascii if escape else _json.encode_basestring
    chunks = make(None, _refuse_type, quote, None, ":", ",", False, False, False)
    return lambda value: "".join(chunks(value, 0))


_encode_raw = _encoder(escape=False)
_encode_escaped = _encoder(escape=True)
_decoder: Any = json.JSONDecoder(parse_constant=_refuse_constant)


def _decode(text: str) -> Any:
    # What the scanner reads in one go needs no look at white space around it.
    try:
        value, end = _decoder.scan_once(text, 0)
    except StopIteration:
        end = -1
    return value if end == len(text) else _decoder.decode(text)


def _reason(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return str(_TooDeep())
    if not isinstance(error, TypeError | ValueError):
        return f"reading it raised {type(error).__name__}"
    text = str(error)
    if text.startswith("Out of range float"):
        # The message of the standard library goes on with the value itself.
        return "NaN and infinities have no JSON form"
    if text.startswith("Exceeds the limit"):
        return "an integer has too many digits"
    return text
