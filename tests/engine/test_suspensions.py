"""Timers and hooks: a run suspends without holding anything, and whatever happens first is seen."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from flowpg.errors import HookTokenNotFound, InvalidTransition
from flowpg.model.commands import Decision
from flowpg.model.hooks import HookMetadata
from flowpg.model.inspection import SuspensionKind, WakeupKind
from flowpg.model.snapshot import RunStatus, WaitStatus
from flowpg.replay.context import WorkflowContext
from tests.engine.support import MINUTE, SECOND, SPEC, EngineStore, Script, echo, short
from tests.waiting import until_async


def wait_then_hook(ctx: WorkflowContext) -> Decision:
    """A timer, then a hook, then the end."""
    if not ctx.wait_completed("w"):
        return ctx.sleep("w", MINUTE)
    if not ctx.hook_received("h"):
        return ctx.create_hook("h", "token", HookMetadata.human_approval("order"))
    return ctx.complete(ctx.hook_payload("h"))


def either(ctx: WorkflowContext) -> Decision:
    """A timer and a hook side by side; the first event in the log wins."""
    if ctx.hook_received("h"):
        return ctx.complete("answered")
    if ctx.hook_disposed("h"):
        return ctx.complete("withdrawn")
    if ctx.wait_completed("w"):
        return ctx.complete("too late")
    return (ctx.sleep("w", MINUTE), ctx.create_hook("h", "token"))


async def test_a_run_suspends_for_a_timer_and_a_hook_and_resumes_after_each(
    engine_store: EngineStore,
) -> None:
    engine = await engine_store.engine(Script(wait_then_hook))
    run_id = await engine.start(SPEC)
    assert (await engine.snapshot(run_id)).status is RunStatus.SUSPENDED
    engine_store.advance(MINUTE)
    assert (await engine.resume_wait(run_id, "w")).status is RunStatus.SUSPENDED
    [waiting] = await engine.list_active_hooks()
    assert waiting.metadata_as(HookMetadata).label == "order"
    assert await engine.resume_hook_by_token("token", {"ok": True}) == (run_id, "h")
    assert (await engine.snapshot(run_id)).output == {"ok": True}
    assert short(await engine.history(run_id)) == [
        "run.created",
        "run.started",
        "wait.created w",
        "wait.completed w",
        "hook.created h",
        "hook.received h",
        "run.completed",
    ]


async def test_a_run_survives_the_engines_that_drive_it(engine_store: EngineStore) -> None:
    for number in range(3):
        engine = await engine_store.engine(Script(wait_then_hook))
        match number:
            case 0:
                assert await engine.start_with_id("r", SPEC) == "r"
            case 1:
                assert await engine.start_with_id("r", SPEC) == "r"
                engine_store.advance(MINUTE)
                [due] = await engine.resume_due_waits()
                assert (due.run_id, due.kind, due.subject_id) == ("r", WakeupKind.WAIT, "w")
            case 2:
                await engine.resume_hook_by_token("token", "ok")
                assert [s.output for s in await engine.list_snapshots()] == ["ok"]
        await engine.close()


async def test_a_token_that_no_active_hook_has_is_not_found_and_not_shown(
    engine_store: EngineStore,
) -> None:
    engine = await engine_store.engine(Script(wait_then_hook))
    for call in (
        engine.resume_hook_by_token("no-such-secret", 1),
        engine.dispose_hook_by_token("no-such-secret"),
    ):
        with pytest.raises(HookTokenNotFound) as caught:
            await call
        assert "no-such-secret" not in str(caught.value) + repr(caught.value)


async def test_only_timers_that_are_due_are_completed(engine_store: EngineStore) -> None:
    def workflow(ctx: WorkflowContext) -> Decision:
        if ctx.wait_completed("w"):
            return ctx.complete()
        return ctx.sleep("w", timedelta(minutes=ctx.input))

    engine = await engine_store.engine(Script(workflow))
    soon = await engine.start(SPEC, 1)
    late = await engine.start(SPEC, 10)
    engine_store.advance(2 * MINUTE)
    assert [wakeup.run_id for wakeup in await engine.resume_due_waits()] == [soon]
    assert (await engine.snapshot(soon)).status is RunStatus.COMPLETED
    assert (await engine.snapshot(late)).status is RunStatus.SUSPENDED


async def test_a_timer_is_never_early_and_fires_at_once_when_its_time_is_long_past(
    engine_store: EngineStore,
) -> None:
    engine = await engine_store.engine(Script(wait_then_hook))
    run_id = await engine.start(SPEC)
    engine_store.advance(MINUTE - SECOND)
    assert await engine.resume_due_waits() == []
    with pytest.raises(InvalidTransition):
        await engine.resume_wait(run_id, "w")
    assert (await engine.drive(run_id)).waits["w"].status is WaitStatus.WAITING
    engine_store.advance(timedelta(days=400))
    assert (await engine.drive(run_id)).waits["w"].status is WaitStatus.COMPLETED


async def test_a_deadline_that_passed_before_it_was_asked_for_fires_at_once(
    engine_store: EngineStore,
) -> None:
    def workflow(ctx: WorkflowContext) -> Decision:
        if ctx.wait_completed("w"):
            return ctx.complete()
        return ctx.wait_until("w", datetime(2000, 1, 1, tzinfo=UTC))

    engine = await engine_store.engine(Script(workflow))
    assert (await engine.snapshot(await engine.start(SPEC))).status is RunStatus.COMPLETED


async def test_sleeping_no_time_at_all_goes_on_in_the_same_drive(engine_store: EngineStore) -> None:
    def workflow(ctx: WorkflowContext) -> Decision:
        for n in range(3):
            if not ctx.wait_completed(f"w{n}"):
                return ctx.sleep(f"w{n}", timedelta(0))
        return ctx.complete()

    engine = await engine_store.engine(Script(workflow))
    assert (await engine.snapshot(await engine.start(SPEC))).status is RunStatus.COMPLETED


async def test_replaying_a_sleep_does_not_begin_it_anew(engine_store: EngineStore) -> None:
    engine = await engine_store.engine(Script(wait_then_hook))
    run_id = await engine.start(SPEC)
    first = (await engine.snapshot(run_id)).waits["w"].resume_at
    for _ in range(5):
        engine_store.advance(10 * SECOND)
        assert (await engine.drive(run_id)).waits["w"].resume_at == first
    engine_store.advance(10 * SECOND)
    [due] = await engine.resume_due_waits()
    assert due.due_at == first


async def test_an_open_wait_tolerates_a_recomputed_deadline(engine_store: EngineStore) -> None:
    deadlines = [datetime(2100, 1, day, tzinfo=UTC) for day in (1, 2, 3)]

    def workflow(ctx: WorkflowContext) -> Decision:
        if ctx.wait_completed("w"):
            return ctx.complete()
        return ctx.wait_until("w", deadlines.pop(0))

    engine = await engine_store.engine(Script(workflow))
    run_id = await engine.start(SPEC)
    for _ in range(2):
        snapshot = await engine.drive(run_id)
        assert snapshot.waits["w"].resume_at == datetime(2100, 1, 1, tzinfo=UTC)


async def test_an_answer_wakes_a_workflow_that_also_waits_for_a_timer(
    engine_store: EngineStore,
) -> None:
    engine = await engine_store.engine(Script(either))
    run_id = await engine.start(SPEC)
    assert (await engine.resume_hook(run_id, "h", None)).output == "answered"
    assert await engine.next_wakeup() is None


async def test_a_withdrawal_wakes_a_workflow_that_also_waits_for_a_timer(
    engine_store: EngineStore,
) -> None:
    engine = await engine_store.engine(Script(either))
    run_id = await engine.start(SPEC)
    assert (await engine.dispose_hook(run_id, "h")).output == "withdrawn"


async def test_a_timer_wakes_a_workflow_that_also_waits_for_a_hook_and_a_timer(
    engine_store: EngineStore,
) -> None:
    def workflow(ctx: WorkflowContext) -> Decision:
        if ctx.wait_completed("soon"):
            return ctx.complete("soon")
        return (
            ctx.sleep("soon", SECOND),
            ctx.sleep("late", timedelta(days=1)),
            ctx.create_hook("h", "token"),
        )

    engine = await engine_store.engine(Script(workflow))
    run_id = await engine.start(SPEC)
    engine_store.advance(2 * SECOND)
    await engine.resume_due_waits()
    assert (await engine.snapshot(run_id)).output == "soon"


async def test_a_race_is_won_by_the_first_event_in_the_log_on_every_replay(
    engine_store: EngineStore,
) -> None:
    """The answer arrives when the timer is due already; nobody has completed the timer yet."""

    def workflow(ctx: WorkflowContext) -> Decision:
        if isinstance(decision := either(ctx), tuple):
            return decision
        order = [e.type for e in ctx.history if e.type in ("hook_received", "wait_completed")]
        if not ctx.step_completed("pause"):
            return ctx.schedule_step("pause", "work", order[0])
        return ctx.complete(ctx.step_output("pause"))

    for first in ("hook_received", "wait_completed"):
        engine = await engine_store.engine(Script(workflow, {"work": echo}))
        await engine.start_with_id(first, SPEC)
        engine_store.advance(2 * MINUTE)
        if first == "hook_received":
            snapshot = await engine.resume_hook(first, "h", 1)
        else:
            await engine.store.resume_wait(first, "w")
            await engine.store.resume_hook(first, "h", 1)
            snapshot = await engine.drive(first)
        assert snapshot.output == first


async def test_a_hook_expires_and_the_workflow_sees_it_withdrawn(engine_store: EngineStore) -> None:
    def workflow(ctx: WorkflowContext) -> Decision:
        if ctx.hook_disposed("h"):
            return ctx.complete("expired")
        return ctx.create_hook("h", "token", expires_in=MINUTE)

    engine = await engine_store.engine(Script(workflow))
    run_id = await engine.start(SPEC)
    assert await engine.dispose_expired_hooks() == []
    engine_store.advance(MINUTE)
    [expired] = await engine.dispose_expired_hooks()
    assert (expired.run_id, expired.kind, expired.subject_id) == (
        run_id,
        WakeupKind.HOOK_EXPIRY,
        "h",
    )
    assert (await engine.snapshot(run_id)).output == "expired"


async def test_one_run_can_be_resumed_for_all_that_is_due_in_it(engine_store: EngineStore) -> None:
    def workflow(ctx: WorkflowContext) -> Decision:
        if ctx.wait_completed("a") and ctx.wait_completed("b"):
            return ctx.complete()
        return (ctx.sleep("a", SECOND), ctx.sleep("b", SECOND), ctx.sleep("c", MINUTE))

    engine = await engine_store.engine(Script(workflow))
    run_id = await engine.start(SPEC)
    other = await engine.start(SPEC)
    engine_store.advance(2 * SECOND)
    due = await engine.resume_scheduled_run(run_id)
    assert [(wakeup.kind, wakeup.subject_id) for wakeup in due] == [
        (WakeupKind.WAIT, "a"),
        (WakeupKind.WAIT, "b"),
    ]
    assert (await engine.snapshot(run_id)).status is RunStatus.COMPLETED
    assert (await engine.snapshot(other)).status is RunStatus.SUSPENDED
    assert await engine.resume_scheduled_run(run_id) == []


async def test_what_a_run_waits_for_can_be_listed(engine_store: EngineStore) -> None:
    engine = await engine_store.engine(Script(either))
    run_id = await engine.start(SPEC)
    found = await engine.list_open_suspensions(run_id=run_id)
    assert [(item.kind, item.subject_id, item.due) for item in found] == [
        (SuspensionKind.WAIT, "w", False),
        (SuspensionKind.HOOK, "h", None),
    ]
    wakeup = await engine.next_wakeup()
    assert wakeup is not None
    assert (wakeup.run_id, wakeup.subject_id) == (run_id, "w")
    await engine.force_cancel(run_id)
    assert await engine.list_open_suspensions() == []
    assert await engine.list_active_hooks() == []


async def test_a_timer_that_comes_due_while_a_step_runs_is_seen_in_the_same_drive(
    engine_store: EngineStore,
) -> None:
    gate = asyncio.Event()

    def workflow(ctx: WorkflowContext) -> Decision:
        if ctx.step_completed("s") and ctx.wait_completed("w"):
            return ctx.complete()
        return (ctx.schedule_step("s", "work"), ctx.sleep("w", timedelta(milliseconds=1)))

    engine = await engine_store.engine(Script(workflow, {"work": lambda step: gate.wait()}))
    driving = asyncio.ensure_future(engine.start_with_id("r", SPEC))

    async def fired() -> bool:
        found = await engine.store.load_runs(["r"])
        return bool(found) and short(found["r"].history)[-1] == "wait.completed w"

    await until_async(fired, "the timer fires beside the running step")
    gate.set()
    await driving
    assert (await engine.snapshot("r")).status is RunStatus.COMPLETED
