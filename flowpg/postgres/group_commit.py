"""Group commit: appends of all runs of a process meet and share a call.

While a call is on the wire the next appends collect; the call after takes them all. There is no
timer, so an idle store adds no latency. At most two calls are in flight: one would leave the
server idle while the process prepares the next, more only make the batches smaller.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from flowpg.errors import FlowError, SchemaError, StoreError, StoreUnavailable
from flowpg.model.records import Append, AppendResult

MAX_RUNS = 100
"""Most runs of one call. They share what a call costs by itself: with 100 the server spends 11 us
less on each than with 50. More would hold too many locks at once."""

MAX_CHARACTERS = 4_000_000
"""Text after which a call is full, large single payloads excepted."""

MAX_IN_FLIGHT = 2

Send = Callable[[Sequence[Append]], Awaitable[list[AppendResult]]]
_Waiting = tuple[Append, "asyncio.Future[AppendResult]"]


class GroupCommit:
    """Collects appends and hands them to ``send`` in groups.

    Appends of one run keep their order and never share a call. A call that fails fails its own
    members only. An append whose caller is cancelled is dropped if it was not sent yet; one that
    was sent takes effect or not, like any other call whose reply nobody waits for.
    """

    def __init__(self, send: Send) -> None:
        self._send = send
        self._closed = False
        self._begin()

    def _begin(self) -> None:
        self._process = os.getpid()
        self._waiting: deque[_Waiting] = deque()
        self._busy: set[str] = set()  # runs with an append in flight
        self._calls: set[asyncio.Task[None]] = set()

    async def append(self, append: Append) -> AppendResult:
        """Store the events of one run, in company if there is any; its ``text`` tells its size."""
        if self._closed:
            raise StoreError("the store is closed")
        if self._process != os.getpid():
            self._begin()  # what was at work at the fork is the parent's
        answer: asyncio.Future[AppendResult] = asyncio.get_running_loop().create_future()
        self._waiting.append((append, answer))
        if len(self._calls) < MAX_IN_FLIGHT:
            # The task starts after what is ready to run now, which may bring more appends.
            task = asyncio.create_task(self._work())
            self._calls.add(task)
            task.add_done_callback(self._calls.discard)
        return await answer

    async def close(self) -> None:
        """Refuse new appends and wait for those in flight."""
        self._closed = True
        while self._calls and self._process == os.getpid():
            await asyncio.wait(self._calls)

    async def _work(self) -> None:
        task = asyncio.current_task()
        try:
            while group := self._next_group():
                runs = {append.run_id for append, _ in group}
                self._busy |= runs
                try:
                    await self._commit(group)
                finally:
                    self._busy -= runs
        finally:
            # In the same breath as finding nothing more to do: a callback comes a moment later, and
            # an append in between would count on this call, and wait for ever.
            if task is not None:
                self._calls.discard(task)

    def _next_group(self) -> list[_Waiting]:
        group: list[_Waiting] = []
        passed: list[_Waiting] = []
        taken: set[str] = set()
        size = 0
        while self._waiting and len(group) < MAX_RUNS and size < MAX_CHARACTERS:
            append, answer = entry = self._waiting.popleft()
            if answer.done():  # its caller was cancelled
                continue
            if append.run_id in self._busy or append.run_id in taken:
                passed.append(entry)
            else:
                group.append(entry)
                size += len(append.text or "")
            # Also for one that was passed over: a later append of its run must not overtake it.
            taken.add(append.run_id)
        self._waiting.extendleft(reversed(passed))
        return group

    async def _commit(self, group: list[_Waiting]) -> None:
        try:
            results = await self._send([append for append, _ in group])
        except Exception as error:  # noqa: BLE001 -- whatever it is, nobody may wait for ever
            if len(group) == 1 or not _refused(error):
                _fail(group, error)
                return
            # Alone, each member gets the answer that it deserves.
            for entry in group:
                await self._commit([entry])
        else:
            for (_, answer), result in zip(group, results, strict=True):
                if not answer.done():
                    answer.set_result(result)


def _refused(error: Exception) -> bool:
    # Whether the server refused the call as a whole because of one of its members, so that surely
    # nothing was stored. Any other failure may have come after the commit.
    return isinstance(error, FlowError) and not isinstance(error, StoreUnavailable | SchemaError)


def _fail(group: list[_Waiting], error: Exception) -> None:
    for _, answer in group:
        if not answer.done():
            # One each: a traceback grows with every task that an exception is raised in.
            own = type(error)(*error.args) if type(error) is StoreUnavailable else error
            answer.set_exception(own)
