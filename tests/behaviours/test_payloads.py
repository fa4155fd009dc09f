"""Values at the edge go through every channel of a workflow and come back, or are refused there."""

import base64
import math
import os
import pickle
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pytest

import flowpg
from flowpg import FlowApp, FlowWorker, RunStatus, SerializationError, hook
from flowpg.authoring.context import progress, set_attributes
from flowpg.authoring.errors import WorkflowFailed
from tests.behaviours import shapes
from tests.behaviours.support import everywhere
from tests.engine.support import EngineStore

EDGES: dict[str, Any] = {
    "NUL": "a\x00b",
    "NUL in a key": {"a\x00b": 1},
    "a lone surrogate": "\ud800x",
    "a name of the file system": os.fsdecode(b"\xff.txt"),
    "an emoji and a combining accent": "😀 e\u0301",
    "bytes that are no text": b"\xff\x00",
    "NaN": math.nan,
    "infinities": [math.inf, -math.inf],
    "minus zero": -0.0,
    "integers beyond 64 bits": [2**63, -(2**200)],
    "a Decimal": Decimal("0.10"),
    "order and kinds of keys": {"b": 1, "a": 2, 1: "x", (1, 2): "y", None: 0},
    "None": None,
    "zero": 0,
    "the empty text": "",
    "the empty list": [],
    "the empty mapping": {},
    "False": False,
    "a look-alike of a tag": {"$": "set", "v": [1]},
}


def text(value: Any) -> str:
    """A value with its types, the order of its keys and the sign of its zeros."""
    return repr(value)


async def test_a_value_goes_through_every_channel_and_comes_back(engine_store: EngineStore) -> None:
    seen: dict[str, set[str]] = {name: set() for name in EDGES}
    app = FlowApp("edges", always_replay=True)

    @app.step
    async def echo(name: str, given: Any) -> Any:
        seen[name].add(text(given))
        return given

    @app.step(retry=flowpg.Retry.none())
    async def fail(given: Any) -> None:
        raise ValueError(given)

    @app.workflow
    async def main(name: str, given: Any) -> Any:
        got = await echo(name, given)
        try:
            await fail(got)
        except ValueError as error:
            [got] = error.args
        await hook("go", token=f"token {name}")
        return got

    engine, client = await engine_store.engine(app), await engine_store.engine(None)
    for name, value in EDGES.items():
        run_id = await engine.start(main.spec, main.input(name, value))
        await engine.resume_hook(run_id, "go", None)
        snapshot = await client.snapshot(run_id)
        assert snapshot.status is RunStatus.COMPLETED, (name, snapshot.error)
        assert text(main.result(snapshot)) == text(value), name
        assert seen[name] == {text(value)}


async def test_plain_json_at_the_edge_is_an_answer_and_a_report(engine_store: EngineStore) -> None:
    names = ["NUL", "NUL in a key", "a lone surrogate", "an emoji and a combining accent"]
    names += ["minus zero", "integers beyond 64 bits", "None", "zero", "the empty text", "False"]
    app = FlowApp("answers", always_replay=True)

    @app.workflow
    async def main(name: str) -> Any:
        progress(1, details=EDGES[name])
        return await hook("go", token="t", metadata=EDGES[name])

    engine = await engine_store.engine(app)
    for name in names:
        run_id = await engine.start(main.spec, main.input(name))
        snapshot = await engine.resume_hook(run_id, "go", EDGES[name])
        assert text(main.result(snapshot)) == text(EDGES[name])
        assert text(snapshot.progress[0].details) == text(EDGES[name])


async def test_what_a_column_cannot_hold_is_refused_in_the_call_and_wedges_nothing(
    engine_store: EngineStore,
) -> None:
    app = FlowApp("columns")

    @app.workflow
    async def main(bad: str, attribute: bool) -> str:
        try:
            if attribute:
                set_attributes(customer=bad)
            else:
                await hook(bad)
        except flowpg.InvalidArgument:
            return "refused"
        return "taken"

    engine = await engine_store.engine(app)
    for bad in ("a\x00b", "\ud800"):
        for attribute in (True, False):
            run_id = await engine.start(main.spec, main.input(bad, attribute))
            snapshot = await engine.snapshot(run_id)
            assert snapshot.output == "refused", snapshot.error
        with pytest.raises(flowpg.FlowError):
            await engine.request_cancellation(run_id, bad)


class Loud(Exception):
    """Cannot be made again from its arguments."""

    def __init__(self, first: str, *, second: str) -> None:
        super().__init__(first + second)


async def test_an_error_with_any_text_fails_its_run_and_is_recorded(
    engine_store: EngineStore,
) -> None:
    app = FlowApp("errors")
    messages = ["a\x00b", "\ud800", "x" * 3_000_000, "😀"]

    @app.step(retry=flowpg.Retry.none())
    async def fail(number: int) -> None:
        raise Loud(messages[number], second=messages[number])

    @app.workflow
    async def main(number: int) -> None:
        await fail(number)

    engine = await engine_store.engine(app)
    for number in range(len(messages)):
        run_id = await engine.start(main.spec, main.input(number))
        snapshot = await engine.snapshot(run_id)
        assert snapshot.status is RunStatus.FAILED
        assert "Loud" in (snapshot.error or "")
        with pytest.raises(WorkflowFailed):
            main.result(snapshot)


async def test_unions_generics_and_optionals_come_back_as_what_they_were() -> None:
    app = FlowApp("shapes")

    @app.step
    async def pack(pet: shapes.Pet, size: shapes.Size) -> shapes.Shelf:
        box = shapes.Box[shapes.Cat | shapes.Dog](inside=pet)
        empty = shapes.Box[shapes.Cat | shapes.Dog](inside=shapes.Cat(), label="")
        return shapes.Shelf([box, empty], size, {shapes.Colour.RED})

    @app.step
    async def label(shelf: shapes.Shelf, pets: list[shapes.Cat | shapes.Dog | None]) -> list[str]:
        kinds = [type(box.inside).__name__ for box in shelf.boxes]
        return [*kinds, type(shelf.size).__name__, *(type(pet).__name__ for pet in pets)]

    @app.workflow
    async def main(pet: shapes.Pet) -> list[str]:
        shelf = await pack(pet, shapes.Size(1, 2))
        assert shelf == shapes.Shelf(
            [
                shapes.Box[shapes.Cat | shapes.Dog](inside=pet),
                shapes.Box[shapes.Cat | shapes.Dog](inside=shapes.Cat(), label=""),
            ],
            shapes.Size(1, 2),
            {shapes.Colour.RED},
        )
        return await label(shelf, [None, shapes.Cat(lives=7), pet])

    seen = await everywhere(app, shapes.Dog(tricks=["sit", None]))
    assert seen.result == ["Dog", "Cat", "Size", "NoneType", "Cat", "Dog"]


async def test_a_history_of_an_older_model_is_read_by_a_newer_one(
    engine_store: EngineStore,
) -> None:
    def build(model: Any) -> FlowApp:
        app = FlowApp("orders")

        @app.step
        async def fetch(order_id: int) -> model:
            return shapes.OrderV1(id=order_id, customer="acme")

        @app.workflow
        async def main(order: model) -> str:
            fetched = await fetch(order.id)
            await hook("go", token="t")
            buyer = getattr(fetched, "buyer", None) or fetched.customer
            return f"{buyer} {getattr(fetched, 'note', 'no field')}"

        return app

    old, new = build(shapes.OrderV1), build(shapes.OrderV2)
    first = await engine_store.engine(old)
    workflow = old.workflows["main"]
    order = shapes.OrderV1(id=7, customer="acme")
    await first.start_with_id("r", workflow.spec, workflow.input(order))
    second = await engine_store.engine(new)
    snapshot = await second.resume_hook("r", "go", None)
    assert snapshot.output == "acme None", snapshot.error


@pytest.mark.parametrize("where", ["argument", "result", "workflow"])
@pytest.mark.parametrize("what", ["cycle", "depth"])
async def test_a_value_without_end_is_an_error_and_the_process_lives(where: str, what: str) -> None:
    def endless() -> list[Any]:
        value: list[Any] = []
        if what == "cycle":
            value.append(value)
        else:
            for _ in range(10_000):
                value = [value]
        return value

    app = FlowApp("endless")

    @app.step(retry=flowpg.Retry.none())
    async def work(given: Any = None) -> Any:
        return endless() if where == "result" else None

    @app.workflow
    async def main() -> Any:
        if where == "workflow":
            return endless()
        try:
            await (work(endless()) if where == "argument" else work())
        except SerializationError:
            return "refused"
        return "taken"

    seen = await everywhere(app)
    if where == "argument":
        assert seen.result == "refused"
    elif where == "result":
        assert seen.snapshot.status is RunStatus.FAILED or seen.result == "refused"
    else:
        assert seen.snapshot.status is RunStatus.FAILED
        assert "SerializationError" in (seen.snapshot.error or "")


class Bomb:
    """What runs a command where it is unpickled."""

    def __init__(self, canary: Path) -> None:
        self._canary = canary

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self._canary),)


async def test_nothing_that_is_stored_is_ever_unpickled(
    postgres_only: EngineStore, direct_dsn: str, tmp_path: Path
) -> None:
    canary = tmp_path / "canary"
    bomb = pickle.dumps(Bomb(canary))
    app = FlowApp("trusting")

    @app.workflow
    async def main(given: Any = None) -> str:
        return type(given).__name__

    forms: list[Any] = [
        {"$": "bytes", "v": base64.b64encode(bomb).decode()},
        {"$": "pickle", "v": base64.b64encode(bomb).decode()},
        {"py/reduce": [{"py/function": "os.mkdir"}, {"py/tuple": [str(canary)]}]},
        {"$": "exception", "v": {"type": "os.mkdir", "args": [str(canary)]}},
        base64.b64encode(bomb).decode(),
    ]
    runs = []
    with psycopg.connect(direct_dsn, autocommit=True) as connection:
        spec = psycopg.types.json.Json(main.spec.wire())
        for number, form in enumerate(forms):
            connection.execute(
                "SELECT flowpg.flow_start(%s, %s, %s)",
                (spec, psycopg.types.json.Json({"args": [form], "kwargs": {}}), f"r{number}"),
            )
            connection.execute(
                "SELECT flowpg.flow_start(%s, %s, %s)",
                (spec, psycopg.types.json.Json({"given": form}), f"k{number}"),
            )
            runs += [f"r{number}", f"k{number}"]
    engine = await postgres_only.engine(app)
    await FlowWorker(engine).run_until_idle()
    assert not canary.exists()
    for run_id in runs:
        info = await engine.run_info(run_id)
        assert info.status.terminal or info.blocked_reason
    assert "completed" in {(await engine.run_info(run_id)).status.value for run_id in runs}


def test_flowpg_knows_no_pickle() -> None:
    package = Path(flowpg.__file__).parent
    imports = re.compile(r"^\s*(?:import|from)\s+(?:pickle|marshal|shelve|dill)\b", re.MULTILINE)
    found = [path.name for path in package.rglob("*.py") if imports.search(path.read_text())]
    assert found == []
