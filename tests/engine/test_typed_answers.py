"""Who answers a hook may send an object of the type that the workflow waits for."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict, Field, computed_field, field_serializer

from flowpg import FlowApp, FlowClient, SerializationError, hook
from flowpg.fleet import tasks
from flowpg.model.dumping import written
from tests.engine.answering import SECRET, TOKEN, started
from tests.engine.support import EngineStore


@dataclass
class Line:
    at: datetime
    words: set[str]


class Order(BaseModel):
    """What it writes besides its fields, and under which names, must not get in the way."""

    model_config = ConfigDict(extra="forbid")

    lines: list[Line]
    total: Decimal = Field(alias="sum")

    @computed_field  # type: ignore[prop-decorator]
    @property
    def count(self) -> int:
        return len(self.lines)


class Broken(BaseModel):
    amount: int = 1

    @field_serializer("amount")
    def _refuse(self, value: int) -> int:
        raise ValueError(SECRET)


LINE = Line(datetime(2026, 1, 31, tzinfo=UTC), {"b", "a"})
SENT: dict[str, Any] = {"first": Order(lines=[LINE], sum=Decimal("1.50")), "second": [LINE]}
JSON = {
    "first": {"lines": [{"at": "2026-01-31T00:00:00+00:00", "words": ["a", "b"]}], "sum": "1.50"},
    "second": [{"at": "2026-01-31T00:00:00+00:00", "words": ["a", "b"]}],
}


class Both(BaseModel):
    first: Order
    second: list[Line]


def _app(got: list[Any]) -> FlowApp:
    app = FlowApp("typed")

    @app.workflow
    async def main() -> None:
        got.append(await hook("order", Both, token=TOKEN))

    return app


async def _received(engine: Any) -> Any:
    return (await engine.snapshot("r")).hooks["order"].payload


SENDERS: dict[str, Callable[[Any], Any]] = {
    "engine": lambda engine: engine.resume_hook("r", "order", SENT),
    "engine by token": lambda engine: engine.resume_hook_by_token(TOKEN, SENT),
    "task": lambda engine: tasks.carry_out(
        engine.store, tasks.ResumeHook(run_id="r", hook_id="order", payload=SENT)
    ),
    "task by token": lambda engine: tasks.carry_out(
        engine.store, tasks.ResumeHookByToken(token=TOKEN, payload=SENT)
    ),
}


@pytest.mark.parametrize("sender", SENDERS)
async def test_every_sender_sends_what_pydantic_writes(
    engine_store: EngineStore, sender: str
) -> None:
    got: list[Any] = []
    engine = await started(engine_store, _app(got))
    await SENDERS[sender](engine)
    await engine.drive("r")
    assert await _received(engine) == JSON
    assert got == [Both(first=SENT["first"], second=SENT["second"])]


@pytest.mark.parametrize("by_token", [False, True])
async def test_the_client_sends_it_too(
    postgres_only: EngineStore, direct_dsn: str, by_token: bool
) -> None:
    engine = await started(postgres_only, _app([]))
    with FlowClient(direct_dsn) as client:
        if by_token:
            assert client.resume_hook_by_token(TOKEN, SENT).applied
        else:
            assert client.resume_hook("r", "order", SENT).applied
            # The same answer in other words.
            assert not client.resume_hook("r", "order", JSON).applied
    assert await _received(engine) == JSON


def test_a_task_waits_in_the_queue_as_json() -> None:
    task = tasks.ResumeHook(run_id="r", hook_id="order", payload=SENT)
    assert task.payload == JSON


async def test_what_cannot_be_written_is_refused_without_what_it_holds(
    engine_store: EngineStore,
) -> None:
    engine = await started(engine_store, _app([]))
    ring: list[Any] = []
    ring.append(ring)
    for value in (Broken(), {1: "keys are names"}, [object()], ring, float("nan"), {b"\xff"}):
        with pytest.raises(SerializationError) as refused:
            await engine.resume_hook("r", "order", value)
        assert SECRET not in str(refused.value)
    assert (await engine.snapshot("r")).open.hooks


def test_json_is_written_as_what_it_is() -> None:
    value = {"a": [1, 2.5, -0.0, None, True, "\ud800", 10**30], "$": {"b": ()}}
    assert written(value) == {**value, "$": {"b": []}}
