"""Mocks under what production adds to a step: codecs, timeouts, hooks of the same name."""

from datetime import timedelta

import pytest

from flowpg import (
    Compression,
    Encryption,
    FlowApp,
    InvalidArgument,
    Retry,
    StepTimeouts,
    WorkflowFailed,
    dump_history,
    hook,
)
from flowpg.testing import WorkflowEnvironment

HOUR = timedelta(hours=1)


@pytest.mark.parametrize("mocked", [False, True])
async def test_an_app_with_codecs_is_tested_like_any_other(mocked: bool) -> None:
    app = FlowApp("sealed", codecs=[Compression(8), Encryption({"one": b"k" * 32})])

    @app.step
    async def double(word: str) -> str:
        return word * 2

    @app.workflow
    async def talk(word: str) -> str:
        return await double(word) + await hook("more", str)

    async with WorkflowEnvironment(app) as env:
        if mocked:
            env.mock(double, returns="canary-canary-")
        run = await env.start(talk, "canary-")
        await run.answer("more", "end")
        assert await run.result() == "canary-canary-end"
        [call] = env.calls(double)
        assert (call.arguments, call.result) == (("canary-",), "canary-canary-")
        assert "canary" not in dump_history(await run.history())


async def test_the_error_of_a_mock_is_sealed_as_a_steps_own_is() -> None:
    app = FlowApp("sealed", codecs=[Encryption({"one": b"k" * 32})])

    @app.step(retry=Retry.none())
    async def act() -> None: ...

    @app.workflow
    async def once() -> None:
        await act()

    async with WorkflowEnvironment(app) as env:
        env.mock(act, raises=ValueError("canary"))
        run = await env.start(once)
        with pytest.raises(WorkflowFailed) as caught:
            await run.result()
        assert isinstance(caught.value.__cause__, ValueError)
        assert "canary" not in dump_history(await run.history())


@pytest.mark.parametrize(
    ("timeouts", "takes", "result", "hours"),
    [
        (StepTimeouts(start_to_close=HOUR), 1, "in time", 1),
        (StepTimeouts(start_to_close=HOUR), 2, "StartToCloseTimeout", 1),
        (StepTimeouts(heartbeat=HOUR), 2, "HeartbeatTimeout", 1),
        (StepTimeouts(schedule_to_close=HOUR), 2, "ScheduleToCloseTimeout", 1),
        (StepTimeouts(start_to_close=3 * HOUR, schedule_to_close=2 * HOUR), 4, "Schedule", 2),
    ],
)
async def test_the_timeouts_of_a_step_pass_by_the_clock_that_jumps(
    timeouts: StepTimeouts, takes: int, result: str, hours: int
) -> None:
    app = FlowApp("slow")

    @app.step(retry=Retry.none(), timeouts=timeouts)
    async def work() -> str:
        return "its own"

    @app.workflow
    async def impatient() -> str:
        try:
            return await work()
        except TimeoutError as error:
            return type(error).__name__

    async with WorkflowEnvironment(app) as env:
        env.mock(work, returns="in time", takes=takes * HOUR)
        run, start = await env.start(impatient), env.now
        assert (await run.result()).startswith(result)
        assert abs(env.now - start - hours * HOUR) < timedelta(seconds=9)  # some of it is real


async def test_each_attempt_of_a_mock_has_the_time_of_its_own() -> None:
    app = FlowApp("slow")

    @app.step(retry=Retry.fixed(3, HOUR), timeouts=StepTimeouts(start_to_close=HOUR))
    async def work() -> str:
        return "done"

    @app.workflow
    async def patient() -> str:
        return await work()

    async with WorkflowEnvironment(app) as env:
        env.mock(work, takes=2 * HOUR)
        run, start = await env.start(patient), env.now
        await env.advance(HOUR * 3 / 2)
        env.unmock(work)
        assert await run.result() == "done"
        assert (len(env.calls(work)), env.now - start) == (1, 2 * HOUR)


async def test_a_hook_whose_name_was_used_before_is_answered_by_its_name() -> None:
    app = FlowApp("asks")

    @app.workflow
    async def twice() -> str:
        return await hook("word", str) + await hook("word", str)

    async with WorkflowEnvironment(app) as env:
        run = await env.start(twice)
        await run.answer("word", "a")
        assert await run.hooks() != ["word"]
        await run.answer("word", "b")
        assert await run.result() == "ab"


async def test_a_mistyped_step_is_refused_where_it_is_mocked_or_counted() -> None:
    app = FlowApp("typo")

    @app.step
    async def charge(cents: int) -> str:
        return f"charged {cents}"

    @FlowApp("another").step
    async def ship() -> None: ...

    async with WorkflowEnvironment(app) as env:
        with pytest.raises(InvalidArgument, match=r"no step 'chrage'.* has 'charge'"):
            env.mock("chrage", returns="")
        with pytest.raises(InvalidArgument, match="no step 'ship'"):
            env.mock(ship, returns=None)
        with pytest.raises(InvalidArgument, match="no step 'chrage'"):
            env.calls("chrage")
        assert env.calls("charge") == []
