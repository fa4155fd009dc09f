# ruff: noqa: DTZ001, UP007, UP045  naive times and the long spelling of unions are meant here
"""Arguments and results on their way through JSON, by what the annotations say."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal, NewType, Optional, Protocol, TypedDict, Union
from uuid import UUID

import pytest
from pydantic import BaseModel, Field

from flowpg.authoring.codec import FunctionCodec
from flowpg.errors import SerializationError
from flowpg.model import jsontext
from tests.authoring.shapes import (
    Aliased,
    Colour,
    Express,
    Level,
    Line,
    Order,
    OtherLine,
    Page,
    Point,
    Size,
    Tree,
)

ORDER = Order(id=UUID(int=1), placed=datetime(2026, 1, 31, tzinfo=UTC), labels={"b", "a"})
OrderId = NewType("OrderId", str)


class Kinds(TypedDict, total=False):
    name: str
    count: int


class Named(Protocol):
    name: str


@dataclass
class Shipment:
    order: Order
    at: datetime
    lines: list[Line]


class Wrapped(BaseModel):
    inner: "Wrapped | None" = None
    value: int | str = 0


def both_ways(annotation: Any, value: Any) -> tuple[Any, Any]:
    """The JSON of a value under an annotation, and what comes back from it."""

    def function(value: Any) -> Any:
        return value

    function.__annotations__ = {"value": annotation, "return": annotation}
    codec = FunctionCodec(function, "step 'f'")
    shape = codec.encode_arguments((value,), {})
    text = jsontext.encode(shape)
    (back,), _ = codec.decode_arguments(jsontext.decode(text))
    result = jsontext.encode(codec.encode_result(value))
    assert codec.decode_result(jsontext.decode(result)) == back
    assert jsontext.encode(codec.checked_result(value)) == result
    return json.loads(text)["value"], back


@pytest.mark.parametrize(
    ("annotation", "value", "plain"),
    [
        (str, "x", "x"),
        (int, True, True),
        (None, None, None),
        (bytes, b"\xff", {"$": "bytes", "v": "/w=="}),
        (datetime, datetime(2026, 1, 31, tzinfo=UTC), "2026-01-31T00:00:00+00:00"),
        (date, date(2026, 1, 31), "2026-01-31"),
        (timedelta, timedelta(days=1, seconds=2), "P1DT2S"),
        (UUID, UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (Decimal, Decimal("1.10"), "1.10"),
        (Path, Path("a/b"), "a/b"),
        (Colour, Colour.RED, "red"),
        (Level, Level.HIGH, 9),
        (list[Colour], [Colour.BLUE], ["blue"]),
        (tuple[int, Colour], (1, Colour.RED), [1, "red"]),
        (tuple[Decimal, ...], (Decimal(1), Decimal(2)), ["1", "2"]),
        (set[str], {"b", "a"}, ["a", "b"]),
        (frozenset[int], frozenset({2, 1}), [1, 2]),
        (dict[str, Decimal], {"a": Decimal(1)}, {"a": "1"}),
        (dict[int, str], {1: "x"}, {"$": "dict", "v": [[1, "x"]]}),
        (Optional[UUID], None, None),
        (UUID | None, UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (Point, Point(1, 2), {"x": 1, "y": 2}),
        (
            Line,
            Line("a", Decimal("0.10"), {"y", "x"}),
            {"sku": "a", "price": "0.10", "tags": ["x", "y"]},
        ),
        (
            Tree,
            Tree("a", (Tree("b"),)),
            {"name": "a", "children": [{"name": "b", "children": []}]},
        ),
        (Page[Decimal], Page([Decimal(1)]), {"items": ["1"], "total": 0}),
        (Aliased, Aliased(orderId="A"), {"orderId": "A"}),
        (OrderId, "A", "A"),
        (Literal["a", "b"], "b", "b"),
        (Annotated[int, Field(gt=0)], 3, 3),
        (Kinds, {"name": "x"}, {"name": "x"}),
    ],
)
def test_an_annotation_makes_the_json_plain(annotation: Any, value: Any, plain: Any) -> None:
    shape, back = both_ways(annotation, value)
    assert shape == plain
    assert back == value
    assert type(back) is type(value)


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (Any, (1, {2})),
        (object, Decimal(1)),
        (float, 2.5),
        (float, float("inf")),
        (Size, Size.SMALL),
        (Order, ORDER),
        (Order, Express(id=UUID(int=1), placed=datetime(2026, 1, 1, tzinfo=UTC))),
        (Shipment, Shipment(ORDER, datetime(2026, 1, 31), [Line("a", Decimal(1))])),
        (Union[Line, OtherLine], OtherLine("a", Decimal(1))),
        (Union[int, str, None], "7"),
        (list[Line | OtherLine | None], [OtherLine("a", Decimal(1)), None]),
        (dict[str, datetime | date], {"a": date(2026, 1, 31)}),
        (Wrapped, Wrapped(inner=Wrapped(value="x"), value=3)),
        (Sequence[Decimal], [Decimal(1)]),
        (Mapping[str, Decimal], {"a": Decimal(1)}),
        (dict[str, str], {"$": "dict"}),
        (list, [Decimal(1)]),
        (tuple, (Decimal(1),)),
        (str, Colour.RED.value),
        (datetime | None, datetime(2026, 1, 31, tzinfo=UTC)),
    ],
)
def test_a_value_comes_back_equal_and_of_its_own_type(annotation: Any, value: Any) -> None:
    _, back = both_ways(annotation, value)
    assert back == value
    assert type(back) is type(value)
    if isinstance(value, list):
        assert [type(item) for item in back] == [type(item) for item in value]


@pytest.mark.parametrize("falsy", [None, "", 0, False, [], {}, 0.0])
def test_a_falsy_value_is_no_missing_one(falsy: Any) -> None:
    _, back = both_ways(Any, falsy)
    assert back == falsy
    assert type(back) is type(falsy)


@pytest.mark.parametrize(
    ("annotation", "plain", "value"),
    [
        (datetime, "2026-01-31T12:00:00Z", datetime(2026, 1, 31, 12, tzinfo=UTC)),
        (Order, {"id": str(UUID(int=1)), "placed": "2026-01-31T00:00:00Z"}, None),
        (Line, {"sku": "a", "price": "1", "added in a later release": 1}, Line("a", Decimal(1))),
        (Point, [1, 2], Point(1, 2)),
        (Union[int, Line], {"sku": "a", "price": "1"}, Line("a", Decimal(1))),
        (bytes, "/w==", b"\xff"),
    ],
)
def test_plain_json_that_someone_else_wrote_fits(annotation: Any, plain: Any, value: Any) -> None:
    def function(value: Any) -> None: ...

    function.__annotations__ = {"value": annotation}
    (back,), _ = FunctionCodec(function, "step 'f'").decode_arguments({"value": plain})
    assert isinstance(back, Order) if value is None else back == value


@pytest.mark.parametrize(
    ("annotation", "wrong"),
    [
        (int, "secret"),
        (str, 5),
        (datetime, "secret"),
        (UUID, "secret"),
        (Decimal, "secret"),
        (Colour, "secret"),
        (list[int], ["secret"]),
        (tuple[int, int], [1]),
        (Line, {"sku": "secret"}),
        (Line, {"sku": "secret", "price": "secret"}),
        (Order, {"id": "secret"}),
        (Literal["a"], "secret"),
        (Annotated[int, Field(gt=0)], 0),
        (Union[int, Line], "secret"),
        (Kinds, {"count": "secret"}),
        (None, "secret"),
        (dict[str, int], ["secret"]),
        (set[int], "secret"),
    ],
)
def test_what_does_not_fit_is_refused_by_name_and_never_shown(annotation: Any, wrong: Any) -> None:
    def function(value: Any) -> None: ...

    function.__annotations__ = {"value": annotation}
    with pytest.raises(SerializationError, match="argument 'value' of step 'f'") as caught:
        FunctionCodec(function, "step 'f'").decode_arguments({"value": wrong})
    assert "secret" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_an_argument_that_cannot_be_stored_is_named_with_its_type() -> None:
    def function(a: Any, b: Line) -> None: ...

    codec = FunctionCodec(function, "step 'f'")
    with pytest.raises(SerializationError, match=r"'a' of step 'f'.*type object has no JSON form"):
        codec.encode_arguments((object(), 1), {})
    with pytest.raises(SerializationError, match=r"'b' of step 'f'.*should be Line and is int"):
        codec.encode_arguments((1, 1), {})
    with pytest.raises(SerializationError, match=r"Line.price: it should be Decimal and is str"):
        codec.encode_arguments((1, Line("a", "1")), {})  # type: ignore[arg-type]


def test_a_forgotten_await_is_named_as_such() -> None:
    def function(a: int) -> Any: ...

    async def made() -> int:
        return 1

    codec = FunctionCodec(function, "workflow 'f'")
    forgotten = made()
    try:
        with pytest.raises(SerializationError, match=r"argument 'a' .*was not awaited"):
            codec.encode_arguments((forgotten,), {})
        with pytest.raises(SerializationError, match=r"the result .*write `await` before the call"):
            codec.encode_result(forgotten)
    finally:
        forgotten.close()


def test_a_value_that_contains_itself_is_refused() -> None:
    def function(a: Any) -> Any:
        return a

    loop: list[Any] = []
    loop.append(loop)
    codec = FunctionCodec(function, "step 'f'")
    with pytest.raises(SerializationError, match="contains itself"):
        codec.encode_arguments((loop,), {})
    with pytest.raises(SerializationError, match=r"the result of step 'f'.*contains itself"):
        codec.encode_result(loop)


def sample(a: int, b: str = "x", *rest: int, c: bool, d: int = 0, **more: Decimal) -> str:
    return b


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((1,), {"c": True}),
        ((1, "y"), {"c": True, "d": 4}),
        ((1, "y", 2, 3), {"c": True}),
        ((), {"c": False, "a": 1}),
        ((1,), {"c": True, "e": Decimal(1), "f": Decimal(2)}),
        ((1,), {"d": 5, "c": True}),
    ],
)
def test_every_way_of_calling_comes_back(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    def record(*args: Any, **kwargs: Any) -> Any:
        import inspect

        return inspect.signature(sample).bind(*args, **kwargs).arguments

    codec = FunctionCodec(sample, "step 'f'")
    back_args, back_kwargs = codec.decode_arguments(codec.encode_arguments(args, kwargs))
    assert record(*back_args, **back_kwargs) == record(*args, **kwargs)


def test_stored_arguments_are_told_apart_by_name_in_whatever_order_they_stand() -> None:
    def both(a: int, b: int) -> None: ...

    codec = FunctionCodec(both, "workflow 'w'")
    assert codec.encode_arguments((1, 2), {}) == {"a": 1, "b": 2}
    assert codec.decode_arguments({"b": 2, "a": 1}) == ([1, 2], {})


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [((), {}), ((1,), {}), ((1, 2), {"c": True, "b": 3}), ((), {"c": True})],
)
def test_a_wrong_call_raises_as_the_function_would(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    with pytest.raises(TypeError):
        FunctionCodec(sample, "step 'f'").encode_arguments(args, kwargs)


def test_what_was_left_to_a_default_is_left_out() -> None:
    codec = FunctionCodec(sample, "step 'f'")
    assert codec.encode_arguments((1,), {"c": True}) == {"a": 1, "c": True}


@pytest.mark.parametrize(
    ("stored", "words"),
    [
        ([1], "must be an object"),
        ({}, "misses 'a', 'c'"),
        ({"a": 1, "c": True, "zebra": 1}, "has no argument 'zebra'"),
        (None, "misses 'a', 'c'"),
    ],
)
def test_arguments_that_do_not_fit_the_function_are_named(stored: Any, words: str) -> None:
    def narrow(a: int, *, c: bool) -> None: ...

    with pytest.raises(SerializationError, match=words):
        FunctionCodec(narrow, "workflow 'w'").decode_arguments(stored)


def test_a_parameter_that_was_added_with_a_default_is_no_difference() -> None:
    def old(a: int) -> None: ...

    def new(a: int, b: str = "x", *, c: int = 1) -> None: ...

    stored = FunctionCodec(old, "step 'f'").encode_arguments((1,), {})
    assert FunctionCodec(new, "step 'f'").encode_arguments((1,), {}) == stored
    assert FunctionCodec(new, "step 'f'").decode_arguments(stored) == ([1], {})


def test_an_annotation_that_cannot_be_evaluated_says_nothing() -> None:
    def function(a: "NotImported", b: Named) -> None: ...  # type: ignore[name-defined] # noqa: F821

    codec = FunctionCodec(function, "step 'f'")
    assert codec.decode_arguments(codec.encode_arguments((Decimal(1), 2), {}))[0] == [Decimal(1), 2]


def test_a_method_leaves_its_instance_out() -> None:
    class Flow:
        def run(self, a: Decimal) -> None: ...

    codec = FunctionCodec(Flow.run, "workflow 'w'", skip=1)
    assert codec.encode_arguments((Decimal(1),), {}) == {"a": "1"}


def test_what_comes_back_shares_nothing_with_the_history() -> None:
    def function(a: list[int], b: Any) -> None: ...

    stored = {"a": [1], "b": {"c": [2]}}
    (a, b), _ = FunctionCodec(function, "step 'f'").decode_arguments(stored)
    a.append(9)
    b["c"].append(9)
    assert stored == {"a": [1], "b": {"c": [2]}}
