"""Running step handlers: asynchronous ones as tasks, plain functions in a thread.

A handler here only produces an outcome. What the outcome means for the run is decided by
``replay.outcomes`` and becomes durable with the driver's next append.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple

from flowpg.engine.attempt_clock import AttemptClock, Limits, spent
from flowpg.engine.errortext import describe, ends_the_loop, traceable
from flowpg.engine.step_heartbeats import StepHeartbeats
from flowpg.engine.transactional import Committed, StepTransactions
from flowpg.errors import (
    EngineFault,
    FlowError,
    NonRetryable,
    PayloadTooLarge,
    RetryLater,
    ScheduleToCloseTimeout,
    ScheduleToStartTimeout,
    SerializationError,
    StepTimeout,
    TransactionsUnavailable,
)
from flowpg.model import jsontext
from flowpg.model.records import StepHeartbeat
from flowpg.replay.outcomes import Failure, Outcome, Success
from flowpg.replay.runtime import AttemptOver, FlowRuntime, Heard, StepInvocation

logger = logging.getLogger("flowpg.engine.steps")


@dataclass(slots=True)
class Settled:
    """How one attempt ended. Without an ``outcome`` it is ``committed``, stored already; or this
    process cannot run the step, for the reason in ``fault``; or nobody waits for it any more."""

    step_id: str
    attempt: int
    outcome: Outcome | None
    fault: FlowError | None = None
    committed: Committed | None = None


class _Raised(NamedTuple):
    error: BaseException


class _Running:
    __slots__ = ("attempt", "attempts", "clock", "finishing", "invocation", "recall", "task")

    attempt: int
    attempts: int | None
    invocation: StepInvocation
    clock: AttemptClock | None
    recall: bool  # what an earlier attempt said is to be read first
    finishing: bool  # its transaction is about to commit: the database decides now
    task: asyncio.Task[None]


class StepHandlers:
    """The handlers of one run that are at work in this process."""

    def __init__(
        self,
        runtime: FlowRuntime,
        executor: Callable[[], Executor],
        on_settled: Callable[[], None],
        *,
        in_loop: bool,
        epoch: int = 0,
        transactions: Callable[[], StepTransactions | None] = lambda: None,
        heartbeats: StepHeartbeats | None = None,
        recall: Callable[[str], Awaitable[str | None]] | None = None,
    ) -> None:
        """``in_loop`` says that ``run_step`` is a coroutine function; else it runs in a thread.
        ``epoch`` is the fence of the run; ``transactions`` None if its store has none; ``recall``
        reads what the latest heartbeat of a step said."""
        self._runtime = runtime
        self._executor = executor
        self._on_settled = on_settled
        self._in_loop = in_loop
        self._epoch = epoch
        self._transactions = transactions
        self._loop = asyncio.get_running_loop()
        self._heartbeats = heartbeats
        self._recall = recall
        # What steps said, and None for those that failed here and said nothing.
        self._details: dict[str, str | None] = {}
        self._begins = bool(getattr(runtime, "begins_steps", False))
        self._running: dict[str, _Running] = {}
        self._leaving: set[asyncio.Task[None]] = set()
        self.settled: list[Settled] = []
        """The outcomes that are there to be taken."""

    @property
    def busy(self) -> bool:
        """Whether a handler is at work, or an outcome was not taken yet."""
        return bool(self._running or self.settled)

    def running(self) -> list[tuple[str, int]]:
        """Step id and attempt of every handler at work."""
        return [(step_id, entry.attempt) for step_id, entry in self._running.items()]

    def is_running(self, step_id: str, attempt: int) -> bool:
        """Whether this attempt is at work here, or has settled and waits to be taken."""
        entry = self._running.get(step_id)
        if entry is not None and entry.attempt == attempt:
            return True
        if not self.settled:
            return False
        return any(s.step_id == step_id and s.attempt == attempt for s in self.settled)

    def launch(
        self,
        invocation: StepInvocation,
        attempts: int | None = None,
        limits: Limits | None = None,
        *,
        again: bool = False,
    ) -> None:
        """Start a handler. Its ``step_started`` must be durable already. ``attempts`` is how many
        the step may have in all, ``limits`` how long it may take; ``again``: the attempt was begun
        before, elsewhere."""
        if invocation.step_id in self._running:
            self.abandon(invocation.step_id)
        entry = _Running()
        entry.attempt, entry.attempts = invocation.attempt, attempts
        entry.invocation, entry.clock, entry.finishing = invocation, None, False
        invocation.host, entry.recall = self, False
        if again or invocation.attempt > 1:
            entry.recall = self._recall is not None and invocation.step_id not in self._details
            self._tell(invocation)
        if limits is not None:
            if limits.over:
                self._time_out(entry, spent(invocation.step_id, limits.timeouts))
                return
            invocation.limited = True
            expired = functools.partial(self._expired, entry)
            entry.clock = AttemptClock(invocation.step_id, limits, expired)
        self._running[invocation.step_id] = entry
        entry.task = self._loop.create_task(self._run(entry, invocation))

    def begin(self, invocation: StepInvocation) -> None:
        """See ``StepHost``."""
        entry = self._running.get(invocation.step_id)
        if entry is not None and entry.invocation is invocation and entry.clock is not None:
            entry.clock.begin()

    def clock_of(self, invocation: StepInvocation) -> AttemptClock | None:
        """The clock of an attempt at work, None if nothing limits it."""
        entry = self._running.get(invocation.step_id)
        return entry.clock if entry is not None and entry.invocation is invocation else None

    def heartbeat(self, invocation: StepInvocation, details: str | None) -> Heard:
        """See ``StepHost``."""
        step_id = invocation.step_id
        entry = self._running.get(step_id)
        if entry is None or entry.invocation is not invocation:
            raise AttemptOver
        if entry.clock is not None:
            entry.clock.beat()
        if details is None or self._heartbeats is None:
            return Heard()
        self._details[step_id] = details
        about = invocation.run_id, self._epoch, step_id, invocation.attempt
        return self._heartbeats.say(StepHeartbeat(*about, details, invocation.task_id))

    @property
    def remembers(self) -> bool:
        """Whether there is something to ``forget``."""
        return bool(self._details)

    def forget(self, run_id: str, step_id: str) -> None:
        """A step has its outcome: what it said is of no use any more."""
        if self._details.pop(step_id, None) is not None and self._heartbeats is not None:
            self._heartbeats.say(StepHeartbeat(run_id, self._epoch, step_id, 0, None))

    def _tell(self, invocation: StepInvocation) -> None:
        text = self._details.get(invocation.step_id)
        if text is not None:
            what = f"the heartbeat details of step {invocation.step_id!r}"
            invocation.heartbeat_details = jsontext.decode(text, what)

    async def transact(
        self, invocation: StepInvocation, function: Callable[[Any], Any], kind: Any
    ) -> Any:
        """See ``StepInvocation.transact``."""
        run = self._transactional(invocation).run
        return await run(invocation, self._epoch, function, kind, self._finishing(invocation))

    def transact_sync(
        self, invocation: StepInvocation, function: Callable[[Any], Any], kind: Any
    ) -> Any:
        """See ``StepInvocation.transact_sync``."""
        run = self._transactional(invocation).run_sync
        return run(invocation, self._epoch, function, kind, self._finishing(invocation))

    def _transactional(self, invocation: StepInvocation) -> StepTransactions:
        found = self._transactions()
        if found is None:
            raise TransactionsUnavailable(invocation.step_id)
        return found

    def _finishing(self, invocation: StepInvocation) -> Callable[[], bool]:
        entry = self._running.get(invocation.step_id)

        def finishing() -> bool:
            if entry is None or entry.invocation is not invocation or invocation.cancelled:
                return False
            entry.finishing = True
            return True

        return finishing

    def take(self) -> list[Settled]:
        """The outcomes since the last call, in the order in which they settled."""
        settled, self.settled = self.settled, []
        return settled

    def abandon(self, step_id: str) -> None:
        """Cancel a handler whose outcome no longer matters; a thread is left to itself."""
        entry = self._running.pop(step_id, None)
        if entry is not None:
            entry.invocation.cancelled = True
            if entry.clock is not None:
                entry.clock.stop()
            entry.task.cancel()
            self._leaving.add(entry.task)
            entry.task.add_done_callback(self._leaving.discard)

    def abandon_all(self) -> None:
        """Cancel every handler and forget what has settled."""
        for step_id in list(self._running):
            self.abandon(step_id)
        self.settled.clear()

    async def gone(self, grace: timedelta) -> None:
        """Wait until cancelled handlers have cleaned up, at most ``grace``."""
        if self._leaving:
            _, late = await asyncio.wait(set(self._leaving), timeout=grace.total_seconds())
            if late:
                logger.warning("%d cancelled step handlers are still cleaning up", len(late))

    async def _run(self, entry: _Running, invocation: StepInvocation) -> None:
        step_id = invocation.step_id
        settled = Settled(step_id, entry.attempt, None)
        raised: BaseException | None = None
        try:
            if entry.recall and self._recall is not None:
                self._details[step_id] = await self._recall(step_id)
                self._tell(invocation)
            if self._in_loop:
                if not self._begins:
                    invocation.begin()
                output = await self._runtime.run_step(invocation)
            else:
                output = await self._call_in_thread(invocation)
            if type(output) is Committed:
                settled.committed = output
            else:
                settled.outcome = _success(invocation, output)
        except EngineFault as error:
            settled.fault = error
        except AttemptOver as over:
            settled.fault = over.fault
        except (SerializationError, PayloadTooLarge) as error:
            # No further attempt would have something else to say.
            settled.outcome, raised = Failure(describe(error), retryable=False), error
        except RetryLater as error:
            delay = error.delay if isinstance(error.delay, timedelta) else None
            settled.outcome, raised = Failure(describe(error), retryable=True, delay=delay), error
        except NonRetryable as error:
            settled.outcome, raised = Failure(describe(error), retryable=False), error
        except BaseException as error:
            if ends_the_loop(error):
                raise
            # A handler that cancels itself or exits has failed like any other; without an outcome
            # its run would wait for ever.
            settled.outcome, raised = Failure(describe(error), retryable=True), error
        if self._running.get(step_id) is not entry:
            return  # abandoned
        if entry.clock is not None:
            entry.clock.stop()
        if isinstance(settled.outcome, Failure):
            self._details.setdefault(step_id, None)
            _log(invocation, entry.attempts, settled.outcome, raised)
        del self._running[step_id]
        self.settled.append(settled)
        self._on_settled()

    def _expired(self, entry: _Running, error: StepTimeout) -> None:
        step_id = entry.invocation.step_id
        if self._running.get(step_id) is entry and not entry.finishing:
            self.abandon(step_id)
            self._time_out(entry, error)

    def _time_out(self, entry: _Running, error: StepTimeout) -> None:
        step = entry.invocation
        fatal = getattr(self._runtime, "fatal_errors", None)
        final = isinstance(error, (ScheduleToStartTimeout, ScheduleToCloseTimeout)) or (
            fatal is not None and isinstance(error, tuple(fatal(step.step_name)))
        )
        outcome = Failure(describe(error), retryable=not final)
        self._details.setdefault(step.step_id, None)
        _log(step, entry.attempts, outcome, error)
        self.settled.append(Settled(step.step_id, entry.attempt, outcome))
        self._on_settled()

    async def _call_in_thread(self, invocation: StepInvocation) -> Any:
        run_step = self._runtime.run_step
        context = contextvars.copy_context()
        loop = asyncio.get_running_loop()
        future = loop.run_in_executor(
            self._executor(), context.run, _in_thread, run_step, invocation
        )
        try:
            result = await future
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if future.cancelled() and not (task is not None and task.cancelling()):
                raise EngineFault(
                    f"step {invocation.step_id!r} did not begin: the engine was closed"
                ) from None
            raise
        if isinstance(result, _Raised):
            raise result.error
        return await result if inspect.isawaitable(result) else result


def _log(
    step: StepInvocation, attempts: int | None, failure: Failure, error: BaseException | None
) -> None:
    # The traceback is of the user's own code. It comes with the failure that ends the step; those
    # that another attempt may mend show it to whoever asks for more.
    last = not failure.retryable or (attempts is not None and step.attempt >= attempts)
    logger.warning(
        "step %r (%s) of run %r failed in attempt %d%s: %s",
        step.step_id,
        step.step_name,
        step.run_id,
        step.attempt,
        "" if attempts is None else f" of {attempts}",
        type(error).__name__ if error is not None else "its output cannot be stored",
        # An error in its stored form says what was raised, or that this is not to be shown.
        exc_info=traceable(getattr(error, "raised", error))
        if last or logger.isEnabledFor(logging.DEBUG)
        else None,
    )


def _in_thread(run_step: Callable[[StepInvocation], Any], invocation: StepInvocation) -> Any:
    # What is raised comes back as a value: a future cannot carry StopIteration and would never be
    # done, and a KeyboardInterrupt of a thread is none of the process.
    try:
        invocation.begin()
        return run_step(invocation)
    except KeyboardInterrupt as error:
        return _Raised(
            RuntimeError("the step raised KeyboardInterrupt").with_traceback(error.__traceback__)
        )
    except BaseException as error:  # noqa: BLE001  raised again where it is awaited
        return _Raised(error)


def _success(invocation: StepInvocation, output: Any) -> Outcome:
    """The output as every later replay will see it: encoded and decoded again."""
    try:
        return Success.of(output, "the output of a step")
    except SerializationError:
        pass
    # No further attempt would return a value of another type.
    what = f"the output of step {invocation.step_id!r} ({type(output).__name__})"
    if inspect.isawaitable(output):
        if inspect.iscoroutine(output):
            output.close()
        return Failure(
            f"SerializationError: {what} is to be awaited first; did you forget await?",
            retryable=False,
        )
    try:
        return Success.of(output, what)
    except SerializationError as error:
        return Failure(describe(error), retryable=False)
