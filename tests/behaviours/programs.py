"""Workflows whose histories are kept, for the code of every later day to repeat."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import flowpg.sync
from flowpg import (
    AnswerRejected,
    FlowApp,
    HookTokenConflict,
    PayloadTooLarge,
    Retry,
    SerializationError,
    hook,
)
from flowpg.authoring.context import (
    now,
    patched,
    progress,
    random,
    set_attributes,
    uuid4,
    uuid7,
    wait_until,
)
from flowpg.authoring.step_context import step_context
from flowpg.testing import TestedRun, WorkflowEnvironment

app = FlowApp("kept")


@dataclass
class Line:
    """A line of an order."""

    article: UUID
    price: Decimal
    wanted: date
    tags: frozenset[str]


LINE = Line(UUID(int=7), Decimal("1.50"), date(2026, 2, 28), frozenset({"new", "blue", "red"}))


@app.step(retry=Retry.exponential(4, timedelta(seconds=2)))
async def book(line: Line, number: int = 1) -> Line:
    """Fails at first."""
    if step_context().attempt < 3:
        raise ConnectionError("later")
    return line


@app.step
def total(lines: list[Line], *, vat: Decimal) -> Decimal:
    """A plain function."""
    return sum((line.price for line in lines), Decimal(0)) * (1 + vat)


@app.step(retry=Retry.none())
async def refuse(why: str) -> None:
    """Fails for good."""
    raise PermissionError(why) from OSError(13, "denied")


@app.workflow
async def order(line: Line, count: int) -> dict[str, Any]:
    """Steps beside each other with retries, a timer, an answer, facts about the run."""
    progress(0, count, "booking")
    set_attributes(customer="acme", urgent=True)
    lines = await asyncio.gather(*(book(line, n) for n in range(count)))
    progress(count, count, details={"lines": count})
    await asyncio.sleep(3600)
    async with hook("approval", bool, token="approval", expires=timedelta(days=3)) as approval:
        try:
            async with asyncio.timeout(7200):
                approved = await approval
        except TimeoutError:
            approved = False
    sum_ = await total.run(lines, vat=Decimal("0.19"))
    try:
        await refuse("no")
    except PermissionError as error:
        reason = f"{error!r} {error.__cause__!r}"
    return {"approved": approved, "total": sum_, "reason": reason, "at": now()}


@app.workflow
async def chance() -> list[Any]:
    """Everything that a replay has to make up again."""
    found: list[Any] = [uuid4(), uuid7(), random().random(), now()]
    await asyncio.sleep(1.5)
    found += [uuid4(), random().randrange(10**9), patched("other name")]
    await wait_until(datetime(2026, 3, 1, tzinfo=UTC))
    tasks = [asyncio.create_task(_draw(n)) for n in range(3)]
    return [*found, *[await task for task in tasks]]


async def _draw(number: int) -> float:
    await asyncio.sleep(number)
    return random().random()


@app.workflow
async def losers() -> list[Any]:
    """Races: what loses is closed."""
    seen: list[Any] = []
    timers = [asyncio.create_task(asyncio.sleep(n, n)) for n in (30, 10, 20)]
    done, pending = await asyncio.wait(timers, return_when=asyncio.FIRST_COMPLETED)
    seen += [task.result() for task in done]
    for task in pending:
        task.cancel()
    await asyncio.gather(*pending, return_exceptions=True)
    try:
        await asyncio.wait_for(hook("never", token="never"), 5)
    except TimeoutError:
        seen.append("timeout")
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.sleep(100))
            group.create_task(refuse("group"))
    except* PermissionError as errors:
        seen.append(len(errors.exceptions))
    lock, queue = asyncio.Lock(), asyncio.Queue[int]()

    async def worker(n: int) -> None:
        async with lock:
            await asyncio.sleep(1)
            await queue.put(n)

    await asyncio.gather(*(worker(n) for n in range(3)))
    seen += [queue.get_nowait() for _ in range(3)]
    for item in asyncio.as_completed([asyncio.sleep(n, n) for n in (3, 1, 2)]):
        seen.append(await item)
    return seen


@app.workflow
async def called_off(line: Line) -> None:
    """Cleans up when it is cancelled."""
    try:
        await hook("go", token="go")
    except asyncio.CancelledError:
        await book(line, 99)
        await asyncio.sleep(60)
        raise


@app.workflow
def plainly(line: Line) -> list[Any]:
    """Without async."""
    first = total([line], vat=Decimal("0.07"))
    flowpg.sync.sleep(timedelta(minutes=5))
    answer = flowpg.sync.hook("ok", bool, token="ok").result()
    return [first, answer, total([line], vat=Decimal(0))]


@app.workflow
async def timed() -> list[Any]:
    """What is awaited with a timeout, alone and beside others."""

    async def two(n: int) -> float:
        await book(LINE, n)
        drawn = random().random()
        await asyncio.create_task(asyncio.sleep(n))
        return drawn + random().random()

    seen: list[Any] = [await asyncio.wait_for(two(1), 100)]
    seen.append(await asyncio.gather(asyncio.wait_for(two(2), 200), two(3)))
    try:
        await asyncio.wait_for(asyncio.gather(two(4), asyncio.sleep(50)), 20)
    except TimeoutError:
        seen.append(await book(LINE, 5) == LINE)
    try:
        await asyncio.wait_for(two(6), 0)
    except TimeoutError:
        seen.append(await two(7))
    return seen


@app.step
async def same(number: int) -> int:
    """Gives back what it got."""
    return number


@app.workflow
async def contended() -> list[Any]:
    """What ``wait_for`` awaits begins at once, and who called it goes on at once, however much
    else is ready."""
    seen: list[str] = []

    async def waits(name: str, seconds: float, number: int) -> None:
        async def inner() -> None:
            seen.append(f"{name} inside")
            if number:
                await same(number)

        try:
            await asyncio.wait_for(inner(), seconds)
            seen.append(f"{name} done")
        except TimeoutError:
            seen.append(f"{name} too late")
        await same(len(seen))

    async def speaks(name: str) -> None:
        for _ in range(4):
            seen.append(name)
            await asyncio.sleep(0)
        await same(len(seen))

    await asyncio.gather(waits("a", 9, 0), speaks("b"), waits("c", 9, 1), speaks("d"))
    answered = asyncio.ensure_future(same(5))
    await asyncio.gather(asyncio.wait_for(answered, 5), asyncio.wait_for(answered, 6), speaks("e"))
    return list(seen)


@app.step
async def take(words: set[str], mixed: dict[Any, Any]) -> list[Any]:
    """Gives back what it got."""
    return [words, mixed]


@app.workflow
async def sets() -> list[Any]:
    """Values whose order in memory depends on the process, and times of other zones."""
    words = {f"w{n}" for n in range(30)}
    got = await take(words, {"b": frozenset(words), 1: {1, "x", None, (1, 2)}})
    tokyo = timezone(timedelta(hours=9))
    await wait_until(datetime(2026, 7, 1, 21, tzinfo=tokyo))
    return [*got, now(), str(now()), [word for word in sorted(words) if word in got[0]]]


@app.workflow
async def too_large() -> list[Any]:
    """Arguments over the limit, alone and beside others."""
    seen: list[Any] = []
    large = {"x" * 2_000_000}
    try:
        await take(large, {})
    except PayloadTooLarge as error:
        seen.append(str(error))
    found = await asyncio.gather(
        take({"a"}, {}), take(large, {}), asyncio.sleep(5), return_exceptions=True
    )
    seen += [type(one).__name__ for one in found]
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(take(large, {}))
            group.create_task(take({"b"}, {}))
    except* PayloadTooLarge as errors:
        seen.append(len(errors.exceptions))
    try:
        progress(1, details="x" * 2_000_000)
    except PayloadTooLarge as error:
        seen.append(error.size)
    return [*seen, now()]


@app.workflow
async def beside() -> list[Any]:
    """Hooks with tokens beside other work, and one that is given up in the turn of its block. Its
    history is of the time before there were conflicts, when blocks were entered at once."""

    async def asks(n: int) -> int:
        async with hook(f"ask {n}", int, token=f"ask {n}") as ask:
            await book(LINE, n)
            return await ask

    async with hook("never mind", token="never mind"):
        pass
    return list(await asyncio.gather(asks(1), book(LINE, 3), asks(2), asyncio.sleep(5, "slept")))


@app.workflow
async def taken() -> list[Any]:
    """Tokens that are taken, by a hook of the same run."""
    seen: list[Any] = []

    async def claims(name: str, seconds: float) -> str:
        try:
            async with hook(name, token="the only one"):
                await asyncio.sleep(seconds)
                return f"{name} had it"
        except HookTokenConflict as conflict:
            await book(LINE, len(seen))
            return f"{name} gave way to {conflict.hook_id} of {conflict.run_id}"

    async with hook("outer", str, token="another") as outer:
        both = claims("first", 60), claims("second", 60)
        seen += await asyncio.gather(*both, hook("third", token="another"), return_exceptions=True)
        seen += await asyncio.gather(claims("fourth", 7200), outer, book(LINE, 1))
    return seen


@app.workflow
async def asked() -> list[Any]:
    """Says what it waits for, and asks again where nobody checked the answer."""
    seen: list[Any] = []
    while len(seen) < 3:
        try:
            seen.append(await hook("line", Line | None, token=f"line {len(seen)}"))
        except SerializationError as error:
            seen.append(str(error))
        await book(LINE, len(seen))
    return seen


Scenario = Callable[[WorkflowEnvironment, TestedRun[Any]], Awaitable[None]]


async def _nothing(env: WorkflowEnvironment, run: TestedRun[Any]) -> None: ...


async def _approve(env: WorkflowEnvironment, run: TestedRun[Any]) -> None:
    env.after(timedelta(hours=2), lambda: run.answer("approval", True))


async def _call_off(env: WorkflowEnvironment, run: TestedRun[Any]) -> None:
    await env.advance(timedelta(minutes=1))
    await run.cancel("not any more")


async def _answer_both(env: WorkflowEnvironment, run: TestedRun[Any]) -> None:
    env.after(timedelta(minutes=1), lambda: run.answer("ask 2", 2))
    env.after(timedelta(minutes=2), lambda: run.answer("ask 1", 1))


async def _answer_outer(env: WorkflowEnvironment, run: TestedRun[Any]) -> None:
    env.after(timedelta(hours=1), lambda: run.answer("outer", "out"))


async def _say_ok(env: WorkflowEnvironment, run: TestedRun[Any]) -> None:
    env.after(timedelta(hours=1), lambda: run.answer("ok", True))


async def _answer(env: WorkflowEnvironment, run: TestedRun[Any]) -> None:
    await env.settle()
    await env.engine.store.resume_hook(run.id, "line", {"price": "a lot"})
    env.drive(run.id)

    async def wrong_and_right() -> None:
        [hook_id] = await run.hooks()
        with suppress(AnswerRejected):
            await run.answer(hook_id, {"price": "a lot"})
        await run.answer(hook_id, LINE)

    env.after(timedelta(hours=1), wrong_and_right)
    env.after(timedelta(hours=2), lambda: run.answer("line", None))


PROGRAMS: dict[str, tuple[Any, tuple[Any, ...], Scenario]] = {
    "order": (order, (LINE, 3), _approve),
    "order-unanswered": (order, (LINE, 1), _nothing),
    "asked": (asked, (), _answer),
    "chance": (chance, (), _nothing),
    "losers": (losers, (), _nothing),
    "called-off": (called_off, (LINE,), _call_off),
    "timed": (timed, (), _nothing),
    "sets": (sets, (), _nothing),
    "too-large": (too_large, (), _nothing),
    "plainly": (plainly, (LINE,), _say_ok),
    "contended": (contended, (), _nothing),
    "beside": (beside, (), _answer_both),
    "taken": (taken, (), _answer_outer),
}
