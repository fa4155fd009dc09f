"""Playing the programs of ``contenders`` side by side, and what must hold of their histories."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Awaitable, Sequence
from itertools import groupby
from typing import Any

from flowpg.authoring.app import FlowApp
from flowpg.errors import HookTokenConflict, RunTerminal
from flowpg.model.events import RUN_CANCELLATION_REQUESTED, TERMINAL_TYPES, FlowEventEnvelope
from flowpg.model.records import Append, AppendResult
from flowpg.store.protocol import FlowEventStore
from flowpg.testing import TestedRun, WorkflowEnvironment
from flowpg.testing.environment import LEASE
from flowpg.testing.faults import Mishap
from flowpg.testing.programs import Program
from flowpg.testing.runs import RunWaits
from tests.authoring.contenders import declare


class Evictions:
    """Before an append the coroutines that are kept are dropped, or not: by ``seed``."""

    def __init__(self, app: FlowApp, seed: int) -> None:
        self._app = app
        self._chance = random.Random(seed)

    def wrap(self, store: FlowEventStore) -> FlowEventStore:
        """``store``, whose appends drop coroutines."""
        evictions = self

        class Dropping:
            def __getattr__(self, name: str) -> Any:
                return getattr(store, name)

            async def append(self, append: Append) -> AppendResult:
                if evictions._chance.random() < 0.5:
                    evictions._app.parked.clear()
                return await store.append(append)

        return Dropping()

    def reborn(self) -> None:
        """Nobody dies of it."""


async def played(
    contest: Sequence[Program],
    happening: Sequence[tuple[str, int]],
    *,
    faults: Mishap | None = None,
    evictions: int | None = None,
    always_replay: bool = False,
) -> list[list[FlowEventEnvelope]]:
    """Carry the contest out in memory and return the histories of its runs."""
    app = FlowApp("contest")
    workflow = declare(app, contest)
    if evictions is not None:
        faults = Evictions(app, evictions)
    env = WorkflowEnvironment(app, faults=faults, always_replay=always_replay, ticking=True)
    async with env:
        runs: list[TestedRun[Any]] = []
        for number in range(len(contest)):
            runs.append(await env.start_with_id(f"r{number}", workflow, number))
            if number % 2:
                await env.settle()
        for what, which in happening:
            run = runs[which % len(runs)]
            await tried(env, run, happens(env, app, run, what))
        for _ in range(10):
            ended = [await tried(env, run, run.finish()) for run in runs]
            if all(ended):
                break
        else:
            for run in runs:  # each waits for another's token
                with contextlib.suppress(RunTerminal):
                    await env.engine.force_cancel(run.id, "stands still")
        histories = [await run.history() for run in runs]
    app.close()
    return histories


async def tried(env: WorkflowEnvironment, run: TestedRun[Any], what: Awaitable[Any]) -> bool:
    """Whether that could be done: not if the run waits for a token. It then asks for it again."""
    try:
        await what
    except HookTokenConflict:
        env.drive(run.id)
        return False
    except RunWaits:
        # Its lease could not be given back when it was blocked: it runs out by itself.
        await env.advance(LEASE)
        env.drive(run.id)
        return False
    return True


async def happens(env: WorkflowEnvironment, app: FlowApp, run: TestedRun[Any], what: str) -> None:
    """Let one thing happen to a run, or time pass if there is nothing it could happen to."""
    await env.settle()
    snapshot = await run.snapshot()
    opened = list(snapshot.open.hooks)
    if what == "evict":
        app.parked.clear()
    elif what == "time" or snapshot.terminal:
        await env.skip()
    elif what == "cancel":
        if snapshot.cancellation is None:
            await run.cancel("enough")
    elif what == "force":
        with contextlib.suppress(RunTerminal):
            await env.engine.force_cancel(run.id, "by force")
    elif opened:
        await (run.answer(opened[0], "answered") if what == "answer" else run.withdraw(opened[0]))


def lines(histories: Sequence[Sequence[Any]]) -> list[str]:
    """The histories as text, without tokens that were made up by chance."""
    found = []
    for history in histories:
        for event in history:
            payload = event.payload
            if event.type == "hook_created" and event.data["hook_id"].startswith("answer"):
                payload = payload.replace(event.data["token"], "<token>")
            found.append(
                f"{event.run_id} {event.sequence} {event.recorded_at.isoformat()} "
                f"{event.type} {payload}"
            )
    return found


def check_owners(histories: Sequence[Sequence[FlowEventEnvelope]]) -> None:
    """AssertionError unless each token had one owner at a time, and whoever was refused it names
    one that had it: the owner may be gone by the time at which the refusal is stored."""
    held: dict[str, tuple[str, str]] = {}  # by token
    had: dict[tuple[str, str], str] = {}  # every token that a hook ever got
    appends = sorted(
        (event for history in histories for event in history),
        key=lambda event: (event.recorded_at, event.run_id, event.sequence),
    )
    for _, group in groupby(appends, key=lambda event: (event.recorded_at, event.run_id)):
        events = list(group)
        run_id = events[0].run_id
        gone = {e.subject for e in events if e.type in ("hook_disposed", "hook_received")}
        clears = any(e.type in _CLEARS for e in events)
        for token, owner in list(held.items()):
            if owner[0] == run_id and (clears or owner[1] in gone):
                del held[token]
        for event in events:
            if event.type == "hook_created":
                token, hook = event.data["token"], (run_id, event.data["hook_id"])
                had[hook] = token
                if not clears and hook[1] not in gone:
                    assert token not in held, f"{hook} and {held[token]} have one token"
                    held[token] = hook
            elif event.type == "hook_conflicted":
                owner = event.data["owner_run_id"], event.data["owner_hook_id"]
                assert owner in had, f"{event.subject} gave way to {owner}, which had no token"
                number = event.data["hook_id"].split("#")[0].removeprefix("lock ")
                assert had[owner] == f"token {number}", f"{owner} had another token"


_CLEARS = {RUN_CANCELLATION_REQUESTED, *TERMINAL_TYPES}
