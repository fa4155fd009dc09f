"""Large values: a limit that warns with run and step, and one that fails the step by its name."""

import logging
from collections.abc import Iterator
from dataclasses import asdict

import pytest

from flowpg.authoring.app import FlowApp
from flowpg.authoring.errors import WorkflowFailed
from flowpg.authoring.failures import failure_origin
from flowpg.errors import InvalidArgument, PayloadTooLarge
from flowpg.model import sizes
from flowpg.model.sizes import set_size_limits
from tests.engine.support import EngineStore


@pytest.fixture(autouse=True)
def _limits() -> Iterator[None]:
    before = asdict(sizes.limits)
    yield
    for name, value in before.items():
        setattr(sizes.limits, name, value)


def large_app() -> FlowApp:
    """Steps and workflows that make a value of a given size."""
    app = FlowApp("large")

    @app.step
    async def make(size: int) -> str:
        return "x" * size

    @app.step
    async def take(text: str) -> int:
        return len(text)

    @app.workflow
    async def careful(size: int) -> str:
        try:
            return str(len(await make(size)))
        except PayloadTooLarge as error:
            origin = failure_origin(error)
            assert origin is not None
            return f"{origin.step_name}: {error}"

    @app.workflow
    async def result(size: int) -> str:
        return "x" * size

    @app.workflow
    async def argument(size: int) -> int:
        return await take("x" * size)

    return app


async def test_a_step_that_returns_too_much_fails_with_its_name(engine_store: EngineStore) -> None:
    app = large_app()
    engine = await engine_store.engine(app)
    careful = app.workflows["careful"]
    run_id = await engine.start(careful.spec, careful.input(2_000_000))
    said = careful.result(await engine.snapshot(run_id))
    assert "make: " in said
    assert "step 'make#1'" in said
    assert "the limit is 1048576" in said
    assert "store it elsewhere" in said
    run_id = await engine.start(careful.spec, careful.input(1_000_000))
    assert careful.result(await engine.snapshot(run_id)) == "1000000"


@pytest.mark.parametrize(
    ("name", "words"), [("result", "run_completed"), ("argument", "step_created 'take#1'")]
)
async def test_a_result_or_argument_that_is_too_large_fails_the_run(
    engine_store: EngineStore, name: str, words: str
) -> None:
    app = large_app()
    engine = await engine_store.engine(app)
    workflow = app.workflows[name]
    run_id = await engine.start(workflow.spec, workflow.input(2_000_000))
    with pytest.raises(WorkflowFailed, match="PayloadTooLarge") as caught:
        workflow.result(await engine.snapshot(run_id))
    assert isinstance(caught.value.__cause__, PayloadTooLarge)
    assert words in str(caught.value)
    assert "xxx" not in str(caught.value)


async def test_an_input_that_is_too_large_is_refused_to_the_caller(
    engine_store: EngineStore,
) -> None:
    app = FlowApp("input")

    @app.workflow
    async def main(text: str) -> None: ...

    engine = await engine_store.engine(app)
    with pytest.raises(PayloadTooLarge, match=r"run 'big'.*run_created") as caught:
        await main.start_with_id(engine, "big", "x" * 2_000_000)
    assert caught.value.limit == 1_048_576
    assert caught.value.size > 2_000_000


async def test_a_large_value_is_logged_once_with_run_and_step(
    engine_store: EngineStore, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    app = large_app()
    engine = await engine_store.engine(app)
    careful = app.workflows["careful"]
    for size, expected in ((200_000, 0), (300_000, 1)):
        await engine.start_with_id(f"run-{size}", careful.spec, careful.input(size))
        lines = [r.getMessage() for r in caplog.records if r.name == "flowpg.sizes"]
        assert len(lines) == expected
    assert "run 'run-300000'" in lines[0]
    assert "step_completed 'make#1'" in lines[0]
    assert "xxx" not in caplog.text


async def test_the_limits_can_be_set(
    engine_store: EngineStore, caplog: pytest.LogCaptureFixture
) -> None:
    set_size_limits(warn_bytes=2_000, max_bytes=10_000)
    app = large_app()
    engine = await engine_store.engine(app)
    careful = app.workflows["careful"]
    run_id = await engine.start(careful.spec, careful.input(20_000))
    assert "the limit is 10000" in careful.result(await engine.snapshot(run_id))
    run_id = await engine.start(careful.spec, careful.input(5_000))
    assert careful.result(await engine.snapshot(run_id)) == "5000"
    assert "over the 2000 that are thought too much" in caplog.text
    with pytest.raises(PayloadTooLarge):
        await engine.start(careful.spec, {"size": "x" * 20_000})


def test_a_limit_below_what_is_warned_of_holds_and_can_be_raised_again() -> None:
    set_size_limits(max_bytes=10_000)
    assert sizes.oversize_of("x" * 20_000, "r", "step_completed") == 20_000
    set_size_limits(max_bytes=1_048_576)
    assert sizes.limits == sizes.SizeLimits()
    set_size_limits(warn_bytes=2_000, max_bytes=1_000)
    assert (sizes.limits.warn, sizes.limits.most) == (1_000, 1_000)


@pytest.mark.parametrize("wrong", [0, 999, 1_048_577])
def test_limits_that_cannot_be_kept_are_refused(wrong: int) -> None:
    with pytest.raises(InvalidArgument, match="from 1000 to 1048576"):
        set_size_limits(warn_bytes=wrong)
    with pytest.raises(InvalidArgument):
        set_size_limits(max_bytes=wrong)
