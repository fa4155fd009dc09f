"""Values as JSON, where an annotation says what they are.

An annotation makes the JSON plain: a datetime is its ISO text, a dataclass an object, a set a
sorted list. What it leaves open (Any, unions, base classes) is tagged, see ``tags``. Reading
accepts both forms, so plain JSON that someone else wrote fits as well; Literal, Annotated, unions
and whatever else has no plan here are validated by pydantic.
"""

from __future__ import annotations

import base64
import collections.abc as abc
import types
import typing
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, ForwardRef, TypeVar, Union, get_args, get_origin
from uuid import UUID

from pydantic import PydanticUserError, TypeAdapter, ValidationError

from flowpg.authoring import tags
from flowpg.authoring.hint_classes import Plan, class_plan
from flowpg.authoring.tags import Classes, Unfit
from flowpg.model.adapters import adapter_of, once_a_type
from flowpg.model.dumping import in_order

ANYTHING = Plan(tags.encode, tags.decode)
"""The plan of values about which nothing is said."""


@once_a_type
def plan_for(hint: Any) -> Plan:
    """The plan of an annotation."""
    # A name inside of an annotation that nobody has looked up says nothing.
    if hint is Any or hint is object or isinstance(hint, (TypeVar, str, ForwardRef)):
        return ANYTHING
    if hint is None or hint is types.NoneType:
        return _NONE
    known = _EXACT.get(hint) if isinstance(hint, abc.Hashable) else None
    if known is not None:
        return known
    origin = get_origin(hint) or hint
    if origin in (Union, types.UnionType):
        return _union(hint)
    if origin in _CONTAINERS:
        return _CONTAINERS[origin](get_args(hint))
    if isinstance(hint, typing.NewType):
        return plan_for(hint.__supertype__)
    if origin is typing.Annotated:
        inner = plan_for(get_args(hint)[0])
        check = _validator(hint)
        return Plan(inner.encode, lambda value: check(inner.decode(value)))
    plan = class_plan(hint, plan_for) if isinstance(origin, type) else None
    return plan or _validated(hint)


# -- scalars ------------------------------------------------------------------------------------


def _scalar(
    kind: type, write: Callable[[Any], Any] | None, read: Callable[[Any], Any], *also: type
) -> Plan:
    """``write`` None: the value is its own JSON. ``also`` are types that are taken as well."""
    accepted = (kind, *also)
    # JSON's own kinds need no look at what they could stand for.
    native = kind if kind in (str, int, float, bool) else None

    def encode(value: Any) -> Any:
        found = type(value)
        if found is kind:
            return value if write is None else write(value)
        if found in accepted or isinstance(value, kind):
            return tags.encode(value)
        raise _expected(kind, value)

    def decode(value: Any) -> Any:
        if type(value) is native:
            return value
        if tags.is_tagged(value):
            value = tags.decode(value)
            if isinstance(value, accepted):
                return value
            raise _expected(kind, value)
        try:
            return read(value)
        except (ArithmeticError, TypeError, ValueError, AttributeError):
            raise _expected(kind, value) from None

    return Plan(encode, decode, native if write is None else None)


def _expected(kind: Any, value: Any) -> Unfit:
    return Unfit(f"it should be {_name(kind)} and is {type(value).__name__}")


def _name(hint: Any) -> str:
    if isinstance(hint, types.UnionType):  # whose name is "Union" from Python 3.14 on
        return str(hint)
    return getattr(hint, "__name__", None) or str(hint)


def _same(*kinds: type) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        if type(value) in kinds:
            return value
        raise TypeError

    return read


def _read_float(value: Any) -> float:
    if type(value) not in (int, float):
        raise TypeError
    return float(value)


def _write_datetime(value: datetime | time) -> Any:
    shape = tags.encode_datetime(value)
    return shape if "fold" in shape else shape["v"]


def _write_duration(value: timedelta) -> Any:
    return _DURATION.dump_python(value, mode="json")


def _read_duration(value: Any) -> timedelta:
    return _DURATION.validate_python(value)


def _need_none(value: Any) -> None:
    if value is not None:
        raise Unfit(f"it should be None and is {type(value).__name__}")


_DURATION = TypeAdapter(timedelta)
_NONE = Plan(_need_none, _need_none)
_EXACT: dict[Any, Plan] = {
    str: _scalar(str, None, _same(str)),
    int: _scalar(int, None, _same(int, bool), bool),
    bool: _scalar(bool, None, _same(bool)),
    float: _scalar(float, tags.encode_float, _read_float, int),
    bytes: _scalar(bytes, tags.encode_bytes, lambda text: base64.b64decode(text, validate=True)),
    datetime: _scalar(datetime, _write_datetime, datetime.fromisoformat),
    date: _scalar(date, date.isoformat, date.fromisoformat),
    time: _scalar(time, _write_datetime, time.fromisoformat),
    timedelta: _scalar(timedelta, _write_duration, _read_duration),
    UUID: _scalar(UUID, str, UUID),
    Decimal: _scalar(Decimal, str, Decimal),
    Path: _scalar(type(Path()), str, Path),
}

# -- containers ---------------------------------------------------------------------------------


def _list(args: tuple[Any, ...]) -> Plan:
    item = plan_for(args[0]) if args else ANYTHING

    def encode(value: Any) -> Any:
        if not isinstance(value, (list, tuple)):
            raise _expected(list, value)
        return [item.encode(member) for member in value]

    def decode(value: Any) -> Any:
        return [item.decode(member) for member in _members(value, list)]

    return Plan(encode, decode)


def _set(kind: type) -> Callable[[tuple[Any, ...]], Plan]:
    def make(args: tuple[Any, ...]) -> Plan:
        item = plan_for(args[0]) if args else ANYTHING

        def encode(value: Any) -> Any:
            if not isinstance(value, (set, frozenset)):
                raise _expected(kind, value)
            return in_order([item.encode(member) for member in value])

        def decode(value: Any) -> Any:
            return kind(item.decode(member) for member in _members(value, kind))

        return Plan(encode, decode)

    return make


def _tuple(args: tuple[Any, ...]) -> Plan:
    if not args or args[-1] is Ellipsis:
        items, length = [plan_for(args[0]) if args else ANYTHING], None
    else:
        items, length = [plan_for(arg) for arg in args], len(args)

    def plans(value: Any) -> list[Plan]:
        if length is None:
            return items * len(value)
        if len(value) != length:
            raise Unfit(f"it should have {length} members and has {len(value)}")
        return items

    def encode(value: Any) -> Any:
        if not isinstance(value, (list, tuple)):
            raise _expected(tuple, value)
        return [plan.encode(member) for plan, member in zip(plans(value), value, strict=True)]

    def decode(value: Any) -> Any:
        found = _members(value, tuple)
        return tuple(plan.decode(m) for plan, m in zip(plans(found), found, strict=True))

    return Plan(encode, decode)


def _members(value: Any, kind: type) -> Any:
    if type(value) is list:
        return value
    if tags.is_tagged(value) and type(value.get("v")) is list:
        return value["v"]
    raise _expected(kind, value)


_NAMES = {str}


def _dict(args: tuple[Any, ...]) -> Plan:
    keys, values = (plan_for(args[0]), plan_for(args[1])) if args else (ANYTHING, ANYTHING)
    # With names as its keys and such values, it is its own JSON: one look at all of them is enough.
    natives = {values.native} if keys.native is str else set()

    def plain(value: Any) -> bool:
        return (
            type(value) is dict
            and set(map(type, value.values())) == natives
            and set(map(type, value)) == _NAMES
            and tags.TAG not in value
        )

    def encode(value: Any) -> Any:
        if plain(value):
            return dict(value)
        if not isinstance(value, abc.Mapping):
            raise _expected(dict, value)
        return tags.encode_mapping(value, keys.encode, values.encode)

    def decode(value: Any) -> Any:
        if type(value) is not dict:
            raise _expected(dict, value)
        if set(map(type, value.values())) == natives and tags.TAG not in value:
            return dict(value)
        if value.get(tags.TAG) == "dict":
            return {keys.decode(key): values.decode(member) for key, member in value["v"]}
        return {keys.decode(key): values.decode(member) for key, member in value.items()}

    return Plan(encode, decode, plain=plain)


_CONTAINERS: dict[Any, Callable[[tuple[Any, ...]], Plan]] = {
    list: _list,
    tuple: _tuple,
    set: _set(set),
    frozenset: _set(frozenset),
    dict: _dict,
    abc.Mapping: _dict,
}

# -- unions and everything else -----------------------------------------------------------------


def _union(hint: Any) -> Plan:
    arms = get_args(hint)
    rest = [arm for arm in arms if arm is not types.NoneType]
    if len(rest) == 1:
        inner = plan_for(rest[0])
        return Plan(
            lambda value: None if value is None else inner.encode(value),
            lambda value: None if value is None else inner.decode(value),
        )
    return _validated(hint)


def _validated(hint: Any) -> Plan:
    """Written with tags, read by pydantic."""
    known = classes_of(hint)
    check = _validator(hint)
    return Plan(
        lambda value: tags.encode(value, known),
        lambda value: check(tags.decode(value, known)),
    )


def _validator(hint: Any) -> Callable[[Any], Any]:
    try:
        adapter = adapter_of(hint)
    except PydanticUserError:
        # Nothing pydantic knows, such as a Protocol: taken at its word.
        return lambda value: value

    def check(value: Any) -> Any:
        try:
            return adapter.validate_python(value)
        except ValidationError as error:
            raise Unfit(
                f"it does not fit {_name(hint)}: check {tags.failed_members(error, value, hint)}"
            ) from None

    return check


def classes_of(hint: Any) -> Classes:
    """Every class that an annotation mentions, by its key."""
    found: dict[str, type] = {}
    waiting = [hint]
    while waiting:
        item = waiting.pop()
        if isinstance(item, type) and get_origin(item) is None:
            found[tags.class_key(item)] = item
        waiting.extend(get_args(item))
    return found
