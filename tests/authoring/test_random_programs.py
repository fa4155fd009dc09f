"""Programs made at random: kept in memory, replayed at every turn, put aside at random, and with
commits refused at random. Whatever happened, a process that never saw the run replays its history
to the same end."""

import asyncio
import os
import random
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flowpg.authoring import (
    FlowApp,
    Retry,
    hook,
    now,
    patched,
    progress,
    set_attributes,
    uuid4,
)
from flowpg.model.commands import Cancel, Complete, Fail
from flowpg.model.operations import WorkflowProgress
from flowpg.model.records import Append, AppendResult
from flowpg.model.snapshot import RunStatus
from flowpg.replay.projection import project
from flowpg.replay.runtime import WorkflowInvocation
from flowpg.store.memory import InMemoryEventStore
from tests.authoring.support import RUN_ID, Played, Stage, Ticking, play, stage


@dataclass(frozen=True)
class Node:
    """One part of a program: what it does, a number, and the parts inside it."""

    kind: str
    number: int = 0
    parts: tuple["Node", ...] = ()


def _node(kind: str, parts: Any) -> st.SearchStrategy[Node]:
    return st.builds(Node, st.just(kind), st.integers(0, 4), parts)


LEAVES = st.one_of(
    *(
        _node(kind, st.just(()))
        for kind in ("step", "sleep", "fail", "yield", "hook", "note", "patch")
    )
)
PROGRAMS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        *(
            _node(kind, st.lists(inner, min_size=1, max_size=3).map(tuple))
            for kind in ("sequence", "gather", "group", "race", "background", "completed")
        ),
        *(
            _node(kind, st.tuples(inner))
            for kind in ("timeout", "wait_for", "cleanup", "lock", "shield", "caught", "stubborn")
        ),
    ),
    max_leaves=12,
)


def build(program: Node) -> Any:
    """An app whose workflow carries the program out and returns what it saw."""

    def declare(app: FlowApp) -> None:
        @app.step(retry=Retry.fixed(2))
        async def work(x: int) -> int:
            for _ in range(x):
                await asyncio.sleep(0)
            return x

        @app.step(retry=Retry.none())
        async def broken(x: int) -> int:
            raise ValueError(f"broken {x}")

        @app.workflow
        async def main() -> list[Any]:
            seen: list[Any] = []
            lock = asyncio.Lock()
            number = 0

            async def part(node: Node) -> Any:
                nonlocal number
                seen.append(node.kind)
                parts, n = node.parts, node.number
                match node.kind:
                    case "step":
                        return await work(n)
                    case "fail":
                        return await broken(n)
                    case "sleep":
                        return await asyncio.sleep(n, n)
                    case "yield":
                        return await asyncio.sleep(0, n)
                    case "note":
                        progress(n)
                        return str(uuid4())
                    case "patch":
                        set_attributes({f"n{n}": len(seen)})
                        return patched(f"p{n}")
                    case "hook":
                        number += 1
                        async with asyncio.timeout(3):
                            return await hook(f"hook {number}", token=f"{number}")
                    case "sequence":
                        return [await part(p) for p in parts]
                    case "gather":
                        found = await asyncio.gather(*map(part, parts), return_exceptions=True)
                        return [repr(item) for item in found]
                    case "group":
                        async with asyncio.TaskGroup() as group:
                            tasks = [group.create_task(part(p)) for p in parts]
                        return [task.result() for task in tasks]
                    case "race":
                        tasks = [asyncio.create_task(part(p)) for p in parts]
                        done, rest = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                        for task in rest:
                            task.cancel()
                        return [repr(t.exception() or t.result()) for t in done]
                    case "completed":
                        found = []
                        for item in asyncio.as_completed([part(p) for p in parts]):
                            try:
                                found.append(await item)
                            except ValueError as error:
                                found.append(str(error))
                        return found
                    case "background":
                        kept = [asyncio.create_task(part(p)) for p in parts]
                        await work(n)
                        return sum(task.done() for task in kept)
                    case "timeout":
                        async with asyncio.timeout(n):
                            return await part(parts[0])
                    case "wait_for":
                        return await asyncio.wait_for(part(parts[0]), n)
                    case "shield":
                        return await asyncio.shield(asyncio.ensure_future(part(parts[0])))
                    case "lock":
                        if lock.locked():
                            return None
                        async with lock:
                            return await part(parts[0])
                    case "cleanup":
                        try:
                            return await part(parts[0])
                        finally:
                            seen.append(await work(n))
                    case "stubborn":
                        try:
                            return await part(parts[0])
                        except asyncio.CancelledError as error:
                            return f"cancelled {error}"
                    case "caught":
                        try:
                            return await part(parts[0])
                        except (ValueError, TimeoutError, ExceptionGroup) as error:
                            return type(error).__name__
                raise AssertionError(node.kind)

            try:
                seen.append(await part(program))
            except (ValueError, TimeoutError, ExceptionGroup) as error:
                seen.append(type(error).__name__)
            return [*seen, now()]

    return declare


class Quarrelsome(InMemoryEventStore):
    """Between a decision and its append someone else may be first: with a report, an answer, a
    timer, or now and then a request to cancel."""

    def __init__(self, seed: int) -> None:
        super().__init__(clock=Ticking())
        self._chance = random.Random(seed)

    async def append(self, append: Append) -> AppendResult:
        """Append, perhaps after someone else."""
        if append.events and self._chance.random() < 0.4:
            await self._interfere(append.run_id)
        return await super().append(append)

    async def _interfere(self, run_id: str) -> None:
        run = project(run_id, (await self.load_runs([run_id]))[run_id].history)
        what = self._chance.randrange(8)
        if what < 4 and run.open.hooks:
            await self.resume_hook(run_id, self._chance.choice(list(run.open.hooks)), "first")
        elif what < 6 and run.open.waits:
            wait = self._chance.choice(list(run.open.waits.values()))
            self.advance(max(wait.resume_at - await self.now(), timedelta(0)))
            await self.resume_wait(run_id, wait.wait_id)
        elif what == 7 and run.cancellation is None and self._chance.random() < 0.2:
            await self.request_cancellation(run_id, "now")
        else:
            progress_id = f"outside {run.last_sequence}"
            await self.record_progress(
                run_id, WorkflowProgress(progress_id=progress_id, completed=1)
            )


def act(kind: int) -> Any:
    """Something that happens while the run waits."""

    async def answer_a_hook(on: Stage) -> None:
        for hook_id in (await on.snapshot()).open.hooks:
            await on.engine.resume_hook(on.run_id, hook_id, "answered")
            return
        await on.pass_time()

    async def put_aside(on: Stage) -> None:
        on.app.parked.clear()

    return [Stage.pass_time, answer_a_hook, put_aside][kind % 3]


def end_of(declare: Any, played: Played) -> Any:
    """How the run ends where nothing of it was ever seen."""
    app = FlowApp("fresh")
    declare(app)
    history = played.history[:-1]
    snapshot = project(RUN_ID, history)
    decision = app.run_workflow(
        WorkflowInvocation(RUN_ID, snapshot.spec, snapshot.input, snapshot, history)
    )
    assert isinstance(decision, tuple)
    end = decision[-1]
    return end.output if isinstance(end, Complete) else end.error if isinstance(end, Fail) else end


@settings(
    max_examples=2000 if os.environ.get("FLOWPG_STORM") else 60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(PROGRAMS, st.lists(st.integers(0, 2), max_size=6), st.integers(0, 1000))
def test_a_program_ends_the_same_however_it_was_interrupted(
    program: Node, happenings: list[int], seed: int
) -> None:
    declare = build(program)
    acts = tuple(map(act, happenings))

    async def check() -> None:
        calm = [InMemoryEventStore(clock=Ticking()) for _ in range(2)]
        kept = await play(stage(declare, store=calm[0]), acts=acts)
        replayed = await play(stage(declare, store=calm[1], always_replay=True), acts=acts)
        assert kept.lines() == replayed.lines()
        played = [kept]
        for always_replay in (False, True):
            on = stage(declare, store=Quarrelsome(seed), always_replay=always_replay)
            played.append(await play(on, acts=acts))
        for one in played:
            snapshot = one.snapshot
            end = Cancel() if snapshot.status is RunStatus.CANCELLED else None
            assert end_of(declare, one) == (end or snapshot.output or snapshot.error)

    asyncio.run(check())
