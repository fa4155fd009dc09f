"""Annotations that cannot be evaluated take no others with them, under any release of Python."""

import sys
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any, List, Optional  # noqa: UP035  users write these too

import pytest

from flowpg.authoring.codec import FunctionCodec
from flowpg.errors import SerializationError

DEFERRED = sys.version_info >= (3, 14)
"""Whether annotations are evaluated only when somebody asks."""

FUNCTION = """
from datetime import datetime
def function(when: datetime, other: OnlyForCheckers, many: list[OnlyForCheckers]) -> datetime:
    return when
"""


def _defined(source: str) -> Any:
    namespace: dict[str, Any] = {"__name__": __name__}
    # What this file has imported from the future is none of theirs.
    exec(compile(source, "<of an application>", "exec", dont_inherit=True), namespace)
    return namespace["function"]


@pytest.mark.parametrize(
    "future",
    [
        True,
        pytest.param(
            False, marks=pytest.mark.skipif(not DEFERRED, reason="a NameError before Python 3.14")
        ),
    ],
)
def test_a_name_for_type_checkers_only_leaves_the_other_annotations_as_they_are(
    future: bool,
) -> None:
    source = "from __future__ import annotations\n" * future + FUNCTION
    codec = FunctionCodec(_defined(source), "step 'f'")
    today, now = date(2026, 11, 30), datetime(2026, 11, 30, 7, tzinfo=UTC)
    shape = codec.encode_arguments((now, 1, [today]), {})
    # The one that is known is plain, and of the others it is written down what they are.
    assert shape["when"] == now.isoformat()
    assert shape["many"] == [{"$": "date", "v": "2026-11-30"}]
    assert codec.decode_arguments(shape) == ([now, 1, [today]], {})


@dataclass
class Node:
    value: date
    after: Optional["Node"] = None
    rest: List["Node"] | None = None  # noqa: UP006


def test_a_class_may_mention_itself_by_its_name() -> None:
    def function(node: Node) -> Optional["Node"]:
        return node

    first = Node(date(2026, 1, 1))
    node = Node(date(2026, 1, 2), first, [first])
    codec = FunctionCodec(function, "step 'f'")
    assert codec.decode_arguments(codec.encode_arguments((node,), {})) == ([node], {})
    assert codec.decode_result(codec.encode_result(node)) == node


def test_a_union_is_called_the_same_in_errors_under_every_python() -> None:
    def function(a: int | None, b: int | bool) -> None: ...

    codec = FunctionCodec(function, "step 'f'")
    with pytest.raises(SerializationError, match=r"'b' of step 'f' .* does not fit int \| bool"):
        codec.decode_arguments({"a": None, "b": "x"})
