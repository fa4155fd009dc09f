"""Workflow programs made at random, for Hypothesis, and what must hold of each.

``@given(programs(), happenings(), seeds())`` and ``check_program`` are a test of the engine by
itself; ``declare`` puts a program into an app of yours, for tests of your own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from flowpg.authoring.app import FlowApp
from flowpg.authoring.context import hook, now, patched, progress, set_attributes, uuid4
from flowpg.authoring.workflows import Workflow
from flowpg.errors import HookTokenConflict
from flowpg.model.events import HOOK_CREATED, FlowEventEnvelope
from flowpg.model.retry import RetryPolicy as Retry
from flowpg.testing.environment import WorkflowEnvironment
from flowpg.testing.faults import Fault, Faults, Interference, Mishap
from flowpg.testing.replaying import replay
from flowpg.testing.runs import TestedRun


@dataclass(frozen=True)
class Program:
    """One part of a program: what it does, a number, and the parts inside it."""

    kind: str
    number: int = 0
    parts: tuple[Program, ...] = ()


LEAVES = ("step", "sleep", "fail", "yield", "hook", "note", "patch")
OF_SEVERAL = ("sequence", "gather", "group", "race", "background", "completed")
OF_ONE = ("timeout", "wait_for", "cleanup", "lock", "claim", "shield", "caught", "stubborn")


def programs(max_leaves: int = 12) -> st.SearchStrategy[Program]:
    """Programs of steps, timers, hooks and reports, side by side, in races, under timeouts."""

    def part(kind: str, parts: Any) -> st.SearchStrategy[Program]:
        return st.builds(Program, st.just(kind), st.integers(0, 4), parts)

    return st.recursive(
        st.one_of(*(part(kind, st.just(())) for kind in LEAVES)),
        lambda inner: st.one_of(
            *(part(k, st.lists(inner, min_size=1, max_size=3).map(tuple)) for k in OF_SEVERAL),
            *(part(kind, st.tuples(inner)) for kind in OF_ONE),
        ),
        max_leaves=max_leaves,
    )


def happenings() -> st.SearchStrategy[list[str]]:
    """What happens while a run waits: time passes, a hook is answered, its coroutine is dropped."""
    return st.lists(st.sampled_from(("time", "answer", "evict")), max_size=6)


def declare(app: FlowApp, program: Program) -> Workflow[[], list[Any]]:
    """Declare, in ``app``, steps and a workflow that carries the program out and returns what it
    saw."""

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

        async def part(node: Program) -> Any:
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
                case "claim":
                    number += 1
                    try:
                        async with hook(f"hook {number}", token=f"claim {n % 2}"):
                            return await part(parts[0])
                    except HookTokenConflict as taken:
                        return f"taken by {taken.hook_id}"
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

    return main


async def check_program(program: Program, happening: Sequence[str] = (), seed: int = 0) -> None:
    """Carry a program out with its coroutine kept, replayed at every turn, with others writing to
    the run in between, and in processes that die. AssertionError or NonDeterministic unless the
    first two histories are equal to the letter, and a process that never saw a run replays every
    history to its very end.
    """
    kept = await played(program, happening)
    replayed = await played(program, happening, always_replay=True)
    assert _lines(kept) == _lines(replayed), "the history depends on whether the run was replayed"
    histories = [kept]
    mishaps: list[tuple[Mishap, bool]] = [
        (Interference(seed), False),
        (Interference(seed), True),
        (Faults(1 + seed % 12, Fault.DIES_AFTER), False),
    ]
    histories += [await played(program, happening, *mishap) for mishap in mishaps]
    for history in histories:
        fresh = FlowApp("programs")
        declare(fresh, program)
        await replay(fresh, history)


async def played(
    program: Program,
    happening: Sequence[str],
    faults: Mishap | None = None,
    always_replay: bool = False,
) -> list[FlowEventEnvelope]:
    """Carry a program out in memory and return its history."""
    app = FlowApp("programs")
    workflow = declare(app, program)
    env = WorkflowEnvironment(app, faults=faults, always_replay=always_replay, ticking=True)
    async with env:
        run = await env.start(workflow)
        for what in happening:
            if what == "evict":
                await env.settle()
                app.parked.clear()
            elif what == "time" or not await _answered(run):
                await env.skip()
        await run.finish()
        history = await run.history()
    app.close()
    return history


async def _answered(run: TestedRun[Any]) -> bool:
    open_hooks = await run.hooks()
    for hook_id in open_hooks[:1]:
        await run.answer(hook_id, "answered")
    return bool(open_hooks)


def _lines(history: Sequence[FlowEventEnvelope]) -> list[str]:
    lines = []
    for event in history:
        payload = event.payload
        if event.type == HOOK_CREATED:
            payload = payload.replace(event.data["token"], "<token>")  # it is random
        lines.append(f"{event.sequence} {event.recorded_at.isoformat()} {event.type} {payload}")
    return lines
