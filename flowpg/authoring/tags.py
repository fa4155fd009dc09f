"""Values as JSON, for code that says nothing about their types.

What JSON has is itself. Everything else is an object with the member ``$`` that names its kind:
``{"$": "datetime", "v": "2026-01-31T12:00:00+00:00"}``. A mapping that has keys other than strings,
or a key ``$`` of its own, is a list of pairs. The result is the same in every process, whatever the
order of a set there.

A class is named by module and qualified name, and found again only among the modules that are
imported already: reading a value imports nothing and runs no code but that of plain data classes.
"""

from __future__ import annotations

import base64
import dataclasses
import enum
import math
import sys
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path, PurePath
from typing import Any, Final
from uuid import UUID
from zoneinfo import ZoneInfo

from pydantic import BaseModel, ValidationError

from flowpg.model import jsontext
from flowpg.model.decoding import places
from flowpg.model.dumping import dumped, in_order

TAG: Final = "$"
Classes = Mapping[str, type]
"""Classes that an annotation names, by ``class_key``: found without looking at modules."""

NO_CLASSES: Final[Classes] = {}
_PLAIN: tuple[Any, ...] = (str, int, float, list)
_MICROSECOND = timedelta(microseconds=1)


class Unfit(ValueError):
    """A value that cannot be encoded or decoded. The message never shows the value."""


def class_key(cls: type) -> str:
    """The name under which values of a class are stored."""
    return f"{cls.__module__}:{cls.__qualname__}"


def tagged(kind: str, value: Any, **more: Any) -> dict[str, Any]:
    """The object that stands for a value of another kind than JSON has."""
    return {TAG: kind, **more, "v": value}


# -- encoding -----------------------------------------------------------------------------------


def encode(value: Any, known: Classes = NO_CLASSES) -> Any:
    """``value`` as a JSON value. Unfit names the type that cannot be stored."""
    kind = type(value)
    if kind is str or kind is int or kind is bool or value is None:
        return value
    simple = _SIMPLE.get(kind)
    if simple is not None:
        return simple(value)
    if isinstance(value, enum.Enum):
        return _encode_enum(value, known)
    if isinstance(value, dict):
        return encode_mapping(value, lambda key: encode(key, known), lambda v: encode(v, known))
    if kind is list:
        return [encode(item, known) for item in value]
    if isinstance(value, tuple):
        return _encode_tuple(value, known)
    if isinstance(value, (set, frozenset)):
        name = "set" if isinstance(value, set) else "frozenset"
        return tagged(name, in_order([encode(item, known) for item in value]))
    if isinstance(value, BaseModel):
        return tagged("model", dump_model(value), t=_named(kind, known))
    if dataclasses.is_dataclass(kind):
        fields = {
            field.name: encode(getattr(value, field.name), known)
            for field in dataclasses.fields(kind)
        }
        return tagged("dataclass", fields, t=_named(kind, known))
    if isinstance(value, PurePath):
        return tagged("path", str(value))
    for tag, base, write in _KINDS:
        if isinstance(value, base):
            return tagged(tag, write(value, known))
    for plain in _PLAIN:
        if isinstance(value, plain):
            # A subclass without a tag of its own comes back as what JSON has.
            return encode(plain(value), known)
    raise Unfit(f"a value of type {kind.__name__} has no JSON form; pass plain data instead")


def encode_mapping(
    value: Mapping[Any, Any], key_of: Callable[[Any], Any], value_of: Callable[[Any], Any]
) -> dict[str, Any]:
    """A mapping as an object, or as tagged pairs if it is none in JSON."""
    if all(type(key) is str for key in value) and TAG not in value:
        return {key: value_of(item) for key, item in value.items()}
    return tagged("dict", [[key_of(key), value_of(item)] for key, item in value.items()])


def encode_float(value: float) -> Any:
    """A float as itself, or tagged if JSON has no name for it."""
    return value if math.isfinite(value) else tagged("float", str(value))


def encode_datetime(value: datetime | time) -> Any:
    """A moment, or a time of day; a named zone is kept by its name, any other by its offset."""
    kind = "datetime" if isinstance(value, datetime) else "time"
    if isinstance(value.tzinfo, ZoneInfo) and value.tzinfo.key:
        local = value.replace(tzinfo=None).isoformat()
        return tagged(kind, local, zone=value.tzinfo.key, fold=value.fold)
    if value.fold:  # which of the two, where clocks are put back
        return tagged(kind, value.isoformat(), fold=value.fold)
    return tagged(kind, value.isoformat())


def encode_bytes(value: bytes) -> Any:
    """Bytes in base64."""
    return tagged("bytes", base64.b64encode(value).decode())


def dump_model(value: BaseModel) -> Any:
    """A pydantic model as JSON, as it serialises itself; sets in it have a fixed order."""
    try:
        return dumped(value)
    except Exception as error:  # noqa: BLE001  a model's own serialisers may raise anything
        name = type(value).__name__
        raise Unfit(f"{name} could not be serialised ({type(error).__name__})") from None


def _encode_enum(value: enum.Enum, known: Classes) -> Any:
    name = _named(type(value), known)
    try:
        return tagged("enum", encode(value.value, known), t=name)
    except Unfit:
        return tagged("member", value.name, t=name)


def _encode_tuple(value: tuple[Any, ...], known: Classes) -> Any:
    fields = getattr(type(value), "_fields", None)
    if fields is None:
        return tagged("tuple", [encode(item, known) for item in value])
    members = {name: encode(item, known) for name, item in zip(fields, value, strict=True)}
    return tagged("namedtuple", members, t=_named(type(value), known))


def _named(cls: type, known: Classes) -> str:
    key = class_key(cls)
    if known.get(key) is not cls and imported(key) is not cls:
        raise Unfit(
            f"the class {cls.__qualname__} cannot be found again by its name; define it at the "
            "top of a module, or name it in the annotation"
        )
    return key


_SIMPLE: dict[type, Callable[[Any], Any]] = {
    float: encode_float,
    bytes: encode_bytes,
    bytearray: lambda value: tagged("bytearray", base64.b64encode(value).decode()),
    datetime: encode_datetime,
    date: lambda value: tagged("date", value.isoformat()),
    time: encode_datetime,
    timedelta: lambda value: tagged("timedelta", value // _MICROSECOND),
    timezone: lambda value: tagged("timezone", value.utcoffset(None) // _MICROSECOND),
    ZoneInfo: lambda value: tagged("zone", value.key),
    UUID: lambda value: tagged("uuid", str(value)),
    Decimal: lambda value: tagged("decimal", str(value)),
}

# -- decoding -----------------------------------------------------------------------------------


def decode(value: Any, known: Classes = NO_CLASSES) -> Any:
    """The value that ``encode`` made this JSON value from; shares no container with it. Unfit."""
    kind = type(value)
    if kind is dict:
        if TAG in value:
            return _decode_tagged(value, known)
        return {key: decode(item, known) for key, item in value.items()}
    if kind is list:
        return [decode(item, known) for item in value]
    return value


def is_tagged(value: Any) -> bool:
    """Whether a JSON value stands for one of another kind."""
    return type(value) is dict and TAG in value


def _decode_tagged(value: dict[str, Any], known: Classes) -> Any:
    reader = _READERS.get(value[TAG]) if isinstance(value[TAG], str) else None
    if reader is None:
        raise Unfit("it holds a kind of value that this release does not know")
    try:
        return reader(value, known)
    except Unfit:
        raise
    except (ArithmeticError, KeyError, LookupError, TypeError, ValueError) as error:
        raise Unfit(f"a stored {value[TAG]} is malformed ({type(error).__name__})") from None


def _read_datetime(value: dict[str, Any], known: Classes) -> datetime | time:
    kind = datetime if value[TAG] == "datetime" else time
    found: datetime | time = kind.fromisoformat(value["v"])
    if "zone" in value:
        return found.replace(tzinfo=ZoneInfo(value["zone"]), fold=value["fold"])
    return found.replace(fold=value["fold"]) if "fold" in value else found


def _read_enum(value: dict[str, Any], known: Classes) -> Any:
    return _class_of(value, known, enum.Enum)(decode(value["v"], known))


def _read_member(value: dict[str, Any], known: Classes) -> Any:
    return _class_of(value, known, enum.Enum)[value["v"]]


def _read_namedtuple(value: dict[str, Any], known: Classes) -> Any:
    members = {name: decode(item, known) for name, item in value["v"].items()}
    return _class_of(value, known, tuple)(**members)


def _read_dataclass(value: dict[str, Any], known: Classes) -> Any:
    cls = _class_of(value, known, object)
    if not dataclasses.is_dataclass(cls):
        raise Unfit(f"{cls.__qualname__} is not a dataclass")
    return make_dataclass(cls, {name: decode(item, known) for name, item in value["v"].items()})


def _read_model(value: dict[str, Any], known: Classes) -> Any:
    return load_model(_class_of(value, known, BaseModel), value["v"])


def make_dataclass(cls: Any, members: Mapping[str, Any]) -> Any:
    """An instance of a dataclass from the values of its fields; unknown ones are left out."""
    fields = {field.name: field for field in dataclasses.fields(cls)}
    given = {name: item for name, item in members.items() if name in fields}
    made = cls(**{name: item for name, item in given.items() if fields[name].init})
    for name, item in given.items():
        if not fields[name].init:
            object.__setattr__(made, name, item)
    return made


def load_model(cls: type[BaseModel], value: Any) -> Any:
    """A pydantic model from its JSON form. Unfit names the members that do not fit."""
    try:
        return cls.model_validate_json(jsontext.encode(value))
    except ValidationError as error:
        raise Unfit(
            f"it does not fit {cls.__name__}: check {failed_members(error, value, cls)}"
        ) from None


def failed_members(error: ValidationError, value: Any, kind: Any) -> str:
    """Where a value did not fit, without the value, nor a name that only the value knows."""
    found = {place or "the value" for place in places(error, value, kind)}
    return ", ".join(sorted(found))


def _class_of(value: dict[str, Any], known: Classes, base: type) -> Any:
    key = value["t"]
    cls = known.get(key) or imported(key)
    if cls is None or not issubclass(cls, base):
        raise Unfit(f"the class {str(key)[:200]} is not imported in this process")
    return cls


def imported(key: str) -> type | None:
    """The class of this ``class_key``, if its module is imported in this process."""
    module, _, path = key.partition(":")
    found: Any = sys.modules.get(module)
    for name in path.split("."):
        # Not getattr: a module may import others when asked for a name it does not have.
        found = getattr(found, "__dict__", {}).get(name)
    return found if isinstance(found, type) else None


_READERS: dict[str, Callable[[dict[str, Any], Classes], Any]] = {
    "float": lambda value, known: float(value["v"]),
    "bytes": lambda value, known: base64.b64decode(value["v"], validate=True),
    "bytearray": lambda value, known: bytearray(base64.b64decode(value["v"], validate=True)),
    "datetime": _read_datetime,
    "date": lambda value, known: date.fromisoformat(value["v"]),
    "time": _read_datetime,
    "timedelta": lambda value, known: timedelta(microseconds=value["v"]),
    "timezone": lambda value, known: timezone(timedelta(microseconds=value["v"])),
    "zone": lambda value, known: ZoneInfo(value["v"]),
    "uuid": lambda value, known: UUID(value["v"]),
    "decimal": lambda value, known: Decimal(value["v"]),
    "path": lambda value, known: Path(value["v"]),
    "tuple": lambda value, known: tuple([decode(item, known) for item in value["v"]]),
    "set": lambda value, known: {decode(item, known) for item in value["v"]},
    "frozenset": lambda value, known: frozenset([decode(item, known) for item in value["v"]]),
    "dict": lambda value, known: {decode(k, known): decode(v, known) for k, v in value["v"]},
    "enum": _read_enum,
    "member": _read_member,
    "namedtuple": _read_namedtuple,
    "dataclass": _read_dataclass,
    "model": _read_model,
}

_KINDS: list[tuple[str, type, Callable[[Any, Classes], Any]]] = []


def register(
    kind: str,
    base: type,
    write: Callable[[Any, Classes], Any],
    read: Callable[[Any, Classes], Any],
) -> None:
    """Store instances of ``base`` under the tag ``kind``, by a pair of functions."""
    _KINDS.append((kind, base, write))
    _READERS[kind] = lambda value, known: read(value["v"], known)
