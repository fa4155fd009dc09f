"""What blocks a run until its code is mended: nothing to wait for, no rest, input and output."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel

from flowpg.authoring.app import FlowApp
from flowpg.authoring.context import hook
from flowpg.authoring.errors import NotDurable, WorkflowStuck
from flowpg.engine.flow_engine import FlowEngine
from flowpg.errors import NonDeterministic, UndecodablePayload
from flowpg.model.snapshot import RunStatus
from tests.authoring.support import RUN_ID, play, replay, stage


async def blocked(build: Callable[[FlowApp], Any], error: type[Exception]) -> str:
    """The words of the fault that keeps a run from being driven; the run is not failed."""
    on = stage(build)
    with pytest.raises(error) as caught:
        await on.start()
    assert (await on.snapshot()).status in (RunStatus.PENDING, RunStatus.RUNNING)
    await on.engine.close()
    return str(caught.value)


async def test_waiting_for_what_nothing_brings_blocks_the_run() -> None:
    def build(app: FlowApp) -> None:
        @app.workflow
        async def main() -> None:
            await asyncio.Event().wait()

    assert "no step, timer or hook" in await blocked(build, WorkflowStuck)


async def test_a_loop_that_never_waits_blocks_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flowpg.authoring.loop.MAX_CALLBACKS", 1000)

    def build(app: FlowApp) -> None:
        @app.workflow
        async def main() -> None:
            while True:  # noqa: ASYNC110  that is the mistake
                await asyncio.sleep(0)

    assert "1000 callbacks" in await blocked(build, WorkflowStuck)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: asyncio.open_connection("localhost", 1), "make it a step|do it in a step"),
        (lambda: asyncio.to_thread(print, "x"), "make the function one"),
        (lambda: asyncio.create_subprocess_exec("true"), "do it in a step"),
        (lambda: asyncio.get_running_loop().getaddrinfo("localhost", 1), "do it in a step"),
        (lambda: asyncio.get_running_loop().add_reader(0, print), "do it in a step"),
        (lambda: asyncio.get_running_loop().call_soon_threadsafe(print), "hook"),
        (lambda: asyncio.get_running_loop().add_signal_handler(1, print), "hook"),
    ],
)
async def test_input_and_output_say_what_to_write_instead(call: Any, words: str) -> None:
    def build(app: FlowApp) -> None:
        @app.workflow
        async def main() -> None:
            await call()

    message = await blocked(build, NotDurable)
    assert any(word in message for word in words.split("|"))


class Texts(BaseModel):
    members: dict[str, str]


class Numbers(BaseModel):
    members: dict[str, int]


async def test_names_that_only_a_recorded_value_knows_are_not_shown() -> None:
    def build(kind: Any) -> Callable[[FlowApp], None]:
        def declare(app: FlowApp) -> None:
            async def work() -> Any:
                return Texts(members={"s3cret": "x"})

            work.__annotations__["return"] = kind
            step = app.step(work)

            @app.workflow
            async def main() -> None:
                await step()
                await asyncio.sleep(1)

        return declare

    on = stage(build(Texts))
    await on.start()
    app = FlowApp("new")
    build(Numbers)(app)
    with pytest.raises(UndecodablePayload, match=r"does not fit Numbers: check members\.\*$"):
        replay(app, await on.history())


async def test_a_recorded_result_that_no_longer_fits_blocks_the_run() -> None:
    def build(kind: type) -> Callable[[FlowApp], None]:
        def declare(app: FlowApp) -> None:
            async def work() -> Any:
                return "a text"

            work.__annotations__["return"] = kind
            step = app.step(work)

            @app.workflow
            async def main() -> Any:
                value = await step()
                async with hook("go", token="t") as go:
                    await go
                return value

        return declare

    on = stage(build(str))
    await on.start()
    app = FlowApp("new")
    build(int)(app)
    with pytest.raises(UndecodablePayload, match="the result of step 'work' does not fit"):
        replay(app, await on.history())
    # The code that fits is there again.
    app = FlowApp("old")
    build(str)(app)
    assert replay(app, await on.history())[0].type == "create_hook"


async def test_a_blocked_run_goes_on_when_the_code_is_mended() -> None:
    def build(broken: bool) -> Callable[[FlowApp], None]:
        def declare(app: FlowApp) -> None:
            @app.workflow
            async def main() -> str:
                if broken:
                    await asyncio.Event().wait()
                return "done"

        return declare

    on = stage(build(True))
    with pytest.raises(WorkflowStuck):
        await on.start()
    info_before = await on.engine.run_info(RUN_ID)
    assert "WorkflowStuck" in (info_before.blocked_reason or "")
    mended = FlowApp("mended")
    build(False)(mended)
    [workflow] = mended.workflows.values()
    engine = FlowEngine(on.store, mended)
    assert workflow.result(await engine.drive(RUN_ID)) == "done"


async def test_history_that_the_code_does_not_ask_for_any_more_is_no_completion() -> None:
    def build(calls: int) -> Callable[[FlowApp], None]:
        def declare(app: FlowApp) -> None:
            @app.step
            async def work(x: int) -> int:
                return x

            @app.workflow
            async def main() -> str:
                for number in range(calls):
                    await work(number)
                return "done"

        return declare

    played = await play(stage(build(2)))
    app = FlowApp("shorter")
    build(1)(app)
    with pytest.raises(NonDeterministic, match="no further call"):
        replay(app, played.history[:-1])
