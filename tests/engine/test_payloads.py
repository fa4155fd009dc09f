"""Values at the edge of what JSON can say: they come back equal, or are refused where they were
made; nothing is wedged or half written."""

import math
import socket
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest

from flowpg.errors import InvalidArgument, PayloadTooLarge, SerializationError
from flowpg.model import jsontext
from flowpg.model.commands import Decision
from flowpg.model.jsonl import dump_history, load_history
from flowpg.model.retry import RetryPolicy
from flowpg.model.snapshot import RunStatus
from flowpg.replay.context import MISSING, WorkflowContext
from flowpg.replay.runtime import StepInvocation
from tests.engine.support import SPEC, EngineStore, Script, echo, one_step, short

FALSY: list[Any] = [None, False, 0, 0.0, "", [], {}]

KEPT = {
    "NUL in text": "a\x00b",
    "NUL in a key": {"a\x00b": 1},
    "a lone surrogate": "\ud800",
    "an emoji": "😀",
    "a combining accent": "e\u0301",
    "a big integer": 2**200,
    "minus zero": -0.0,
    "the smallest float": 5e-324,
    "a long fraction": 0.1 + 0.2,
    "key order": {"b": 1, "a": 2},
    "nested": {"a": [{"b": [None, {"c": ""}]}]},
    "escapes": '"\\\n\t\u2028</script>',
}

REFUSED: dict[str, Any] = {
    "NaN": math.nan,
    "infinity": math.inf,
    "an integer key": {1: "x"},
    "a tuple key": {(1, 2): "y"},
    "bytes": b"\xff",
    "a set": {1},
    "a Decimal": Decimal("1.5"),
}

WRITTEN_IN_ANSWERS: dict[str, Any] = {"a set": [1], "a Decimal": "1.5"}
"""What of these an answer may be, and what the workflow then gets: pydantic writes it."""


def same(left: Any, right: Any) -> bool:
    """Equal, of equal types, keys in the same order, and zero with the same sign."""
    if isinstance(left, float) and isinstance(right, float):
        return math.copysign(1, left) == math.copysign(1, right) and left == right
    if isinstance(left, dict) and isinstance(right, dict):
        return list(left) == list(right) and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same, left, right))
    return type(left) is type(right) and bool(left == right)


def through_everything(ctx: WorkflowContext) -> Decision:
    """The input goes through a step, a hook's metadata and payload, and the output."""
    if not ctx.step_completed("s"):
        return ctx.schedule_step("s", "work", ctx.input)
    if not ctx.hook_received("h"):
        return ctx.create_hook("h", f"token of {ctx.run_id}", ctx.step_output("s"))
    return ctx.complete(ctx.hook_payload("h"))


@pytest.mark.parametrize("name", KEPT)
async def test_a_value_comes_back_as_it_went_in(engine_store: EngineStore, name: str) -> None:
    value = KEPT[name]
    engine = await engine_store.engine(Script(through_everything, {"work": echo}))
    run_id = await engine.start(SPEC, value)
    snapshot = await engine.resume_hook(run_id, "h", value)
    assert snapshot.status is RunStatus.COMPLETED
    assert same(snapshot.output, value)
    # And from the store as well, where another process reads it.
    stored = await (await engine_store.engine(None)).snapshot(run_id)
    for found in (
        stored.input,
        stored.steps["s"].input,
        stored.steps["s"].output,
        stored.hooks["h"].metadata,
        stored.hooks["h"].payload,
        stored.output,
    ):
        assert same(found, value)
    assert await engine.start_with_id(run_id, SPEC, value) == run_id
    assert (await engine.resume_hook(run_id, "h", value)).terminal


@pytest.mark.parametrize("value", FALSY, ids=repr)
async def test_a_falsy_value_is_not_taken_for_a_missing_one(
    engine_store: EngineStore, value: Any
) -> None:
    def workflow(ctx: WorkflowContext) -> Decision:
        if ctx.step_output("s", MISSING) is MISSING:
            return ctx.schedule_step("s", "work", ctx.input)
        if ctx.hook_payload("h", MISSING) is MISSING:
            return ctx.create_hook("h", "token")
        return ctx.complete(ctx.hook_payload("h"))

    engine = await engine_store.engine(Script(workflow, {"work": echo}))
    run_id = await engine.start(SPEC, value)
    snapshot = await engine.resume_hook(run_id, "h", value)
    assert snapshot.status is RunStatus.COMPLETED
    assert same(snapshot.steps["s"].output, value)
    assert same(snapshot.output, value)


@pytest.mark.parametrize("name", REFUSED)
async def test_a_value_that_json_cannot_carry_is_refused_at_the_call(
    engine_store: EngineStore, name: str
) -> None:
    value = REFUSED[name]
    engine = await engine_store.engine(Script(through_everything, {"work": echo}))
    with pytest.raises(SerializationError):
        await engine.start(SPEC, value)
    assert await engine.list_run_ids() == []
    run_id = await engine.start(SPEC, 1)
    if name in WRITTEN_IN_ANSWERS:
        assert (await engine.resume_hook(run_id, "h", value)).output == WRITTEN_IN_ANSWERS[name]
        return
    with pytest.raises(SerializationError):
        await engine.resume_hook(run_id, "h", value)
    assert (await engine.snapshot(run_id)).status is RunStatus.SUSPENDED
    assert (await engine.resume_hook(run_id, "h", 1)).output == 1


async def test_an_output_that_cannot_be_stored_fails_its_step_at_once_and_names_the_type(
    engine_store: EngineStore,
) -> None:
    runtime = Script(
        one_step(retry=RetryPolicy.fixed(5)), {"work": lambda step: {"sock": socket.socket}}
    )
    engine = await engine_store.engine(runtime)
    run_id = await engine.start(SPEC)
    snapshot = await engine.snapshot(run_id)
    assert snapshot.status is RunStatus.FAILED
    assert "output of step 's'" in str(snapshot.error)
    assert "type is not JSON serializable" in str(snapshot.error)
    assert runtime.calls == [("s", 1)]
    assert short(await engine.history(run_id))[-2] == "step.non_retryable s"


@pytest.mark.parametrize("name", REFUSED)
async def test_a_decision_that_cannot_be_stored_fails_its_run(
    engine_store: EngineStore, name: str
) -> None:
    engine = await engine_store.engine(Script(lambda ctx: ctx.complete(REFUSED[name])))
    first = await engine.snapshot(await engine.start(SPEC))
    assert first.status is RunStatus.FAILED
    assert str(first.error).startswith("SerializationError")
    other = await engine_store.engine(Script(one_step(input=REFUSED[name])))
    second = await other.snapshot(await other.start(SPEC))
    assert second.status is RunStatus.FAILED
    assert second.steps == {}


async def test_values_that_are_too_large_are_refused_where_they_are_made(
    engine_store: EngineStore,
) -> None:
    large = "x" * 20_000_000
    engine = await engine_store.engine(Script(through_everything, {"work": echo}))
    with pytest.raises(PayloadTooLarge):
        await engine.start(SPEC, large)
    assert await engine.list_run_ids() == []
    run_id = await engine.start(SPEC, 1)
    with pytest.raises(PayloadTooLarge):
        await engine.resume_hook(run_id, "h", large)
    assert (await engine.snapshot(run_id)).status is RunStatus.SUSPENDED

    engine = await engine_store.engine(Script(one_step(), {"work": lambda step: large}))
    output = await engine.snapshot(await engine.start(SPEC))
    assert output.status is RunStatus.FAILED
    assert "PayloadTooLarge" in str(output.error)

    engine = await engine_store.engine(Script(lambda ctx: ctx.complete(large)))
    decision = await engine.snapshot(await engine.start(SPEC))
    assert decision.status is RunStatus.FAILED
    assert "PayloadTooLarge" in str(decision.error)


async def test_an_error_text_of_any_length_and_content_is_recorded(
    engine_store: EngineStore,
) -> None:
    def work(step: StepInvocation) -> Any:
        raise ValueError("\x00 and \ud800 " + "x" * 5_000_000)

    engine = await engine_store.engine(Script(one_step(retry=RetryPolicy.none()), {"work": work}))
    run_id = await engine.start(SPEC)
    error = str((await engine.snapshot(run_id)).error)
    assert error.startswith("ValueError: \\x00 and \\ud800 xxx")
    assert len(error) < 100_000


async def test_a_structure_nested_too_deeply_is_refused_and_the_process_lives(
    engine_store: EngineStore,
) -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    cyclic: list[Any] = []
    cyclic.append(cyclic)
    engine = await engine_store.engine(Script(lambda ctx: ctx.complete(ctx.input)))
    for value in (deep, cyclic):
        with pytest.raises(SerializationError):
            await engine.start(SPEC, value)
    assert (await engine.snapshot(await engine.start(SPEC, "fine"))).output == "fine"


async def test_the_deepest_value_that_is_taken_anywhere_can_be_read_again(
    engine_store: EngineStore,
) -> None:
    deep: list[Any] = []
    for _ in range(jsontext.MAX_DEPTH - 1):
        deep = [deep]

    def workflow(ctx: WorkflowContext) -> Decision:
        if not ctx.step_completed("s"):
            return ctx.schedule_step("s", "work", ctx.input)
        if not ctx.hook_received("h"):
            return ctx.create_hook("h", "token", ctx.step_output("s"), timedelta(hours=1))
        return ctx.complete(ctx.hook_payload("h"))

    engine = await engine_store.engine(Script(workflow, {"work": lambda step: step.input}))
    await engine.start_with_id("r", SPEC, deep)
    again = await engine_store.engine(Script(workflow))
    assert (await again.snapshot("r")).hooks["h"].metadata == deep
    assert (await again.resume_hook("r", "h", deep)).status is RunStatus.COMPLETED
    history = await again.history("r")
    assert load_history(dump_history(history)) == history
    assert (await again.snapshot("r")).output == deep


@pytest.mark.parametrize("bad", ["", " ", "a\x00b", "\ud800", "x" * 600])
async def test_ids_that_are_none_are_refused_before_anything_is_stored(
    engine_store: EngineStore, bad: str
) -> None:
    engine = await engine_store.engine(Script(lambda ctx: ctx.schedule_step(bad, "work")))
    with pytest.raises(InvalidArgument):
        await engine.start_with_id("r", SPEC)
    assert short(await engine.history("r")) == ["run.created"]
    for call in (engine.resume_hook("r", bad, 1), engine.resume_wait("r", bad)):
        with pytest.raises(InvalidArgument):
            await call
