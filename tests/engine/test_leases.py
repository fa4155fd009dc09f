"""One driver by construction: leases, fences, and wake-ups that meet the end of a drive."""

import asyncio
import os
from typing import Any

import pytest

from flowpg.engine.flow_engine import FlowEngine
from flowpg.errors import HookConflict, LeaseLost, RunTerminal
from flowpg.model.commands import Decision
from flowpg.model.snapshot import RunStatus
from flowpg.replay.context import WorkflowContext
from flowpg.replay.runtime import StepInvocation
from flowpg.store.memory import InMemoryEventStore
from tests.engine.support import (
    MINUTE,
    SPEC,
    EngineStore,
    Script,
    appends_nothing,
    echo,
    in_order,
    keeper_of,
    one_step,
    short,
    wrapping,
)
from tests.waiting import until_async


class Gate:
    """A step that says when it begins and goes on when told."""

    def __init__(self) -> None:
        self.entered = asyncio.Event()
        self.go = asyncio.Event()
        self.cancelled = asyncio.Event()

    async def __call__(self, step: StepInvocation) -> Any:
        self.entered.set()
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return step.input


async def test_a_run_that_another_process_drives_comes_back_as_it_stands(
    engine_store: EngineStore,
) -> None:
    gate = Gate()
    first = await engine_store.engine(Script(one_step(input=1), {"work": gate}))
    idle = Script(one_step(input=1), {"work": echo})
    second = await engine_store.engine(idle)
    driving = asyncio.ensure_future(first.start_with_id("r", SPEC))
    await gate.entered.wait()
    assert (await second.drive("r")).status is RunStatus.RUNNING
    assert (idle.replays, idle.calls) == (0, [])
    gate.go.set()
    await driving
    assert (await second.snapshot("r")).output == 1


async def test_a_second_drive_in_the_same_engine_waits_for_the_first_and_finds_nothing_new(
    engine_store: EngineStore,
) -> None:
    gate = Gate()
    runtime = Script(one_step(input=1), {"work": gate})
    engine = await engine_store.engine(runtime)
    first = asyncio.ensure_future(engine.start_with_id("r", SPEC))
    await gate.entered.wait()
    second = asyncio.ensure_future(engine.drive("r"))
    gate.go.set()
    assert (await second).output == 1
    await first
    assert runtime.calls == [("s", 1)]


async def test_a_zombie_stores_nothing_once_its_lease_went_to_another(
    engine_store: EngineStore,
) -> None:
    gate = Gate()
    zombie = await engine_store.engine(Script(one_step(input="new"), {"work": gate}))
    driving = asyncio.ensure_future(zombie.start_with_id("r", SPEC))
    await gate.entered.wait()
    engine_store.leases_run_out()
    heir = await engine_store.engine(Script(one_step(input="new"), {"work": lambda step: "heir"}))
    assert (await heir.drive("r")).output == "heir"
    history = await heir.history("r")

    gate.go.set()
    with pytest.raises(LeaseLost):
        await driving
    assert await heir.history("r") == history
    assert short(history).count("step.completed s") == 1


async def test_a_heartbeat_that_finds_the_lease_lost_cancels_the_steps_at_work(
    engine_store: EngineStore,
) -> None:
    gate = Gate()
    zombie = await engine_store.engine(Script(one_step(input=1), {"work": gate}))
    driving = asyncio.ensure_future(zombie.start_with_id("r", SPEC))
    await gate.entered.wait()
    engine_store.leases_run_out()
    heir = await engine_store.engine(Script(one_step(input=1), {"work": echo}))
    await heir.drive("r")
    await keeper_of(zombie).beat()
    with pytest.raises(LeaseLost):
        await driving
    assert gate.cancelled.is_set()


async def test_a_heartbeat_keeps_a_lease_for_as_long_as_a_step_takes(
    engine_store: EngineStore,
) -> None:
    gate = Gate()
    engine = await engine_store.engine(Script(one_step(input=1), {"work": gate}))
    driving = asyncio.ensure_future(engine.start_with_id("r", SPEC))
    await gate.entered.wait()
    for _ in range(5):
        engine_store.advance(MINUTE / 3)
        await keeper_of(engine).beat()
    other = await engine_store.engine(Script(one_step(input=1), {"work": echo}))
    assert not (await other.drive("r")).terminal
    gate.go.set()
    await driving
    assert (await engine.snapshot("r")).output == 1


async def test_a_heartbeat_tells_a_drive_of_news_from_another_process(
    engine_store: EngineStore,
) -> None:
    """A cancellation request elsewhere reaches a step that would run on for ever."""
    gate = Gate()

    def workflow(ctx: WorkflowContext) -> Decision:
        return ctx.cancel() if ctx.cancellation_request() is not None else one_step()(ctx)

    driver = await engine_store.engine(Script(workflow, {"work": gate}))
    client = await engine_store.engine(None)
    driving = asyncio.ensure_future(driver.start_with_id("r", SPEC))
    await gate.entered.wait()
    await client.request_cancellation("r", "elsewhere")
    await keeper_of(driver).beat()
    await driving
    assert (await client.snapshot("r")).error == "elsewhere"
    assert gate.cancelled.is_set()


async def test_news_in_the_same_process_reach_a_drive_at_once(engine_store: EngineStore) -> None:
    """The workflow reacts to an answer while its step still runs."""
    gate = Gate()

    def workflow(ctx: WorkflowContext) -> Decision:
        if ctx.step_completed("s"):
            return ctx.complete(ctx.hook_payload("h"))
        step = ctx.schedule_step("s", "work")
        if not ctx.hook_received("h"):
            return (step, ctx.create_hook("h", "token"))
        return (step, ctx.sleep("seen", MINUTE))

    engine = await engine_store.engine(Script(workflow, {"work": gate}))
    driving = asyncio.ensure_future(engine.start_with_id("r", SPEC))
    await gate.entered.wait()
    answering = asyncio.ensure_future(engine.resume_hook("r", "h", "yes"))

    async def reacted() -> bool:
        return "wait.created seen" in short(await engine.history("r"))

    await until_async(reacted, "the workflow sees the answer beside the running step", timeout=5)
    assert not driving.done()
    gate.go.set()
    await driving
    assert (await answering).output == "yes"


def race(ctx: WorkflowContext) -> Decision:
    """Complete as soon as the step is done, and say whether the hook was answered by then."""
    if ctx.step_completed("s"):
        return ctx.complete(ctx.hook_payload("h", "not answered"))
    return (ctx.create_hook("h", f"token of {ctx.run_id}"), ctx.schedule_step("s", "work"))


async def test_an_answer_in_the_closing_turn_is_handled_or_refused_and_never_dropped(
    engine_store: EngineStore,
) -> None:
    """The answer arrives before each call of the drive in turn, the closing append among them."""
    client = await engine_store.engine(None)
    for at in range(2, 12):
        run_id = f"r{at}"
        calls = 0
        accepted: bool | None = None

        async def answer(name: str, args: Any, run_id: str = run_id, at: int = at) -> None:
            nonlocal calls, accepted
            calls += 1
            if calls == at and not (name == "load_runs" and accepted is not None):
                try:
                    await client.store.resume_hook(run_id, "h", "answered")
                    accepted = True
                except Exception:  # noqa: BLE001  not open yet, or the run has ended
                    accepted = False

        engine = await engine_store.engine(
            Script(race, {"work": echo}), wrap=wrapping(before=answer)
        )
        await engine.start_with_id(run_id, SPEC)
        snapshot = await client.snapshot(run_id)
        assert snapshot.status is RunStatus.COMPLETED
        if accepted:
            assert snapshot.output == "answered", f"accepted before call {at} and then dropped"
        if not accepted:
            with pytest.raises((RunTerminal, HookConflict)):
                await client.store.resume_hook(run_id, "h", "late")


def ask(ctx: WorkflowContext) -> Decision:
    if ctx.hook_received("h"):
        return ctx.complete(ctx.hook_payload("h"))
    return ctx.create_hook("h", "token")


async def test_an_answer_right_before_the_lease_is_given_back_is_seen_by_the_same_drive(
    engine_store: EngineStore,
) -> None:
    client = await engine_store.engine(None)
    answered = False

    async def answer(name: str, args: Any) -> None:
        nonlocal answered
        if name == "append" and appends_nothing(args) and not answered:
            answered = True
            await client.store.resume_hook("r", "h", "in time")

    engine = await engine_store.engine(Script(ask), wrap=wrapping(before=answer))
    await engine.start_with_id("r", SPEC)
    assert (await engine.drive("r")).output == "in time"
    assert answered


async def test_an_answer_right_after_the_lease_was_given_back_leaves_a_task_for_another_drive(
    engine_store: EngineStore,
) -> None:
    client = await engine_store.engine(None)

    async def answer(name: str, args: Any) -> None:
        if name == "append" and args[0].release is not None:
            await client.store.resume_hook("r", "h", "in time")

    engine = await engine_store.engine(Script(ask), wrap=wrapping(after=answer))
    await engine.start_with_id("r", SPEC)
    [task] = await client.store.claim_runs("default", 10, "probe", MINUTE)
    assert task.run_id == "r"
    await client.store.give_back(task)
    assert (await engine.drive("r")).output == "in time"


async def test_a_wake_up_without_an_event_keeps_the_drive_from_leaving(
    engine_store: EngineStore,
) -> None:
    woken = 0

    async def wake(name: str, args: Any) -> None:
        nonlocal woken
        if name == "append" and woken < 3:
            woken += 1
            await client.store.wake_run("r")

    client = await engine_store.engine(None)
    runtime = Script(ask)
    engine = await engine_store.engine(runtime, wrap=wrapping(before=wake))
    await engine.start_with_id("r", SPEC)
    assert woken == 3
    assert runtime.replays == 4
    # All wake-ups were seen, so no task is left.
    assert await client.store.claim_runs("default", 10, "probe", MINUTE) == []


async def test_answers_sent_at_any_moment_are_all_seen_in_the_order_of_their_commits(
    engine_store: EngineStore,
) -> None:
    """While steps run, between replays, and before the drive begins."""
    hooks = [f"h{number}" for number in range(30)]
    steps = [f"s{number}" for number in range(15)]

    def workflow(ctx: WorkflowContext) -> Decision:
        opened = tuple(
            ctx.create_hook(hook, f"token-{hook}") for hook in hooks if not ctx.hook_received(hook)
        )
        pending = [step for step in steps if not ctx.step_completed(step)]
        if pending:
            return (*opened, ctx.schedule_step(pending[0], "work", pending[0]))
        if opened:
            return opened
        return ctx.complete([e.data["payload"] for e in ctx.history if e.type == "hook_received"])

    sent: list[int] = []
    all_open = asyncio.Event()
    on_its_way = {step: asyncio.Event() for step in steps}

    async def work(step: StepInvocation) -> Any:
        all_open.set()
        await on_its_way[step.step_id].wait()  # so that some come while each of them runs
        return step.input

    async def send() -> None:
        await all_open.wait()
        for number, hook in enumerate(hooks):
            sent.append(number)
            if number % 2 == 0:
                on_its_way[steps[number // 2]].set()
            await client.store.resume_hook("r", hook, number)

    client = await engine_store.engine(None)
    engine = await engine_store.engine(Script(workflow, {"work": work}))
    sending = asyncio.ensure_future(send())
    await engine.start_with_id("r", SPEC)
    await sending
    assert (await engine.drive("r")).output == sent == list(range(30))


async def test_leaving_the_driving_to_workers_stores_the_run_and_its_task_only(
    engine_store: EngineStore,
) -> None:
    runtime = Script(in_order("a"), {"work": echo})
    engine = await engine_store.engine(runtime)
    await engine.start_with_id("r", SPEC, drive=False)
    assert (await engine.snapshot("r")).status is RunStatus.PENDING
    [lease] = await engine.store.claim_runs("default", 10, "worker", MINUTE)
    await engine.drive_claimed(lease)
    assert (await engine.snapshot(lease.run_id)).output == ["a"]
    assert await engine.store.claim_runs("default", 10, "worker", MINUTE) == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_each_forked_process_holds_leases_under_a_name_of_its_own() -> None:
    engine = FlowEngine(InMemoryEventStore())
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.write(writer, engine.owner.encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(writer)
    with os.fdopen(reader) as theirs:
        assert theirs.read() not in ("", engine.owner)
    assert engine.owner == engine.owner
