"""Heartbeats of steps: what one attempt said is known to the next, in whichever process."""

import asyncio
import threading
from datetime import timedelta
from typing import Any

from flowpg.model.commands import Decision, StepCommand
from flowpg.model.retry import RetryPolicy
from flowpg.model.snapshot import RunStatus
from flowpg.model.timeouts import StepTimeouts
from flowpg.replay.context import WorkflowContext
from flowpg.replay.runtime import MAX_DETAILS_BYTES, AttemptOver, StepInvocation, WorkflowInvocation
from tests.engine.support import MINUTE, SPEC, EngineStore, Script, one_step
from tests.waiting import turns, until_async


async def stored(engine: Any) -> str | None:
    """What the store holds of the step."""
    found: str | None = await engine.store.step_heartbeat("r", "s")
    return found


async def test_the_next_attempt_knows_what_the_last_one_said(engine_store: EngineStore) -> None:
    told: list[Any] = []

    def work(step: StepInvocation) -> Any:
        told.append(step.heartbeat_details)
        step.heartbeat({"done": step.attempt})
        if step.attempt < 3:
            raise ValueError("no")
        return told

    engine = await engine_store.engine(Script(one_step(), {"work": work}))
    await engine.start_with_id("r", SPEC, None)
    assert (await engine.snapshot("r")).output == [None, {"done": 1}, {"done": 2}]


async def test_an_attempt_of_another_process_knows_it_too(engine_store: EngineStore) -> None:
    def fails(step: StepInvocation) -> None:
        step.heartbeat([7, "\u0000 kept"])
        raise ValueError("no")

    workflow = one_step(retry=RetryPolicy.fixed(2, MINUTE))
    first = await engine_store.engine(Script(workflow, {"work": fails}))
    await first.start_with_id("r", SPEC, None)
    await until_async(lambda: stored(first), "the details are stored")
    engine_store.advance(MINUTE)
    second = await engine_store.engine(Script(workflow, {"work": lambda s: s.heartbeat_details}))
    await second.drive("r")
    assert (await second.snapshot("r")).output == [7, "\u0000 kept"]
    assert await stored(second) is None


async def test_an_attempt_that_is_begun_again_after_a_crash_knows_what_it_said(
    engine_store: EngineStore,
) -> None:
    said = asyncio.Event()

    async def work(step: StepInvocation) -> Any:
        if step.heartbeat_details is None:
            await step.heartbeat(7)
            said.set()
            await asyncio.get_running_loop().create_future()
        return [step.attempt, step.heartbeat_details]

    script = Script(one_step(), {"work": work})
    dead, alive = await engine_store.engine(script), await engine_store.engine(script)
    driving = asyncio.ensure_future(dead.start_with_id("r", SPEC, None))
    await said.wait()
    assert await stored(alive) == "7"
    engine_store.leases_run_out()
    found = await alive.drive("r")
    assert found.output == [1, 7]
    driving.cancel()
    await asyncio.wait([driving])


async def test_an_outcome_takes_the_details_with_it(engine_store: EngineStore) -> None:
    goes_on = asyncio.Event()

    async def work(step: StepInvocation) -> None:
        if step.step_id == "s":
            await step.heartbeat(1)
        else:
            await goes_on.wait()

    def workflow(ctx: WorkflowContext) -> Decision:
        if ctx.step_completed("t"):
            return ctx.complete(None)
        return ctx.schedule_steps([ctx.step(name, "work") for name in ("s", "t")])

    engine = await engine_store.engine(Script(workflow, {"work": work}))
    driving = asyncio.ensure_future(engine.start_with_id("r", SPEC, None))

    async def gone() -> bool:
        if "r" not in await engine.store.list_run_ids():
            return False
        step = (await engine.snapshot("r")).steps.get("s")
        return step is not None and not step.status.open and await stored(engine) is None

    await until_async(gone, "the row goes with the outcome")
    goes_on.set()
    await driving


async def test_the_end_of_a_run_takes_all_details_with_it(engine_store: EngineStore) -> None:
    said = asyncio.Event()

    async def work(step: StepInvocation) -> None:
        await step.heartbeat(1)
        said.set()
        await asyncio.get_running_loop().create_future()

    engine = await engine_store.engine(Script(one_step(), {"work": work}))
    driving = asyncio.ensure_future(engine.start_with_id("r", SPEC, None))
    await said.wait()
    assert await stored(engine) == "1"
    await engine.force_cancel("r")
    assert await stored(engine) is None
    await asyncio.wait([driving])


async def test_heartbeats_in_time_keep_an_attempt_alive(engine_store: EngineStore) -> None:
    beating, expired = asyncio.Event(), asyncio.Event()

    async def work(step: StepInvocation) -> str:
        if step.step_id == "silent":
            await beating.wait()
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                expired.set()

        async def beats() -> bool:
            step.heartbeat()
            beating.set()
            return expired.is_set()

        # For longer than the limit: the other began after this one.
        await until_async(beats, "the silent attempt expires")
        return "done"

    def workflow(ctx: WorkflowContext) -> Decision:
        steps = [StepCommand(step_id=s, step_name="work", **options) for s in ("beats", "silent")]
        done = ctx.step_completed("beats") and ctx.step_failed("silent")
        return ctx.complete(ctx.step_output("beats")) if done else ctx.schedule_steps(steps)

    limits = StepTimeouts(heartbeat=timedelta(seconds=0.2))
    retry = RetryPolicy.none().continue_workflow_on_failure()
    options: dict[str, Any] = {"timeouts": limits, "retry": retry}
    engine = await engine_store.engine(Script(workflow, {"work": work}))
    await engine.start_with_id("r", SPEC, None)
    run = await engine.snapshot("r")
    assert (run.output, run.steps["beats"].attempt) == ("done", 1)
    assert "HeartbeatTimeout" in str(run.steps["silent"].error)


async def test_a_thread_gives_heartbeats_and_is_ended_by_the_first_that_nobody_hears(
    engine_store: EngineStore,
) -> None:
    ended = threading.Event()

    class Threads:
        def run_workflow(self, invocation: WorkflowInvocation) -> Decision:
            limits = StepTimeouts(start_to_close=timedelta(seconds=0.3))
            return one_step(retry=RetryPolicy.fixed(2), timeouts=limits)(invocation.context())

        def run_step(self, step: StepInvocation) -> Any:
            if step.attempt == 2:
                return step.heartbeat_details
            step.heartbeat("here").wait(30)
            try:
                while True:
                    step.heartbeat()
            except AttemptOver:
                ended.set()
                raise

    engine = await engine_store.engine(Threads())
    await engine.start_with_id("r", SPEC, None)
    assert (await engine.snapshot("r")).output == "here"
    assert await asyncio.to_thread(ended.wait, 30)


async def test_details_that_cannot_be_stored_fail_the_step_at_once(
    engine_store: EngineStore,
) -> None:
    def work(step: StepInvocation) -> None:
        step.heartbeat(object() if step.input else "x" * MAX_DETAILS_BYTES)

    for number in range(2):
        workflow = one_step(input=bool(number), retry=RetryPolicy.fixed(3))
        engine = await engine_store.engine(Script(workflow, {"work": work}))
        await engine.start_with_id(f"r{number}", SPEC, None)
        run = await engine.snapshot(f"r{number}")
        assert run.status is RunStatus.FAILED
        assert ("SerializationError", "PayloadTooLarge")[not number] in str(run.error)
        assert run.steps["s"].attempt == 1


async def test_many_heartbeats_are_few_calls(engine_store: EngineStore) -> None:
    async def work(step: StepInvocation) -> None:
        for number in range(10_000):
            step.heartbeat(number)
            if number % 1000 == 0:
                await called.wait()
                await turns(1)  # the next call may be made between two heartbeats
        await step.heartbeat("the last")
        assert await stored(engine) == '"the last"'

    calls: list[int] = []
    called = asyncio.Event()
    engine = await engine_store.engine(Script(one_step(), {"work": work}))
    record = engine.store.record_heartbeats

    async def counted(beats: Any) -> list[str]:
        calls.append(len(beats))
        called.set()
        return await record(beats)

    engine.store.record_heartbeats = counted  # type: ignore[method-assign]
    await engine.start_with_id("r", SPEC, None)
    assert (await engine.snapshot("r")).status is RunStatus.COMPLETED
    assert len(calls) <= 6
