"""FlowApp: the workflows and steps of an application, as a runtime that an engine can drive."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from dataclasses import replace
from datetime import timedelta
from threading import get_ident
from time import monotonic
from typing import Any, Concatenate, Literal, ParamSpec, Protocol, TypeVar, overload

from flowpg.authoring import hazards
from flowpg.authoring.errors import TurnTooLong
from flowpg.authoring.parking import ParkingLot
from flowpg.authoring.steps import (
    STORED_FORMS,
    AnyStep,
    AsyncStep,
    Errors,
    SyncStep,
    make_step,
    run_step,
)
from flowpg.authoring.turns import RunTurns
from flowpg.authoring.watchdog import TurnRules
from flowpg.authoring.workflows import (
    AnyWorkflow,
    RunMethod,
    SyncRunMethod,
    SyncWorkflow,
    Workflow,
    WorkflowDefinition,
)
from flowpg.errors import InvalidArgument, NonDeterministic, UnknownStep, UnknownWorkflow
from flowpg.model.arguments import check_queue
from flowpg.model.codecs import (
    STEP_ERROR,
    STEP_INPUT,
    CodecChain,
    PayloadCodec,
    is_sealed,
)
from flowpg.model.commands import Decision
from flowpg.model.ids import check_id
from flowpg.model.retry import RetryPolicy
from flowpg.model.timeouts import StepTimeouts
from flowpg.replay.runtime import StepInvocation, TransactionKind, WorkflowInvocation

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C")

_REST = 30
"""A run whose turn was abandoned rests in this process for so many times as long as that took."""

_MAX_OVERRAN = 1000


class StepDecorator(Protocol):
    """``@app.step(...)`` with options."""

    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> AsyncStep[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> SyncStep[P, R]: ...


class TransactionalStepDecorator(Protocol):
    """``@app.step(transactional=True)``: the step is called without the connection."""

    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, function: Callable[Concatenate[C, P], Coroutine[Any, Any, R]], /
    ) -> AsyncStep[P, R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[C, P], R], /) -> SyncStep[P, R]: ...


class WorkflowDecorator(Protocol):
    """``@app.workflow(...)`` with options."""

    @overload
    def __call__(self, target: type[C], /) -> type[C]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, target: Callable[P, Coroutine[Any, Any, R]], /
    ) -> Workflow[P, R]: ...
    @overload
    def __call__(self, target: Callable[P, R], /) -> SyncWorkflow[P, R]: ...


class FlowApp:
    """Workflows and steps under one name; a ``FlowRuntime``, so ``FlowEngine(store, app)`` and a
    worker drive it like any other.

    ``max_parked`` coroutines of waiting runs are kept in memory; others are replayed when their
    run goes on. ``always_replay`` keeps none, which finds code that does not replay: for tests.
    ``step_threads`` is how many steps that are plain functions run at once. ``transactions`` is
    where transactional steps get their connections, if not from the engine's own DSN: another DSN,
    or an Engine or AsyncEngine of SQLAlchemy, to the same database.

    Workflow code that runs for ``slow_turn`` without waiting has its stack logged; after
    ``longest_turn`` (None: never) it is abandoned and its run blocked, since every other run of the
    process waits for it. A call that a replay cannot repeat, such as ``time.time()``, is warned of
    once; ``strict`` makes it block the run. Python 3.11 looks for such calls only with
    ``always_replay``.

    ``codecs`` compress and encrypt inputs, results, answers and errors, in that order: see
    ``Compression`` and ``Encryption``. Clients that start runs or answer hooks need the same.
    """

    def __init__(
        self,
        name: str,
        *,
        max_parked: int = 1000,
        always_replay: bool = False,
        step_threads: int = 32,
        slow_turn: timedelta = timedelta(seconds=2),
        longest_turn: timedelta | None = timedelta(seconds=10),
        strict: bool = False,
        transactions: Any = None,
        codecs: Iterable[PayloadCodec] = (),
    ) -> None:
        self.name = check_id(name, "app name", 255)
        if max_parked < 0 or step_threads < 1:
            raise InvalidArgument("max_parked must not be negative, step_threads at least 1")
        self.always_replay = always_replay
        self.transactions = transactions
        self.workflows: dict[str, AnyWorkflow] = {}
        self.steps: dict[str, AnyStep] = {}
        self.parked = ParkingLot(max_parked)
        self._rules = TurnRules(slow_turn, longest_turn, strict).check()
        self.codecs = CodecChain(codecs)
        self._overran: dict[str, float] = {}
        self._step_threads = step_threads
        self._threads: ThreadPoolExecutor | None = None

    # -- declaring ------------------------------------------------------------------------------

    @overload
    def step(  # type: ignore[overload-overlap]
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> AsyncStep[P, R]: ...
    @overload
    def step(self, function: Callable[P, R], /) -> SyncStep[P, R]: ...
    @overload
    def step(
        self,
        /,
        *,
        name: str | None = None,
        retry: RetryPolicy | None = None,
        fatal: Errors = (),
        timeouts: StepTimeouts | None = None,
        queue: str | None = None,
        transactional: Literal[False] = False,
    ) -> StepDecorator: ...
    @overload
    def step(
        self,
        /,
        *,
        transactional: Literal[True] | TransactionKind,
        name: str | None = None,
        retry: RetryPolicy | None = None,
        fatal: Errors = (),
        timeouts: StepTimeouts | None = None,
        queue: str | None = None,
    ) -> TransactionalStepDecorator: ...
    def step(
        self,
        function: Any = None,
        /,
        *,
        name: str | None = None,
        retry: RetryPolicy | None = None,
        fatal: Errors = (),
        timeouts: StepTimeouts | None = None,
        queue: str | None = None,
        transactional: bool | TransactionKind = False,
    ) -> Any:
        """Declare a step: a function that does work, such as a call to another service.

        In a workflow its call is recorded, run by an engine at least once, and its result kept.
        Arguments and result travel as JSON, by their annotations. ``name`` (default: the
        function's) is what the history says: keep it when the function is renamed. ``retry``
        defaults to three attempts without a pause; errors of the types ``fatal``, and NonRetryable,
        are never retried. ``timeouts`` bound how long it may take; each passes with an error of its
        own, such as StartToCloseTimeout. Its last error is raised where the workflow awaits it.
        ``queue`` is whose workers run it, on PostgreSQL; default: those that drive its run.

        ``transactional``: the function gets a connection before its arguments, in an open
        transaction that also records its result, so that its writes and the step's completion
        commit together, exactly once. The annotation of that parameter says which connection:
        psycopg's (default), or a Connection or Session of SQLAlchemy.
        """

        def declare(function: Any) -> Any:
            made = make_step(function, name, retry, fatal, timeouts, transactional, queue)
            if made.name in self.steps:
                raise InvalidArgument(f"app {self.name!r} has a step {made.name!r} already")
            made.codecs = self.codecs
            self.steps[made.name] = made
            return made

        return declare if function is None else declare(function)

    @overload
    def workflow(self, target: type[C], /) -> type[C]: ...  # type: ignore[overload-overlap]
    @overload
    def workflow(  # type: ignore[overload-overlap]
        self, target: Callable[P, Coroutine[Any, Any, R]], /
    ) -> Workflow[P, R]: ...
    @overload
    def workflow(self, target: Callable[P, R], /) -> SyncWorkflow[P, R]: ...
    @overload
    def workflow(
        self, /, *, name: str | None = None, version: str = "1", queue: str | None = None
    ) -> WorkflowDecorator: ...
    def workflow(
        self,
        target: Any = None,
        /,
        *,
        name: str | None = None,
        version: str = "1",
        queue: str | None = None,
    ) -> Any:
        """Declare a workflow: a function, or a class with a method ``run``, of which each run has
        an instance of its own. A class stays what it is; ``of`` gives its workflow. What is an
        ``async def`` awaits its steps; a plain function calls those that are plain functions, and
        waits with ``flowpg.sync``.

        It is replayed, so it does no I/O and asks neither clock nor chance, except through this
        package; all else is asyncio as ever. ``name`` (default: the function's) is what runs are
        found by; ``queue`` is where new runs go, if not to the engine's own.
        """
        if queue is not None:
            check_queue(queue)

        def declare(target: Any) -> Any:
            if not inspect.isclass(target) and not inspect.isfunction(target):
                raise InvalidArgument("a workflow must be a function or a class")
            definition = WorkflowDefinition(target, name or target.__name__, version, self.codecs)
            kind: Any = SyncWorkflow if definition.blocking else Workflow
            made: AnyWorkflow = kind(target, definition, queue)
            if made.name in self.workflows:
                raise InvalidArgument(f"app {self.name!r} has a workflow {made.name!r} already")
            self.workflows[made.name] = made
            return target if inspect.isclass(target) else made

        return declare if target is None else declare(target)

    @overload
    def of(self, target: type[RunMethod[P, R]], /) -> Workflow[P, R]: ...  # type: ignore[overload-overlap]
    @overload
    def of(self, target: type[SyncRunMethod[P, R]], /) -> SyncWorkflow[P, R]: ...
    def of(self, target: type[Any], /) -> Any:
        """The workflow that a class was declared as. InvalidArgument if it was not."""
        for workflow in self.workflows.values():
            if workflow.definition.target is target:
                return workflow
        raise InvalidArgument(f"app {self.name!r} has no workflow {target.__name__}")

    def for_debugging(self) -> FlowApp:
        """The same app for replays at a breakpoint: it keeps no coroutine, and a turn may take as
        long as it likes."""
        app = copy(self)
        app.always_replay, app.parked = True, ParkingLot(0)
        app._rules = replace(self._rules, slow=timedelta(days=1), longest=None)
        app._overran, app._threads = {}, None
        return app

    # -- FlowRuntime ----------------------------------------------------------------------------

    def run_workflow(self, invocation: WorkflowInvocation) -> Decision:
        """What the workflow asks for next. See ``FlowRuntime``."""
        workflow = self.workflows.get(invocation.spec.name)
        if workflow is None:
            raise UnknownWorkflow(invocation.spec.name)
        if self._overran:
            self._check_rest(invocation.run_id)
        turns = self.parked.take(invocation.run_id)
        if turns is not None and self._goes_on(turns, workflow.definition, invocation):
            try:
                return self._advance(turns, invocation)
            except NonDeterministic:
                # Perhaps only what it did last was never stored. The history has the last word.
                pass
        turns = RunTurns(workflow.definition, invocation, self._rules, self.codecs)
        return self._advance(turns, invocation)

    async def run_step(self, invocation: StepInvocation) -> Any:
        """Run one attempt of a step. See ``FlowRuntime``."""
        step = self.steps.get(invocation.step_name)
        if step is None:
            raise UnknownStep(invocation.step_name)
        if not self.codecs.codecs and not is_sealed(invocation.input):
            return await run_step(step, invocation, self._executor)
        return await self.attempt(step, invocation)

    async def attempt(self, step: AnyStep, invocation: StepInvocation) -> Any:
        """Run one attempt of ``step``, with its values opened before and sealed after."""
        run_id, step_id, codecs = invocation.run_id, invocation.step_id, self.codecs
        if is_sealed(invocation.input):
            invocation.input = codecs.open(invocation.input, run_id, STEP_INPUT, step_id)
        if not codecs.codecs:
            return await run_step(step, invocation, self._executor)
        try:
            return await run_step(step, invocation, self._executor)
        except STORED_FORMS as error:
            error.args = (codecs.seal_error(str(error), run_id, STEP_ERROR, step_id),)
            error.raised = None  # type: ignore[union-attr]  # what is sealed is in no log
            raise

    begins_steps = True
    """Says to the engine that a step of this runtime tells when its code begins."""

    def fatal_errors(self, step_name: str) -> Errors:
        """The errors, timeouts among them, after which a step is not tried again."""
        step = self.steps.get(step_name)
        return step.fatal if step is not None else ()

    def close(self) -> None:
        """Put every waiting run aside and let the step threads go. A closed app can go on."""
        self.parked.clear()
        if self._threads is not None:
            self._threads.shutdown(wait=False)
            self._threads = None

    # -- helpers --------------------------------------------------------------------------------

    def _goes_on(
        self, turns: RunTurns, definition: WorkflowDefinition, invocation: WorkflowInvocation
    ) -> bool:
        # The stack of a plain function runs on no other thread.
        here = not definition.blocking or turns.thread == get_ident()
        if turns.definition is definition and here and turns.continues(invocation.history):
            return True
        self.parked.saw(invocation.run_id, turns.consumed, False)
        turns.forget()
        return False

    def _advance(self, turns: RunTurns, invocation: WorkflowInvocation) -> Decision:
        keep = False
        if hazards.MONITORS:
            hazards.watch()
        before = turns.consumed
        # A coroutine that is kept has seen what it was given, and nothing need be noted of it.
        seen = before or self.parked.seen(invocation.run_id)
        try:
            if self.always_replay:
                with hazards.profiled(turns.turn):
                    decision = turns.advance(invocation, seen)
            else:
                decision = turns.advance(invocation, seen)
            before = turns.consumed
            keep = not (self.always_replay or turns.ending.final)
        except TurnTooLong as error:
            if len(self._overran) < _MAX_OVERRAN:
                self._overran[turns.run_id] = monotonic() + _REST * turns.turn.seen
            raise error from None
        finally:
            if keep:
                self.parked.park(turns)
            else:
                self.parked.saw(invocation.run_id, before, turns.ending.final)
                turns.forget()
        return decision

    def _check_rest(self, run_id: str) -> None:
        # The same code would most likely hold up all other runs again; another process may have
        # other code.
        until = self._overran.get(run_id)
        if until is None:
            return
        if monotonic() < until:
            raise TurnTooLong(run_id)
        del self._overran[run_id]

    def _executor(self) -> ThreadPoolExecutor:
        if self._threads is None:
            # By the beginning of its name whoever ends the process knows a step's thread.
            self._threads = ThreadPoolExecutor(self._step_threads, f"flowpg-step-{self.name}")
        return self._threads

    def __repr__(self) -> str:
        return f"<FlowApp {self.name!r}>"
