"""Answers of a test: sent as a sender sends them, and refused as to a sender."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, NamedTuple
from uuid import UUID

import pytest
from pydantic import BaseModel, Field

from flowpg import AnswerRejected, FlowApp, hook
from flowpg.testing import RunWaits, WorkflowEnvironment


class Colour(Enum):
    RED = "red"


class Point(NamedTuple):
    x: int
    y: int


@dataclass
class Line:
    id: UUID
    at: datetime
    words: set[str]
    raw: bytes
    within: timedelta
    colour: Colour


class Order(BaseModel):
    lines: list[Line]
    total: Decimal = Field(alias="sum")


LINE = Line(
    UUID(int=7), datetime(2026, 1, 31, tzinfo=UTC), {"b", "a"}, b"x", timedelta(1.5), Colour.RED
)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (Line, LINE),
        (Order, Order(lines=[LINE], sum=Decimal("1.50"))),
        (Point, Point(1, 2)),
        (Line | None, None),
        (dict[str, Colour], {"a": Colour.RED}),
        (frozenset[int], frozenset({3, 1, 2})),
        (str, "text"),
    ],
)
async def test_a_value_of_the_declared_type_arrives_as_it_was(kind: Any, value: Any) -> None:
    app = FlowApp("arrives")
    got = []

    @app.workflow
    async def main() -> None:
        got.append(await hook("h", kind, token="h"))

    async with WorkflowEnvironment(app) as env:
        run = await env.start(main)
        await run.answer("h", value)
        await run.result()
    assert got == [value]


async def test_an_answer_that_does_not_fit_is_refused_and_the_run_waits_on() -> None:
    app = FlowApp("refuses")

    @app.workflow
    async def main() -> int:
        return await hook("h", int, token="h")

    async with WorkflowEnvironment(app) as env:
        run = await env.start(main)
        with pytest.raises(AnswerRejected, match="it should be an integer"):
            await run.answer("h", "many")
        with pytest.raises(RunWaits):
            await run.result()
        await run.answer("h", 5)
        assert await run.result() == 5
