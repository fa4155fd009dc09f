"""The event loop of one run: no clock, no I/O, the same order in every replay.

It runs inside a callback of the host's loop, on the host's thread, until nothing is ready. Time
stands still meanwhile; it moves when an event of the history is delivered. A timer is a durable
wait: whoever keeps the run's operations starts it and tells when it fired.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import math
import random
import sys
import weakref
from asyncio import events
from asyncio import tasks as _tasks
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextvars import Context, copy_context
from datetime import timedelta
from functools import partial
from types import FrameType
from typing import Any, Protocol, TypeVar
from zlib import crc32

from flowpg.authoring.errors import NotDurable, WorkflowStuck
from flowpg.authoring.refusals import REFUSED, RefusingLoop
from flowpg.authoring.tasks import Burst, CallSites, RunFuture, RunTask, shuffled_by
from flowpg.authoring.waiting import MAKES_TASKS, Inline, Waiter, awaited_inline, waiter_for
from flowpg.authoring.watchdog import Turn

logger = logging.getLogger("flowpg.authoring")

# Where ``current_task`` is a function in Python, what it looks into.
_current_task: Callable[[Any], Any] = (
    _tasks.current_task if sys.version_info >= (3, 12) else vars(_tasks)["_current_tasks"].get
)
_new_handle: Any = object.__new__

T = TypeVar("T")

MAX_CALLBACKS = 1_000_000
"""Callbacks that one turn may run before it counts as never coming to rest."""


class Keeper(Protocol):
    """Who makes timers and calls durable: the run."""

    seconds: float
    """Time since the run was created, as far as the delivered events tell."""

    def start_timer(self, delay: timedelta, handle: RunTimer) -> None:
        """Begin a durable wait of ``delay`` and keep it in ``handle.operation``."""
        ...

    def stop_timer(self, handle: RunTimer) -> None:
        """Nobody waits for this timer any more."""
        ...

    def durable_call(
        self, function: Any, args: Any, kwargs: Any
    ) -> Coroutine[Any, Any, Any] | None:
        """The durable call of ``function`` if that is a step."""
        ...


class RunTimer(asyncio.TimerHandle):
    """A timer of a run; ``operation`` is its durable wait."""

    __slots__ = ("operation",)

    operation: Any


class RunLoop(RefusingLoop):
    """The loop of run ``run_id``. ``replaying`` silences what was said before."""

    def __init__(self, run_id: str, run: Keeper) -> None:
        self.run_id = run_id
        self.run: Any = run
        self.replaying = False
        self.dropped = False
        self.tasks: list[RunTask] = []
        self._ready: deque[asyncio.Handle] = deque()
        self._generators: list[weakref.ref[AsyncGenerator[Any, Any]]] = []
        # The low bits keep the order of creation; the high ones keep runs apart in the sets of
        # all tasks that asyncio itself keeps.
        self._numbers = crc32(run_id.encode()) << 24
        self._callbacks = CallSites("c")
        self._prune_at = 64
        self._burst: Burst | None = None

    # -- running --------------------------------------------------------------------------------

    def take_over(self, turn: Turn, work: Callable[[T], None], given: T) -> None:
        """Run ``work(given)`` in a turn, with the thread taken over from the host's loop."""
        host: Any = events._get_running_loop()
        task: Any = _current_task(host) if host is not None else None
        hooks = sys.get_asyncgen_hooks()
        # A collection in here would run finalizers at a moment that no replay can repeat.
        collecting = gc.isenabled()
        gc.disable()
        if task is not None:
            _tasks._leave_task(host, task)
        events._set_running_loop(self)
        sys.set_asyncgen_hooks(self._generator_begun, self._generator_lost)
        try:
            turn.run(work, given)
        finally:
            sys.set_asyncgen_hooks(*hooks)
            events._set_running_loop(host)
            if task is not None:
                _tasks._enter_task(host, task)
            if collecting:
                gc.enable()

    def run_ready(self) -> None:
        """Run until nothing is ready. WorkflowStuck if that never comes."""
        ready = self._ready
        left = MAX_CALLBACKS
        while ready:
            handle: Any = ready.popleft()
            if handle._cancelled:
                continue
            left -= 1
            if not left:
                raise WorkflowStuck(
                    self.run_id,
                    f"it ran {MAX_CALLBACKS} callbacks without ever waiting for a step, a timer "
                    "or a hook",
                )
            try:
                handle._context.run(handle._callback, *handle._args)
            except SystemExit:
                # The task that raised it holds it, like any other exception.
                continue
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # noqa: BLE001  as asyncio has it
                self._callback_failed(handle, error)

    def _callback_failed(self, handle: Any, error: BaseException) -> None:
        name = getattr(handle._callback, "__qualname__", None) or repr(handle._callback)
        self.call_exception_handler(
            {"message": f"Exception in callback {name}", "exception": error, "handle": handle}
        )

    def wake(self, timer: RunTimer) -> None:
        """Run a timer that fired with the next callbacks."""
        timer.operation = None
        self._ready.append(timer)

    def live_tasks(self) -> list[RunTask]:
        """The tasks that are not done, in the order of their numbers: ``as_completed`` creates its
        tasks in an order that differs from process to process."""
        return sorted([task for task in self.tasks if not task.done()], key=hash)

    def report_unseen(self) -> None:
        """Log the errors of tasks that nobody has awaited, as asyncio does when it loses one."""
        for task in self.tasks:
            if task.done() and task._log_traceback:
                self.call_exception_handler(
                    {
                        "message": f"{task.get_name()} failed, and nobody awaited it",
                        "exception": task.exception(),
                    }
                )

    def close_generators(self) -> None:
        """Begin to close the asynchronous generators that were left in the middle."""
        for reference in self._generators:
            generator = reference()
            if generator is not None:
                self.create_task(generator.aclose())
        self._generators.clear()

    # -- what asyncio asks of a loop ------------------------------------------------------------

    def time(self) -> float:
        """Seconds since the run was created, by its history."""
        seconds: float = self.run.seconds
        return seconds

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        """Run ``callback`` after what is ready already."""
        # As its own class fills it in, without a call: most of what runs here is woken this way.
        handle: Any = _new_handle(asyncio.Handle)
        handle._context = copy_context() if context is None else context
        handle._loop = self
        handle._callback = callback
        handle._args = args
        handle._cancelled = False
        handle._repr = handle._source_traceback = None
        self._ready.append(handle)
        return handle  # type: ignore[no-any-return]

    def call_later(  # type: ignore[override]
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Run ``callback`` once a durable timer of ``delay`` seconds has fired."""
        if MAKES_TASKS and args and type(args[0]) is Waiter:
            return args[0]  # type: ignore[return-value]
        # Rounded up, so that a wait is never early.
        return self._timer(math.ceil(round(delay * 1e6, 3)), callback, args, context)

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Run ``callback`` once a durable timer that ends at ``when`` has fired."""
        return self._timer(round((when - self.run.seconds) * 1e6), callback, args, context)

    def _timer(
        self, micros: int, callback: Callable[..., object], args: Any, context: Context | None
    ) -> asyncio.TimerHandle:
        timer = RunTimer(self.run.seconds + micros / 1e6, callback, args, self, context)
        timer.operation = None
        if micros <= 0:
            self._ready.append(timer)
            return timer
        try:
            delay = timedelta(microseconds=micros)
        except OverflowError:
            raise ValueError("the delay of a timer is beyond the year 9999") from None
        self.run.start_timer(delay, timer)
        return timer

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        if isinstance(handle, RunTimer) and handle.operation is not None:
            self.run.stop_timer(handle)

    def create_future(self) -> RunFuture:
        """A future of this run."""
        if MAKES_TASKS and (waiter := waiter_for(1)):
            return waiter  # type: ignore[return-value]
        self._numbers += 1
        future = RunFuture(loop=self)
        future.number = self._numbers
        future.operation = None
        return future

    def create_task(
        self,
        coro: Any,
        *,
        name: str | None = None,
        context: Context | None = None,
        **_: Any,
    ) -> RunTask:
        """A task of this run, named by where it was created."""
        parent = self._parent()
        frame = shuffled_by(1)
        if frame is not None:
            return self._create_in_order(coro, parent, frame)
        if MAKES_TASKS and awaited_inline(1):
            return Inline(coro)  # type: ignore[return-value]
        self._numbers += 1
        parent.children += 1
        path = _below(parent.path, parent.children)
        return self._keep(RunTask(coro, self, self._numbers, path, name, context))

    def create_main_task(self, coro: Any, context: Context) -> RunTask:
        """The task of the workflow itself."""
        self._numbers += 1
        return self._keep(RunTask(coro, self, self._numbers, "", None, context))

    def next_position(self) -> str:
        """The position of a durable call: its task's path and the number of the call there."""
        owner = self._parent()
        owner.calls += 1
        return f"{owner.path}/{owner.calls}" if owner.path else str(owner.calls)

    def current(self) -> RunTask | None:
        """The task that is running, None inside a plain callback."""
        return _current_task(self)  # type: ignore[no-any-return]

    def random(self) -> random.Random:
        """The stream of random numbers of whoever is running."""
        owner = self._parent()
        if owner.stream is None:
            owner.stream = random.Random(f"flowpg/{self.run_id}/{owner.path}")
        return owner.stream

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Any, *args: Any
    ) -> asyncio.Future[Any]:
        """``asyncio.to_thread(step, ...)`` runs the step; anything else is refused."""
        kwargs: dict[str, Any] = {}
        if isinstance(func, partial) and isinstance(getattr(func.func, "__self__", None), Context):
            func, args, kwargs = func.args[0], func.args[1:], func.keywords
        call = self.run.durable_call(func, args, kwargs)
        if call is None:
            raise NotDurable("asyncio.to_thread()", REFUSED["run_in_executor"])
        return self.create_task(call)

    def is_running(self) -> bool:
        """Whether the run is being driven at this moment."""
        return events._get_running_loop() is self

    def is_closed(self) -> bool:
        """Never: a run's loop is simply dropped."""
        return False

    def get_debug(self) -> bool:
        """Never."""
        return False

    def set_debug(self, enabled: bool) -> None:
        """Has no effect."""

    def get_task_factory(self) -> None:
        """None: tasks of a run are made by the run."""

    async def shutdown_asyncgens(self) -> None:
        """Has no effect: the run closes its generators itself when it ends."""

    # -- what nobody handles --------------------------------------------------------------------

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Log an error that no code of the run handles, once."""
        self.default_exception_handler(context)

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        """Log an error that no code of the run handles, once."""
        if self.replaying or self.dropped:
            return
        error = context.get("exception")
        logger.error(
            "run %r: %s",
            self.run_id,
            context.get("message", "an error was not handled"),
            exc_info=error if isinstance(error, BaseException) else None,
        )

    def set_exception_handler(self, handler: Any) -> None:
        """Has no effect: errors that nobody handles are logged."""

    def get_exception_handler(self) -> None:
        """None: errors that nobody handles are logged."""

    # -- helpers --------------------------------------------------------------------------------

    def _parent(self) -> RunTask | CallSites:
        return _current_task(self) or self._callbacks

    def _keep(self, task: RunTask) -> RunTask:
        # Held strongly: a task that nobody refers to must not vanish when memory is collected.
        if len(self.tasks) > self._prune_at:
            self.tasks = self.live_tasks()
            self._prune_at = 64 + 2 * len(self.tasks)
        self.tasks.append(task)
        return task

    def _create_in_order(self, coro: Any, parent: RunTask | CallSites, frame: FrameType) -> RunTask:
        burst = self._burst
        if burst is None or burst.frame is not frame:
            burst = self._burst = Burst(frame, parent.children, self._numbers)
            parent.children += len(burst.listed)
            self._numbers += len(burst.listed)
        place = burst.place_of(coro)
        path = _below(parent.path, burst.children + place + 1)
        task = RunTask(coro, self, burst.numbers + place + 1, path, None, None)
        # The task has just put its first step at the end of the queue.
        burst.started.append((place, self._ready.pop()))
        for _ in range(len(burst.started) - 1):
            self._ready.pop()
        burst.started.sort(key=lambda item: item[0])
        self._ready.extend(handle for _, handle in burst.started)
        if len(burst.started) == len(burst.listed):
            self._burst = None
        return self._keep(task)

    def _generator_begun(self, generator: AsyncGenerator[Any, Any]) -> None:
        self._generators.append(weakref.ref(generator))
        if len(self._generators) > 256:
            self._generators = [item for item in self._generators if item() is not None]

    def _generator_lost(self, generator: AsyncGenerator[Any, Any]) -> None:
        # Left in the middle by workflow code: asyncio closes it in a task. Lost with a run that is
        # dropped, it is just forgotten.
        if self.is_running() and not self.dropped:
            self.create_task(generator.aclose())


def _below(path: str, number: int) -> str:
    return f"{path}.{number}" if path else str(number)
