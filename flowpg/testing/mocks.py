"""Standing in for steps: what they return or raise in a test, and which calls were made."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from flowpg.authoring.app import FlowApp
from flowpg.authoring.steps import AnyStep, AsyncStep, StepBase
from flowpg.engine.attempt_clock import AttemptClock
from flowpg.errors import InvalidArgument, UnknownStep
from flowpg.model.codecs import STEP_INPUT, STEP_OUTPUT
from flowpg.model.jsontext import copied
from flowpg.replay.runtime import FlowRuntime, StepInvocation, WorkflowInvocation, known

OWN_WORK: Any = object()
"""What a mock returns that was told to return nothing: what the step itself would."""

StepRef = StepBase | str
"""A step of an app, or the name of one."""


@dataclass(slots=True)
class Call:
    """One attempt of a step. ``arguments`` and ``options`` are what it was called with; of a
    hand-written runtime ``arguments`` holds the step's input. ``error`` is what the attempt raised,
    of a step of an app in the form in which the history keeps it."""

    run_id: str
    step_id: str
    attempt: int
    arguments: tuple[Any, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    result: Any = None
    error: BaseException | None = None


@dataclass(slots=True)
class Mock:
    """What a step does in place of its work; see ``WorkflowEnvironment.mock``."""

    name: str
    returns: Any = OWN_WORK
    raises: Sequence[BaseException | type[BaseException]] = ()
    side_effect: Callable[..., Any] | None = None
    failures: int | None = None
    takes: timedelta = timedelta(0)
    _made: int = 0

    def error(self) -> BaseException | type[BaseException] | None:
        """What this call raises: the errors one after the other, the last one for ever, or only as
        often as ``failures`` says."""
        number, self._made = self._made, self._made + 1
        if not self.raises or (self.failures is not None and number >= self.failures):
            return None
        return self.raises[min(number, len(self.raises) - 1)]

    async def act(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """One call."""
        error = self.error()
        if error is not None:
            raise error
        if self.side_effect is None and self.returns is not OWN_WORK:
            return self.returns
        result = (self.side_effect or original)(*args, **kwargs)
        return await result if inspect.isawaitable(result) else result


def make_mock(
    step: StepRef,
    returns: Any,
    raises: Any,
    side_effect: Callable[..., Any] | None,
    failures: int | None,
    takes: timedelta,
) -> Mock:
    """A mock from the arguments of ``WorkflowEnvironment.mock``. InvalidArgument."""
    name = step_name(step)
    if raises is None:
        raises = ()
    elif not isinstance(raises, (list, tuple)):
        raises = (raises,)
    if failures is not None and (failures < 0 or not raises):
        raise InvalidArgument(f"mock of step {name!r}: failures needs raises, and is not negative")
    if takes < timedelta(0):
        raise InvalidArgument(f"mock of step {name!r}: takes must not be negative")
    return Mock(name, returns, tuple(raises), side_effect, failures, takes)


def step_name(step: StepRef) -> str:
    """The name of a step. InvalidArgument if it is none."""
    name = step if isinstance(step, str) else getattr(step, "name", None)
    if not isinstance(name, str):
        raise InvalidArgument(
            f"a step of an app or its name is needed, not {type(step).__name__}; a step keeps its "
            "name when it is imported from the module that declares it"
        )
    return name


class StandIn:
    """A runtime that asks its mocks first, and keeps the calls. Everything else is ``inner``'s."""

    def __init__(self, inner: FlowRuntime) -> None:
        self._inner = inner
        self.mocks: dict[str, Mock] = {}
        self.calls: list[tuple[str, Call]] = []
        self.working = 0
        """Attempts at work now, those that only let virtual time pass left out."""
        self.changed = asyncio.Event()
        self.sleep: Callable[[timedelta], Any] = _no_clock

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def check_known(self, name: str) -> None:
        """InvalidArgument if the runtime says which steps it has, and this is none: a mock under a
        mistyped name would let the step do its own work, without a word."""
        names = known(self._inner, "steps")
        if names is not None and name not in names:
            has = ", ".join(map(repr, names)) or "none"
            raise InvalidArgument(f"there is no step {name!r} to mock or count; the app has {has}")

    def run_workflow(self, invocation: WorkflowInvocation) -> Any:
        """The decision of the runtime itself."""
        return self._inner.run_workflow(invocation)

    async def run_step(self, invocation: StepInvocation) -> Any:
        """One attempt, by the mock if the step has one."""
        self.working += 1
        try:
            mock = self.mocks.get(invocation.step_name)
            if mock is not None and mock.takes:
                await self._let_pass(mock.takes, invocation)
            if isinstance(self._inner, FlowApp):
                return await self._authored(self._inner, invocation, mock)
            return await self._by_hand(invocation, mock)
        finally:
            self.working -= 1
            self.changed.set()

    async def _let_pass(self, time: timedelta, invocation: StepInvocation) -> None:
        invocation.begin()
        host: Any = invocation.host
        clock: AttemptClock | None = host.clock_of(invocation)
        # The timers of an attempt are real ones: here its limits pass by the clock that jumps.
        limit = clock.first_within(time) if clock is not None else None
        self.working -= 1
        self.changed.set()
        try:
            await self.sleep(time if limit is None else limit.after)
        finally:
            self.working += 1
        if limit is not None:
            limit.pass_()
            await asyncio.sleep(0)  # this task is cancelled now

    async def _authored(self, app: FlowApp, invocation: StepInvocation, mock: Mock | None) -> Any:
        step = app.steps.get(invocation.step_name)
        if step is None:
            raise UnknownStep(invocation.step_name)
        run_id, step_id = invocation.run_id, invocation.step_id
        given = app.codecs.open(copied(invocation.input), run_id, STEP_INPUT, step_id)
        args, kwargs = step.codec.decode_arguments(given)
        call = self._note(invocation, tuple(args), kwargs)
        working: AnyStep = step
        if mock is not None:
            # Asynchronous, and without a connection, whatever it stands in for.
            function: Any = _mocked(mock, step.function)
            working = AsyncStep(
                function, step.name, step.retry, step.fatal, step.codec, step.timeouts
            )
            working.codecs = app.codecs
        work = functools.partial(app.attempt, working)
        shape = await self._watched(call, work, invocation)
        result = app.codecs.open(copied(shape), run_id, STEP_OUTPUT, step_id)
        call.result = step.codec.decode_result(result)
        return shape

    async def _by_hand(self, invocation: StepInvocation, mock: Mock | None) -> Any:
        call = self._note(invocation, (copied(invocation.input),), {})
        work: Callable[[StepInvocation], Any] = self._inner.run_step
        if mock is not None:
            work = _mocked(mock, work)
        elif not inspect.iscoroutinefunction(work):
            work = _threaded(work)
        call.result = await self._watched(call, work, invocation)
        return call.result

    def _note(
        self, invocation: StepInvocation, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Call:
        call = Call(invocation.run_id, invocation.step_id, invocation.attempt, args, kwargs)
        self.calls.append((invocation.step_name, call))
        return call

    async def _watched(
        self, call: Call, work: Callable[[StepInvocation], Any], invocation: StepInvocation
    ) -> Any:
        try:
            return await work(invocation)
        except BaseException as error:
            call.error = error
            raise


def _mocked(mock: Mock, original: Callable[..., Any]) -> Callable[..., Any]:
    async def call(*args: Any, **kwargs: Any) -> Any:
        return await mock.act(original, *args, **kwargs)

    return call


def _threaded(function: Callable[..., Any]) -> Callable[..., Any]:
    async def call(invocation: StepInvocation) -> Any:
        result = await asyncio.to_thread(function, invocation)
        return await result if inspect.isawaitable(result) else result

    return call


async def _no_clock(time: timedelta) -> None:
    raise InvalidArgument("a mock that takes time needs an environment")
