"""JSON as it is stored: what survives, what is refused, what is equal."""

from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from typing import Any

import pytest

from flowpg.errors import SerializationError
from flowpg.model import jsontext


class Colour(StrEnum):
    RED = "red"


class Number(IntEnum):
    ONE = 1


class Plain(Enum):
    A = "a"


def nested(levels: int) -> Any:
    """A list that many levels deep."""
    value: Any = 0
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        (True, "true"),
        (-0.0, "-0.0"),
        (2**63, "9223372036854775808"),
        (10**400, "1" + "0" * 400),
        ("\x00", '"\\u0000"'),
        ("é😀", '"é😀"'),
        ("\ud800", '"\\ud800"'),
        ({"b": 1, "a": [1, 2]}, '{"b":1,"a":[1,2]}'),
        ({"": {}}, '{"":{}}'),
        ("\u2028", '"\u2028"'),
    ],
)
def test_what_json_can_say_survives(value: Any, text: str) -> None:
    assert jsontext.encode(value) == text
    back = jsontext.decode(text)
    assert back == value
    assert repr(back) == repr(value)
    text.encode()


def test_a_lone_surrogate_beside_other_text_comes_back_as_it_was() -> None:
    value = {"é\ud800": "😀\udfff"}
    text = jsontext.encode(value)
    assert text.isascii()
    assert jsontext.decode(text) == value
    assert jsontext.decode(text.encode()) == value


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (float("nan"), "NaN and infinities"),
        ([float("inf")], "NaN and infinities"),
        ({"a": {1: "s3cret"}}, "key is not a string"),
        ({None: 1}, "key is not a string"),
        ([({True: 1},)], "key is not a string"),
        ({Number.ONE: 1}, "key is not a string"),
        ({1, 2}, "type set"),
        (b"s3cret", "type bytes"),
        (Decimal("1.5"), "type Decimal"),
        (Plain.A, "type Plain"),
        (object(), "type object"),
        ([10**5000], "too many digits"),
        (nested(201), "more than 200 levels"),
    ],
)
def test_what_json_cannot_say_is_refused_by_name_and_reason_only(value: Any, reason: str) -> None:
    with pytest.raises(SerializationError, match=f"the thing cannot be stored.*{reason}") as caught:
        jsontext.encode(value, "the thing")
    assert "s3cret" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_a_value_that_contains_itself_or_never_ends_is_refused() -> None:
    ring: list[Any] = []
    ring.append({"ring": ring})
    for value in (ring, nested(100_000)):
        with pytest.raises(SerializationError, match="contains itself"):
            jsontext.encode(value)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "{",
        "[1,]",
        "NaN",
        "[Infinity]",
        "-Infinity",
        "1 2",
        "'a'",
        "{1:2}",
        b"\xff",
        "\ufeff1",
    ],
)
def test_what_is_not_json_is_refused_without_showing_it(text: str | bytes) -> None:
    with pytest.raises(SerializationError, match=r"^the thing is not valid JSON$"):
        jsontext.decode(text, "the thing")


def test_white_space_around_a_text_is_ignored() -> None:
    assert jsontext.decode(' \n{"a": 1}\t') == {"a": 1}


def test_the_deepest_value_that_is_written_can_be_read_compared_and_copied() -> None:
    value = nested(200)
    back = jsontext.decode(jsontext.encode(value))
    assert jsontext.equal(back, value)
    assert jsontext.copied(back) == value
    beyond = jsontext.MAX_STORED_DEPTH + 1
    for text in ("[" * beyond + "]" * beyond, "[" * 50_000 + "]" * 50_000):
        with pytest.raises(SerializationError):
            jsontext.decode(text)
    assert jsontext.decode("[" + ",".join(["[]"] * 500) + "]") == [[]] * 500


def test_a_value_is_stored_as_it_will_come_back() -> None:
    text, value = jsontext.stored({"t": (1, [2]), "c": Colour.RED, "n": Number.ONE, Colour.RED: 1})
    assert value == {"t": [1, [2]], "c": "red", "n": 1, "red": 1}
    assert type(value["c"]) is str
    assert type(value["n"]) is int
    assert text == '{"t":[1,[2]],"c":"red","n":1,"red":1}'
    assert type(jsontext.stored(Colour.RED)[1]) is str


def test_storing_and_copying_share_no_container() -> None:
    original: dict[str, Any] = {"a": [{"b": []}]}
    for copy in (jsontext.stored(original)[1], jsontext.copied(original)):
        assert copy == original
        copy["a"][0]["b"].append(1)
        assert original == {"a": [{"b": []}]}


@pytest.mark.parametrize(
    ("left", "right", "same"),
    [
        (1, 1.0, True),
        (True, 1, False),
        (False, 0, False),
        (None, 0, False),
        (None, False, False),
        ("1", 1, False),
        (-0.0, 0, True),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1.0}, True),
        ({"a": 1}, {"a": 1, "b": 2}, False),
        ({"a": 1}, {"b": 1}, False),
        ([1, 2], (1, 2), True),
        ([1, 2], [2, 1], False),
        ([1], [1, 1], False),
        ({}, [], False),
        ([], "", False),
        (Colour.RED, "red", True),
        ("e\u0301", "\u00e9", False),
        (10**400, 10**400 + 1, False),
    ],
)
def test_equality_is_that_of_json(left: Any, right: Any, same: bool) -> None:
    for wrap in (lambda x: x, lambda x: [x], lambda x: {"k": x}):
        assert jsontext.equal(wrap(left), wrap(right)) is same
        assert jsontext.equal(wrap(right), wrap(left)) is same


def test_a_quoted_string_is_its_json_text() -> None:
    for text in ('a"b\\c', "é😀", "\x00\n", ""):
        assert jsontext.quote(text) == jsontext.encode(text)


def test_a_container_that_raises_while_it_is_read_is_refused_without_its_words() -> None:
    class Odd(dict[str, int]):
        def items(self) -> Any:
            raise KeyError("secret")

    with pytest.raises(SerializationError, match="reading it raised KeyError") as caught:
        jsontext.encode([Odd(a=1)])
    assert "secret" not in str(caught.value)
