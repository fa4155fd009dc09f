"""How values of classes are written and read where an annotation names the class.

The members of a dataclass or a named tuple become an object, an enumeration its value, a pydantic
model what it serialises itself to. An instance of a subclass is tagged with its own name, so it
comes back as what it was.
"""

from __future__ import annotations

import dataclasses
import enum
import typing
from collections.abc import Callable
from typing import Any, TypeVar, get_args, get_origin

from pydantic import BaseModel

from flowpg.authoring import tags
from flowpg.authoring.annotations import hints_of
from flowpg.authoring.tags import Unfit


class Plan:
    """How values of one annotation are written and read. Both raise Unfit. What is of the type
    ``native``, or ``plain`` by a look at all of it, is its own JSON, and read as what it is."""

    __slots__ = ("decode", "encode", "native", "plain")

    def __init__(
        self,
        encode: Callable[[Any], Any],
        decode: Callable[[Any], Any],
        native: type | None = None,
        plain: Callable[[Any], bool] | None = None,
    ) -> None:
        self.encode = encode
        self.decode = decode
        self.native = native
        self.plain = plain


PlanFor = Callable[[Any], Plan]


def class_plan(hint: Any, plan_for: PlanFor) -> Plan | None:
    """The plan of a class, or of one with type arguments; None if it is of no kind known here."""
    cls: Any = get_origin(hint) or hint
    if typing.is_typeddict(cls):
        return _typed_dict(cls, _Members(hint, plan_for))
    if issubclass(cls, enum.Enum):
        plain = _enum(cls)
    elif issubclass(cls, BaseModel):
        plain = Plan(tags.dump_model, lambda value: tags.load_model(cls, value))
    elif dataclasses.is_dataclass(cls):
        plain = _fields(
            cls,
            [field.name for field in dataclasses.fields(cls)],
            lambda members: tags.make_dataclass(cls, members),
            _Members(hint, plan_for),
        )
    elif issubclass(cls, tuple) and hasattr(cls, "_fields"):
        plain = _fields(
            cls, list(cls._fields), lambda members: cls(**members), _Members(hint, plan_for)
        )
    else:
        return None
    return _exact(cls, plain)


def _exact(cls: Any, plain: Plan) -> Plan:
    known = {tags.class_key(cls): cls}

    def encode(value: Any) -> Any:
        if type(value) is cls:
            return plain.encode(value)
        if isinstance(value, cls):
            return tags.encode(value, known)
        raise Unfit(f"it should be {cls.__name__} and is {type(value).__name__}")

    def decode(value: Any) -> Any:
        if not tags.is_tagged(value):
            return plain.decode(value)
        found = tags.decode(value, known)
        if isinstance(found, cls):
            return found
        raise Unfit(f"it should be {cls.__name__} and is {type(found).__name__}")

    return Plan(encode, decode)


def _enum(cls: Any) -> Plan:
    scalars = (str, int, float, bool)
    if not all(type(member.value) in scalars for member in cls):
        return Plan(
            lambda value: tags.encode(value, {tags.class_key(cls): cls}),
            lambda value: _unfit_member(cls),
        )

    def decode(value: Any) -> Any:
        try:
            return cls(value)
        except ValueError:
            return _unfit_member(cls)

    return Plan(lambda value: value.value, decode)


def _unfit_member(cls: Any) -> Any:
    raise Unfit(f"it is no member of {cls.__name__}")


class _Members:
    """The plans of a class's members, made on first use: a class may contain itself."""

    def __init__(self, hint: Any, plan_for: PlanFor) -> None:
        self._hint = hint
        self._plan_for = plan_for
        self._plans: dict[str, Plan] | None = None

    def __call__(self) -> dict[str, Plan]:
        if self._plans is None:
            cls = get_origin(self._hint) or self._hint
            parameters = getattr(cls, "__parameters__", ())
            given = dict(zip(parameters, get_args(self._hint), strict=False))
            self._plans = {
                name: self._plan_for(_substituted(hint, given))
                for name, hint in hints_of(cls).items()
            }
        return self._plans


def _substituted(hint: Any, given: dict[Any, Any]) -> Any:
    while get_origin(hint) in (typing.Required, typing.NotRequired):
        hint = get_args(hint)[0]
    if isinstance(hint, TypeVar):
        return given.get(hint, Any)
    parameters = getattr(hint, "__parameters__", ())
    if not given or not parameters or isinstance(hint, type):
        return hint
    return hint[tuple(given.get(parameter, Any) for parameter in parameters)]


def _typed_dict(cls: Any, members: _Members) -> Plan:
    def walk(value: Any, write: bool) -> dict[str, Any]:
        if type(value) is not dict:
            raise Unfit(f"it should be {cls.__name__} and is {type(value).__name__}")
        plans = members()
        missing = sorted(cls.__required_keys__ - value.keys())
        if missing:
            raise Unfit(f"{cls.__name__} misses {', '.join(missing)}")
        found = {}
        for name, item in value.items():
            plan = plans.get(name)
            if plan is None:
                raise Unfit(f"{cls.__name__} has no such key")
            try:
                found[name] = plan.encode(item) if write else plan.decode(item)
            except Unfit as error:
                raise Unfit(f"{cls.__name__}.{name}: {error}") from None
        return found

    return Plan(lambda value: walk(value, True), lambda value: walk(value, False))


def _fields(
    cls: Any, names: list[str], make: Callable[[dict[str, Any]], Any], members: _Members
) -> Plan:
    def encode(value: Any) -> Any:
        plans = members()
        shape = {}
        for name in names:
            try:
                shape[name] = plans[name].encode(getattr(value, name))
            except Unfit as error:
                raise Unfit(f"{cls.__name__}.{name}: {error}") from None
        # A member called like the tag would be taken for one.
        return shape if tags.TAG not in shape else tags.encode(value, {tags.class_key(cls): cls})

    def decode(value: Any) -> Any:
        if type(value) is list and issubclass(cls, tuple):
            value = dict(zip(names, value, strict=False))
        if type(value) is not dict:
            raise Unfit(f"it should be {cls.__name__} and is {type(value).__name__}")
        plans = members()
        found = {}
        for name in names:
            if name in value:
                try:
                    found[name] = plans[name].decode(value[name])
                except Unfit as error:
                    raise Unfit(f"{cls.__name__}.{name}: {error}") from None
        try:
            return make(found)
        except (TypeError, ValueError) as error:
            missing = [name for name in names if name not in found]
            detail = f"without {', '.join(missing)}" if missing else type(error).__name__
            raise Unfit(f"{cls.__name__} could not be made ({detail})") from None

    return Plan(encode, decode)
