"""A workflow that waits for one answer, for tests of who sends it."""

from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from flowpg import (
    FlowApp,
    hook,
    sync,
)
from tests.engine.support import EngineStore

TOKEN = "a token that nobody may see"
SECRET = "s3cret"


class Order(BaseModel):
    """What a customer decides."""

    amount: int
    note: str = ""


@dataclass
class Yes:
    yes: bool


def shop(kind: Any = Order, name: str = "order", *, plain: bool = False) -> FlowApp:
    """An app whose workflow waits for one answer and returns it."""
    app = FlowApp("shop")

    if plain:

        @app.workflow(name="main")
        def waits() -> Any:
            return dumped(sync.hook(name, kind, token=TOKEN).result())

    else:

        @app.workflow(name="main")
        async def waits_too() -> Any:
            return dumped(await hook(name, kind, token=TOKEN))

    return app


def dumped(value: Any) -> Any:
    """What a workflow may return of its answer."""
    return value.model_dump() if isinstance(value, BaseModel) else str(value)


async def started(store: EngineStore, app: FlowApp, run_id: str = "r") -> Any:
    """An engine, and a run of the app's workflow that waits."""
    engine = await store.engine(app)
    [workflow] = app.workflows.values()
    await engine.start_with_id(run_id, workflow.spec, workflow.input())
    return engine
