"""Calls that no replay can repeat are warned of, once a line, or block the run of a strict app."""

import datetime as dt
import logging
import os
import random
import secrets
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from flowpg.authoring import context, hazards
from flowpg.authoring.app import FlowApp
from flowpg.authoring.errors import NotDurable
from flowpg.engine.flow_engine import FlowEngine
from flowpg.model.snapshot import RunStatus
from tests.durable import durable


@pytest.fixture(autouse=True)
def _nothing_seen() -> Iterator[None]:
    hazards._seen.clear()
    yield
    hazards._seen.clear()


async def run(body: Callable[[], Any], **options: Any) -> str:
    """Run a workflow of this body, then an undisturbed step that does the same; its status."""
    app = FlowApp("hazardous", always_replay=True, **options)

    @app.step
    def work() -> None:
        body()

    @app.workflow
    async def main() -> None:
        body()
        await work.run()
        body()

    engine = FlowEngine.in_memory(app)
    run_id = await engine.start(main.spec, {})
    return (await engine.snapshot(run_id)).status.value


def nothing_is_opened() -> None:
    """A file that is not there."""
    with pytest.raises(OSError, match="none"):
        open("/none")  # noqa: PTH123, SIM115


def a_thread() -> None:
    """One that ends at once."""
    thread = threading.Thread(target=lambda: None)
    thread.start()
    thread.join()


@durable
def a_nap() -> None:
    """One that holds up the event loop."""
    time.sleep(0)


def a_socket() -> None:
    """One that is connected to nothing."""
    socket.socket().close()


def a_generator_with_a_name(pick: Callable[[list[int]], int] = random.choice) -> None:
    """The shared generator under another name."""
    pick([1, 2])


CALLS: list[tuple[Callable[[], Any], str, str]] = [
    (lambda: time.time(), "time.time()", "time_ns()"),
    (lambda: time.monotonic_ns(), "time.monotonic_ns()", "now()"),
    (a_nap, "time.sleep()", "await asyncio.sleep"),
    (lambda: dt.datetime.now(dt.UTC), "datetime.now()", "now()"),
    (lambda: dt.date.today(), "date.today()", "now()"),  # noqa: DTZ011
    (lambda: random.random(), "random.random()", "flowpg.random()"),
    (lambda: random.randint(1, 2), "random.", "flowpg.random()"),
    (a_generator_with_a_name, "random.choice()", "flowpg.random()"),
    (lambda: uuid.uuid4(), "uuid.uuid4()", "flowpg.uuid4()"),
    (lambda: secrets.token_hex(), "secrets.token_hex()", "in a step"),
    (lambda: os.urandom(1), "os.urandom()", "in a step"),
    (lambda: os.environ.get("HOME"), "os.environ", "argument"),
    (lambda: os.environ["PATH"], "os.environ", "argument"),
    (lambda: os.getenv("HOME"), "os.environ", "argument"),
    (nothing_is_opened, "open()", "in a step"),
    (lambda: Path(__file__).read_text(), "Path.", "in a step"),
    (lambda: Path(__file__).exists(), "Path.stat()", "in a step"),
    (a_socket, "socket.socket()", "in a step"),
    (a_thread, "thread", "asyncio tasks"),
    (lambda: subprocess.run(["true"], check=True), "a subprocess", "in a step"),
]


@pytest.mark.parametrize(("body", "call", "instead"), CALLS)
async def test_a_hazard_is_warned_of_once_with_its_line(
    body: Callable[[], Any], call: str, instead: str, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        assert await run(body) == "completed"
    found = [record.getMessage() for record in caplog.records if record.name == "flowpg.hazards"]
    line = body.__code__.co_firstlineno
    assert found, "nothing was warned of"
    # A function of several lines may hold several hazards; no line is named twice.
    assert len({text.split(" ")[0] for text in found}) == len(found)
    places = [int(text.split(":")[1]) for text in found]
    assert all(line <= place <= line + 5 for place in places)
    assert all(text.startswith("test_hazards.py:") for text in found)
    assert any(call in text and instead in text and "'main'" in text for text in found), found


@pytest.mark.parametrize(("body", "call", "instead"), CALLS)
async def test_a_strict_app_blocks_the_run(
    body: Callable[[], Any], call: str, instead: str
) -> None:
    with pytest.raises(NotDurable) as caught:
        await run(body, strict=True)
    assert "test_hazards.py:" in str(caught.value)
    assert "which is replayed" in str(caught.value)


def logs() -> None:
    """Logging reads the clock, and what it writes is no matter of the workflow."""
    logging.getLogger("some.name").warning("a line")
    context.logger.info("a line")


class Clocked(logging.Formatter):
    """A formatter of the user's own, which looks at the clock."""

    def format(self, record: logging.LogRecord) -> str:
        return f"{time.time()} {record.msg}"


_own = logging.Logger("own")  # noqa: LOG001
_handler = logging.StreamHandler(open(os.devnull, "w"))  # noqa: PTH123, SIM115
_handler.setFormatter(Clocked())
_own.addHandler(_handler)

HARMLESS: list[Callable[[], Any]] = [
    logs,
    lambda: _own.warning("a line"),
    lambda: (context.now(), context.time_ns(), context.uuid4(), context.uuid7()),
    lambda: context.random().choice([1, 2, 3]),
    lambda: random.Random(7).randint(1, 6),
    lambda: dt.datetime(2026, 1, 1, tzinfo=ZoneInfo("UTC")).isoformat(),
    lambda: time.strptime("2026", "%Y"),
    lambda: sorted({3, 1, 2}),
]


@pytest.mark.parametrize("body", HARMLESS)
async def test_what_can_be_repeated_is_no_hazard(
    body: Callable[[], Any], caplog: pytest.LogCaptureFixture
) -> None:
    app = FlowApp("harmless", always_replay=True, strict=True)

    @app.step
    async def work() -> float:
        return time.time()

    @app.workflow
    async def main() -> None:
        body()
        await work()

    engine = FlowEngine.in_memory(app)
    run_id = await engine.start(main.spec, {})
    assert (await engine.snapshot(run_id)).status is RunStatus.COMPLETED
    assert [record for record in caplog.records if record.name == "flowpg.hazards"] == []


@pytest.mark.parametrize("strict", [False, True])
async def test_a_workflow_that_is_a_plain_function_is_watched_too(
    strict: bool, caplog: pytest.LogCaptureFixture
) -> None:
    app = FlowApp("plain", always_replay=True, strict=strict)

    @app.step
    def work() -> float:
        return time.time()

    @app.workflow
    def main() -> None:
        work()
        time.time()

    engine = FlowEngine.in_memory(app)
    if strict:
        with pytest.raises(NotDurable, match=r"time.time\(\) \(test_hazards.py:"):
            await engine.start(main.spec, {})
    else:
        await engine.start(main.spec, {})
        [found] = [r.getMessage() for r in caplog.records if r.name == "flowpg.hazards"]
        assert "workflow 'main' calls time.time()" in found


async def test_what_a_helper_does_itself_is_no_hazard(caplog: pytest.LogCaptureFixture) -> None:
    app = FlowApp("helpers", always_replay=True, strict=True)

    @app.workflow
    async def main() -> None:
        await context.hook("go")  # its token is made up at random

    run_id = await FlowEngine.in_memory(app).start(main.spec, {})
    assert run_id
    assert [record for record in caplog.records if record.name == "flowpg.hazards"] == []


async def test_steps_and_the_program_around_do_as_they_like(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app = FlowApp("steps", always_replay=True, strict=True)

    @app.step
    async def in_the_loop() -> str:
        return f"{time.time()} {uuid.uuid4()} {random.random()} {os.environ.get('HOME')}"

    @app.step
    def in_a_thread() -> str:
        return f"{time.time()} {uuid.uuid4()} {random.random()} {os.environ.get('HOME')}"

    @app.workflow
    async def main() -> None:
        await in_the_loop()
        await in_a_thread.run()

    time.time()
    engine = FlowEngine.in_memory(app)
    run_id = await engine.start(main.spec, {})
    assert (await engine.snapshot(run_id)).status is RunStatus.COMPLETED
    assert [record for record in caplog.records if record.name == "flowpg.hazards"] == []


@pytest.mark.skipif(sys.version_info < (3, 12), reason="Python 3.11 has no sys.monitoring")
async def test_turns_that_are_not_replayed_are_watched_too(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app = FlowApp("kept")

    @app.workflow
    async def main() -> float:
        return time.time()

    await FlowEngine.in_memory(app).start(main.spec, {})
    assert "time.time()" in caplog.text


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="newer versions have sys.monitoring")
async def test_on_311_turns_that_are_not_replayed_are_not_slowed_down() -> None:
    app = FlowApp("kept")
    profilers: list[Any] = []

    @app.workflow
    async def main() -> None:
        profilers.append(sys.getprofile())

    await FlowEngine.in_memory(app).start(main.spec, {})
    assert profilers == [None]
