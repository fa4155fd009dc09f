"""Plain workflows that are put aside: their stacks, and what runs when they go."""

import contextlib
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from flowpg import sync
from flowpg.authoring.app import FlowApp
from flowpg.authoring.unwinding import Strand, drop
from tests.authoring.support import Act, Stage, play, stage
from tests.authoring.test_sync import plain_steps


def test_a_process_that_ends_runs_no_cleanup_of_runs_that_wait(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import asyncio\n"
        "from flowpg import FlowApp, FlowEngine, sync\n"
        "app = FlowApp('x')\n"
        "@app.workflow\n"
        "def main() -> None:\n"
        "    try:\n"
        "        sync.sleep(100)\n"
        "    finally:\n"
        "        print('finally')\n"
        "async def go():\n"
        "    engine = FlowEngine.in_memory(app)\n"
        "    await main.start(engine)\n"
        "    print(len(app.parked))\n"
        "    await engine.close()\n"
        "asyncio.run(go())\n"
    )
    done = subprocess.run(
        [sys.executable, str(program)], capture_output=True, text=True, check=True
    )
    assert (done.stdout, done.stderr) == ("1\n", "")


async def test_finally_runs_once_a_run_however_often_it_is_put_aside() -> None:
    ran: list[str] = []

    def build(app: FlowApp) -> None:
        work = plain_steps(app)

        @contextlib.contextmanager
        def managed() -> Iterator[None]:
            try:
                yield
            finally:
                ran.append("manager")

        def numbers() -> Iterator[int]:
            try:
                yield from range(3)
            finally:
                ran.append("generator")

        @app.workflow
        def main() -> str:
            try:
                with managed():
                    for number in numbers():
                        sync.sleep(1)
                        work(number)
            except BaseException:
                ran.append("except")
                raise
            finally:
                ran.append("finally")
                work("cleaned")
            return "done"

    async def put_aside(on: Stage) -> None:
        on.app.parked.clear()

    acts: tuple[Act, ...] = (put_aside, Stage.pass_time) * 2  # type: ignore[assignment]
    played = await play(stage(build), acts=acts)
    assert played.result == "done"
    assert ran == ["generator", "manager", "finally"]


async def test_many_runs_that_are_put_aside_leave_nothing_behind() -> None:
    ran: list[str] = []

    class Kept:
        """Something that a workflow holds while it waits."""

        alive = 0

        def __init__(self) -> None:
            Kept.alive += 1

        def __del__(self) -> None:
            Kept.alive -= 1

    def build(app: FlowApp) -> None:
        @app.workflow
        def main() -> None:
            kept = Kept()
            try:
                sync.sleep(100)
            finally:
                ran.append("finally")
                del kept

    on = stage(build)
    for number in range(300):
        await on.engine.start_with_id(f"r{number}", on.workflow.spec, {})
    assert Kept.alive == 300
    on.app.parked.clear()
    assert Kept.alive == 0
    assert ran == []


def test_a_stack_of_another_thread_is_left_to_that() -> None:
    ran: list[str] = []
    made: list[Strand] = []
    ready, dropped, done = threading.Event(), threading.Event(), threading.Event()

    def waits() -> None:
        try:
            made[0].parent.switch()
        finally:
            ran.append("finally")

    def other() -> None:
        from flowpg.authoring.unwinding import drop_abroad

        made.append(Strand(waits))
        made[0].switch()
        ready.set()
        dropped.wait(10)
        drop_abroad()
        assert made[0].dead
        done.set()

    thread = threading.Thread(target=other)
    thread.start()
    assert ready.wait(10)
    drop(made[0])
    assert not made[0].dead
    dropped.set()
    thread.join(10)
    assert done.is_set()
    assert ran == []
