"""Saying the same thing twice: starts, timers, hooks and cancellations are idempotent."""

import asyncio
from typing import Any

import pytest

from flowpg.errors import (
    HookConflict,
    InvalidRunId,
    InvalidTransition,
    RunConflict,
    RunNotFound,
    RunTerminal,
)
from flowpg.model.commands import Decision
from flowpg.model.operations import WorkflowProgress
from flowpg.model.snapshot import RunStatus, WaitStatus
from flowpg.model.spec import WorkflowSpec
from flowpg.replay.context import WorkflowContext
from tests.engine.support import (
    MINUTE,
    SPEC,
    EngineStore,
    Script,
    echo,
    in_order,
    one_step,
    short,
)


def wait(ctx: WorkflowContext) -> Decision:
    return ctx.complete() if ctx.wait_completed("w") else ctx.sleep("w", MINUTE)


def ask(ctx: WorkflowContext) -> Decision:
    if ctx.hook_disposed("h"):
        return ctx.complete("withdrawn")
    if ctx.hook_received("h"):
        return ctx.complete(ctx.hook_payload("h"))
    return ctx.create_hook("h", "token")


# -- starting ---------------------------------------------------------------------------------


async def test_fifty_starts_of_one_id_are_one_run(engine_store: EngineStore) -> None:
    runtime = Script(one_step(input=1), {"work": echo})
    engine = await engine_store.engine(runtime)
    ids = await asyncio.gather(*(engine.start_with_id("r", SPEC, {"n": 1}) for _ in range(50)))
    assert set(ids) == {"r"}
    assert (await engine.snapshot("r")).output == 1
    assert runtime.calls == [("s", 1)]


async def test_the_same_start_is_the_same_run_also_after_its_end(engine_store: EngineStore) -> None:
    runtime = Script(in_order("a"), {"work": echo})
    engine = await engine_store.engine(runtime)
    for _ in range(3):
        assert await engine.start_with_id("r", SPEC, {"a": 1, "b": 2}) == "r"
        assert await engine.start_with_id("r", SPEC, {"b": 2, "a": 1}) == "r"
    assert len(await engine.history("r")) == 6
    assert runtime.calls == [("a", 1)]


async def test_another_start_of_the_same_id_is_refused_and_harms_nothing(
    engine_store: EngineStore,
) -> None:
    engine = await engine_store.engine(Script(ask))
    await engine.start_with_id("r", SPEC, 1)
    with pytest.raises(RunConflict) as caught:
        await engine.start_with_id("r", SPEC, 2)
    assert caught.value.reason == "workflow input differs"
    with pytest.raises(RunConflict) as caught:
        await engine.start_with_id("r", WorkflowSpec.python("other"), 1)
    assert caught.value.reason == "workflow spec differs"
    await engine.resume_hook("r", "h", "fine")
    assert (await engine.snapshot("r")).output == "fine"


@pytest.mark.parametrize("run_id", ["", " ", "a b", "x" * 300, "a\x00b", "/etc", "é", "-a"])
async def test_a_run_id_that_is_none_is_refused(engine_store: EngineStore, run_id: str) -> None:
    engine = await engine_store.engine(Script(ask))
    with pytest.raises(InvalidRunId):
        await engine.start_with_id(run_id, SPEC)
    for call in (engine.snapshot(run_id), engine.drive(run_id), engine.history(run_id)):
        with pytest.raises(InvalidRunId):
            await call
    assert await engine.list_run_ids() == []


async def test_an_unknown_run_is_not_found_by_any_call(engine_store: EngineStore) -> None:
    engine = await engine_store.engine(Script(ask))
    calls: list[Any] = [
        engine.drive("nobody"),
        engine.snapshot("nobody"),
        engine.history("nobody"),
        engine.run_info("nobody"),
        engine.resume_wait("nobody", "w"),
        engine.resume_hook("nobody", "h", 1),
        engine.dispose_hook("nobody", "h"),
        engine.request_cancellation("nobody"),
        engine.force_cancel("nobody"),
        engine.terminate_for_host_shutdown("nobody"),
        engine.record_progress("nobody", WorkflowProgress(progress_id="p", completed=1)),
        engine.resume_scheduled_run("nobody"),
    ]
    for call in calls:
        with pytest.raises(RunNotFound):
            await call


async def test_runs_are_listed_in_order_and_with_their_histories(engine_store: EngineStore) -> None:
    engine = await engine_store.engine(Script(ask))
    for run_id in ("b", "A", "a", "c"):
        await engine.start_with_id(run_id, SPEC)
        await engine.force_cancel(run_id)
    assert await engine.list_run_ids() == ["A", "a", "b", "c"]
    assert [s.run_id for s in await engine.list_snapshots()] == ["A", "a", "b", "c"]
    page = await engine.history_page("b", after=1, limit=2)
    assert [event.sequence for event in page] == [2, 3]


# -- timers -----------------------------------------------------------------------------------


async def test_resuming_a_timer_again_after_the_run_has_ended_is_no_error(
    engine_store: EngineStore,
) -> None:
    engine = await engine_store.engine(Script(wait))
    run_id = await engine.start(SPEC)
    engine_store.advance(MINUTE)
    await engine.resume_wait(run_id, "w")
    history = await engine.history(run_id)
    assert (await engine.resume_wait(run_id, "w")).status is RunStatus.COMPLETED
    assert await engine.history(run_id) == history
    with pytest.raises(RunTerminal):
        await engine.resume_wait(run_id, "unknown")


async def test_resuming_a_timer_of_a_cancelled_run_changes_nothing(
    engine_store: EngineStore,
) -> None:
    engine = await engine_store.engine(Script(wait))
    run_id = await engine.start(SPEC)
    await engine.force_cancel(run_id, "enough")
    engine_store.advance(MINUTE)
    snapshot = await engine.resume_wait(run_id, "w")
    assert (snapshot.status, snapshot.error) == (RunStatus.CANCELLED, "enough")
    # An end from outside settles the run and not its timers.
    assert snapshot.waits["w"].status is WaitStatus.WAITING
    assert await engine.resume_due_waits() == []


async def test_an_unknown_timer_of_an_open_run_is_an_error(engine_store: EngineStore) -> None:
    engine = await engine_store.engine(Script(wait))
    run_id = await engine.start(SPEC)
    with pytest.raises(InvalidTransition):
        await engine.resume_wait(run_id, "unknown")


async def test_of_many_scans_at_once_one_reports_the_timer(engine_store: EngineStore) -> None:
    engines = [await engine_store.engine(Script(wait)) for _ in range(3)]
    run_id = await engines[0].start(SPEC)
    engine_store.advance(MINUTE)
    found = await asyncio.gather(*(engine.resume_due_waits() for engine in engines))
    assert [wakeup.run_id for scan in found for wakeup in scan] == [run_id]
    assert short(await engines[0].history(run_id)).count("wait.completed w") == 1


# -- hooks ------------------------------------------------------------------------------------


async def test_the_same_answer_may_be_delivered_again_after_the_run_has_ended(
    engine_store: EngineStore,
) -> None:
    engine = await engine_store.engine(Script(ask))
    run_id = await engine.start(SPEC)
    for _ in range(3):
        assert (await engine.resume_hook(run_id, "h", {"a": 1, "b": [1.0]})).terminal
    assert (await engine.resume_hook(run_id, "h", {"b": [1], "a": 1})).terminal
    assert len(await engine.history(run_id)) == 5


async def test_a_redelivered_answer_needs_no_admission_once_the_run_has_ended(
    engine_store: EngineStore,
) -> None:
    pinned = SPEC.with_runtime_build("v1")
    old = await engine_store.engine(Script(ask), builds=["v1"])
    run_id = await old.start(pinned)
    await old.resume_hook(run_id, "h", 1)
    new = await engine_store.engine(Script(ask), builds=["v2"])
    assert (await new.resume_hook(run_id, "h", 1)).output == 1
    assert await new.start_with_id(run_id, pinned) == run_id


async def test_another_answer_is_refused_and_stores_nothing(engine_store: EngineStore) -> None:
    engine = await engine_store.engine(Script(ask))
    run_id = await engine.start(SPEC)
    await engine.resume_hook(run_id, "h", 1)
    history = await engine.history(run_id)
    for payload in (2, None, True, "1"):
        with pytest.raises(HookConflict):
            await engine.resume_hook(run_id, "h", payload)
    with pytest.raises(HookConflict):
        await engine.dispose_hook(run_id, "h")
    assert await engine.history(run_id) == history


async def test_a_withdrawal_may_be_repeated_and_refuses_a_late_answer(
    engine_store: EngineStore,
) -> None:
    engine = await engine_store.engine(Script(ask))
    run_id = await engine.start(SPEC)
    assert await engine.dispose_hook_by_token("token") == (run_id, "h")
    assert (await engine.dispose_hook(run_id, "h")).output == "withdrawn"
    with pytest.raises(HookConflict):
        await engine.resume_hook(run_id, "h", 1)
    assert len(await engine.history(run_id)) == 5


async def test_an_answer_whose_drive_never_happened_is_seen_when_it_is_delivered_again(
    engine_store: EngineStore,
) -> None:
    engine = await engine_store.engine(Script(ask))
    run_id = await engine.start(SPEC)
    assert (await engine.store.resume_hook(run_id, "h", 1)).applied
    assert (await engine.snapshot(run_id)).status is RunStatus.RUNNING
    assert (await engine.resume_hook(run_id, "h", 1)).output == 1


async def test_a_plain_drive_also_sees_an_answer_whose_drive_never_happened(
    engine_store: EngineStore,
) -> None:
    def workflow(ctx: WorkflowContext) -> Decision:
        if ctx.hook_received("h"):
            return ctx.complete("seen")
        return (ctx.create_hook("h", "token"), ctx.sleep("w", MINUTE))

    engine = await engine_store.engine(Script(workflow))
    run_id = await engine.start(SPEC)
    await engine.store.resume_hook(run_id, "h", 1)
    assert (await engine.drive(run_id)).output == "seen"


async def test_fifty_equal_answers_at_once_converge_on_one(engine_store: EngineStore) -> None:
    engine = await engine_store.engine(Script(ask))
    run_id = await engine.start(SPEC)
    ends = await asyncio.gather(*(engine.resume_hook(run_id, "h", "yes") for _ in range(50)))
    assert {end.output for end in ends} == {"yes"}
    assert short(await engine.history(run_id)).count("hook.received h") == 1


async def test_of_fifty_different_answers_at_once_exactly_one_is_taken(
    engine_store: EngineStore,
) -> None:
    engine = await engine_store.engine(Script(ask))
    run_id = await engine.start(SPEC)
    results = await asyncio.gather(
        *(engine.resume_hook(run_id, "h", n) for n in range(50)), return_exceptions=True
    )
    refused = [result for result in results if isinstance(result, HookConflict)]
    assert len(refused) == 49
    output = (await engine.snapshot(run_id)).output
    # The winner may repeat its answer; nobody else may.
    assert (await engine.resume_hook(run_id, "h", output)).output == output
