"""A turn that runs too long is logged, then abandoned; its run is blocked, and others go on."""

import asyncio
import contextlib
import logging
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from flowpg.authoring import watchdog
from flowpg.authoring.app import FlowApp
from flowpg.authoring.errors import TurnTooLong
from flowpg.engine.flow_engine import FlowEngine
from flowpg.errors import InvalidArgument
from flowpg.model.snapshot import RunStatus
from flowpg.store.memory import InMemoryEventStore
from tests.engine.support import EngineStore
from tests.waiting import until

SHORT = {"slow_turn": timedelta(seconds=0.1), "longest_turn": timedelta(seconds=0.3)}


def spinning_app(spin: Any, **rules: Any) -> FlowApp:
    """An app whose workflow ``main`` calls ``spin`` after its first step, and ``other`` is fine."""
    app = FlowApp("spinning", **{**SHORT, **rules})

    @app.step
    async def work(x: int) -> int:
        return x

    @app.workflow
    async def main() -> str:
        await work(1)
        spin()
        return "done"

    @app.workflow
    async def other() -> int:
        return await work(2)

    return app


def spin_for_ever() -> None:
    """Never comes back by itself."""
    while True:
        pass


def spin_and_catch() -> None:
    """The same, and it catches whatever is raised in it, twice."""
    for _ in range(2):
        with contextlib.suppress(BaseException):
            spin_for_ever()


class _Said(logging.Handler):
    """Opens a lock when the watchdog has said certain words."""

    def __init__(self, words: str) -> None:
        super().__init__()
        self.words = words
        self.lock_in_c = threading.Lock()
        self.lock_in_c.acquire()

    def emit(self, record: logging.LogRecord) -> None:
        if self.words in record.getMessage() and self.lock_in_c.locked():
            self.lock_in_c.release()


@contextlib.contextmanager
def until_said(words: str) -> Iterator[Callable[[], object]]:
    """A function that waits in C, and with no Python between, until the watchdog has said this."""
    handler = _Said(words)
    watchdog.logger.addHandler(handler)
    try:
        yield handler.lock_in_c.acquire
    finally:
        watchdog.logger.removeHandler(handler)


async def test_an_endless_loop_is_logged_then_abandoned_and_the_run_blocked(
    engine_store: EngineStore, caplog: pytest.LogCaptureFixture
) -> None:
    app = spinning_app(spin_for_ever)
    engine = await engine_store.engine(app)
    main, other = app.workflows["main"], app.workflows["other"]
    with pytest.raises(TurnTooLong, match="run 'stuck'") as caught:
        await engine.start_with_id("stuck", main.spec, {})
    assert "do the work in a step" in str(caught.value)

    def said() -> list[str] | None:
        lines = [r.getMessage() for r in caplog.records if "watchdog" in r.name]
        return lines if len(lines) > 1 else None

    # The turn may have ended before the thread that abandoned it has said so.
    slow, abandoned = until(said, "the watchdog has said both")
    assert "workflow 'main' of run 'stuck'" in slow
    assert "in spin_for_ever" in slow
    assert "is abandoned" in abandoned
    row = await engine.run_info("stuck")
    assert "TurnTooLong" in (row.blocked_reason or "")
    assert (await engine.snapshot("stuck")).status is RunStatus.RUNNING
    # The thread was given back in order, and others go on.
    assert asyncio.current_task() is not None
    run_id = await engine.start(other.spec, {})
    assert other.result(await engine.snapshot(run_id)) == 2
    # Another build, here another process, brings it to its end.
    mended = spinning_app(lambda: None)
    engine = await engine_store.engine(mended)
    assert mended.workflows["main"].result(await engine.drive("stuck")) == "done"


async def test_an_abandoned_run_rests_before_it_holds_up_this_process_again() -> None:
    calls: list[int] = []

    def spin() -> None:
        calls.append(1)
        spin_for_ever()

    app = spinning_app(spin)
    engine = FlowEngine.in_memory(app)
    for words in ("after 0", "in an earlier drive"):
        with pytest.raises(TurnTooLong, match=words):
            await engine.start_with_id("stuck", app.workflows["main"].spec, {})
    assert len(calls) == 1
    app._overran["stuck"] = 0.0  # the rest is over
    with pytest.raises(TurnTooLong, match="after 0"):
        await engine.drive("stuck")
    assert len(calls) == 2


async def test_code_that_catches_everything_is_abandoned_all_the_same() -> None:
    app = spinning_app(spin_and_catch)
    engine = FlowEngine.in_memory(app)
    with pytest.raises(TurnTooLong):
        await engine.start_with_id("stuck", app.workflows["main"].spec, {})
    assert not (await engine.snapshot("stuck")).terminal


async def test_a_wait_in_c_is_abandoned_when_it_comes_back() -> None:
    with until_said("is abandoned") as wait_in_c:
        app = spinning_app(wait_in_c)
        engine = FlowEngine.in_memory(app)
        with pytest.raises(TurnTooLong):
            await engine.start_with_id("stuck", app.workflows["main"].spec, {})
    # Nothing is left to be raised later: it would be when a loop goes round.
    for _ in range(20_000):
        pass


async def test_a_signal_interrupts_a_wait_in_c(monkeypatch: pytest.MonkeyPatch) -> None:
    assert threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGURG)
    monkeypatch.setattr(watchdog, "_signal", None)
    watchdog.interrupt_by_signal()
    try:
        app = spinning_app(threading.Event().wait)
        engine = FlowEngine.in_memory(app)
        with pytest.raises(TurnTooLong):
            await engine.start_with_id("stuck", app.workflows["main"].spec, {})
        # One that comes too late, or from elsewhere, does nothing.
        signal.raise_signal(signal.SIGURG)
    finally:
        signal.signal(signal.SIGURG, before)


async def test_a_loop_that_only_yields_is_abandoned_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flowpg.authoring.loop.MAX_CALLBACKS", sys.maxsize)
    app = FlowApp("yielding", **SHORT)  # type: ignore[arg-type]

    @app.workflow
    async def main() -> None:
        while True:  # noqa: ASYNC110  that is the mistake
            await asyncio.sleep(0)

    engine = FlowEngine.in_memory(app)
    with pytest.raises(TurnTooLong):
        await engine.start(main.spec, {})


def until_looked_at() -> None:
    """Keep the turn until the watchdog has looked at it once."""
    turn = watchdog.turn_of_this_thread()
    assert turn is not None
    until(lambda: turn.looked == turn.began, "the watchdog looks at this turn")


async def test_many_short_turns_are_none_that_is_long(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchdog, "_LONGEST_LOOK", 0.03)
    # From the end of this turn on it looks so often.
    waking = spinning_app(until_looked_at, longest_turn=None)
    await FlowEngine.in_memory(waking).start(waking.workflows["main"].spec, {})
    app = FlowApp("long", **SHORT)  # type: ignore[arg-type]

    @app.step
    async def work(x: int) -> int:
        return x

    @app.workflow
    async def main() -> int:
        for number in range(20):
            await work(number)
            until_looked_at()
        return 20

    engine = FlowEngine.in_memory(app)
    run_id = await engine.start(main.spec, {})
    assert main.result(await engine.snapshot(run_id)) == 20
    # Nor is a replay of them all, in one go.
    history = await engine.history(run_id)
    fresh = InMemoryEventStore()
    await fresh.import_history(history[:-1])
    replaying = FlowEngine(fresh, app)
    assert main.result(await replaying.drive(run_id)) == 20
    assert "abandoned" not in caplog.text


async def test_without_a_limit_a_turn_is_only_logged(caplog: pytest.LogCaptureFixture) -> None:
    with until_said("without waiting") as spin:
        app = spinning_app(spin, longest_turn=None)
        engine = FlowEngine.in_memory(app)
        run_id = await engine.start(app.workflows["main"].spec, {})
    assert (await engine.snapshot(run_id)).status is RunStatus.COMPLETED
    assert "without waiting" in caplog.text


async def test_the_values_of_a_workflow_are_in_no_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    app = FlowApp("secretive", **SHORT)  # type: ignore[arg-type]

    @app.workflow
    async def main(secret: str) -> None:
        assert secret
        spin_for_ever()

    engine = FlowEngine.in_memory(app)
    with pytest.raises(TurnTooLong) as caught:
        await engine.start(main.spec, main.input("top" + "secret"))
    assert "topsecret" not in caplog.text + str(caught.value)


def test_a_time_of_nothing_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="slow_turn and longest_turn"):
        FlowApp("bad", longest_turn=timedelta(0))


STORM = """
import logging, sys, threading
from datetime import timedelta
from flowpg.authoring import watchdog
from flowpg.authoring.errors import TurnTooLong
from flowpg.authoring.watchdog import Turn, TurnRules

logging.disable()
# Strikes at the very moments at which short turns begin and end.
rules = TurnRules(timedelta(seconds=60), timedelta(seconds=60))
turn = Turn("run", "main", rules)
over = threading.Event()

def strike():
    while not over.is_set():
        turn.strikes or watchdog._strike(turn, turn.began)

threads = [threading.Thread(target=strike) for _ in range(2)]
for thread in threads:
    thread.start()
sys.setswitchinterval(1e-6)
struck = turns = 0
while struck < 50 and turns < 1_000_000:
    turns += 1
    turn.strikes = 0
    try:
        turn.run(lambda _: [n for n in range(400)], None)
    except TurnTooLong:
        struck += 1
turn.strikes = 1
over.set()
for thread in threads:
    thread.join()
for _ in range(100_000):
    pass
print("struck", struck, turn.open, watchdog.open_turns)
"""


def test_nothing_is_ever_raised_outside_of_a_turn() -> None:
    done = subprocess.run(
        [sys.executable, "-c", STORM], capture_output=True, text=True, check=False, timeout=100
    )
    assert done.stdout == "struck 50 False {}\n", done.stderr[-2000:]


async def test_a_workflow_that_is_a_plain_function_is_abandoned_too() -> None:
    app = FlowApp("plain", **SHORT)  # type: ignore[arg-type]

    @app.step
    async def work(x: int) -> int:
        return x

    @app.workflow
    def main() -> int:
        found = work(1)
        spin_for_ever()
        return found  # type: ignore[return-value]

    @app.workflow
    def fine() -> int:
        return work(2)  # type: ignore[return-value]

    engine = FlowEngine.in_memory(app)
    with pytest.raises(TurnTooLong):
        await engine.start(main.spec, {})
    run_id = await engine.start(fine.spec, {})
    assert (await engine.snapshot(run_id)).output == 2


def going_on(**rules: Any) -> FlowApp:
    """Workflows of both kinds that never wait after a step, ``abandoned`` and ``plainly``, and two
    that are fine, ``fine`` and ``plainly_fine``."""
    app = FlowApp("mixed", **{**SHORT, **rules})

    @app.step
    async def work(x: int) -> int:
        return x

    @app.workflow
    async def abandoned() -> None:
        await work(1)
        spin_for_ever()

    @app.workflow
    def plainly() -> None:
        work(1)  # type: ignore[unused-coroutine]
        spin_and_catch()

    @app.workflow
    async def fine() -> int:
        return sum(await asyncio.gather(work(1), work(2)))

    @app.workflow
    def plainly_fine() -> int:
        return work(1) + work(2)  # type: ignore[operator, no-any-return]

    return app


# In a process of its own: what an abandoned turn leaves behind may be that it never comes back.
GOING_ON = """
import asyncio, logging, sys
from flowpg.authoring.errors import TurnTooLong
from flowpg.engine.flow_engine import FlowEngine
from tests.authoring.test_watchdog import going_on

logging.disable()

async def go():
    for always_replay in (False, True):
        for first in ("abandoned", "plainly"):
            app = going_on(always_replay=always_replay)
            engine = FlowEngine.in_memory(app)
            try:
                await engine.start(app.workflows[first].spec, {})
            except TurnTooLong:
                print("abandoned", end=" ")
            for again in (False, True):
                app = going_on(always_replay=again)
                engine = FlowEngine.in_memory(app)
                for name in ("fine", "plainly_fine"):
                    run_id = await engine.start(app.workflows[name].spec, {})
                    print((await engine.snapshot(run_id)).output, end=" ")

async def nothing():
    pass

asyncio.run(go())
sys.setprofile(lambda *_: None)
asyncio.run(nothing())
print("profiled")
"""


def test_a_process_goes_on_with_workflows_of_both_kinds_after_it_abandoned_some() -> None:
    done = subprocess.run(
        [sys.executable, "-c", GOING_ON], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.stdout == "abandoned 3 3 3 3 " * 4 + "profiled\n", done.stderr[-2000:]
