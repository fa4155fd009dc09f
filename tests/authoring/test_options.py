"""Options of one call: of a step, and of the runs that a workflow starts."""

import asyncio
from datetime import timedelta
from typing import Any, cast

import pytest

from flowpg.authoring.app import FlowApp
from flowpg.errors import InvalidArgument, InvalidRunId, InvalidTransition, InvalidWorkflow
from flowpg.model.retry import RetryPolicy
from flowpg.model.snapshot import RunStatus
from tests.authoring.support import both, play, stage
from tests.authoring.test_cancellation import steps


async def test_a_call_may_have_a_retry_policy_and_an_id_of_its_own() -> None:
    def build(app: FlowApp) -> None:
        work = steps(app)

        @app.workflow
        async def main() -> list[Any]:
            often = work.options(retry=RetryPolicy.fixed(9, timedelta(seconds=1)), id="pay order 7")
            return list(await asyncio.gather(work(1), often(2), work.options(id="other")(3)))

    played = await both(build)
    assert played.result == [1, 2, 3]
    created = [e.data for e in played.history if e.type == "step_created"]
    assert [one["step_id"] for one in created] == ["work#1", "pay order 7", "other"]
    assert [one["step_name"] for one in created] == ["work"] * 3
    assert [one["retry"]["max_attempts"] for one in created] == [3, 9, 3]


async def test_an_id_is_used_once_a_run() -> None:
    def build(app: FlowApp) -> None:
        work = steps(app)

        @app.workflow
        async def main() -> str:
            await work.options(id="mine")(1)
            try:
                await work.options(id="mine")(2)
            except InvalidArgument as error:
                return str(error)
            return ""

    assert "under id 'mine' before" in (await both(build)).result


def test_wrong_options_are_refused_where_they_are_given() -> None:
    app = FlowApp("x")
    work = steps(app)
    with pytest.raises(InvalidArgument, match="must not contain '#'"):
        work.options(id="work#1")
    with pytest.raises(InvalidArgument):
        work.options(id="  ")
    with pytest.raises(InvalidTransition, match="negative"):
        work.options(retry=RetryPolicy(max_attempts=-1))
    with pytest.raises(InvalidArgument):
        work.options(queue="")
    with pytest.raises(InvalidArgument, match="queue"):
        app.step(queue=" ")(lambda: None)

    @app.workflow
    async def main() -> None: ...

    with pytest.raises(InvalidRunId):
        main.options(run_id="?")
    with pytest.raises(InvalidWorkflow):
        main.options(build=" ")


async def test_a_step_of_another_queue_runs_at_once_where_the_store_has_no_tasks() -> None:
    def build(app: FlowApp) -> None:
        work = steps(app)

        @app.workflow
        async def main() -> Any:
            return await work.options(queue="gpu")(1)

    on = stage(build)
    await on.start()
    snapshot = await on.engine.snapshot(on.run_id)
    assert snapshot.status is RunStatus.COMPLETED
    [step] = snapshot.steps.values()
    assert step.queue == step.wire()["queue"] == "gpu"


async def test_a_step_may_name_its_queue_and_a_call_another_or_that_of_the_run() -> None:
    def build(app: FlowApp) -> None:
        @app.step(queue="gpu")
        async def work(x: int) -> int:
            return x

        @app.step(queue="gpu", name="plain")
        def plain(x: int) -> int:
            return x

        @app.workflow
        async def main() -> list[int]:
            calls = (
                *(work(1), work.options(id="cpu", queue="cpu")(2)),
                *(work.options(id="here", queue=None)(3), work.options(id="same")(4)),
                *(plain.run(5), plain.options(id="plainly here", queue=None).run(6)),
            )
            return list(await asyncio.gather(*calls))

    played = await both(build)
    assert played.result == [1, 2, 3, 4, 5, 6]
    queues = {e.data["step_id"]: e.data.get("queue") for e in played.history if "retry" in e.data}
    assert queues == {
        "work#1": "gpu",
        "cpu": "cpu",
        "here": None,
        "same": "gpu",
        "plain#5": "gpu",
        "plainly here": None,
    }


async def test_a_workflow_starts_runs_with_the_options_it_was_given() -> None:
    def build(app: FlowApp) -> None:
        work = steps(app)

        @app.workflow
        async def main(x: int) -> Any:
            return await work(x)

    on = stage(build)
    special = on.workflow.options(queue="bulk", run_id="order-7")
    assert await special.start(on.engine, 5) == "order-7"
    row = await on.engine.run_info("order-7")
    assert row.queue == "bulk"
    assert special.request(5).run_id == "order-7"
    pinned = on.workflow.options(build="b1")
    assert pinned.spec.runtime_build == pinned.request(1).spec.runtime_build == "b1"
    assert on.workflow.spec.runtime_build is None
    assert (await play(on, 6)).result == 6


def test_options_of_a_wrong_kind_say_what_they_take() -> None:
    app = FlowApp("x")
    work, wrong = steps(app), cast("Any", 3)
    for given in (wrong, cast("Any", 0)):
        with pytest.raises(InvalidArgument, match=r"step 'work': retry= takes a Retry.*no int"):
            work.options(retry=given)
    with pytest.raises(InvalidArgument, match=r"step 'work': timeouts= takes StepTimeouts.*no int"):
        work.options(timeouts=wrong)
    with pytest.raises(InvalidArgument, match=r"step '<lambda>': retry= takes a Retry"):
        app.step(retry=wrong)(lambda: None)


async def played(build: Any) -> None:
    await play(stage(build))


def test_a_call_that_nobody_awaits_is_named_by_python() -> None:
    def build(app: FlowApp) -> None:
        work = steps(app)

        @app.workflow
        async def main() -> None:
            work("one")

    with pytest.warns(RuntimeWarning, match="coroutine 'work' was never awaited"):
        asyncio.run(played(build))


async def test_a_call_that_does_not_fit_names_the_step() -> None:
    def build(app: FlowApp) -> None:
        work: Any = steps(app)

        @app.workflow
        async def main() -> str:
            try:
                await work("one", "two", "three", "four")
            except TypeError as error:
                return str(error)
            return "it fits"

    assert (await both(build)).result == "step 'work': too many positional arguments"
