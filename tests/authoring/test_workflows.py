"""Declaring workflows, starting them, and reading what became of them."""

import asyncio
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest

from flowpg import FlowApp, WorkflowFailed, hook
from flowpg.engine.flow_engine import FlowEngine
from flowpg.errors import InvalidArgument, SerializationError, UnknownWorkflow
from flowpg.model.snapshot import RunStatus
from flowpg.model.spec import WorkflowSpec
from tests.authoring.shapes import Line
from tests.authoring.support import both, stage


async def test_a_class_keeps_its_state_in_itself() -> None:
    made = []

    def build(app: FlowApp) -> None:
        @app.step
        async def pay(cents: int) -> int:
            return cents

        @app.workflow(name="subscription")
        class Subscription:
            def __init__(self) -> None:
                made.append(self)
                self.paid = 0

            async def run(self, months: int) -> int:
                for _ in range(months):
                    await self.once()
                return self.paid

            async def once(self) -> None:
                self.paid += await pay(100)

        assert isinstance(Subscription, type)
        assert app.of(Subscription) is app.workflows["subscription"]

    played = await both(build, 3)
    assert played.result == 300
    assert len(set(map(id, made))) == len(made)


async def test_a_workflow_is_a_plain_coroutine_elsewhere() -> None:
    app = FlowApp("plain")

    @app.workflow
    async def double(x: int) -> int:
        """What it does."""
        return 2 * x

    assert await double(4) == 8
    assert (double.name, double.__doc__) == ("double", "What it does.")
    assert double.spec == WorkflowSpec.python("double")
    assert double.input(x=4) == {"x": 4}
    assert repr(double) == "<workflow 'double'>"


async def test_a_workflow_may_call_another_as_a_part_of_itself() -> None:
    def build(app: FlowApp) -> None:
        inner = FlowApp("inner")

        @app.step
        async def work(x: int) -> int:
            return x + 1

        @inner.workflow
        async def part(x: int) -> int:
            return await work(x)

        @app.workflow
        async def main() -> list[int]:
            return list(await asyncio.gather(part(1), part(2)))

    assert (await both(build)).result == [2, 3]


async def test_arguments_and_result_travel_by_their_annotations() -> None:
    def build(app: FlowApp) -> None:
        @app.workflow
        async def main(lines: list[Line], *rest: Decimal, factor: int = 2) -> dict[str, Decimal]:
            total = sum((line.price for line in lines), start=sum(rest, Decimal(0)))
            return {"total": total * factor}

    lines = [Line("a", Decimal("1.10")), Line("b", Decimal(2))]
    played = await both(build, lines, Decimal("0.5"), factor=3)
    assert played.result == {"total": Decimal("10.80")}
    assert played.snapshot.output == {"total": "10.80"}
    assert played.snapshot.input["rest"] == ["0.5"]


async def test_a_run_is_started_with_the_arguments_of_its_workflow() -> None:
    app = FlowApp("starting")

    @app.workflow(queue="slow")
    async def main(x: int, *, factor: int = 2) -> int:
        return x * factor

    engine = FlowEngine.in_memory(app)
    run_id = await main.start(engine, 3)
    assert main.result(await engine.snapshot(run_id)) == 6
    assert (await engine.run_info(run_id)).queue == "slow"
    for _ in range(2):
        assert await main.start_with_id(engine, "mine", 3, factor=5) == "mine"
    assert main.result(await engine.snapshot("mine")) == 15
    await engine.close()


async def test_a_client_that_knows_only_json_can_start_it() -> None:
    def build(app: FlowApp) -> None:
        @app.workflow
        async def main(line: Line, count: int = 1) -> Decimal:
            return line.price * count

    on = stage(build)
    run_id = await on.engine.start(
        WorkflowSpec.python("main"), {"line": {"sku": "a", "price": "1.5"}}
    )
    assert on.workflow.result(await on.engine.snapshot(run_id)) == Decimal("1.5")


@pytest.mark.parametrize(
    ("input", "words"),
    [
        ({}, "workflow 'main' misses 'line'"),
        ({"line": {"sku": "a"}}, "argument 'line' of workflow 'main' does not fit"),
        ({"line": {"sku": "a", "price": "1"}, "wrong": 1}, "has no argument 'wrong'"),
        ([1], "must be an object"),
        ({"line": {"sku": "a", "price": "1"}, "count": "many"}, "argument 'count'"),
    ],
)
async def test_an_input_that_does_not_fit_fails_the_run_and_says_why(
    input: Any, words: str
) -> None:
    def build(app: FlowApp) -> None:
        @app.workflow
        async def main(line: Line, count: int = 1) -> None: ...

    for always_replay in (False, True):
        on = stage(build, always_replay=always_replay)
        run_id = await on.engine.start(WorkflowSpec.python("main"), input)
        snapshot = await on.engine.snapshot(run_id)
        assert snapshot.status is RunStatus.FAILED
        assert words in (snapshot.error or "")
        with pytest.raises(WorkflowFailed) as caught:
            on.workflow.result(snapshot)
        assert isinstance(caught.value.__cause__, SerializationError)


async def test_what_a_run_cannot_store_as_its_result_fails_it() -> None:
    def build(app: FlowApp) -> None:
        @app.workflow
        async def main() -> Any:
            return object()

    played = await both(build)
    assert played.snapshot.status is RunStatus.FAILED
    assert "the result of workflow 'main' cannot be stored" in (played.snapshot.error or "")


async def test_an_unknown_workflow_blocks_its_run_until_someone_has_it() -> None:
    app = FlowApp("late")
    engine = FlowEngine.in_memory(app)
    with pytest.raises(UnknownWorkflow):
        await engine.start_with_id("r", WorkflowSpec.python("main"), {})

    @app.workflow
    async def main() -> str:
        return "here"

    assert main.result(await engine.drive("r")) == "here"
    await engine.close()


async def test_the_result_of_a_run_that_has_not_ended_says_so() -> None:
    def build(app: FlowApp) -> None:
        @app.workflow
        async def main() -> None:
            await hook("go", token="t")

    on = stage(build)
    await on.start()
    with pytest.raises(WorkflowFailed, match="not yet: it is suspended"):
        on.workflow.result(await on.snapshot())
    await on.engine.force_cancel(on.run_id, "enough")
    with pytest.raises(WorkflowFailed, match="ended cancelled: enough"):
        on.workflow.result(await on.snapshot())
    await on.engine.close()


async def test_many_runs_are_started_at_once() -> None:
    app = FlowApp("many")

    @app.workflow(queue="slow")
    async def main(x: int) -> int:
        return x

    requests = [main.request(number) for number in range(3)]
    assert {request.queue for request in requests} == {"slow"}
    engine = FlowEngine.in_memory(app)
    results = await engine.start_many(requests)
    for number, found in enumerate(results):
        assert main.result(await engine.drive(found.run_id)) == number
    await engine.close()


def test_what_is_no_workflow_is_refused_when_it_is_declared() -> None:
    app = FlowApp("strict")

    class WithoutRun:
        pass

    def generates() -> Iterator[None]:
        yield

    for wrong in (WithoutRun, generates, 5):
        with pytest.raises(InvalidArgument):
            app.workflow(wrong)  # type: ignore[arg-type]

    @app.workflow
    async def main() -> None: ...

    with pytest.raises(InvalidArgument, match="has a workflow 'main' already"):
        app.workflow(name="main")(main.definition.target)
    with pytest.raises(InvalidArgument, match="must not be blank"):
        FlowApp(" ")
    with pytest.raises(InvalidArgument):
        FlowApp("x", max_parked=-1)
