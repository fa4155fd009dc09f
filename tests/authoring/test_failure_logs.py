"""What is logged of steps and workflows that fail: the user's own error and its lines."""

import logging

import pytest

from flowpg.authoring.app import FlowApp
from flowpg.engine.flow_engine import FlowEngine
from flowpg.model.codecs import Compression


async def said(app: FlowApp, caplog: pytest.LogCaptureFixture) -> str:
    """What a run of ``main`` logs."""
    caplog.clear()
    caplog.set_level(logging.INFO)
    await FlowEngine.in_memory(app).start(app.workflows["main"].spec, {})
    return caplog.text


def failing_step(app: FlowApp) -> FlowApp:
    """A workflow that fails with the error of its step."""

    @app.step(fatal=(ValueError,))
    async def charge() -> None:
        raise ValueError("the card was refused") from KeyError("why")

    @app.workflow
    async def main() -> None:
        await charge()

    return app


async def test_the_log_shows_the_error_that_was_raised(caplog: pytest.LogCaptureFixture) -> None:
    text = await said(failing_step(FlowApp("plain")), caplog)
    assert "step 'charge#1' (charge) of run" in text
    assert "workflow 'main' fails run" in text
    assert text.count("ValueError: the card was refused") == 2
    assert "KeyError: 'why'" in text
    assert 'raise ValueError("the card was refused")' in text
    assert "flowpg.error" not in text


async def test_what_is_sealed_is_in_no_log(caplog: pytest.LogCaptureFixture) -> None:
    app = failing_step(FlowApp("sealed", codecs=[Compression()]))
    text = await said(app, caplog)
    assert "step 'charge#1' (charge) of run" in text
    assert "workflow 'main' fails run" in text
    assert "flowpg.sealed" not in text
    assert "KeyError: 'why'" not in text
    assert 'raise ValueError("the card was refused")' in text  # the line of code


async def test_a_failure_without_a_line_of_user_code_says_where_to_look(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app = FlowApp("sealed", codecs=[Compression()])

    @app.workflow
    async def main(order: int) -> None: ...

    text = await said(app, caplog)  # without the argument
    assert text.rstrip().endswith(" says why")
    assert "SerializationError; flowpg show " in text


async def test_an_error_that_cannot_be_printed_is_logged_by_its_type(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Rude(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no")

    app = FlowApp("rude")

    @app.workflow
    async def main() -> None:
        raise Rude

    text = await said(app, caplog)
    assert "Rude: <its message cannot be printed>" in text
