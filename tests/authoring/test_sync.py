"""Workflows that are plain functions: they wait durably, live, replayed and put aside."""

import asyncio
import contextvars
from datetime import timedelta
from typing import Any

import pytest

from flowpg import sync
from flowpg.authoring import context
from flowpg.authoring.app import FlowApp
from flowpg.authoring.errors import OutsideWorkflow
from flowpg.errors import InvalidArgument
from flowpg.model.retry import RetryPolicy
from flowpg.model.snapshot import RunStatus
from tests.authoring.support import START, Stage, answer, both, cancel, play, stage


def plain_steps(app: FlowApp) -> Any:
    """A plain step that returns its argument."""

    @app.step
    def work(x: Any) -> Any:
        return x

    return work


async def test_steps_are_called_plainly_and_each_runs_once() -> None:
    ran: list[int] = []

    def build(app: FlowApp) -> None:
        @app.step
        def add(x: int, y: int) -> int:
            ran.append(x)
            return x + y

        @app.step
        async def double(x: int) -> int:
            return 2 * x

        @app.workflow
        def main(start: int) -> int:
            total = start
            for number in range(3):
                total = add(number, total)
            return sync.wait(double(total))

    played = await both(build, 10)
    assert played.result == 26
    assert ran == [0, 1, 2] * 2
    assert played.types().count("step_completed add#2") == 1


async def test_outside_an_engine_it_is_the_plain_function() -> None:
    app = FlowApp("plain")
    work = plain_steps(app)

    @app.workflow
    def main(x: int) -> int:
        return work(x) + 1  # type: ignore[no-any-return]

    assert main(1) == 2


async def test_it_sleeps_waits_for_people_and_times_out() -> None:
    def build(app: FlowApp) -> None:
        work = plain_steps(app)

        @app.workflow
        def main() -> list[Any]:
            seen: list[Any] = [context.now() - START]
            sync.sleep(timedelta(hours=1))
            sync.sleep(60)
            sync.wait_until(START + timedelta(hours=2))
            seen.append(context.now() - START)
            with sync.hook("approval", dict, token="t") as approval:
                seen.append(work(approval.token))
                seen.append(approval.result())
            try:
                with sync.timeout(5) as limit:
                    sync.hook("never", token="u").result()
            except TimeoutError:
                seen.append(limit.expired())
            with sync.timeout(timedelta(seconds=5)):
                seen.append(work("in time"))
            return seen

    async def pass_three(on: Stage) -> None:
        for _ in range(3):
            await on.pass_time()

    played = await both(build, acts=(pass_three, answer("approval", {"ok": 1})))
    hours = timedelta(hours=2)
    assert played.result == [timedelta(0), hours, "t", {"ok": 1}, True, "in time"]
    assert "hook_disposed never" in played.types()
    assert [t.split()[0] for t in played.types()].count("wait_cancelled") == 1


async def test_functions_run_beside_each_other() -> None:
    def build(app: FlowApp) -> None:
        work = plain_steps(app)

        @app.workflow
        def main() -> list[Any]:
            def twice(name: str) -> list[str]:
                return [work(f"{name}1"), work(f"{name}2")]

            background = sync.spawn(twice, "c")
            found: list[Any] = sync.gather(lambda: twice("a"), lambda: twice("b"))
            return [*found, background.result()]

    for always_replay in (False, True):
        # Steps that run side by side in threads end in any order.
        played = await play(stage(build, always_replay=always_replay))
        assert played.result == [["a1", "a2"], ["b1", "b2"], ["c1", "c2"]]
        created = [e.data["input"]["x"] for e in played.history if e.type == "step_created"]
        assert sorted(created[:3]) == ["a1", "b1", "c1"]


async def test_a_spawned_function_is_waited_for_and_its_error_raised() -> None:
    def build(app: FlowApp) -> None:
        @app.step(retry=RetryPolicy.none())
        def broken() -> None:
            raise ValueError("no")

        @app.workflow
        def main() -> list[Any]:
            task = sync.spawn(broken)
            first = task.done()
            try:
                task.result()
            except ValueError as error:
                return [first, str(error), task.done()]
            return []

    assert (await both(build)).result == [False, "no", True]


async def test_an_error_fails_the_run_with_its_cause() -> None:
    def build(app: FlowApp) -> None:
        @app.workflow
        def main() -> None:
            sync.sleep(1)
            raise ValueError("broken")

    played = await both(build)
    assert played.snapshot.status is RunStatus.FAILED
    with pytest.raises(Exception, match="broken"):
        _ = played.result


@pytest.mark.parametrize(
    ("swallows", "status"), [(False, RunStatus.CANCELLED), (True, RunStatus.COMPLETED)]
)
async def test_a_request_to_cancel_is_raised_where_it_waits_and_cleanup_is_durable(
    swallows: bool, status: RunStatus
) -> None:
    def build(app: FlowApp) -> None:
        work = plain_steps(app)

        @app.workflow
        def main() -> str:
            try:
                sync.sleep(1000)
            except asyncio.CancelledError as error:
                work(str(error))
                if not swallows:
                    raise
            return "kept calm"

    played = await both(build, acts=(cancel("stop"),))
    assert played.snapshot.status is status
    outputs = [e.data["output"] for e in played.history if e.type == "step_completed"]
    assert outputs == ["stop"]


async def test_a_class_with_a_plain_run_keeps_its_state() -> None:
    def build(app: FlowApp) -> None:
        work = plain_steps(app)

        @app.workflow
        class main:  # noqa: N801
            def __init__(self) -> None:
                self.paid = 0

            def run(self, months: int) -> int:
                for _ in range(months):
                    self.pay()
                return self.paid

            def pay(self) -> None:
                self.paid += work(1)

    assert (await both(build, 3)).result == 3


async def test_helpers_are_the_same_and_calls_elsewhere_say_so() -> None:
    def build(app: FlowApp) -> None:
        work = plain_steps(app)

        @app.workflow
        def main() -> list[Any]:
            context.progress(1)
            context.set_attributes(kind="sync")
            return [str(context.uuid4()), context.patched("p"), context.info().run_id, work(1)]

    played = await both(build)
    assert played.result[1:] == [True, "run-1", 1]
    elsewhere: list[Any] = [
        lambda: sync.sleep(1),
        lambda: sync.hook("x"),
        lambda: sync.gather(),
        lambda: sync.timeout(1),
        lambda: sync.spawn(print),
        lambda: sync.wait(asyncio.Event().wait()),
        lambda: sync.wait_until(START),
    ]
    for call in elsewhere:
        with pytest.raises(OutsideWorkflow, match=r"sync\.\w+\(\) was called outside"):
            call()


async def test_a_function_and_what_it_spawns_have_contexts_as_tasks_do() -> None:
    variable = contextvars.ContextVar("variable", default="outside")

    def build(app: FlowApp) -> None:
        work = plain_steps(app)

        @app.workflow
        def main() -> list[str]:
            seen = [variable.get()]
            variable.set("main")
            work(1)
            seen.append(variable.get())

            def child() -> None:
                seen.append(variable.get())
                variable.set("child")
                sync.sleep(1)
                seen.append(variable.get())

            task = sync.spawn(child)
            task.result()
            return [*seen, variable.get()]

    assert (await both(build)).result == ["outside", "main", "main", "child", "main"]
    assert variable.get() == "outside"


async def test_a_generator_is_no_workflow() -> None:
    app = FlowApp("x")
    with pytest.raises(InvalidArgument, match="cannot be a generator"):

        @app.workflow
        def main() -> Any:
            yield 1
