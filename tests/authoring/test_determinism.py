"""Code that takes another path than the history: which event, what it expects, where the call is.

The run is blocked, not failed, others go on, and it goes on itself once the code is put back.
"""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

from flowpg.authoring.app import FlowApp
from flowpg.authoring.context import hook, info, progress
from flowpg.authoring.errors import NotDurable
from flowpg.engine.flow_engine import FlowEngine
from flowpg.errors import NonDeterministic
from flowpg.model.snapshot import RunStatus
from tests.authoring.support import RUN_ID, answer, play, stage
from tests.durable import durable

Steps = dict[str, Any]
Body = Callable[[Steps], Any]


def build(body: Body) -> Callable[[FlowApp], None]:
    """An app with the steps a, b and c and a workflow of the given body, then a hook."""

    def declare(app: FlowApp) -> None:
        def make(name: str) -> Any:
            async def step(x: int, y: int = 0) -> int:
                return x

            return app.step(name=name)(step)

        steps = {name: make(name) for name in "abc"}

        @app.workflow
        async def main() -> str:
            await body(steps)
            await hook("end", token="end")
            return "done"

    return declare


@durable
async def original(s: Steps) -> None:
    await s["a"](1)
    await asyncio.sleep(1)
    await asyncio.gather(s["b"](2), s["c"](3))
    await hook("go", str, token="t")
    await s["a"](4)


async def renamed(s: Steps) -> None:
    await s["b"](1)


@durable
async def swapped(s: Steps) -> None:
    await s["a"](1)
    await s["b"](2)
    await asyncio.sleep(1)


@durable
async def inserted(s: Steps) -> None:
    await s["a"](1)
    await s["c"](9)
    await asyncio.sleep(1)


async def deleted_in_the_middle(s: Steps) -> None:
    await s["a"](1)
    await asyncio.gather(s["b"](2), s["c"](3))


@durable
async def deleted_at_the_end(s: Steps) -> None:
    await s["a"](1)
    await asyncio.sleep(1)
    await asyncio.gather(s["b"](2), s["c"](3))
    await hook("go", str, token="t")


@durable
async def step_to_timer(s: Steps) -> None:
    await asyncio.sleep(3)


async def timer_to_step(s: Steps) -> None:
    await s["a"](1)
    await s["a"](1)


async def step_to_hook(s: Steps) -> None:
    await hook("a", token="a")


@durable
async def other_hook_name(s: Steps) -> None:
    await s["a"](1)
    await asyncio.sleep(1)
    await asyncio.gather(s["b"](2), s["c"](3))
    await hook("other", str, token="t")


@durable
async def other_token(s: Steps) -> None:
    await s["a"](1)
    await asyncio.sleep(1)
    await asyncio.gather(s["b"](2), s["c"](3))
    await hook("go", str, token="secret token")


@durable
async def other_gather_order(s: Steps) -> None:
    await s["a"](1)
    await asyncio.sleep(1)
    await asyncio.gather(s["c"](3), s["b"](2))


async def other_argument(s: Steps) -> None:
    await s["a"](12345)


async def further_argument(s: Steps) -> None:
    await s["a"](1, y=5)


async def a_branch_on_the_clock(s: Steps) -> None:
    if info().replaying:
        await s["c"](1)
    else:
        await s["a"](1)


async def ends_early(s: Steps) -> None:
    raise ValueError("no more")


MUTATIONS: list[tuple[Body, list[str]]] = [
    (renamed, ["event 3 (step_created)", "step 'a#1'", "found step 'b#1'", "in renamed"]),
    (swapped, ["event 6 (wait_created)", "timer 'sleep#2'", "found step 'b#2'", "in swapped"]),
    (inserted, ["event 6 (wait_created)", "timer 'sleep#2'", "found step 'c#2'", "in inserted"]),
    (deleted_in_the_middle, ["event 6 (wait_created)", "found step 'b#2'"]),
    (deleted_at_the_end, ["event 16 (step_created)", "step 'a#5'", "found hook 'end'"]),
    (step_to_timer, ["event 3 (step_created)", "found timer 'sleep#1'", "in step_to_timer"]),
    (timer_to_step, ["event 6 (wait_created)", "timer 'sleep#2'", "found step 'a#2'"]),
    (step_to_hook, ["event 3 (step_created)", "step 'a#1'", "found hook 'a'"]),
    (other_hook_name, ["(hook_created)", "hook 'go'", "found hook 'other'"]),
    (other_token, ["(hook_created)", "hook 'go'", "another token (redacted)"]),
    (other_gather_order, ["event 8 (step_created)", "step 'b#3'", "found step 'c#3'"]),
    (other_argument, ["event 3 (step_created)", "another value of 'x'", "in other_argument"]),
    (further_argument, ["event 3 (step_created)", "another value of 'y'"]),
    (a_branch_on_the_clock, ["event 3 (step_created)", "step 'a#1'", "found step 'c#1'"]),
    (ends_early, ["event 3 (step_created)", "step 'a#1'", "no further call"]),
]


@pytest.mark.parametrize(
    ("mutation", "words"), MUTATIONS, ids=[mutation.__name__ for mutation, _ in MUTATIONS]
)
async def test_a_mutation_names_event_and_call_and_blocks_until_it_is_mended(
    mutation: Body, words: list[str]
) -> None:
    on = stage(build(original))
    await on.start()
    await on.pass_time()
    await answer("go", "x")(on)
    before = [event.payload for event in await on.history()]

    changed = FlowApp("changed")
    build(mutation)(changed)
    engine = FlowEngine(on.store, changed)
    await on.store.wake_run(RUN_ID)
    with pytest.raises(NonDeterministic) as caught:
        await engine.drive(RUN_ID)
    message = str(caught.value)
    assert [word for word in words if word not in message] == []
    assert "test_determinism.py:" in message or "no further call" in message
    assert "12345" not in message
    assert "secret token" not in message
    assert [event.payload for event in await on.history()] == before
    row = await engine.run_info(RUN_ID)
    assert "NonDeterministic" in (row.blocked_reason or "")

    # Others go on, and so does this one with the old code.
    await on.engine.start_with_id("another", on.workflow.spec, {})
    assert (await on.engine.snapshot("another")).status is RunStatus.SUSPENDED
    again = FlowApp("again")
    build(original)(again)
    engine = FlowEngine(on.store, again)
    assert (await engine.resume_hook(RUN_ID, "end", None)).status is RunStatus.COMPLETED


async def test_a_branch_on_the_wall_clock_is_found_and_mended_by_the_clock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def by_the_clock(s: Steps) -> None:
        await s["a" if time.time() < 2_000_000_000 else "b"](1)

    on = stage(build(by_the_clock))
    await on.start()
    later = FlowApp("later")
    build(by_the_clock)(later)
    engine = FlowEngine(on.store, later)
    await on.store.wake_run(RUN_ID)
    with monkeypatch.context() as patched:
        patched.setattr(time, "time", lambda: 2_000_000_001.0)
        with pytest.raises(NonDeterministic, match=r"event 3 .*step 'a#1', found step 'b#1'.* in "):
            await engine.drive(RUN_ID)
    assert (await engine.resume_hook(RUN_ID, "end", None)).status is RunStatus.COMPLETED


async def test_harmless_changes_replay() -> None:
    @durable
    async def changed(s: Steps) -> None:
        first = s["a"](x=1)
        await first
        await asyncio.sleep(99)  # the recorded deadline is the durable one
        b, c = s["b"](2), s["c"](3)
        await asyncio.gather(b, c)
        await hook("go", str, token="t", expires=None)
        again = s["a"].options(retry=None)
        await again(4)

    on = stage(build(original))
    await on.start()
    await on.pass_time()
    await answer("go", "x")(on)
    app = FlowApp("changed")
    build(changed)(app)
    engine = FlowEngine(on.store, app)
    assert (await engine.resume_hook(RUN_ID, "end", None)).status is RunStatus.COMPLETED


async def test_reports_of_clients_do_not_disturb() -> None:
    async def reporting(s: Steps) -> None:
        progress(1, 2, "half")
        await s["a"](1)
        progress(2, 2)

    on = stage(build(reporting))
    played = await play(on, acts=(answer("end", None),))
    reports = [e.data["progress"] for e in played.history if e.type == "run_progress_recorded"]
    assert [(r["progress_id"], r["completed"]) for r in reports] == [
        ("progress#1", 1),
        ("progress#3", 2),
    ]


PROGRAM = """
import asyncio, sys
from tests.authoring.support import play, stage
from tests.durable import durable
from tests.waiting import turns

def build(app):
    @app.step
    async def work(x: str) -> str:
        await turns(len(x))
        return x

    @durable
    async def branch(x: str) -> str:
        await work(x)
        await asyncio.sleep(len(x))
        return await work(x + "!")

    @app.workflow
    async def main() -> list:
        names = ["ccc", "a", "bbbb", "dd", "eeeee", "fff"]
        seen = []
        for item in asyncio.as_completed([branch(name) for name in names]):
            seen.append(await item)
        done, _ = await asyncio.wait({asyncio.create_task(branch(n)) for n in names})
        seen += [task.result() for task in done]
        async with asyncio.TaskGroup() as group:
            tasks = {group.create_task(branch(n)) for n in names}
        for task in tasks:
            seen.append(await work(task.result()))
        done, pending = await asyncio.wait(
            [asyncio.create_task(branch(n)) for n in names], return_when="FIRST_COMPLETED")
        for task in pending:
            task.cancel()
        seen.append(await work("set " + "".join(sorted({"x", "y"}))))
        return seen

async def run():
    for always_replay in (False, True):
        played = await play(stage(build, always_replay=always_replay))
        print(*played.lines(), sep="\\n")

asyncio.run(run())
"""


def test_the_order_of_sets_and_hashes_makes_no_difference() -> None:
    seen = set()
    for seed in ("0", "1", "2", "31", "77"):
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        lines = done.stdout.splitlines()
        half = len(lines) // 2
        assert lines[:half] == lines[half:]
        seen.add(done.stdout)
    assert len(seen) == 1


async def test_as_completed_needs_a_list() -> None:
    def declare(app: FlowApp) -> None:
        @app.workflow
        async def main() -> None:
            naps = [asyncio.sleep(n) for n in range(2)]
            try:
                for item in asyncio.as_completed(set(naps)):
                    await item
            finally:
                for nap in naps:
                    nap.close()

    on = stage(declare)
    with pytest.raises(NotDurable, match="give it a list"):
        await on.start()
