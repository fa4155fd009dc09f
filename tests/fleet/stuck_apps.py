"""Applications whose workflows do not let go of the event loop."""

import threading
from collections.abc import Callable
from typing import Any

from flowpg.authoring.app import FlowApp


def for_ever() -> None:
    """Waits in C for what never comes."""
    threading.Event().wait()


def _stuck(wait: Callable[[], object], **rules: Any) -> FlowApp:
    app = FlowApp("stuck", **rules)

    @app.step
    async def work(x: int) -> int:
        return x

    @app.workflow
    async def sleeper() -> None:
        await work(1)
        print("entered sleeper", flush=True)
        wait()  # that is the mistake

    @app.workflow
    async def fine() -> int:
        return await work(2)

    return app


def impatient() -> FlowApp:
    """Turns are abandoned after half a second."""
    from datetime import timedelta

    return _stuck(for_ever, longest_turn=timedelta(seconds=0.5))


def patient() -> FlowApp:
    """Turns are never abandoned."""
    return _stuck(for_ever, longest_turn=None)


def mended() -> FlowApp:
    """What is deployed next: the mistake is gone."""
    return _stuck(lambda: None)
