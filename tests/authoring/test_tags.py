# ruff: noqa: DTZ001  naive times are values like any other
"""Values without annotations survive the way through JSON."""

import math
import os
import subprocess
import sys
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest

from flowpg.authoring import failures, tags
from flowpg.authoring.hints import plan_for
from flowpg.model import jsontext
from tests.authoring.shapes import (
    Aliased,
    Colour,
    Express,
    Level,
    Line,
    Order,
    Page,
    Point,
    Right,
    Size,
    Tree,
)

BERLIN = ZoneInfo("Europe/Berlin")
ORDER = Order(
    id=UUID("12345678-1234-5678-1234-567812345678"),
    placed=datetime(2026, 1, 31, 12, tzinfo=UTC),
    labels={"b", "a", "c"},
)


def through(value: Any) -> Any:
    """The value as it comes back from the store."""
    return tags.decode(jsontext.decode(jsontext.encode(tags.encode(value))))


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        0,
        -0.0,
        2**70,
        1.5,
        math.inf,
        "",
        "😀\x00\ud800",
        b"\xff\x00",
        bytearray(b"ab"),
        [],
        [1, [2, (3,)]],
        (),
        (1, "a", (2,)),
        {},
        {"b": 1, "a": 2},
        {1: "x", (1, 2): "y", None: 0, 2.5: 1.0},
        {"$": "set", "v": [1]},
        {"$": {"$": 1}},
        {1, 2},
        frozenset({"a"}),
        {(1, 2), ("a",)},
        datetime(2026, 1, 31, 12, 0, 0, 5),
        datetime(2026, 1, 31, 12, tzinfo=UTC),
        datetime(2026, 1, 31, 12, tzinfo=timezone(timedelta(hours=9))),
        datetime(2026, 10, 25, 2, 30, tzinfo=BERLIN, fold=1),
        date(2026, 1, 31),
        time(12, 30, 0, 1),
        timedelta(days=-1, microseconds=3),
        UTC,
        BERLIN,
        UUID(int=7),
        Decimal("1.10"),
        Path("a/b"),
        Colour.RED,
        Level.HIGH,
        Right.READ | Right.WRITE,
        Size.SMALL,
        Point(1, 2),
        Line("a", Decimal("0.10"), {"x", "y"}),
        Tree("a", (Tree("b"),)),
        ORDER,
        Express(id=UUID(int=1), placed=datetime(2026, 1, 1, tzinfo=UTC)),
        Aliased(orderId="A"),
        [ORDER, {"k": (ORDER,)}],
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_value_comes_back_equal_and_of_its_own_type(value: Any) -> None:
    back = through(value)
    assert back == value
    assert type(back) is type(value)


def test_nan_and_minus_zero_come_back() -> None:
    assert math.isnan(through(math.nan))
    assert math.copysign(1, through(-0.0)) == -1
    assert through(-math.inf) == -math.inf


def test_members_keep_their_types() -> None:
    back = through({1: (Decimal("1"), b"x"), "y": [Colour.BLUE, Level.LOW]})
    assert repr(back) == "{1: (Decimal('1'), b'x'), 'y': [<Colour.BLUE: 'blue'>, <Level.LOW: 1>]}"


def test_the_order_of_a_mapping_is_kept() -> None:
    assert list(through({"b": 1, "a": 2, 3: 3})) == ["b", "a", 3]


def test_a_named_zone_and_its_fold_come_back() -> None:
    back = through(datetime(2026, 10, 25, 2, 30, tzinfo=BERLIN, fold=1))
    assert (back.tzinfo, back.fold, back.utcoffset()) == (BERLIN, 1, timedelta(hours=1))


@pytest.mark.parametrize(
    "value",
    [
        time(12, 30, tzinfo=BERLIN),
        time(2, 30, tzinfo=BERLIN, fold=1),
        time(2, 30, fold=1),
        time(2, 30, tzinfo=UTC),
        datetime(2026, 10, 25, 2, 30, fold=1),
        datetime(2026, 10, 25, 2, 30, tzinfo=timezone(timedelta(hours=1)), fold=1),
    ],
    ids=repr,
)
@pytest.mark.parametrize("annotated", [False, True])
def test_the_zone_and_the_fold_of_a_time_come_back(value: Any, annotated: bool) -> None:
    if annotated:
        plan = plan_for(type(value))
        back = plan.decode(jsontext.decode(jsontext.encode(plan.encode(value))))
    else:
        back = through(value)
    assert repr(back) == repr(value)


def test_a_field_that_no_constructor_takes_comes_back() -> None:
    page = Page([1, 2])
    page.total = 7
    assert through(page).total == 7


@pytest.mark.parametrize("value", [object(), open, (x for x in ""), {1: object()}, [lambda: 0]])
def test_what_has_no_form_is_refused_by_its_type(value: Any) -> None:
    with pytest.raises(tags.Unfit, match="has no JSON form"):
        tags.encode(value)


def test_a_class_inside_a_function_cannot_be_found_again() -> None:
    class Local(Line):
        pass

    with pytest.raises(tags.Unfit, match="top of a module"):
        tags.encode(Local("a", Decimal(1)))


@pytest.mark.parametrize(
    "stored",
    [
        {"$": "unheard of", "v": 1},
        {"$": 5, "v": 1},
        {"$": "uuid"},
        {"$": "uuid", "v": "x"},
        {"$": "decimal", "v": "x"},
        {"$": "dataclass", "v": {}},
        {"$": "dataclass", "t": "os:system", "v": {}},
        {"$": "dataclass", "t": "no.such.module:Thing", "v": {}},
        {"$": "enum", "t": "tests.authoring.shapes:Colour", "v": "green"},
        {"$": "model", "t": "tests.authoring.shapes:Order", "v": {"id": 1}},
        {"$": "set", "v": [[1]]},
    ],
)
def test_a_malformed_tag_is_refused_and_never_shown(stored: Any) -> None:
    with pytest.raises(tags.Unfit) as caught:
        tags.decode(stored)
    assert "green" not in str(caught.value)


def test_reading_imports_nothing(tmp_path: Path) -> None:
    (tmp_path / "trap_module.py").write_text("raise SystemExit('imported')\nclass Trap: ...\n")
    sys.path.insert(0, str(tmp_path))
    try:
        with pytest.raises(tags.Unfit, match="not imported"):
            tags.decode({"$": "dataclass", "t": "trap_module:Trap", "v": {}})
    finally:
        sys.path.remove(str(tmp_path))


def test_sets_are_written_in_the_same_order_in_every_process() -> None:
    program = (
        "from flowpg.authoring import tags; from flowpg.model import jsontext\n"
        "from tests.authoring.test_tags import ORDER, Line, Decimal\n"
        "line = Line('a', Decimal(1), {'x', 'y', 'z', 'w'})\n"
        "print(jsontext.encode(tags.encode([{'b', 'a', 'c', 1}, ORDER, line])))"
    )
    seen = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in ("0", "1", "2", "3")
    }
    assert len(seen) == 1


def test_exceptions_are_values_too() -> None:
    back = through([ValueError("no")])
    assert [repr(error) for error in back] == ["ValueError('no')"]
    assert failures.failure_origin(back[0]) is not None
