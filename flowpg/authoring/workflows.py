"""Workflows: functions, and classes with a method ``run``, each asynchronous or plain.

A class is instantiated without arguments once a run, and keeps what its methods share in ``self``.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine
from copy import copy
from typing import Any, Generic, ParamSpec, Protocol, Self, TypeVar, cast

from flowpg.authoring.codec import FunctionCodec
from flowpg.authoring.errors import WorkflowFailed
from flowpg.authoring.failures import read_failure
from flowpg.authoring.strands import carry_out
from flowpg.errors import InvalidArgument
from flowpg.model.arguments import check_queue
from flowpg.model.codecs import NO_CODECS, RUN_ERROR, RUN_INPUT, RUN_OUTPUT, CodecChain
from flowpg.model.errortext import human_text
from flowpg.model.ids import check_run_id
from flowpg.model.records import StartRequest
from flowpg.model.snapshot import RunStatus, WorkflowRunSnapshot
from flowpg.model.spec import WorkflowSpec
from flowpg.store.sealing import fresh_run_id, sealed_request

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class RunMethod(Protocol[P, R_co]):
    """A workflow as a class: ``run`` is the workflow."""

    def run(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R_co]:
        """Carry out the workflow."""
        ...


class SyncRunMethod(Protocol[P, R_co]):
    """The same with a plain method."""

    def run(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Carry out the workflow."""
        ...


class Starter(Protocol):
    """What starts runs: a FlowEngine."""

    async def start(self, spec: WorkflowSpec, input: Any = ..., *, queue: str | None = ...) -> str:
        """Start a run under a generated id and return that."""
        ...

    async def start_with_id(
        self, run_id: str, spec: WorkflowSpec, input: Any = ..., *, queue: str | None = ...
    ) -> str:
        """Start a run under this id, or find the one started before; returns the id."""
        ...


class WorkflowDefinition:
    """A workflow as the engine's side knows it: how to call it, and the codec of its values."""

    def __init__(
        self, target: Any, name: str, version: str, codecs: CodecChain = NO_CODECS
    ) -> None:
        self.codecs = codecs
        self.target = target
        if inspect.isclass(target):
            method = getattr(target, "run", None)
            if not inspect.isfunction(method):
                raise InvalidArgument(f"workflow class {target.__name__} needs a method `run`")
            made: Any = target
            self._function: Callable[..., Any] = lambda *a, **kw: made().run(*a, **kw)
            self.codec = FunctionCodec(method, f"workflow {name!r}", skip=1)
        else:
            method = self._function = target
            self.codec = FunctionCodec(target, f"workflow {name!r}")
        if inspect.isasyncgenfunction(method) or inspect.isgeneratorfunction(method):
            raise InvalidArgument("a workflow must return its result; it cannot be a generator")
        self.blocking = not inspect.iscoroutinefunction(method)
        """Whether it is a plain function, which waits by leaving its stack."""
        self.spec = WorkflowSpec.python(name, version)
        self.spec.check()

    def coroutine(self, input: Any) -> Coroutine[Any, Any, Any]:
        """The workflow, about to begin. SerializationError if ``input`` does not fit it."""
        args, kwargs = self.codec.decode_arguments(input)
        if self.blocking:
            return carry_out(self._function, args, kwargs)
        coroutine: Coroutine[Any, Any, Any] = self.call(args, kwargs)
        return coroutine

    def call(self, args: Any, kwargs: Any) -> Any:
        """What the function gives that the workflow is: a coroutine, or a plain one's result."""
        return self._function(*args, **kwargs)


class WorkflowBase(Generic[P, R]):
    """What registered workflows of both kinds share."""

    def __init__(self, target: Any, definition: WorkflowDefinition, queue: str | None) -> None:
        self.definition = definition
        self.queue = queue
        self.run_id: str | None = None
        self.build: str | None = None
        functools.update_wrapper(cast("Any", self), target, updated=())

    @property
    def name(self) -> str:
        """The name under which runs find it."""
        return self.definition.spec.name

    @property
    def spec(self) -> WorkflowSpec:
        """What a run of it executes: for ``engine.start(workflow.spec, workflow.input(...))``."""
        spec = self.definition.spec
        return spec if self.build is None else spec.with_runtime_build(self.build)

    def options(
        self, *, queue: str | None = None, run_id: str | None = None, build: str | None = None
    ) -> Self:
        """The same workflow for runs with other options:
        ``workflow.options(queue="bulk").start(engine, ...)``.

        ``queue`` is where they go; ``run_id`` is the id of the one that is started, or found;
        ``build`` is the only build whose workers may drive them. InvalidArgument, InvalidRunId.
        """
        made = copy(self)
        if queue is not None:
            made.queue = check_queue(queue)
        if run_id is not None:
            made.run_id = check_run_id(run_id)
        if build is not None:
            made.build = build
            made.spec.check()
        return made

    def input(self, *args: P.args, **kwargs: P.kwargs) -> dict[str, Any]:
        """The run input that these arguments make. TypeError, SerializationError."""
        return self.definition.codec.encode_arguments(args, kwargs)

    async def start(self, engine: Starter, /, *args: P.args, **kwargs: P.kwargs) -> str:
        """Start a run with these arguments and return its id; raises as ``engine.start``."""
        given = self.input(*args, **kwargs)
        run_id = self.run_id
        if self.definition.codecs:
            # A value is sealed for its run, so that needs its id now.
            run_id = run_id or fresh_run_id()
            given = self.definition.codecs.seal(given, run_id, RUN_INPUT)
        if run_id is not None:
            return await engine.start_with_id(run_id, self.spec, given, queue=self.queue)
        return await engine.start(self.spec, given, queue=self.queue)

    async def start_with_id(
        self, engine: Starter, run_id: str, /, *args: P.args, **kwargs: P.kwargs
    ) -> str:
        """Start a run under your own id, or find it; raises as ``engine.start_with_id``."""
        given = self.definition.codecs.seal(self.input(*args, **kwargs), run_id, RUN_INPUT)
        return await engine.start_with_id(run_id, self.spec, given, queue=self.queue)

    def request(self, *args: P.args, **kwargs: P.kwargs) -> StartRequest:
        """A run to start with these arguments: for ``start_many``."""
        given = self.input(*args, **kwargs)
        request = StartRequest(self.spec, given, self.run_id, self.queue or "default")
        return sealed_request(self.definition.codecs, request)

    def result(self, snapshot: WorkflowRunSnapshot) -> R:
        """What the workflow returned in this run.

        WorkflowFailed if the run ended in another way, or has not ended.
        """
        if snapshot.status is RunStatus.COMPLETED:
            output = self.definition.codecs.open(snapshot.output, snapshot.run_id, RUN_OUTPUT)
            value: R = self.definition.codec.decode_result(output)
            return value
        if not snapshot.terminal:
            raise WorkflowFailed(snapshot.run_id, "not yet", f"it is {snapshot.status.value}")
        text = snapshot.error
        if text:
            text = self.definition.codecs.open_error(text, snapshot.run_id, RUN_ERROR)
        failed = WorkflowFailed(
            snapshot.run_id, snapshot.status.value, human_text(text) if text else None
        )
        if snapshot.status is RunStatus.FAILED and text:
            raise failed from read_failure(text)
        raise failed

    def __repr__(self) -> str:
        return f"<workflow {self.name!r}>"


class Workflow(WorkflowBase[P, R]):
    """A registered workflow. Calling it calls the plain function: in a test, or as a part of
    another workflow."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        """The plain coroutine; no run is started."""
        coroutine: Coroutine[Any, Any, R] = self.definition.call(args, kwargs)
        return coroutine


class SyncWorkflow(WorkflowBase[P, R]):
    """A registered workflow that is a plain function; see ``flowpg.sync``. Calling it calls that:
    in a test, or as a part of another workflow of its kind."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the plain function; no run is started."""
        result: R = self.definition.call(args, kwargs)
        return result


AnyWorkflow = Workflow[..., Any] | SyncWorkflow[..., Any]
