"""Timeouts of steps as a workflow sees them: errors to catch, by name."""

import asyncio
import threading
from datetime import timedelta
from typing import Any

import pytest

from flowpg.authoring.app import FlowApp
from flowpg.authoring.failures import failure_origin
from flowpg.authoring.step_context import step_context
from flowpg.errors import (
    HeartbeatTimeout,
    ScheduleToCloseTimeout,
    ScheduleToStartTimeout,
    StartToCloseTimeout,
    StepTimeout,
)
from flowpg.model.retry import RetryPolicy
from flowpg.model.timeouts import StepTimeouts
from tests.authoring.support import both, play, stage

SOON = timedelta(milliseconds=40)
TWICE = RetryPolicy.fixed(2)


def sleeping(catch: type[Exception], **options: Any) -> Any:
    """A workflow whose step never ends, and that catches ``catch``."""

    def build(app: FlowApp) -> None:
        @app.step(**options)  # type: ignore[untyped-decorator]
        async def work() -> None:
            await asyncio.get_running_loop().create_future()

        @app.workflow
        async def main() -> list[Any]:
            try:
                await work()
            except catch as error:
                origin = failure_origin(error)
                assert origin is not None
                return [type(error).__name__, origin.step_id, origin.attempt]
            return []

    return build


@pytest.mark.parametrize(
    ("limits", "error", "attempts"),
    [
        (StepTimeouts(start_to_close=SOON), StartToCloseTimeout, 2),
        (StepTimeouts(heartbeat=SOON), HeartbeatTimeout, 2),
        (StepTimeouts(schedule_to_close=SOON), ScheduleToCloseTimeout, 1),
    ],
)
async def test_each_timeout_is_an_error_of_its_own(
    limits: StepTimeouts, error: type[StepTimeout], attempts: int
) -> None:
    played = await play(stage(sleeping(error, retry=TWICE, timeouts=limits)))
    assert played.result == [error.__name__, "work#1", attempts]


async def test_a_timeout_is_a_timeout_error_like_any_other() -> None:
    limits = StepTimeouts(start_to_close=SOON)
    played = await play(stage(sleeping(TimeoutError, retry=RetryPolicy.none(), timeouts=limits)))
    assert played.result[0] == "StartToCloseTimeout"


async def test_a_timeout_that_is_fatal_is_not_tried_again() -> None:
    played = await play(
        stage(
            sleeping(
                StartToCloseTimeout,
                retry=TWICE,
                fatal=(TimeoutError,),
                timeouts=StepTimeouts(start_to_close=SOON),
            )
        )
    )
    assert played.result[2] == 1


async def test_a_plain_function_is_told_and_keeps_its_thread_until_it_returns() -> None:
    told = threading.Event()

    def build(app: FlowApp) -> None:
        app._step_threads = 1

        @app.step(retry=RetryPolicy.none(), timeouts=StepTimeouts(start_to_close=SOON))
        def stubborn() -> str:
            context = step_context()
            while not context.cancelled:
                pass
            told.wait(30)
            return "too late"

        @app.step(retry=TWICE, timeouts=StepTimeouts(schedule_to_start=SOON))
        def queued() -> str:
            return "ran"

        @app.workflow
        async def main() -> list[str]:
            caught: list[str] = []
            for step in (stubborn, queued):
                try:
                    await step.run()
                except StepTimeout as error:
                    caught.append(type(error).__name__)
            return caught

    played = await play(stage(build))
    told.set()
    assert played.result == [StartToCloseTimeout.__name__, ScheduleToStartTimeout.__name__]


async def test_options_of_one_call_replace_the_timeouts_of_a_step() -> None:
    def build(app: FlowApp) -> None:
        @app.step(timeouts=StepTimeouts(start_to_close=timedelta(seconds=9)))
        async def work() -> None: ...

        @app.workflow
        async def main() -> None:
            await work()
            await work.options(timeouts=StepTimeouts(heartbeat=timedelta(seconds=8)))()

    played = await both(build)
    recorded = [e.data.get("timeouts") for e in played.history if e.type == "step_created"]
    assert recorded == [{"start_to_close_ms": 9000}, {"heartbeat_ms": 8000}]
