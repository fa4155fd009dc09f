"""Steps and their retries, as the workflow and a watch see them."""

import asyncio
import itertools
from datetime import timedelta
from typing import Any

import pytest

from flowpg import FlowApp, Retry, RetryLater, RunStatus, StepTimeouts
from flowpg.authoring.errors import WorkflowFailed
from flowpg.authoring.step_context import step_context
from flowpg.testing import TestedRun, WorkflowEnvironment
from tests.behaviours.support import SECOND, Seen, both, everywhere
from tests.waiting import turns

Times = list[tuple[int, timedelta]]


class Ledger:
    """When, in the time of the environment, which attempt of a step ran."""

    def __init__(self) -> None:
        self.env: WorkflowEnvironment | None = None
        self.times: Times = []

    async def watch(self, env: WorkflowEnvironment, run: TestedRun[Any]) -> None:
        """A scenario: begin a new page."""
        self.env, self.times, began = env, [], env.now
        self._began = began

    def note(self) -> int:
        """An attempt begins; returns its number."""
        attempt = step_context().attempt
        if self.env is not None:
            self.times.append((attempt, self.env.now - self._began))
        return attempt


def failing(retry: Retry, ledger: Ledger, until: int = 10**9) -> FlowApp:
    """An app whose step fails until its attempt ``until``."""
    app = FlowApp("failing")

    @app.step(retry=retry)
    async def work() -> int:
        attempt = ledger.note()
        if attempt < until:
            raise ConnectionError(f"attempt {attempt} failed")
        return attempt

    @app.workflow
    async def main() -> int:
        await asyncio.sleep(1)
        return await work()

    return app


async def played(app: FlowApp, ledger: Ledger) -> tuple[Seen, list[float]]:
    """The run, and the seconds between the attempts of its step; twice the same."""
    seen = await both(app, scenario=ledger.watch)
    at = [moment for _, moment in ledger.times]
    assert [attempt for attempt, _ in ledger.times] == list(range(1, len(at) + 1))
    return seen, [(later - earlier) / SECOND for earlier, later in itertools.pairwise(at)]


async def test_pauses_between_attempts_are_those_of_the_policy_and_the_same_in_every_replay() -> (
    None
):
    ledger = Ledger()
    seen, gaps = await played(failing(Retry.fixed(5, 7 * SECOND), ledger, until=5), ledger)
    assert gaps == [7, 7, 7, 7]
    assert seen.result == 5

    growing = Retry.exponential(6, initial=2 * SECOND, maximum=10 * SECOND)
    _, gaps = await played(failing(growing, ledger, until=6), ledger)
    # Each pause is drawn at random, and for good, from below a cap that doubles.
    for gap, cap in zip(gaps, [2, 4, 8, 10, 10], strict=True):
        assert 0 < gap <= cap, gaps
    assert len(set(gaps)) == len(gaps)


async def test_after_the_last_attempt_its_error_surfaces_at_once() -> None:
    ledger = Ledger()
    seen, gaps = await played(failing(Retry.fixed(3, 60 * SECOND), ledger), ledger)
    assert gaps == [60, 60]
    assert seen.snapshot.status is RunStatus.FAILED
    assert seen.took == 1 * SECOND + 120 * SECOND
    with pytest.raises(WorkflowFailed) as caught:
        _ = seen.result
    assert repr(caught.value.__cause__) == "ConnectionError('attempt 3 failed')"
    [step] = seen.snapshot.steps.values()
    assert step.attempt == 3


async def test_an_error_that_no_retry_cures_is_caught_with_its_causes_after_one_attempt() -> None:
    app = FlowApp("fatal")

    @app.step(retry=Retry.fixed(5), fatal=(LookupError,))
    async def find(what: str) -> None:
        try:
            raise OSError("disk")
        except OSError as error:
            raise KeyError(what) from error

    @app.workflow
    async def main() -> list[str]:
        try:
            await find("a")
        except KeyError as error:
            return [type(error).__name__, repr(error.args), repr(error.__cause__)]
        return []

    seen = await everywhere(app)
    assert seen.result == ["KeyError", "('a',)", "OSError('disk')"]
    assert len(seen.calls["find"]) == 1


async def test_a_step_that_says_when_is_tried_then_and_not_by_its_policy() -> None:
    app, ledger = FlowApp("later"), Ledger()

    @app.step(retry=Retry.fixed(3, 5 * SECOND))
    async def work() -> str:
        if ledger.note() == 1:
            raise RetryLater("busy", timedelta(minutes=30))
        return "done"

    @app.workflow
    async def main() -> str:
        return await work()

    seen, gaps = await played(app, ledger)
    assert (seen.result, gaps) == ("done", [1800])


async def test_equal_calls_in_a_gather_keep_their_own_results_however_long_each_takes() -> None:
    app = FlowApp("map")

    @app.step
    async def square(n: int) -> list[int]:
        await turns(n * 7 % 5)  # ends in another order than it began
        return [n, n * n]

    @app.workflow
    async def main() -> list[list[int]]:
        numbers = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3]
        found = await asyncio.gather(*(square(n) for n in numbers))
        for n in numbers[:3]:
            found.append(await square(n))
        return found

    seen = await everywhere(app)
    assert [n for n, _ in seen.result] == [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 3, 1, 4]
    assert all(n * n == squared for n, squared in seen.result)
    steps = [e.subject for e in seen.history if e.type == "step_completed"]
    assert len(steps) == len(set(steps)) == 13


async def test_what_a_workflow_does_to_a_result_alters_no_replay() -> None:
    app = FlowApp("mutate")

    @app.step
    async def fetch() -> dict[str, list[int]]:
        return {"items": [1, 2]}

    @app.workflow
    async def main() -> list[int]:
        first = await fetch()
        first["items"].append(3)
        await asyncio.sleep(5)
        first["items"].append(4)
        second = await fetch()
        return first["items"] + second["items"]

    seen = await everywhere(app)
    assert seen.result == [1, 2, 3, 4, 1, 2]
    outputs = [e.data["output"] for e in seen.history if e.type == "step_completed"]
    assert outputs == [{"items": [1, 2]}, {"items": [1, 2]}]


async def test_real_work_under_a_clock_that_jumps_times_nothing_out() -> None:
    app = FlowApp("real")

    @app.step(timeouts=StepTimeouts(heartbeat=timedelta(hours=1), start_to_close=timedelta(days=1)))
    async def work() -> int:
        for _ in range(20):
            await asyncio.to_thread(list, range(10_000))  # real work, and the loop is idle
        return step_context().attempt

    @app.workflow
    async def main() -> int:
        timer = asyncio.create_task(asyncio.sleep(30 * 24 * 3600))
        attempt = await work()
        await timer
        return attempt

    seen = await both(app)
    assert seen.result == 1
    assert seen.took == timedelta(days=30)
    assert "step_failed" not in seen.types
    assert "step_retry_scheduled" not in seen.types
