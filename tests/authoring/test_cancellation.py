"""A request to cancel is asyncio's own cancellation, once, and cleanup code is durable too."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from flowpg.authoring.app import FlowApp
from flowpg.authoring.context import hook, info, wait_until
from flowpg.authoring.errors import WorkflowFailed
from flowpg.model.retry import RetryPolicy
from flowpg.model.snapshot import RunStatus
from tests.authoring.support import START, Played, Stage, answer, both, cancel, stage
from tests.durable import durable, forever


def steps(app: FlowApp) -> Any:
    """A step that takes its argument back to its caller."""

    @app.step
    async def work(x: Any) -> Any:
        return x

    return work


def status(played: Played) -> tuple[RunStatus, str | None]:
    """How a run ended."""
    return played.snapshot.status, played.snapshot.error


async def test_cancellation_is_raised_once_where_the_workflow_waits_with_its_reason() -> None:
    def build(app: FlowApp) -> None:
        work = steps(app)

        @app.workflow
        async def main() -> None:
            seen = []
            try:
                await forever()
            except asyncio.CancelledError as error:
                task = asyncio.current_task()
                assert task is not None
                seen = [str(error), task.cancelling(), info().cancellation_reason]
                await work(seen)
                await asyncio.sleep(5)
                raise
            finally:
                await work("cleaned")

    played = await both(build, acts=(cancel("no longer wanted"),))
    assert status(played) == (RunStatus.CANCELLED, "no longer wanted")
    outputs = [e.data["output"] for e in played.history if e.type == "step_completed"]
    assert outputs[0] == ["no longer wanted", 1, "no longer wanted"]
    assert outputs[1] == "cleaned"
    assert [e.type for e in played.history].count("wait_completed") == 1


async def test_a_workflow_without_cleanup_ends_cancelled_at_once() -> None:
    def build(app: FlowApp) -> None:
        @app.workflow
        async def main() -> None:
            await forever()

    played = await both(build, acts=(cancel(),))
    assert status(played) == (RunStatus.CANCELLED, None)
    with pytest.raises(WorkflowFailed, match="ended cancelled"):
        _ = played.result


async def test_a_workflow_that_swallows_its_cancellation_completes_with_its_result() -> None:
    def build(app: FlowApp) -> None:
        work = steps(app)

        @app.workflow
        async def main() -> str:
            try:
                await forever()
            except asyncio.CancelledError:
                return str(await work("kept calm"))
            return "slept"

    played = await both(build, acts=(cancel("stop"),))
    assert played.snapshot.status is RunStatus.COMPLETED
    assert played.result == "kept calm"
    assert played.snapshot.cancellation is not None
    assert played.snapshot.cancellation.reason == "stop"


async def test_an_error_in_the_cleanup_fails_the_run() -> None:
    def build(app: FlowApp) -> None:
        @app.workflow
        async def main() -> None:
            try:
                await forever()
            finally:
                raise ValueError("cannot clean up")

    played = await both(build, acts=(cancel(),))
    assert played.snapshot.status is RunStatus.FAILED
    with pytest.raises(WorkflowFailed) as caught:
        _ = played.result
    assert repr(caught.value.__cause__) == "ValueError('cannot clean up')"


async def test_cancelled_before_its_first_turn_the_body_never_runs() -> None:
    ran = []

    def build(app: FlowApp) -> None:
        @app.workflow
        async def main() -> None:
            ran.append("body")

    on = stage(build)
    await on.engine.start_with_id(on.run_id, on.workflow.spec, {}, drive=False)
    await on.engine.request_cancellation(on.run_id, "never mind")
    assert (await on.snapshot()).status is RunStatus.CANCELLED
    assert ran == []


async def test_an_error_that_is_raised_before_a_request_is_seen_wins() -> None:
    def build(app: FlowApp) -> None:
        @app.workflow
        async def main() -> None:
            async with hook("go", str, token="t") as go:
                await go
            raise ValueError("first")

    async def both_at_once(on: Stage) -> None:
        await on.engine.resume_hook(on.run_id, "go", "x", drive=False)
        await on.engine.request_cancellation(on.run_id, drive=False)
        await on.engine.drive(on.run_id)

    played = await both(build, acts=(both_at_once,))
    assert played.snapshot.status is RunStatus.FAILED


async def test_a_result_that_was_reached_before_the_request_was_seen_stands() -> None:
    def build(app: FlowApp) -> None:
        @app.workflow
        async def main() -> str:
            async with hook("go", str, token="t") as go:
                return await go

    async def both_at_once(on: Stage) -> None:
        await on.engine.resume_hook(on.run_id, "go", "x", drive=False)
        await on.engine.request_cancellation(on.run_id, "too late", drive=False)
        await on.engine.drive(on.run_id)

    played = await both(build, acts=(both_at_once,))
    assert played.result == "x"
    assert "run_cancellation_requested" in played.types()


@pytest.mark.parametrize("always_replay", [False, True])
async def test_a_request_is_not_swallowed_by_a_step_that_ends_at_the_same_moment(
    always_replay: bool,
) -> None:
    started, gate = asyncio.Event(), asyncio.Event()
    seen: list[str] = []

    def build(app: FlowApp) -> None:
        @app.step
        async def slow() -> str:
            started.set()
            await gate.wait()
            return "done"

        @app.workflow
        async def main() -> str:
            try:
                value = await asyncio.wait_for(slow(), 1000)
                await forever()
                return value
            except asyncio.CancelledError:
                seen.append("cancelled")
                raise

    on = stage(build, always_replay=always_replay)
    driving = asyncio.create_task(on.start())
    await started.wait()
    gate.set()
    await on.engine.request_cancellation(on.run_id, "now", drive=False)
    await driving
    played = await play_on(on)
    assert status(played) == (RunStatus.CANCELLED, "now")
    assert set(seen) == {"cancelled"}


async def play_on(on: Stage) -> Played:
    """Drive a run that was started already to its end."""
    while not (await on.engine.drive(on.run_id)).terminal:
        await on.pass_time()
    return Played(await on.history(), await on.snapshot(), on.workflow)


async def test_every_kind_of_wait_ends_with_the_request() -> None:
    def build(kind: str) -> Any:
        def declare(app: FlowApp) -> None:
            @app.step(retry=RetryPolicy.fixed(5, timedelta(hours=1)))
            async def failing() -> None:
                raise ValueError("again")

            @durable
            async def wait() -> Any:
                if kind == "sleep":
                    await asyncio.sleep(3600)
                elif kind == "until":
                    await wait_until(START + timedelta(hours=1))
                elif kind == "hook":
                    await hook("go", token="t")
                elif kind == "retry":
                    await failing()
                elif kind == "group":
                    async with asyncio.TaskGroup() as group:
                        group.create_task(asyncio.sleep(3600))
                        group.create_task(failing())
                elif kind == "gather":
                    await asyncio.gather(asyncio.sleep(3600), failing())
                elif kind == "shield":
                    await asyncio.shield(failing())
                elif kind == "wait_for":
                    await asyncio.wait_for(hook("go", token="t"), 3600)
                elif kind == "wait":
                    await asyncio.wait([asyncio.create_task(failing())], timeout=3600)

            @app.workflow
            async def main() -> None:
                await wait()

        return declare

    for kind in (
        "sleep",
        "until",
        "hook",
        "retry",
        "group",
        "gather",
        "shield",
        "wait_for",
        "wait",
    ):
        played = await both(build(kind), acts=(cancel(kind),))
        assert status(played) == (RunStatus.CANCELLED, kind), kind


async def test_each_task_of_a_group_is_cancelled_once_and_may_clean_up() -> None:
    def build(app: FlowApp) -> None:
        work = steps(app)

        @app.workflow
        async def main() -> None:
            async def one(name: str) -> None:
                try:
                    await forever()
                except asyncio.CancelledError:
                    await work(f"{name} first")
                    await work(f"{name} second")
                    raise

            async with asyncio.TaskGroup() as group:
                group.create_task(one("a"))
                group.create_task(one("b"))

    played = await both(build, acts=(cancel(),))
    outputs = [e.data["output"] for e in played.history if e.type == "step_completed"]
    assert sorted(outputs) == ["a first", "a second", "b first", "b second"]
    assert played.snapshot.status is RunStatus.CANCELLED


async def test_background_tasks_are_told_too() -> None:
    def build(app: FlowApp) -> None:
        work = steps(app)

        @app.workflow
        async def main() -> None:
            async def background(wait: Any) -> None:
                try:
                    await wait
                except asyncio.CancelledError:
                    await work("background cleaned")
                    raise

            kept = [
                asyncio.create_task(background(asyncio.sleep(1000))),
                asyncio.create_task(background(asyncio.shield(hook("other", token="o")))),
            ]
            try:
                await hook("go", token="t")
            except asyncio.CancelledError:
                await asyncio.gather(*kept, return_exceptions=True)
                raise

    played = await both(build, acts=(cancel(),))
    outputs = [e.data["output"] for e in played.history if e.type == "step_completed"]
    assert outputs == ["background cleaned"] * 2
    assert played.snapshot.status is RunStatus.CANCELLED


async def test_a_timeout_of_the_workflows_own_is_no_cancellation_of_the_run() -> None:
    def build(app: FlowApp) -> None:
        @app.workflow
        async def main() -> Any:
            try:
                async with asyncio.timeout(5):
                    await forever()
            except TimeoutError:
                return info().cancellation_requested

    played = await both(build)
    assert played.result is False


async def test_a_workflow_that_cancels_itself_fails() -> None:
    def build(app: FlowApp) -> None:
        @app.workflow
        async def main() -> None:
            raise asyncio.CancelledError

    played = await both(build)
    assert played.snapshot.status is RunStatus.FAILED
    assert played.snapshot.error is not None
    assert played.snapshot.error.startswith("CancelledError")


async def test_cleanup_may_wait_for_people() -> None:
    def build(app: FlowApp) -> None:
        @app.workflow
        async def main() -> str:
            try:
                return await hook("go", str, token="t")
            finally:
                await hook("confirm", str, token="t")

    played = await both(build, acts=(cancel("why"), answer("confirm", "yes")))
    assert status(played) == (RunStatus.CANCELLED, "why")
