"""Heartbeats through the context of a step: any value, sealed like every other."""

from datetime import UTC, datetime
from typing import Any

from flowpg.authoring.app import FlowApp
from flowpg.authoring.step_context import step_context
from flowpg.engine.flow_engine import FlowEngine
from flowpg.model.codecs import Compression
from flowpg.model.retry import RetryPolicy
from tests.authoring.support import both, play, stage
from tests.engine.support import EngineStore

MOMENT = datetime(2026, 1, 1, tzinfo=UTC)


def resuming(app: FlowApp) -> None:
    """A step that fails once and goes on where it was."""

    @app.step(retry=RetryPolicy.fixed(2))
    async def work() -> list[Any]:
        context = step_context()
        context.heartbeat((MOMENT, context.attempt))
        context.heartbeat()
        if context.attempt == 1:
            assert context.heartbeat_details is None
            raise ValueError("no")
        return [context.heartbeat_details == (MOMENT, 1), context.cancelled]

    @app.workflow
    async def main() -> list[Any]:
        return await work()


async def test_details_may_be_whatever_an_argument_may_be() -> None:
    assert (await both(resuming)).result == [True, False]


async def test_details_that_cannot_be_stored_are_an_error_that_names_the_step() -> None:
    def build(app: FlowApp) -> None:
        @app.step
        def work() -> None:
            step_context().heartbeat({"socket": object()})

        @app.workflow
        async def main() -> str:
            try:
                await work.run()
            except Exception as error:  # noqa: BLE001
                return f"{type(error).__name__}: {error}"
            return "stored"

    played = await play(stage(build))
    assert played.result.startswith("SerializationError: the heartbeat details of step 'work#1'")
    assert played.snapshot.steps["work#1"].attempt == 1


async def test_details_are_sealed_where_values_are(engine_store: EngineStore) -> None:
    app = FlowApp("sealed", codecs=[Compression(least=10)])
    stored: list[str | None] = []

    @app.step(retry=RetryPolicy.fixed(2))
    async def work() -> bool:
        context = step_context()
        if context.attempt == 1:
            await context.heartbeat("private " * 100)
            stored.append(await engine.store.step_heartbeat("r", context.step_id))
            raise ValueError("no")
        return bool(context.heartbeat_details == "private " * 100)

    @app.workflow
    async def main() -> bool:
        return await work()

    engine: FlowEngine = await engine_store.engine(app)
    await engine.start_with_id("r", main.spec, main.input())
    assert main.result(await engine.drive("r")) is True
    [text] = stored
    assert text is not None
    assert "sealed" in text
    assert "private" not in text
