"""The JSON Schema of a type, for those who send a value to code that will read it as that type.

It describes how pydantic reads JSON as the type, and promises one thing: whatever would be read
fits it, looked at as leniently as ``payload_check`` does. So it says nothing where it does not
know: about code of a validator, about classes that read what they like. The reverse does not hold:
a validator may refuse what fits the schema.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from decimal import Decimal
from enum import Enum
from typing import Any, Final

from flowpg.errors import FlowError
from flowpg.model import jsontext
from flowpg.model.adapters import adapter_of, once_a_type

MAX_SCHEMA_BYTES: Final = 16_384
"""A schema whose text is longer is left out: it would be stored with each hook."""

Schema = dict[str, Any]
Core = Mapping[str, Any]


@once_a_type
def schema_of(kind: Any) -> Schema | None:
    """The JSON Schema of what is read as ``kind``, made once a type; callers must not change it.

    None if it would allow anything, would be longer than ``MAX_SCHEMA_BYTES``, or if the type
    cannot be read at all, which is for whoever reads to say.
    """
    if kind is Any:
        return None
    try:
        schema = _Writer().write(adapter_of(kind).core_schema)
        text = jsontext.encode(schema)
    except (FlowError, RecursionError):
        return None
    except Exception:  # noqa: BLE001  pydantic and the classes it asks may raise anything
        return None
    return schema if schema and len(text.encode()) <= MAX_SCHEMA_BYTES else None


class _Writer:
    """Walks what pydantic made of a type. What is not named here is allowed to be anything."""

    def __init__(self) -> None:
        self.definitions: dict[str, Core] = {}
        self.names: dict[str, str] = {}  # of definitions, by their reference
        self.config: dict[str, Any] = {}

    def write(self, core: Core) -> Schema:
        schema = self.of(core)
        written: dict[str, Schema] = {}
        while len(written) < len(self.names):
            for ref, name in list(self.names.items()):
                if name not in written:
                    written[name] = self.of(self.definitions[ref])
        if not written:
            return schema
        if schema == {"$ref": f"#/$defs/{next(iter(written))}"} and not _refers(written):
            return next(iter(written.values()))
        return {**schema, "$defs": written}

    def of(self, core: Core) -> Schema:
        writer = _WRITERS.get(core["type"])
        return {} if writer is None else writer(self, core)

    # -- what wraps another ---------------------------------------------------------------------

    def inner(self, core: Core) -> Schema:
        return self.of(core["schema"])

    def first(self, core: Core) -> Schema:
        return self.of(core["steps"][0])

    def lax(self, core: Core) -> Schema:
        return self.of(core["lax_schema"])

    def python(self, core: Core) -> Schema:
        return self.of(core["python_schema"])

    def validated(self, core: Core) -> Schema:
        """What a validator is given first may be anything, unless it says what."""
        given = core.get("json_schema_input_schema")
        return {} if given is None else self.of(given)

    def default(self, core: Core) -> Schema:
        if core.get("on_error", "raise") != "raise":
            return {}
        default, schema = core.get("default"), self.inner(core)
        if schema and isinstance(default, (str, int, bool)) and not isinstance(default, Enum):
            return {**schema, "default": default}
        return schema

    def nullable(self, core: Core) -> Schema:
        return _any_of([self.inner(core), {"type": "null"}])

    def union(self, core: Core) -> Schema:
        choices = core["choices"]
        choices = choices.values() if isinstance(choices, Mapping) else choices
        found = [c[0] if isinstance(c, tuple) else c for c in choices]
        # Unions of tags once named other tags in place of a schema.
        return _any_of([self.of(c) if isinstance(c, Mapping) else {} for c in found])

    def defined(self, core: Core) -> Schema:
        for definition in core["definitions"]:
            self.definitions[definition["ref"]] = definition
        return self.inner(core)

    def reference(self, core: Core) -> Schema:
        ref = core["schema_ref"]
        name = self.names.get(ref)
        if name is None:
            cls = _class_of(self.definitions[ref])
            title = "type" if cls is None else re.sub(r"\W", "_", cls.__name__)
            taken = set(self.names.values())
            names = [title, *(f"{title}{number}" for number in range(2, len(taken) + 3))]
            name = self.names[ref] = next(n for n in names if n not in taken)
        return {"$ref": f"#/$defs/{name}"}

    # -- scalars --------------------------------------------------------------------------------

    def number(self, core: Core) -> Schema:
        kinds = {"int": "integer", "float": "number", "decimal": ["number", "string"]}
        schema: Schema = {"type": kinds[core["type"]]}
        if core["type"] == "decimal":
            schema["format"] = "decimal"
        for name, member in _BOUNDS.items():
            bound = _exact(core.get(name))
            if bound is not None:
                schema[member] = bound
        return schema

    def text(self, core: Core) -> Schema:
        said = {**self.config, **core}
        if said.get("coerce_numbers_to_str"):
            return {"type": ["string", "number"]}
        schema: Schema = {"type": "string"}
        for change in ("strip_whitespace", "to_lower", "to_upper"):
            # Its length and form are looked at after the change.
            if said.get(change) or said.get(f"str_{change}"):
                return schema
        for name, member in (("min_length", "minLength"), ("max_length", "maxLength")):
            if core.get(name) is not None:
                schema[member] = core[name]
        pattern = core.get("pattern")
        if isinstance(pattern, str) and said.get("regex_engine") != "python-re":
            schema["pattern"] = pattern
        return schema

    def members(self, core: Core) -> Schema:
        """A literal or an enumeration."""
        if core["type"] == "enum" and _finds_missing(core["cls"]):
            return {}
        found = core["members"] if core["type"] == "enum" else core["expected"]
        values = [one.value if isinstance(one, Enum) else one for one in found]
        if any(type(value) not in (str, int, bool, float, type(None)) for value in values):
            return {}
        title = {"title": core["cls"].__name__} if core["type"] == "enum" else {}
        return {**title, "enum": values}

    # -- containers -----------------------------------------------------------------------------

    def array(self, core: Core) -> Schema:
        schema: Schema = {"type": "array"}
        items = self.of(core["items_schema"]) if "items_schema" in core else {}
        if items:
            schema["items"] = items
        if core["type"] != "list":
            schema["uniqueItems"] = True
        elif core.get("max_length") is not None:
            # Of a set the same member twice is one.
            schema["maxItems"] = core["max_length"]
        if core.get("min_length"):
            schema["minItems"] = core["min_length"]
        return schema

    def tuple(self, core: Core) -> Schema:
        items, variadic = core["items_schema"], core.get("variadic_item_index")
        if variadic is None:
            return self.fixed([self.of(item) for item in items], len(items))
        if len(items) > 1:
            return {"type": "array"}
        return {"type": "array", "items": self.of(items[0])}

    def fixed(self, items: list[Schema], least: int) -> Schema:
        if not items:
            return {"type": "array", "maxItems": 0}
        most = len(items)
        return {"type": "array", "prefixItems": items, "minItems": least, "maxItems": most}

    def named_tuple(self, core: Core) -> Schema:
        fields = core["fields"]
        items = [self.of(field["schema"]) for field in fields]
        required = [field["name"] for field in fields if field["schema"]["type"] != "default"]
        properties = {field["name"]: item for field, item in zip(fields, items, strict=True)}
        as_object: Schema = {"type": "object", "properties": properties}
        if required:
            as_object["required"] = required
        if any({"alias", "validation_alias"} & field.keys() for field in fields):
            as_object = {"type": "object"}
        title = core["cls"].__name__
        return {"title": title, "anyOf": [self.fixed(items, len(required)), as_object]}

    def called(self, core: Core) -> Schema:
        """What named tuples were to older releases of pydantic."""
        cls, arguments = core["function"], core["arguments_schema"].get("arguments_schema", [])
        if not isinstance(cls, type) or not issubclass(cls, tuple):
            return {}
        return self.named_tuple({"cls": cls, "fields": arguments})

    def mapping(self, core: Core) -> Schema:
        values = self.of(core["values_schema"]) if "values_schema" in core else {}
        return {"type": "object", "additionalProperties": values} if values else {"type": "object"}

    # -- classes with fields --------------------------------------------------------------------

    def configured(self, core: Core) -> Schema:
        """A model or a dataclass: its config holds for what is in it."""
        if core.get("custom_init"):
            return {}
        with self.within(core):
            schema = self.inner(core)
        return {**_about(core["cls"]), **schema} if schema else {}

    @contextmanager
    def within(self, core: Core) -> Iterator[None]:
        """Inside of a class. It need not know what it was put in, so what is lenient there is
        lenient here, and what is strict there is not."""
        before, own = self.config, core.get("config") or {}
        self.config = {**before, **own, "extra_fields_behavior": own.get("extra_fields_behavior")}
        try:
            yield
        finally:
            self.config = before

    def model_fields(self, core: Core) -> Schema:
        fields = core["fields"]
        required = [name for name, field in fields.items() if field["schema"]["type"] != "default"]
        return self.object(core, fields, required)

    def dataclass_args(self, core: Core) -> Schema:
        fields = {field["name"]: field for field in core["fields"] if field.get("init", True)}
        required = [name for name, field in fields.items() if field["schema"]["type"] != "default"]
        return self.object(core, fields, required)

    def typed_dict(self, core: Core) -> Schema:
        fields, total = core["fields"], core.get("total", True)
        required = [name for name, field in fields.items() if field.get("required", total)]
        with self.within(core):
            schema = self.object(core, fields, required)
        cls = core.get("cls")
        return schema if cls is None else {**_about(cls), **schema}

    def object(self, core: Core, fields: Mapping[str, Core], required: list[str]) -> Schema:
        by_name = self.config.get("validate_by_name") or self.config.get("populate_by_name")
        by_alias = self.config.get("validate_by_alias", True)
        extra = core.get("extra_behavior") or self.config.get("extra_fields_behavior")
        properties: dict[str, Schema] = {}
        needed: list[str] = []
        closed = extra == "forbid"
        for name, field in fields.items():
            alias = field.get("validation_alias") if by_alias else None
            if alias is not None and not isinstance(alias, str):
                closed = False  # it may be found in several places
                continue
            if alias is None or by_name:
                properties[name] = self.field(field)
            if alias is not None:
                properties[alias] = self.field(field)
            if name in required and not (by_name and alias is not None):
                needed.append(alias or name)
        schema: Schema = {"type": "object", "properties": properties}
        if needed:
            schema["required"] = needed
        if closed:
            schema["additionalProperties"] = False
        return schema

    def field(self, field: Core) -> Schema:
        schema, said = self.inner(field), (field.get("metadata") or {}).get("pydantic_js_updates")
        about = said if isinstance(said, Mapping) else {}
        words = {name: about[name] for name in ("title", "description") if name in about}
        return {**schema, **{name: word for name, word in words.items() if isinstance(word, str)}}


def _format(name: str) -> Callable[[_Writer, Core], Schema]:
    return lambda writer, core: {"type": "string", "format": name}


_BOUNDS = {
    "ge": "minimum",
    "gt": "exclusiveMinimum",
    "le": "maximum",
    "lt": "exclusiveMaximum",
    "multiple_of": "multipleOf",
}

_WRITERS: dict[str, Callable[[_Writer, Core], Schema]] = {
    "none": lambda writer, core: {"type": "null"},
    "bool": lambda writer, core: {"type": "boolean"},
    **dict.fromkeys(("int", "float", "decimal"), _Writer.number),
    "str": _Writer.text,
    "bytes": _format("binary"),
    "date": _format("date"),
    "time": _format("time"),
    "datetime": _format("date-time"),
    "timedelta": _format("duration"),
    "uuid": _format("uuid"),
    "url": _format("uri"),
    "enum": _Writer.members,
    "literal": _Writer.members,
    **dict.fromkeys(("list", "set", "frozenset"), _Writer.array),
    "tuple": _Writer.tuple,
    "named-tuple": _Writer.named_tuple,
    "call": _Writer.called,
    "dict": _Writer.mapping,
    "model": _Writer.configured,
    "dataclass": _Writer.configured,
    "model-fields": _Writer.model_fields,
    "dataclass-args": _Writer.dataclass_args,
    "typed-dict": _Writer.typed_dict,
    "nullable": _Writer.nullable,
    "union": _Writer.union,
    "tagged-union": _Writer.union,
    "default": _Writer.default,
    "function-after": _Writer.inner,
    **dict.fromkeys(("function-before", "function-wrap", "function-plain"), _Writer.validated),
    "chain": _Writer.first,
    "lax-or-strict": _Writer.lax,
    "json-or-python": _Writer.python,
    "definitions": _Writer.defined,
    "definition-ref": _Writer.reference,
}


def _any_of(choices: list[Schema]) -> Schema:
    if not all(choices):
        return {}
    flat: list[Schema] = []
    for choice in choices:
        parts = choice["anyOf"] if choice.keys() == {"anyOf"} else [choice]
        flat += [part for part in parts if part not in flat]
    return flat[0] if len(flat) == 1 else {"anyOf": flat}


def _finds_missing(cls: type) -> bool:
    """Whether an enumeration makes a member of what is none."""
    owner = next(base for base in cls.__mro__ if "_missing_" in base.__dict__)
    return owner is not Enum


def _exact(bound: Any) -> int | float | None:
    """A bound as JSON says it, None if it cannot."""
    if isinstance(bound, Decimal) and bound.is_finite():
        whole = bound == bound.to_integral_value()
        return int(bound) if whole else float(bound) if Decimal(float(bound)) == bound else None
    if isinstance(bound, bool) or not isinstance(bound, (int, float)) or not math.isfinite(bound):
        return None
    return bound


def _about(cls: type) -> Schema:
    said = {"title": cls.__name__}
    doc = cls.__dict__.get("__doc__")
    # A dataclass without words of its own is described by its signature.
    if isinstance(doc, str) and doc.strip() and not doc.startswith(f"{cls.__name__}("):
        said["description"] = inspect.cleandoc(doc)
    return said


def _class_of(core: Core) -> type | None:
    while "cls" not in core and isinstance(core.get("schema"), Mapping):
        core = core["schema"]
    found = core.get("cls")
    return found if isinstance(found, type) else None


def _refers(value: Any) -> bool:
    if isinstance(value, dict):
        return "$ref" in value or any(map(_refers, value.values()))
    return isinstance(value, list) and any(map(_refers, value))
