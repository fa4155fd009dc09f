"""What is refused before it is sent would not have been read; what is known to be wrong is."""

import json
import re
from pathlib import Path
from typing import Annotated, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field, ValidationError

from flowpg.model import jsontext
from flowpg.model.adapters import adapter_of
from flowpg.model.payload_check import PayloadCheck, check_of, in_words
from flowpg.model.payload_schema import MAX_SCHEMA_BYTES, schema_of
from tests.unit.payload_types import (
    FITTING,
    KINDS,
    NAMES,
    SCALARS,
    Approval,
    Closed,
    Line,
    Other,
)

scalars = st.sampled_from(SCALARS)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.sampled_from(NAMES), inner, max_size=4)
    ),
    max_leaves=8,
)


def checked(kind: Any) -> PayloadCheck:
    """The check of a type, by way of the text that is stored."""
    return check_of(jsontext.encode(schema_of(kind) or {}))


def is_read(kind: Any, value: Any) -> bool:
    """Whether the workflow would be given the value."""
    try:
        adapter_of(kind).validate_python(jsontext.copied(value))
    except ValidationError:
        return False
    return True


@pytest.mark.parametrize("name", KINDS)
def test_no_scalar_that_would_be_read_is_refused(name: str) -> None:
    kind = KINDS[name]
    for value in SCALARS:
        for shape in (value, [value], [value, value], [value, value, value], {"a": value}):
            if is_read(kind, shape):
                assert checked(kind).failures(shape) == (), shape


def shaped(schema: Any, definitions: dict[str, Any], depth: int = 3) -> st.SearchStrategy[Any]:
    """Values that look as a schema says, with anything for what it leaves open."""

    def inner(node: Any) -> st.SearchStrategy[Any]:
        return shaped(node, definitions, depth - 1)

    if not isinstance(schema, dict) or depth < 0:
        return scalars
    if "$ref" in schema:
        return inner(definitions[schema["$ref"].removeprefix("#/$defs/")])
    if "enum" in schema:
        return st.sampled_from(schema["enum"]) | scalars
    if "anyOf" in schema:
        return st.one_of(*map(inner, schema["anyOf"]))
    if schema.get("type") == "array":
        if "prefixItems" in schema:
            return st.tuples(*map(inner, schema["prefixItems"])).map(list)
        return st.lists(inner(schema.get("items")), max_size=3)
    if schema.get("type") == "object" and "properties" in schema:
        parts = {name: inner(part) for name, part in schema["properties"].items()}
        needed = {name: parts[name] for name in schema.get("required", ())}
        return st.fixed_dictionaries(
            needed, optional={k: v for k, v in parts.items() if k not in needed}
        ) | st.fixed_dictionaries({}, optional=parts)
    if schema.get("type") == "object":
        return st.dictionaries(
            st.sampled_from(NAMES), inner(schema.get("additionalProperties")), max_size=2
        )
    return scalars


@pytest.mark.parametrize("name", KINDS)
def test_nothing_that_would_be_read_is_refused(name: str) -> None:
    kind = KINDS[name]
    check = checked(kind)
    schema = schema_of(kind) or {}

    @settings(max_examples=40, deadline=None, database=None)
    @given(shaped(schema, schema.get("$defs", {})) | values)
    def hold(value: Any) -> None:
        if is_read(kind, value):
            assert check.failures(value) == ()

    hold()


@pytest.mark.parametrize("name", FITTING)
def test_what_is_meant_to_be_sent_is_read_and_fits(name: str) -> None:
    for value in FITTING[name]:
        assert is_read(KINDS[name], value)
        assert checked(KINDS[name]).failures(value) == ()


def test_every_sort_of_type_has_something_that_fits() -> None:
    assert FITTING.keys() == KINDS.keys() - {"literal member"}  # JSON has no such thing


REFUSED: list[tuple[str, Any, str]] = [
    ("bool", "maybe", "the value should be true or false"),
    ("int", 1.5, "the value should be an integer"),
    ("int", "forty", "the value should be an integer"),
    ("float", "x", "the value should be a number"),
    ("str", 5, "the value should be a string"),
    ("none", 0, "the value should be null"),
    ("datetime", "soon", "the value should be a time such as 2026-01-31T12:00:00Z"),
    ("date", "soon", "the value should be a date such as 2026-01-31"),
    ("time", "soon", "the value should be a time of day such as 12:00:00"),
    ("timedelta", "soon", "the value should be a duration such as PT30S, or a number of seconds"),
    ("uuid", "6ba7b810-secret", "the value should be a UUID"),
    ("decimal", "x", "the value should be a decimal number"),
    ("colour", "green", 'the value should be one of "red", "blue"'),
    ("level", 3, "the value should be one of 1, 2"),
    ("literal", "b", 'the value should be one of "a", 1, true, null'),
    ("optional", "x", "the value should be an integer"),
    (
        "union",
        "x",
        "the value should be an integer or should be an array or should be an object (as Line)",
    ),
    ("list", [1, "x"], "1 should be an integer"),
    ("short list", [], "the value should have at least 1 items"),
    ("short list", [1, 2, 3], "the value should have at most 2 items"),
    ("tuple", [1], "1 is missing"),
    ("dict", {"my secret": "x"}, "* should be an integer"),
    ("named tuple", {"label": "x"}, "the value should be an array; x is missing"),
    ("dataclass", {"cents": "many"}, "name is missing; cents should be an integer"),
    ("model", {}, "ok is missing"),
    ("model", {"ok": 1, "amount": 0}, "amount should be greater than 0"),
    ("model", {"ok": 1, "note": "a"}, "note should have at least 2 characters"),
    ("model", {"ok": 1, "note": "ABC"}, "note should match ^[a-z]*$"),
    ("list of models", [{"ok": True}, {"ok": "secret"}], "1.ok should be true or false"),
    ("recursive model", {"value": 1, "children": [{}]}, "children.0.value is missing"),
    (
        "closed model",
        {"kind": "closed", "n": 4, "my secret": 1},
        "the value has a member that is not expected",
    ),
    ("closed model", {"kind": "closed", "n": 3}, "n should be a multiple of 2"),
    ("model with an alias", {"first_name": "x"}, "firstName is missing"),
    ("typed dict", {"name": "x", "age": "y"}, "age should be an integer"),
    ("pattern", "1", r"the value should match ^\d{2}$"),
    ("bounded float", 3, "the value should be at most 2.5"),
]


@pytest.mark.parametrize(("name", "value", "words"), REFUSED)
def test_what_does_not_fit_is_said_by_place_and_expectation(
    name: str, value: Any, words: str
) -> None:
    assert not is_read(KINDS[name], value)
    assert in_words(checked(KINDS[name]).failures(value)) == words


def test_choices_are_told_apart_by_their_names() -> None:
    failures = checked(Line | list[Line]).failures({"name": 5})
    assert dict(failures) == {
        "name": "should be a string (as Line)",
        "cents": "is missing (as Line)",
        "": "should be an array",
    }


@pytest.mark.parametrize("kind", [KINDS["tagged"], Closed | Other, Closed | Other | None])
def test_of_choices_with_a_tag_only_the_one_that_is_meant_is_spoken_of(kind: Any) -> None:
    check = checked(kind)
    assert check.failures({"kind": "closed", "n": "x"}) == (
        ("n", "should be an integer (as closed)"),
    )
    assert check.failures({"kind": "other"}) == (("at", "is missing (as other)"),)
    for value in ({"kind": "secret"}, {}, 5, {"kind": ["other"]}):
        assert check.failures(value) == (
            ("", 'should be an object whose kind is one of "closed", "other"'),
        )


@settings(max_examples=60, deadline=None, database=None)
@given(st.data())
def test_no_part_of_a_value_is_ever_shown(data: st.DataObject) -> None:
    secret = "s3cr3tvalue"
    names = st.sampled_from([*NAMES, secret])
    value = data.draw(
        st.recursive(
            st.just(secret) | st.just([secret]) | scalars,
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
        )
    )
    for kind in KINDS.values():
        assert secret not in in_words(checked(kind).failures(value))


def test_a_schema_can_be_read_by_forms() -> None:
    assert schema_of(Line) == {
        "title": "Line",
        "description": "A line of an order.",
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "cents": {"type": "integer"},
            "at": {"anyOf": [{"type": "string", "format": "date-time"}, {"type": "null"}]},
            "tags": {"type": "array", "items": {"type": "string"}},
        },
        "required": ["name", "cents"],
    }
    assert schema_of(Annotated[Closed | Other, Field(discriminator="kind")]) == {
        "anyOf": [schema_of(Closed), schema_of(Other)]
    }


def test_what_allows_anything_or_cannot_be_read_has_no_schema() -> None:
    assert schema_of(Any) is None
    assert schema_of(object) is None
    assert schema_of(Path) is None

    class Unreadable:
        pass

    assert schema_of(Unreadable) is None
    # Not hashable, but readable all the same.
    assert schema_of(Annotated[int, Field(ge=1), []]) == {"type": "integer", "minimum": 1}


def test_a_schema_that_is_too_long_is_left_out() -> None:
    fields: dict[str, Any] = {f"a_rather_long_name_{n}": (int, ...) for n in range(1000)}
    from pydantic import create_model

    large = create_model("Large", **fields)
    assert schema_of(large) is None
    assert len(jsontext.encode(schema_of(Approval))) < MAX_SCHEMA_BYTES / 10


def test_a_schema_names_no_address_and_is_the_same_in_every_process() -> None:
    for kind in KINDS.values():
        text = json.dumps(schema_of(kind))
        assert not re.search(r"0x|\d{9}", text), text


FOREIGN: list[Any] = [
    *(True, False, None, 5, "x", [], {}, {"type": "integer", "minimum": "x"}, {"type": 5}),
    *({"$ref": "https://example.com/schema.json"}, {"$ref": "#/$defs/none"}, {"$ref": 5}),
    *({"type": "string", "pattern": "(?!x)"}, {"type": "string", "pattern": "("}),
    *({"type": "string", "format": []}, {"type": "string", "minLength": -1}, {"allOf": [{}]}),
    *({"not": {}}, {"if": {}}, {"type": "object", "required": 5}, {"enum": 5}, {"anyOf": []}),
    *({"type": "object", "properties": []}, {"type": "array", "prefixItems": []}),
    *({"$defs": {"A": {"$ref": "#/$defs/A"}}, "$ref": "#/$defs/A"}, {"$defs": 5}),
]


@pytest.mark.parametrize("schema", FOREIGN)
def test_a_schema_of_another_make_forbids_only_what_is_understood(schema: Any) -> None:
    check = check_of(json.dumps(schema))
    allowed: list[Any] = ["x", "ab"] if "string" in str(schema) else [{}, {"a": 1}]
    if "array" in str(schema):
        allowed = [[], [1]]
    if "integer" in str(schema):
        allowed = [1, "1"]
    for value in allowed:
        assert check.failures(value) == ()


def test_more_failures_than_anyone_reads_are_not_listed() -> None:
    class Many(BaseModel):
        pass

    fields: dict[str, Any] = {f"n{n}": (int, ...) for n in range(100)}
    from pydantic import create_model

    assert len(checked(create_model("Many", **fields)).failures({})) == 20
