"""Programs made at random whose runs want each other's tokens; ``contest`` plays them.

Each run carries out its own program; the tokens are common to all. So what a run meets at the door
of a block depends on the others, and what stands in its history must not.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Iterator, Sequence
from datetime import timedelta
from typing import Any

from hypothesis import strategies as st

from flowpg import sync
from flowpg.authoring.app import FlowApp
from flowpg.authoring.context import hook, now, patched, progress, set_attributes
from flowpg.authoring.strands import carry_out
from flowpg.authoring.workflows import Workflow
from flowpg.errors import HookTokenConflict
from flowpg.model.retry import RetryPolicy as Retry
from flowpg.testing.programs import Program
from tests.waiting import turns

LEAVES = ("step", "sleep", "yield", "note", "patch", "raise", "await", "answered")
OF_SEVERAL = ("sequence", "gather", "group", "race", "stack")
CLAIMS = (
    "claim",
    "retried",
    "expiring",
    "twice",
    "generator",
    "left generator",
    "late",
    "swallowed",
    "cancelled",
    "timeout",
    "wait_for",
    "shield",
    "background",
    "patient",
    "plain",
    "plain timeout",
    "plain generator",
)
OF_ONE = (*CLAIMS, "cleanup", "caught")


def programs() -> st.SearchStrategy[Program]:
    """One run's program."""

    def part(kind: str, parts: Any) -> st.SearchStrategy[Program]:
        return st.builds(Program, st.just(kind), st.integers(0, 3), parts)

    return st.recursive(
        st.one_of(*(part(kind, st.just(())) for kind in LEAVES)),
        lambda inner: st.one_of(
            *(part(k, st.lists(inner, min_size=1, max_size=3).map(tuple)) for k in OF_SEVERAL),
            *(part(kind, st.tuples(inner)) for kind in OF_ONE),
        ),
        max_leaves=4,
    )


def contests() -> st.SearchStrategy[list[Program]]:
    """The programs of two to four runs, each with several parts that want tokens side by side."""
    claim = st.builds(
        Program,
        st.sampled_from((*CLAIMS, "claim", "claim", "retried")),
        st.integers(0, 3),
        st.tuples(programs()),
    )
    beside = st.builds(
        Program,
        st.sampled_from(("gather", "group", "race")),
        st.integers(0, 3),
        st.lists(st.one_of(claim, claim, programs()), min_size=1, max_size=4).map(tuple),
    )
    return st.lists(beside, min_size=2, max_size=4)


HAPPENINGS = ("time", "time", "answer", "withdraw", "cancel", "force", "evict")


def happenings() -> st.SearchStrategy[list[tuple[str, int]]]:
    """What happens while the runs wait, and to which of them."""
    return st.lists(st.tuples(st.sampled_from(HAPPENINGS), st.integers(0, 3)), max_size=6)


def declare(app: FlowApp, contest: Sequence[Program]) -> Workflow[[int], list[Any]]:
    """Declare in ``app`` a workflow that carries out the program of its number."""

    @app.step(retry=Retry.fixed(2))
    async def work(x: int) -> int:
        await turns(x)
        return x

    @app.workflow
    async def main(number: int) -> list[Any]:
        seen: list[Any] = []
        run = Contender(work, seen)
        try:
            seen.append(await run.part(contest[number]))
        except (ValueError, TimeoutError, ExceptionGroup, HookTokenConflict) as error:
            seen.append(said(error))
        return [*seen, now()]

    return main


def said(error: BaseException) -> str:
    """An error in words that hold no moment."""
    if isinstance(error, HookTokenConflict):
        return f"taken by {error.run_id} {error.hook_id}"
    if isinstance(error, BaseExceptionGroup):
        return f"group of {[said(inner) for inner in error.exceptions]}"
    return type(error).__name__


class Contender:
    """One run at its program."""

    def __init__(self, work: Any, seen: list[Any]) -> None:
        self._work = work
        self._seen = seen
        self._tasks: list[Any] = []

    def _lock(self, n: int, **options: Any) -> Any:
        return hook(f"lock {n % 2}", token=f"token {n % 2}", **options)

    async def _claim(self, node: Program, **options: Any) -> Any:
        async with self._lock(node.number, **options) as lock:
            self._seen.append(f"has {lock.id}")
            return await self.part(node.parts[0])

    async def _holding(self, n: int) -> AsyncGenerator[int, None]:
        async with self._lock(n):
            yield 1
            yield 2

    def _plain(self, node: Program) -> Any:
        with sync.hook(f"lock {node.number % 2}", token=f"token {node.number % 2}") as lock:
            self._seen.append(f"has {lock.id}")
            return sync.wait(self.part(node.parts[0]))

    def _plain_timeout(self, node: Program) -> Any:
        with sync.timeout(node.number):
            return self._plain(node)

    def _plain_generator(self, node: Program) -> Any:
        def holding() -> Iterator[Any]:
            with sync.hook(f"lock {node.number % 2}", token=f"token {node.number % 2}"):
                yield 1
                yield 2

        for _ in holding():
            return sync.wait(self.part(node.parts[0]))
        return "never"

    async def part(self, node: Program) -> Any:
        """Carry out one part."""
        self._seen.append(node.kind)
        parts, n = node.parts, node.number
        match node.kind:
            case "step":
                return await self._work(n)
            case "sleep":
                return await asyncio.sleep(n, n)
            case "yield":
                for _ in range(n):
                    await asyncio.sleep(0)
                return n
            case "note":
                progress(n)
                return n
            case "patch":
                set_attributes({f"n{n}": len(self._seen)})
                return patched(f"p{n}")
            case "raise":
                raise ValueError(str(n))
            case "await":
                async with asyncio.timeout(n + 1):
                    return await self._lock(n)
            case "answered":
                async with asyncio.timeout(n + 1):
                    return await hook("answer", on_conflict="wait")
            case "sequence":
                return [await self.part(p) for p in parts]
            case "gather":
                found = await asyncio.gather(*map(self.part, parts), return_exceptions=True)
                return [said(x) if isinstance(x, BaseException) else x for x in found]
            case "group":
                async with asyncio.TaskGroup() as group:
                    tasks = [group.create_task(self.part(p)) for p in parts]
                return [task.result() for task in tasks]
            case "race":
                tasks = [asyncio.create_task(self.part(p)) for p in parts]
                done, rest = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in rest:
                    task.cancel()
                return sorted(said(e) if (e := t.exception()) else str(t.result()) for t in done)
            case "stack":
                async with contextlib.AsyncExitStack() as stack:
                    stack.push_async_callback(self._work, n)
                    for p in parts:
                        await stack.enter_async_context(self._lock(p.number))
                        await self.part(p)
                return "left the stack"
            case "claim":
                return await self._claim(node)
            case "retried":
                for _ in range(3):
                    try:
                        return await self._claim(node)
                    except HookTokenConflict as taken:
                        self._seen.append(said(taken))
                        await asyncio.sleep(1)
                return "never"
            case "expiring":
                return await self._claim(node, expires=timedelta(seconds=n + 1))
            case "twice":
                both = asyncio.gather(self._claim(node), self._claim(node), return_exceptions=True)
                return [said(x) if isinstance(x, BaseException) else x for x in await both]
            case "generator":
                async with contextlib.aclosing(self._holding(n)) as held:
                    async for _ in held:
                        return await self.part(parts[0])
            case "left generator":
                async for _ in self._holding(n):
                    return await self.part(parts[0])
            case "late":
                lock = self._lock(n)
                try:
                    async with lock:
                        await self.part(parts[0])
                        raise ValueError("in the body")
                except ValueError:
                    return await self.part(parts[0])
                finally:
                    self._seen.append(await self._work(n))
            case "swallowed":
                try:
                    return await self._claim(node)
                except asyncio.CancelledError:
                    return "swallowed"
            case "cancelled":
                task = asyncio.create_task(self._claim(node))
                for _ in range(n):
                    await asyncio.sleep(0)
                if n == 3:
                    await self._work(n)
                task.cancel()
                await asyncio.wait([task])
                return task.cancelled()
            case "timeout":
                async with asyncio.timeout(n):
                    return await self._claim(node)
            case "wait_for":
                return await asyncio.wait_for(self._claim(node), n)
            case "shield":
                return await asyncio.shield(asyncio.ensure_future(self._claim(node)))
            case "cleanup":
                try:
                    return await self.part(parts[0])
                finally:
                    async with self._lock(n):
                        self._seen.append(await self._work(n))
            case "caught":
                try:
                    return await self.part(parts[0])
                except (ValueError, TimeoutError, ExceptionGroup, HookTokenConflict) as error:
                    return said(error)
            case "background":
                self._tasks.append(asyncio.create_task(self._claim(node)))
                return await self._work(n)
            case "patient":
                return await self._claim(node, on_conflict="wait")
            case "plain":
                return await carry_out(self._plain, (node,), {})
            case "plain timeout":
                return await carry_out(self._plain_timeout, (node,), {})
            case "plain generator":
                return await carry_out(self._plain_generator, (node,), {})
        raise AssertionError(node.kind)
