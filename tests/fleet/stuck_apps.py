"""Applications whose workflows do not let go of the event loop."""

import time
from typing import Any

from flowpg.authoring.app import FlowApp


def _stuck(**rules: Any) -> FlowApp:
    app = FlowApp("stuck", **rules)

    @app.step
    async def work(x: int) -> int:
        return x

    @app.workflow
    async def sleeper() -> None:
        await work(1)
        print("entered sleeper", flush=True)
        time.sleep(600)  # noqa: ASYNC251  that is the mistake

    @app.workflow
    async def fine() -> int:
        return await work(2)

    return app


def impatient() -> FlowApp:
    """Turns are abandoned after half a second."""
    from datetime import timedelta

    return _stuck(longest_turn=timedelta(seconds=0.5))


def patient() -> FlowApp:
    """Turns are never abandoned."""
    return _stuck(longest_turn=None)
