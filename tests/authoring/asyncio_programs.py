"""Programs in ordinary asyncio. Each gets a step that doubles its argument and one that fails."""

import asyncio
import contextvars
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

LONG = 0.05
SHORT = 0.01


async def sequential(double: Any, broken: Any) -> Any:
    return [await double(n) for n in range(4)]


async def gathered(double: Any, broken: Any) -> Any:
    return await asyncio.gather(*(double(n) for n in range(5)))


async def gathered_with_errors(double: Any, broken: Any) -> Any:
    found = await asyncio.gather(double(1), broken(2), double(3), return_exceptions=True)
    return [repr(item) for item in found]


async def a_group(double: Any, broken: Any) -> Any:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(double(n)) for n in range(3)]
    return [task.result() for task in tasks]


async def a_group_that_fails(double: Any, broken: Any) -> Any:
    seen: list[Any] = []

    async def patient() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(patient())
            group.create_task(broken(1))
            group.create_task(patient())
    except* ValueError as caught:
        seen.append([str(error) for error in caught.exceptions])
    return seen


async def created_tasks(double: Any, broken: Any) -> Any:
    first = asyncio.create_task(double(1), name="first")
    second = asyncio.create_task(double(2))
    return [await second, await first, first.get_name()]


async def sleeping(double: Any, broken: Any) -> Any:
    begun = asyncio.get_running_loop().time()
    value = await asyncio.sleep(SHORT, "slept")
    return value, asyncio.get_running_loop().time() - begun >= SHORT


async def sleeping_not_at_all(double: Any, broken: Any) -> Any:
    seen = []

    async def turns(name: str) -> None:
        for number in range(3):
            seen.append((name, number))
            await asyncio.sleep(0)

    await asyncio.gather(turns("a"), turns("b"))
    return seen


async def a_timeout(double: Any, broken: Any) -> Any:
    try:
        async with asyncio.timeout(SHORT):
            await asyncio.sleep(LONG)
    except TimeoutError:
        return "timed out", await double(1)


async def a_timeout_in_time(double: Any, broken: Any) -> Any:
    async with asyncio.timeout(10) as deadline:
        value = await double(1)
    return value, deadline.expired()


async def nested_timeouts(double: Any, broken: Any) -> Any:
    seen = []
    try:
        async with asyncio.timeout(SHORT):
            try:
                async with asyncio.timeout(LONG):
                    await asyncio.sleep(1)
            finally:
                seen.append("inner left")
    except TimeoutError:
        seen.append("outer")
    return seen


async def a_timeout_at_a_time(double: Any, broken: Any) -> Any:
    try:
        async with asyncio.timeout_at(asyncio.get_running_loop().time() + SHORT) as scope:
            await asyncio.sleep(LONG)
    except TimeoutError:
        return scope.expired()


async def a_rescheduled_timeout(double: Any, broken: Any) -> Any:
    async with asyncio.timeout(SHORT) as scope:
        scope.reschedule(asyncio.get_running_loop().time() + 10)
        await asyncio.sleep(2 * SHORT)
    return scope.expired()


async def waiting_for(double: Any, broken: Any) -> Any:
    value = await asyncio.wait_for(double(3), 10)
    try:
        await asyncio.wait_for(asyncio.sleep(LONG), SHORT)
    except TimeoutError:
        return value, "timed out"


async def waiting_for_the_first(double: Any, broken: Any) -> Any:
    tasks = [asyncio.create_task(asyncio.sleep(s, s)) for s in (LONG, SHORT, 2 * LONG)]
    done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in pending:
        task.cancel()
    return [task.result() for task in done], len(pending)


async def waiting_with_a_timeout(double: Any, broken: Any) -> Any:
    tasks = [asyncio.create_task(asyncio.sleep(s, s)) for s in (SHORT, 10)]
    done, pending = await asyncio.wait(tasks, timeout=LONG)
    pending.pop().cancel()
    return [task.result() for task in done]


async def as_they_complete(double: Any, broken: Any) -> Any:
    naps = (3 * SHORT, SHORT, 2 * SHORT)
    return [await item for item in asyncio.as_completed([asyncio.sleep(s, s) for s in naps])]


async def as_they_complete_in_time(double: Any, broken: Any) -> Any:
    seen: list[Any] = []
    try:
        for item in asyncio.as_completed([asyncio.sleep(s, s) for s in (SHORT, 10)], timeout=LONG):
            seen.append(await item)  # noqa: PERF401  it keeps what came before the timeout
    except TimeoutError:
        seen.append("timed out")
    return seen


async def a_shield(double: Any, broken: Any) -> Any:
    inner = asyncio.create_task(asyncio.sleep(SHORT, "kept"))
    try:
        await asyncio.wait_for(asyncio.shield(inner), SHORT / 2)
    except TimeoutError:
        return await inner


async def a_lock(double: Any, broken: Any) -> Any:
    lock, seen = asyncio.Lock(), []

    async def one(name: str) -> None:
        async with lock:
            seen.append(f"{name} in")
            await double(1)
            seen.append(f"{name} out")

    await asyncio.gather(one("a"), one("b"), one("c"))
    return seen


async def a_semaphore(double: Any, broken: Any) -> Any:
    limit, at_once, most = asyncio.Semaphore(2), 0, 0

    async def one() -> None:
        nonlocal at_once, most
        async with limit:
            at_once += 1
            most = max(most, at_once)
            await asyncio.sleep(SHORT)
            at_once -= 1

    await asyncio.gather(*(one() for _ in range(5)))
    return most


async def an_event(double: Any, broken: Any) -> Any:
    event = asyncio.Event()

    async def wait() -> str:
        await event.wait()
        return "woken"

    waiting = [asyncio.create_task(wait()) for _ in range(2)]
    await double(1)
    event.set()
    return await asyncio.gather(*waiting)


async def a_condition(double: Any, broken: Any) -> Any:
    condition = asyncio.Condition()
    ready: list[int] = []

    async def consume() -> Any:
        async with condition:
            await condition.wait_for(lambda: len(ready) == 2)
            return list(ready)

    task = asyncio.create_task(consume())
    for number in range(2):
        value = await double(number)
        async with condition:
            ready.append(value)
            condition.notify_all()
    return await task


async def a_queue(double: Any, broken: Any) -> Any:
    queue: asyncio.Queue[Any] = asyncio.Queue(maxsize=2)
    seen = []

    async def produce() -> None:
        for number in range(5):
            await queue.put(await double(number))
        await queue.put(None)

    async def consume() -> None:
        while (item := await queue.get()) is not None:
            seen.append(item)
            await asyncio.sleep(SHORT)

    await asyncio.gather(produce(), consume())
    return seen


async def a_generator(double: Any, broken: Any) -> Any:
    closed = []

    async def numbers() -> AsyncIterator[int]:
        try:
            for number in range(10):
                yield await double(number)
        finally:
            closed.append(await double(100))

    seen = []
    generator = numbers()
    async for number in generator:
        seen.append(number)
        if number == 4:
            break
    await generator.aclose()  # type: ignore[attr-defined]
    return seen, closed, [x async for x in numbers() if x > 14]


async def context_managers(double: Any, broken: Any) -> Any:
    seen: list[Any] = []

    @asynccontextmanager
    async def scope(name: str) -> AsyncIterator[int]:
        seen.append(f"enter {name}")
        try:
            yield await double(len(name))
        finally:
            seen.append(await double(len(seen)))

    async with AsyncExitStack() as stack:
        seen.append(await stack.enter_async_context(scope("a")))
        async with scope("bb") as value:
            seen.append(value)
            await asyncio.sleep(SHORT)
    return seen


async def context_variables(double: Any, broken: Any) -> Any:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("v", default="none")
    seen = [variable.get()]
    variable.set("main")

    async def child(name: str) -> str:
        inherited = variable.get()
        variable.set(name)
        await double(1)
        return f"{inherited} {variable.get()}"

    seen += await asyncio.gather(child("a"), child("b"))
    return [*seen, variable.get()]


async def cancelling_a_task(double: Any, broken: Any) -> Any:
    seen = []

    async def patient() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            seen.append(await double(1))

    task = asyncio.create_task(patient())
    await asyncio.sleep(0)
    task.cancel("enough")
    try:
        await task
    except asyncio.CancelledError:
        seen.append(task.cancelled())
    return seen


async def uncancelling(double: Any, broken: Any) -> Any:
    async def stubborn() -> Any:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            assert task is not None
            return [str(error), task.cancelling(), task.uncancel(), await double(1)]

    task = asyncio.create_task(stubborn())
    await asyncio.sleep(SHORT)
    task.cancel("enough")
    return await task


async def errors_with_causes(double: Any, broken: Any) -> Any:
    try:
        await broken(7)
    except ValueError as error:
        return repr(error), await double(1)


async def callbacks(double: Any, broken: Any) -> Any:
    loop = asyncio.get_running_loop()
    seen: list[str] = []
    done = loop.create_future()
    loop.call_later(2 * SHORT, seen.append, "later")
    loop.call_later(3 * SHORT, done.set_result, None)
    loop.call_later(SHORT, seen.append, "never").cancel()
    loop.call_soon(seen.append, "soon")
    await done
    return seen


async def a_barrier(double: Any, broken: Any) -> Any:
    barrier = asyncio.Barrier(3)

    async def one(n: int) -> int:
        await double(n)
        return await barrier.wait()

    return sorted(await asyncio.gather(*(one(n) for n in range(3))))


PROGRAMS = [
    sequential,
    gathered,
    gathered_with_errors,
    a_group,
    a_group_that_fails,
    created_tasks,
    sleeping,
    sleeping_not_at_all,
    a_timeout,
    a_timeout_in_time,
    nested_timeouts,
    a_timeout_at_a_time,
    a_rescheduled_timeout,
    waiting_for,
    waiting_for_the_first,
    waiting_with_a_timeout,
    as_they_complete,
    as_they_complete_in_time,
    a_shield,
    a_lock,
    a_semaphore,
    an_event,
    a_condition,
    a_queue,
    a_generator,
    context_managers,
    context_variables,
    cancelling_a_task,
    uncancelling,
    errors_with_causes,
    callbacks,
    a_barrier,
]
