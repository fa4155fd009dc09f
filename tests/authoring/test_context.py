"""What workflow code asks this package for: the same in every replay, refused anywhere else."""

import asyncio
import logging
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from uuid import UUID

import pytest

from flowpg.authoring import context
from flowpg.authoring.app import FlowApp
from flowpg.authoring.errors import OutsideWorkflow
from flowpg.errors import InvalidArgument
from flowpg.model.spec import WorkflowSpec
from tests.authoring.support import RUN_ID, START, both, play, stage


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("now()", context.now),
        ("time_ns()", context.time_ns),
        ("random()", context.random),
        ("uuid4()", context.uuid4),
        ("uuid7()", context.uuid7),
        ("info()", context.info),
        ("hook()", lambda: context.hook("x")),
        ("progress()", lambda: context.progress(1)),
        ("patched()", lambda: context.patched("p")),
        ("set_attributes()", lambda: context.set_attributes(a=1)),
    ],
)
def test_outside_a_workflow_each_says_so(name: str, call: Callable[[], Any]) -> None:
    with pytest.raises(OutsideWorkflow, match=r"was called outside a workflow; ") as caught:
        call()
    assert caught.value.call == name


async def test_waiting_for_a_time_outside_a_workflow_says_so() -> None:
    with pytest.raises(OutsideWorkflow, match=r"wait_until\(\)"):
        await context.wait_until(START)


async def test_in_a_step_it_is_outside_the_workflow() -> None:
    def build(app: FlowApp) -> None:
        @app.step
        async def work() -> str:
            try:
                context.now()
            except OutsideWorkflow as error:
                return error.call
            return "inside"

        @app.workflow
        async def main() -> str:
            return await work()

    assert (await both(build)).result == "now()"


async def test_ids_and_random_numbers_are_the_same_in_every_replay() -> None:
    def build(app: FlowApp) -> None:
        @app.step
        async def work(x: Any) -> Any:
            return x

        @app.workflow
        async def main() -> list[Any]:
            async def branch() -> Any:
                return await work([context.uuid4(), context.random().randrange(10**9)])

            seen: list[Any] = list(await asyncio.gather(branch(), branch()))
            seen += [await work(context.uuid7()), await work(context.random().sample("abc", 3))]
            await asyncio.sleep(60)
            return [*seen, context.uuid7(), context.time_ns()]

    played = await both(build)
    first, second, third, sample, fourth, nanos = played.result
    assert first != second
    assert isinstance(first[0], UUID)
    assert first[0].version == 4
    assert (third.version, third.variant) == (7, fourth.variant)
    assert third < fourth
    assert (fourth.int >> 80) - (third.int >> 80) == 60_000
    assert sorted(sample) == ["a", "b", "c"]
    assert nanos == int((START + timedelta(seconds=60)).timestamp()) * 10**9
    other = stage(build)
    other.run_id = "run-2"
    assert (await play(other)).result[0] != first


async def test_info_tells_about_the_run() -> None:
    def build(app: FlowApp) -> None:
        @app.workflow(name="shop.order", version="7")
        async def main() -> list[Any]:
            found = context.info()
            await asyncio.sleep(1)
            assert context.info().started_at == found.started_at
            return [
                found.run_id,
                found.workflow_name,
                found.version,
                found.started_at,
                found.cancellation_requested,
            ]

    played = await both(build)
    assert played.result == [RUN_ID, "shop.order", "7", START, False]
    assert played.workflow.spec == WorkflowSpec.python("shop.order", "7")


@pytest.mark.parametrize(
    ("zone", "fires"),
    [(UTC, START + timedelta(hours=1)), (timezone(timedelta(hours=9)), START + timedelta(hours=1))],
)
async def test_waiting_until_a_time_honours_its_zone(zone: Any, fires: datetime) -> None:
    def build(app: FlowApp) -> None:
        @app.workflow
        async def main() -> str:
            await context.wait_until(fires.astimezone(zone))
            return context.now().isoformat()

    played = await both(build)
    assert played.history[-1].recorded_at == fires
    assert played.result == fires.isoformat()


async def test_a_time_without_a_zone_is_refused() -> None:
    def build(app: FlowApp) -> None:
        @app.workflow
        async def main() -> str:
            try:
                await context.wait_until(datetime(2026, 1, 1))  # noqa: DTZ001  the point
            except InvalidArgument as error:
                return str(error)
            return ""

    assert "time zone" in (await both(build)).result


async def test_a_time_that_has_passed_is_no_wait() -> None:
    def build(app: FlowApp) -> None:
        @app.workflow
        async def main() -> str:
            await context.wait_until(START - timedelta(days=1))
            async with asyncio.timeout(1):
                await context.wait_until(START)
            return "done"

    played = await both(build)
    assert played.result == "done"
    assert played.history[-1].recorded_at == START


async def test_a_report_of_progress_is_recorded_once() -> None:
    def build(app: FlowApp) -> None:
        @app.workflow
        async def main() -> None:
            for number in range(3):
                context.progress(number, 3, f"part {number}", {"n": number})
                await asyncio.sleep(1)
            context.progress(3, 3)

    played = await both(build)
    reports = [report.completed for report in played.snapshot.progress]
    assert reports == [0, 1, 2, 3]
    assert played.types()[-2:] == ["run_progress_recorded progress#7", "run_completed"]


async def test_a_wrong_report_is_refused_where_it_is_made() -> None:
    def build(app: FlowApp) -> None:
        @app.workflow
        async def main() -> str:
            try:
                context.progress(5, 3)
            except Exception as error:  # noqa: BLE001  the test says which
                return str(error)
            return ""

    assert "more than total" in (await both(build)).result


async def test_a_report_of_what_is_no_number_says_what_is_wanted() -> None:
    def build(app: FlowApp) -> None:
        @app.workflow
        async def main() -> str:
            try:
                context.progress("packing")  # type: ignore[arg-type]
            except InvalidArgument as error:
                return str(error)
            return ""

    assert "completed is str" in (await both(build)).result


async def test_outside_a_workflow_the_logger_is_a_plain_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO, "flowpg.workflow"):
        context.logger.info("plain %d", 1)
    assert [record.getMessage() for record in caplog.records] == ["plain 1"]


async def test_a_task_that_fails_unseen_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    def build(app: FlowApp) -> None:
        @app.workflow
        async def main() -> None:
            async def fail() -> None:
                raise ValueError("unseen")

            task = asyncio.create_task(fail())
            await asyncio.sleep(1)
            assert task.done()
            await asyncio.sleep(1)

    await play(stage(build, always_replay=True))
    assert [record.getMessage() for record in caplog.records] == [
        "run 'run-1': task 1 failed, and nobody awaited it"
    ]
