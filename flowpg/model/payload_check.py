"""Whether a value fits a JSON Schema, as leniently as pydantic reads JSON: ``"5"`` is an integer,
and a number is a time. The same library reads the value later, where the type itself is known.

Of JSON Schema this knows what ``payload_schema`` writes. What it does not know forbids nothing, and
nothing is ever fetched. What it finds is said by place and expectation, both taken from the schema,
so that no text shows a part of the value: neither a member nor the name of one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, Final

from pydantic_core import (
    ErrorDetails,
    PydanticCustomError,
    SchemaError,
    SchemaValidator,
    ValidationError,
)
from pydantic_core import core_schema as core

from flowpg.model import jsontext

Failures = tuple[tuple[str, str], ...]
"""What does not fit: places such as ``lines.0.cents``, ``*`` for a name that the schema does not
know and "" for the value itself, and what was expected there."""

MAX_FAILURES: Final = 20
"""More than this are not listed."""

HIDDEN: Final = "*"
"""In place of a name that only the value knows."""

_CHOICE: Final = "\x00"  # begins the label of a choice, which is no part of a place


@lru_cache(maxsize=256)
def check_of(text: str) -> PayloadCheck:
    """The check of a schema, given as JSON text."""
    return PayloadCheck(jsontext.decode(text, "a payload schema"))


class PayloadCheck:
    """One JSON Schema, ready to check values."""

    def __init__(self, schema: Any) -> None:
        self._names = frozenset(names_in(schema))
        try:
            self._validator: SchemaValidator | None = SchemaValidator(_Reader(schema).whole())
        except (SchemaError, RecursionError, TypeError, ValueError):
            self._validator = None  # nothing that could be checked

    def failures(self, value: Any) -> Failures:
        """Where a JSON value does not fit; nothing if it does."""
        if self._validator is None:
            return ()
        try:
            self._validator.validate_python(value)
        except ValidationError as error:
            found = error.errors(include_url=False, include_input=False)
            # A schema that is defined by nothing but itself says nothing.
            loops = any(item["type"] == "recursion_loop" for item in found)
            return () if loops else _failures_of(found, self._names)
        except RecursionError:
            return ()
        return ()


def _failures_of(errors: list[ErrorDetails], names: frozenset[str]) -> Failures:
    """What errors say, without any part of the value; ``names`` may be shown."""
    found: dict[str, list[str]] = {}
    for item in errors:
        place, choice = _place(item["loc"], names)
        wanted = _expectation(item["type"], item.get("ctx") or {})
        if item["type"] == "extra_forbidden":
            place = place.rpartition(".")[0]
        said = found.setdefault(place, [])
        wanted += f" (as {choice})" if choice else ""
        if wanted not in said:
            said.append(wanted)
    listed = [(place, " or ".join(said)) for place, said in found.items()]
    return tuple(listed[:MAX_FAILURES])


def in_words(failures: Failures) -> str:
    """Failures as one line: ``cents should be an integer; note is missing``."""
    return "; ".join(f"{place or 'the value'} {wanted}" for place, wanted in failures)


def _place(location: tuple[int | str, ...], names: frozenset[str]) -> tuple[str, str]:
    parts, choice = [], ""
    for part in location:
        if isinstance(part, int):
            parts.append(str(part))
        elif part.startswith(_CHOICE):
            choice = part.removeprefix(_CHOICE) or choice
        else:
            parts.append(part if part in names else HIDDEN)
    return ".".join(parts), choice


def names_in(schema: Any) -> Iterator[str]:
    """The names of all members that a schema describes."""
    if isinstance(schema, dict):
        properties, required = schema.get("properties"), schema.get("required")
        yield from properties if isinstance(properties, dict) else ()
        yield from map(str, required) if isinstance(required, list) else ()
        for part in schema.values():
            yield from names_in(part)
    elif isinstance(schema, list):
        for part in schema:
            yield from names_in(part)


# -- expectations -------------------------------------------------------------------------------

_EXPECTED: Final = {
    "missing": "is missing",
    "extra_forbidden": "has a member that is not expected",
    "int": "should be an integer",
    "float": "should be a number",
    "finite": "should be a finite number",
    "decimal": "should be a decimal number",
    "bool": "should be true or false",
    "string": "should be a string",
    "none": "should be null",
    "list": "should be an array",
    "tuple": "should be an array",
    "dict": "should be an object",
    "datetime": "should be a time such as 2026-01-31T12:00:00Z",
    "date": "should be a date such as 2026-01-31",
    "time": "should be a time of day such as 12:00:00",
    "uuid": "should be a UUID",
}

_LIMITS: Final = {
    "greater_than": ("gt", "should be greater than {}"),
    "greater_than_equal": ("ge", "should be at least {}"),
    "less_than": ("lt", "should be less than {}"),
    "less_than_equal": ("le", "should be at most {}"),
    "multiple_of": ("multiple_of", "should be a multiple of {}"),
    "string_too_short": ("min_length", "should have at least {} characters"),
    "string_too_long": ("max_length", "should have at most {} characters"),
    "string_pattern_mismatch": ("pattern", "should match {}"),
    "too_short": ("min_length", "should have at least {} items"),
    "too_long": ("max_length", "should have at most {} items"),
    "flowpg_choice": ("expected", "should be {}"),
}


def _expectation(kind: str, about: dict[str, Any]) -> str:
    """The words for a kind of error. Not the library's own: some quote the value."""
    if kind in _LIMITS:
        name, words = _LIMITS[kind]
        return words.format(str(about.get(name, "?"))[:200])
    if kind.startswith("time_delta"):
        return "should be a duration such as PT30S, or a number of seconds"
    return _EXPECTED.get(kind) or _EXPECTED.get(kind.partition("_")[0], "does not fit")


# -- from JSON Schema to what pydantic checks ---------------------------------------------------

_FORMATS: Final[dict[str, Callable[[], core.CoreSchema]]] = {
    "date-time": core.datetime_schema,
    "date": core.date_schema,
    "time": core.time_schema,
    "duration": core.timedelta_schema,
    "uuid": core.uuid_schema,
}
_TEXTS: Final = frozenset({"binary", "email", "uri", "password"})
_BOUNDS: Final = {
    "minimum": "ge",
    "exclusiveMinimum": "gt",
    "maximum": "le",
    "exclusiveMaximum": "lt",
    "multipleOf": "multiple_of",
}


class _Reader:
    def __init__(self, schema: Any) -> None:
        self.schema = schema
        found = schema.get("$defs") if isinstance(schema, dict) else None
        self.definitions = found if isinstance(found, dict) else {}

    def whole(self) -> core.CoreSchema:
        schema = self.of(self.schema)
        if not self.definitions:
            return schema
        definitions: list[core.CoreSchema] = [
            # One choice: what is defined needs a reference of its own, whatever it is.
            core.union_schema([(self.of(definition), _CHOICE)], ref=name, auto_collapse=False)
            for name, definition in self.definitions.items()
        ]
        return core.definitions_schema(schema, definitions)

    def of(self, node: Any) -> core.CoreSchema:
        if not isinstance(node, dict):
            return core.any_schema()
        if "$ref" in node:
            name = str(node["$ref"]).removeprefix("#/$defs/")
            known = name in self.definitions
            return core.definition_reference_schema(name) if known else core.any_schema()
        if "const" in node:
            return _one_of([node["const"]])
        if isinstance(node.get("enum"), list):
            return _one_of(node["enum"])
        for name in ("anyOf", "oneOf"):
            if isinstance(node.get(name), list) and node[name]:
                return self.choice(node[name])
        kind = node.get("type")
        if isinstance(kind, list):
            if node.get("format") == "decimal":
                return core.decimal_schema(allow_inf_nan=True, **_bounds(node))
            return self.choice([{**node, "type": one} for one in kind])
        read = {
            "null": lambda _: core.none_schema(),
            "boolean": lambda _: core.bool_schema(),
            "integer": lambda node: core.int_schema(**_bounds(node, whole=True)),
            "number": lambda node: core.float_schema(**_bounds(node)),
            "string": _text,
            "array": self.array,
            "object": self.object,
        }.get(kind if isinstance(kind, str) else "")
        return read(node) if read is not None else core.any_schema()

    def choice(self, nodes: list[Any]) -> core.CoreSchema:
        some = [node for node in nodes if node != {"type": "null"}]
        # The title tells choices apart, where there is one to tell them apart by.
        labelled: list[core.CoreSchema | tuple[core.CoreSchema, str]] = [
            (self.of(node), _CHOICE + self.title(node)) for node in some
        ]
        if not some:
            return core.none_schema()
        tags = self.tags(some)
        if len(some) == 1:
            found = self.of(some[0])
        elif tags is not None:
            found = _tagged(*tags, [self.of(node) for node in some])
        else:
            found = core.union_schema(labelled, mode="left_to_right")
        return found if len(some) == len(nodes) else core.nullable_schema(found)

    def tags(self, nodes: list[Any]) -> tuple[str, list[str]] | None:
        """The member whose value says which of the objects it is, and its values; None if there is
        no such member. Then only what is wrong with that one is said."""
        objects = [self.named(node) for node in nodes]
        for name in _members(objects[0]):
            found = [_only_text(_members(one).get(name)) for one in objects]
            values = [value for value in found if value is not None]
            needed = all(name in (one.get("required") or ()) for one in objects)
            if needed and len(set(values)) == len(nodes):
                return name, values
        return None

    def title(self, node: Any) -> str:
        title = self.named(node).get("title")
        return title if isinstance(title, str) else ""

    def named(self, node: Any) -> dict[str, Any]:
        """What a reference refers to; what is none is itself."""
        if isinstance(node, dict) and "$ref" in node:
            node = self.definitions.get(str(node["$ref"]).removeprefix("#/$defs/"))
        return node if isinstance(node, dict) else {}

    def array(self, node: dict[str, Any]) -> core.CoreSchema:
        prefix, items = node.get("prefixItems"), node.get("items")
        least, most = _count(node.get("minItems")), _count(node.get("maxItems"))
        if not isinstance(prefix, list) or not prefix:
            inner = self.of(items) if items is not None else None
            return core.list_schema(inner, min_length=least, max_length=most)
        places = [self.of(one) for one in prefix]
        required = least or 0
        found = [
            place if at < required else core.with_default_schema(place, default=None)
            for at, place in enumerate(places)
        ]
        if most == len(places):
            return core.tuple_schema(found)
        return core.tuple_schema([*found, self.of(items)], variadic_item_index=len(found))

    def object(self, node: dict[str, Any]) -> core.CoreSchema:
        properties, others = node.get("properties"), node.get("additionalProperties")
        required = node.get("required")
        needed = set(map(str, required)) if isinstance(required, list) else set()
        described = properties if isinstance(properties, dict) else {}
        fields = {
            name: core.typed_dict_field(self.of(described.get(name)), required=name in needed)
            for name in [*described, *sorted(needed - described.keys())]
        }
        if others is False and isinstance(properties, dict):
            return core.typed_dict_schema(fields, extra_behavior="forbid")
        values = self.of(others)
        if not fields:
            return core.dict_schema(core.any_schema(), values)
        return core.typed_dict_schema(fields, extra_behavior="allow", extras_schema=values)


def _text(node: dict[str, Any]) -> core.CoreSchema:
    form = node.get("format")
    if form is not None:
        if isinstance(form, str) and form in _FORMATS:
            return _FORMATS[form]()
        # Who knows what is taken for an address of a network, or for a path.
        return core.str_schema() if form in _TEXTS else core.any_schema()
    least, most = _count(node.get("minLength")), _count(node.get("maxLength"))
    schema = core.str_schema(min_length=least, max_length=most)
    pattern = node.get("pattern")
    if isinstance(pattern, str):
        with_pattern = core.str_schema(min_length=least, max_length=most, pattern=pattern)
        try:
            SchemaValidator(with_pattern)
        except SchemaError:
            return schema  # of another dialect
        return with_pattern
    return schema


def _members(node: dict[str, Any]) -> dict[str, Any]:
    found = node.get("properties")
    return found if isinstance(found, dict) else {}


def _only_text(node: Any) -> str | None:
    values = node.get("enum") if isinstance(node, dict) else None
    only = values[0] if isinstance(values, list) and len(values) == 1 else None
    return only if isinstance(only, str) else None


def _tagged(name: str, values: list[str], schemas: list[core.CoreSchema]) -> core.CoreSchema:
    labels = {value: _CHOICE + value for value in values}
    shown = ", ".join(jsontext.encode(value) for value in values[:20])

    def choice(value: Any) -> str | None:
        tag = value.get(name) if isinstance(value, dict) else None
        return labels.get(tag) if isinstance(tag, str) else None

    return core.tagged_union_schema(
        dict(zip(labels.values(), schemas, strict=True)),
        choice,
        custom_error_type="flowpg_choice",
        custom_error_message="should be {expected}",
        custom_error_context={"expected": f"an object whose {name} is one of {shown}"},
    )


def _one_of(values: list[Any]) -> core.CoreSchema:
    shown = ", ".join(jsontext.encode(value) for value in values[:20])
    expected = f"one of {shown}" if len(values) > 1 else shown
    about = {"expected": expected + (", ..." if len(values) > 20 else "")}
    numbers = [value for value in values if isinstance(value, (int, float))]

    def check(value: Any) -> Any:
        # As Python compares them: true is 1, and 1.0 too.
        if any(value == one for one in values) or (numbers and _number(value) in numbers):
            return value
        raise PydanticCustomError("flowpg_choice", "should be {expected}", about)

    return core.no_info_plain_validator_function(check)


def _number(value: Any) -> float | None:
    if not isinstance(value, str):
        return None
    try:
        return float(value)
    except ValueError:
        return None


def _bounds(node: dict[str, Any], *, whole: bool = False) -> dict[str, Any]:
    found = {}
    for member, name in _BOUNDS.items():
        bound = node.get(member)
        if isinstance(bound, bool) or not isinstance(bound, (int, float)):
            continue
        if not whole or bound == int(bound):
            found[name] = int(bound) if whole else bound
    return found


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
