"""Steps: functions that do the work of a workflow, once and for all.

Called in a workflow, a step becomes part of its run: it is run by an engine, retried, and its
result is kept. Called anywhere else it is the plain function.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import sys
from asyncio import events
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from contextvars import copy_context
from copy import copy
from typing import Any, Generic, NamedTuple, ParamSpec, TypeVar, cast

from flowpg.authoring.codec import FunctionCodec
from flowpg.authoring.failures import failure_body
from flowpg.authoring.loop import RunLoop
from flowpg.authoring.sites import Site, calling_site, site_of
from flowpg.authoring.step_context import current_step
from flowpg.authoring.strands import wait, waiting_allowed
from flowpg.authoring.transactional import (
    needs_connection,
    stored_shape,
    transact,
    transact_sync,
    transaction_kind,
)
from flowpg.authoring.turns import RunTurns
from flowpg.errors import (
    EngineFault,
    InvalidArgument,
    NonRetryable,
    PayloadTooLarge,
    RetryLater,
    SerializationError,
)
from flowpg.model.arguments import check_queue
from flowpg.model.codecs import NO_CODECS
from flowpg.model.ids import check_id
from flowpg.model.retry import DEFAULT_RETRY, RetryPolicy
from flowpg.model.timeouts import StepTimeouts
from flowpg.replay.runtime import AttemptOver, StepInvocation, TransactionKind

P = ParamSpec("P")
R = TypeVar("R")

Errors = tuple[type[Exception], ...]

KEEP: Any = type("Keep", (), {"__repr__": lambda self: "KEEP"})()
"""The queue of ``options`` where none is given: None is one, that of the run."""


class StepBase:
    """What steps of both kinds share. ``name`` is what the history calls it; ``codecs`` are those
    of its app."""

    codecs = NO_CODECS

    def __init__(
        self,
        function: Callable[..., Any],
        name: str,
        retry: RetryPolicy,
        fatal: Errors,
        codec: FunctionCodec | None = None,
        timeouts: StepTimeouts | None = None,
        transaction: TransactionKind | None = None,
        queue: str | None = None,
    ) -> None:
        check_id(name, "step name", 255)
        _check_options(name, retry, timeouts)
        self.function = function
        self.name = name
        # Its failure is an exception of the workflow, which decides what that means.
        self.retry = retry.continue_workflow_on_failure()
        self.fatal = fatal
        self.timeouts = timeouts
        self.transaction = transaction
        self.call_id: str | None = None
        self.queue = None if queue is None else check_queue(queue)
        # The connection is none of the caller's arguments.
        skip = 0 if transaction is None else 1
        self.codec = codec or FunctionCodec(function, f"step {name!r}", skip=skip)
        # Attributes of objects whose dictionary was asked for are found more slowly ever after.
        updated = ("__dict__",) if getattr(function, "__dict__", None) else ()
        functools.update_wrapper(cast("Callable[..., Any]", self), function, updated=updated)

    def durable_call(
        self, run: RunTurns, args: tuple[Any, ...], kwargs: dict[str, Any], site: Site
    ) -> Coroutine[Any, Any, Any]:
        """A call of this step by the workflow of ``run``, which begins when it is awaited.

        TypeError or SerializationError for arguments that do not fit or cannot be stored.
        """
        # Its place is that of the call, not of the await: the branches of a gather are in the
        # order in which they were written.
        position = run.loop.next_position()
        given = self.codec.encode_arguments(args, kwargs)
        call: Any = _outcome(run, self, given, position, site)
        call.__qualname__ = self.name  # Python names it where an await was forgotten
        return call  # type: ignore[no-any-return]

    def waited(self, call: Coroutine[Any, Any, Any]) -> Any:
        """The result of a call where plain functions can wait, else the call itself."""
        return wait(call) if waiting_allowed() else call

    def with_options(
        self,
        retry: RetryPolicy | None,
        timeouts: StepTimeouts | None,
        id: str | None,
        queue: str | None,
    ) -> Any:
        """The same step with other options; None leaves one as it is, and KEEP the queue.
        InvalidArgument."""
        made = copy(self)
        _check_options(self.name, self.retry if retry is None else retry, timeouts)
        if retry is not None:
            made.retry = retry.continue_workflow_on_failure()
        if timeouts is not None:
            made.timeouts = timeouts
        if id is not None:
            if "#" in check_id(id, "step id"):
                raise InvalidArgument("a step id of your own must not contain '#'")
            made.call_id = id
        if queue is not KEEP:
            made.queue = None if queue is None else check_queue(queue)
        return made

    def __repr__(self) -> str:
        return f"<step {self.name!r}>"


class AsyncStep(StepBase, Generic[P, R]):
    """A step that is a coroutine function."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        """In a workflow: run the step. Elsewhere: call the function."""
        loop = events._get_running_loop()
        if isinstance(loop, RunLoop):
            run: RunTurns = loop.run
            frame = sys._getframe(1)
            made: Any = self.durable_call(run, args, kwargs, site_of(frame))
            return self.waited(made) if run.definition.blocking else made  # type: ignore[no-any-return]
        if self.transaction is not None:
            raise needs_connection(self)
        call: Coroutine[Any, Any, R] = self.function(*args, **kwargs)
        return call

    def options(
        self,
        *,
        retry: RetryPolicy | None = None,
        timeouts: StepTimeouts | None = None,
        id: str | None = None,
        queue: str | None = KEEP,
    ) -> AsyncStep[P, R]:
        """The same step with other options: ``step.options(retry=...)(...)``.

        Another retry policy, or other timeouts (all of them). ``id`` is what the history calls this
        one call, in place of its name and position: it must be its own within the run. ``queue``
        is whose workers run the step, on PostgreSQL, in place of what ``@app.step`` says; where
        that is None or the queue of its run, or in a store in memory, it runs with its run.
        """
        step: AsyncStep[P, R] = self.with_options(retry, timeouts, id, queue)
        return step


class SyncStep(StepBase, Generic[P, R]):
    """A step that is a plain function: an engine runs it in a thread.

    In an asynchronous workflow write ``await step.run(...)``, or, as for any plain function,
    ``await asyncio.to_thread(step, ...)``.
    """

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function. In a workflow that is a plain function: run the step and wait for its
        result. In any other this gives what ``run`` gives, to be awaited."""
        loop = events._get_running_loop()
        if isinstance(loop, RunLoop):
            call: Any = self.durable_call(loop.run, args, kwargs, calling_site())
            return self.waited(call) if loop.run.definition.blocking else call  # type: ignore[no-any-return]
        if self.transaction is not None:
            raise needs_connection(self)
        result: R = self.function(*args, **kwargs)
        return result

    def run(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        """In a workflow: run the step. Elsewhere: run the function in a thread."""
        loop = events._get_running_loop()
        if isinstance(loop, RunLoop):
            return self.durable_call(loop.run, args, kwargs, calling_site())
        if self.transaction is not None:
            raise needs_connection(self)
        return _in_default_thread(self.function, args, kwargs)

    def options(
        self,
        *,
        retry: RetryPolicy | None = None,
        timeouts: StepTimeouts | None = None,
        id: str | None = None,
        queue: str | None = KEEP,
    ) -> SyncStep[P, R]:
        """The same step with other options, as of an asynchronous one:
        ``step.options(retry=...).run(...)``, or in a plain workflow ``step.options(...)(...)``."""
        step: SyncStep[P, R] = self.with_options(retry, timeouts, id, queue)
        return step


AnyStep = AsyncStep[..., Any] | SyncStep[..., Any]


def _check_options(step: str, retry: object, timeouts: object) -> None:
    if not isinstance(retry, RetryPolicy):
        raise InvalidArgument(
            f"step {step!r}: retry= takes a Retry, such as Retry.fixed(3), and no "
            f"{type(retry).__name__}"
        )
    retry.check()
    if timeouts is not None and not isinstance(timeouts, StepTimeouts):
        raise InvalidArgument(
            f"step {step!r}: timeouts= takes StepTimeouts(start_to_close=timedelta(...)), and no "
            f"{type(timeouts).__name__}"
        )


async def _outcome(
    run: RunTurns, step: StepBase, input: dict[str, Any], position: str, site: Site
) -> Any:
    return await run.call_step(step, input, position, site)


async def _in_default_thread(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    return await asyncio.to_thread(function, *args, **kwargs)


# -- running a step -----------------------------------------------------------------------------


class _Failed(Exception):
    """An error of a step in the form in which a history keeps it."""


class _FailedForGood(NonRetryable):
    """The same, and no further attempt would help."""


class _FailedUntil(RetryLater):
    """The same, and the step says when to try again."""


STORED_FORMS = (_Failed, _FailedForGood, _FailedUntil)
"""Errors whose only text is the record of what a step raised."""

_classes: dict[tuple[type, str], type[Any]] = {}


def _named(base: type[Any], error: BaseException) -> type[Any]:
    """A subclass of ``base`` with the name of the error's class: the engine writes that name."""
    key = (base, type(error).__name__)
    found = _classes.get(key)
    if found is None:
        found = type(key[1], (base,), {})
        if len(_classes) < 1024:
            _classes[key] = found
    return found


def stored_form(error: BaseException, fatal: Errors) -> Exception:
    """What to raise so that the engine records ``error`` whole and treats it as it should."""
    body = failure_body(error)
    if isinstance(error, RetryLater):
        made: Exception = _named(_FailedUntil, error)(body, error.delay)
    elif isinstance(error, (NonRetryable, *fatal)):
        made = _named(_FailedForGood, error)(body)
    else:
        made = _named(_Failed, error)(body)
    made.raised = error  # type: ignore[attr-defined]  # what a log shows
    return made


async def run_step(
    step: AnyStep, invocation: StepInvocation, threads: Callable[[], Executor]
) -> Any:
    """Run one attempt, of a plain function in one of ``threads``, and return the result as JSON.

    Raises the error in its stored form; CancelledError and EngineFault as they are.
    """
    token = current_step.set((invocation, step.codecs))
    try:
        args, kwargs = step.codec.decode_arguments(invocation.input)
        if isinstance(step, AsyncStep):
            invocation.begin()
            if step.transaction is not None:
                return await transact(step, invocation, args, kwargs)
            result = await step.function(*args, **kwargs)
        else:
            call = functools.partial(copy_context().run, step.function, *args, **kwargs)
            if step.transaction is not None:
                working = functools.partial(transact_sync, step, invocation, args, kwargs)
                call = functools.partial(copy_context().run, working)
            loop = events.get_running_loop()
            result = await loop.run_in_executor(threads(), _settled, invocation, call)
            if isinstance(result, _Stopped):
                raise result.error
            if step.transaction is not None:
                return result
        if type(result) not in _PLAIN and inspect.isawaitable(result):
            if inspect.iscoroutine(result):
                result.close()
            raise SerializationError(
                f"the result of step {step.name!r} is to be awaited first "
                f"({type(result).__name__}); did you forget await?"
            )
        shape = stored_shape(step, invocation, result)
    except (EngineFault, AttemptOver):
        raise
    except (SerializationError, PayloadTooLarge) as error:
        raise _named(_FailedForGood, error)(failure_body(error)) from None
    except (Exception, SystemExit) as error:  # noqa: BLE001  step code may raise anything
        raise stored_form(error, step.fatal) from None
    finally:
        current_step.reset(token)
    return shape


# What most steps return; of anything else it has to be asked whether it is to be awaited.
_PLAIN = frozenset({type(None), bool, int, float, str, list, dict})


class _Stopped(NamedTuple):
    error: StopIteration


def _settled(invocation: StepInvocation, call: Callable[[], Any]) -> Any:
    invocation.begin()
    # A future cannot carry StopIteration and would never be done.
    try:
        return call()
    except StopIteration as error:
        return _Stopped(error)


def make_step(
    function: Callable[..., Any],
    name: str | None,
    retry: RetryPolicy | None,
    fatal: Errors,
    timeouts: StepTimeouts | None = None,
    transactional: bool | TransactionKind = False,
    queue: str | None = None,
) -> AnyStep:
    """The step of a function, asynchronous or plain."""
    if not callable(function) or inspect.isclass(function):
        raise InvalidArgument("a step must be a function")
    if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
        raise InvalidArgument("a step must return its result; it cannot be a generator")
    if not isinstance(fatal, tuple) or not all(
        inspect.isclass(one) and issubclass(one, BaseException) for one in fatal
    ):
        # One class alone would only be found out when the step fails.
        raise InvalidArgument(
            f"step {name or function.__name__!r}: fatal must be a tuple of exception classes, "
            "such as (ValueError,)"
        )
    kind: Any = AsyncStep if inspect.iscoroutinefunction(function) else SyncStep
    name = name or function.__name__
    transaction = transaction_kind(function, name, transactional)
    made: AnyStep = kind(
        function,
        name,
        retry or DEFAULT_RETRY,
        fatal,
        timeouts=timeouts,
        transaction=transaction,
        queue=queue,
    )
    return made
