"""What an engine asks of user code, and what it hands over.

Whatever user code is given, it may change: containers are copied on the way out, so a changed
input or output never reaches a snapshot and never alters a later replay.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Collection, Generator, Sequence
from typing import Any, Literal, Protocol, TypeVar

from flowpg.errors import (
    EngineFault,
    FlowError,
    InvalidArgument,
    PayloadTooLarge,
    TransactionsUnavailable,
)
from flowpg.model import jsontext
from flowpg.model.commands import Decision
from flowpg.model.decoding import decode_as
from flowpg.model.events import FlowEventEnvelope
from flowpg.model.jsontext import copied
from flowpg.model.snapshot import WorkflowRunSnapshot
from flowpg.model.spec import WorkflowSpec
from flowpg.replay.context import WorkflowContext

T = TypeVar("T")

MAX_DETAILS_BYTES = 65_536
"""Largest details of a heartbeat, in bytes of their JSON text."""

TransactionKind = Literal["psycopg", "connection", "session"]
"""What a transactional step is given: a connection of psycopg, or a Connection or a Session of
SQLAlchemy."""


def idempotency_key(run_id: str, step_id: str, attempt: int) -> str:
    """A key for the outside effect of one attempt: the same when that attempt is delivered again
    after a crash, another one for the next attempt. 64 hexadecimal digits that tell nothing."""
    digest = hashlib.sha256()
    for part in ("flowpg.step.v1", run_id, step_id, str(attempt)):
        raw = part.encode("utf-8", "surrogatepass")
        digest.update(len(raw).to_bytes(8, "big") + raw)
    return digest.hexdigest()


class WorkflowInvocation:
    """One replay: what a decision may depend on, and nothing else."""

    __slots__ = ("_input", "history", "run_id", "snapshot", "spec")

    def __init__(
        self,
        run_id: str,
        spec: WorkflowSpec,
        input: Any,
        snapshot: WorkflowRunSnapshot,
        history: Sequence[FlowEventEnvelope] = (),
    ) -> None:
        self.run_id = run_id
        self.spec = spec
        self._input = input
        self.snapshot = snapshot
        """The folded history; belongs to the engine and is not to be changed."""
        self.history = history
        """The events themselves, decoded when read; not to be changed either."""

    @property
    def input(self) -> Any:
        """The run's input, a copy at each call."""
        return copied(self._input)

    def input_as(self, kind: type[T]) -> T:
        """The input validated as ``kind``; SerializationError if it does not fit."""
        return decode_as(copied(self._input), kind, f"the input of run {self.run_id!r}")

    def context(self) -> WorkflowContext:
        """The readable side of this invocation, and the constructors of commands."""
        return WorkflowContext(self)

    def __repr__(self) -> str:
        return f"WorkflowInvocation(run_id={self.run_id!r}, workflow={self.spec.name!r})"


class AttemptOver(Exception):
    """Nobody waits for an attempt any more, and what it did in its transaction was rolled back.
    ``run_step`` lets it through. ``fault`` is what keeps its run from being driven on, if anything.
    """

    def __init__(self, fault: FlowError | None = None) -> None:
        super().__init__("the attempt is over" if fault is None else str(fault))
        self.fault = fault


class Heard:
    """The way of one heartbeat into the store; this one has nothing to store. There is no need to
    look after it."""

    __slots__ = ()

    def __await__(self) -> Generator[Any, None, None]:
        yield from ()

    def wait(self, timeout: float | None = None) -> None:
        """Block this thread until the details are stored, at most ``timeout`` seconds
        (TimeoutError). Not in the event loop: there, ``await`` it."""


class StepHost(Protocol):
    """The engine, as the attempts that it runs see it."""

    def begin(self, invocation: StepInvocation) -> None:
        """The code of the step begins. From any thread."""
        ...

    def heartbeat(self, invocation: StepInvocation, details: str | None) -> Heard:
        """See ``StepInvocation.heartbeat``; ``details`` as JSON text. From any thread."""
        ...

    async def transact(
        self, invocation: StepInvocation, function: Callable[[Any], Any], kind: Any
    ) -> Any:
        """See ``StepInvocation.transact``."""
        ...

    def transact_sync(
        self, invocation: StepInvocation, function: Callable[[Any], Any], kind: Any
    ) -> Any:
        """See ``StepInvocation.transact_sync``."""
        ...


class StepInvocation:
    """One attempt of one step. ``attempt`` counts from 1."""

    __slots__ = (
        "attempt",
        "cancelled",
        "heartbeat_details",
        "host",
        "input",
        "limited",
        "run_id",
        "step_id",
        "step_name",
        "task_id",
        "workflow_name",
    )

    def __init__(
        self,
        run_id: str,
        step_id: str,
        attempt: int,
        step_name: str,
        input: Any,
        workflow_name: str,
        host: StepHost | None = None,
    ) -> None:
        self.run_id = run_id
        self.step_id = step_id
        self.attempt = attempt
        self.step_name = step_name
        self.input = copied(input)
        """The step's input, this invocation's own copy."""
        self.workflow_name = workflow_name
        self.host = host
        """The engine that runs it, for the methods below."""
        self.limited = False
        """Whether the engine wants to know when it begins: something limits its time."""
        self.cancelled = False
        """Whether nobody waits for the result any more: it took too long, its run has ended, or
        another process drives it. A coroutine gets a CancelledError besides; a thread cannot be
        stopped and should look here from time to time."""

        self.task_id: int | None = None
        """The task that this attempt is, if its run has left it to another queue."""

        self.heartbeat_details: Any = None
        """What the last heartbeat of an earlier attempt said, or of this one before a crash."""

    def heartbeat(self, details: Any = None) -> Heard:
        """Give a sign of life, for the heartbeat timeout of the step, and keep ``details``, a JSON
        value, for the attempt that follows if this one comes to nothing (None keeps what was said
        before). From any thread, and as often as you like: a call costs microseconds, and the
        newest details are stored within half a second.

        Returns a handle: ``await`` it in a coroutine, or ``wait()`` for it in a thread, where the
        details must be stored before the work goes on. Raises AttemptOver if nobody waits for this
        attempt any more, SerializationError or PayloadTooLarge for details that cannot be stored.
        """
        if self.cancelled:
            raise AttemptOver
        text = None
        if details is not None:
            what = f"the heartbeat details of step {self.step_id!r}"
            text = jsontext.stored(details, what)[0]
            size = len(text.encode("utf-8", "surrogatepass"))
            if size > MAX_DETAILS_BYTES:
                raise PayloadTooLarge(self.run_id, "a heartbeat", size, MAX_DETAILS_BYTES)
        return Heard() if self.host is None else self.host.heartbeat(self, text)

    def begin(self) -> None:
        """The work begins now. For a runtime that sets ``begins_steps``, since it may let a step
        wait for a free thread; of any other the engine takes the call of ``run_step`` for the
        beginning. From any thread."""
        if self.limited and self.host is not None:
            self.host.begin(self)

    async def transact(
        self, function: Callable[[Any], Any], *, kind: TransactionKind = "psycopg"
    ) -> Any:
        """Await ``function(connection)`` in a transaction that also records its result as that of
        the step: its writes and the step's completion commit together, or neither does.

        ``run_step`` returns what this returns, as it is. The connection is an ``AsyncConnection``
        of psycopg, or of SQLAlchemy with ``kind`` "connection", or an ``AsyncSession`` with
        "session". An exception of the function rolls back and is raised. TransactionsUnavailable if
        the runs are not kept in PostgreSQL.
        """
        return await self._host(function).transact(self, function, kind)

    def transact_sync(
        self, function: Callable[[Any], Any], *, kind: TransactionKind = "psycopg"
    ) -> Any:
        """As ``transact``, in a thread: the connection is a ``Connection`` of psycopg or
        SQLAlchemy, or a ``Session``."""
        return self._host(function).transact_sync(self, function, kind)

    def _host(self, function: object) -> StepHost:
        if self.host is None:
            raise TransactionsUnavailable(self.step_id)
        return self.host

    @property
    def idempotency_key(self) -> str:
        """See ``idempotency_key``. An effect that must happen once over all attempts needs a key
        made from the run and step id instead."""
        return idempotency_key(self.run_id, self.step_id, self.attempt)

    def input_as(self, kind: type[T]) -> T:
        """The input validated as ``kind``; SerializationError if it does not fit."""
        return decode_as(self.input, kind, f"the input of step {self.step_id!r}")

    def __repr__(self) -> str:
        return (
            f"StepInvocation(run_id={self.run_id!r}, step_id={self.step_id!r}, "
            f"attempt={self.attempt}, step_name={self.step_name!r})"
        )


class FlowRuntime(Protocol):
    """User code as the engine calls it. Either method may be plain or a coroutine function.

    Raise UnknownWorkflow or UnknownStep for a name this process does not have: the run is then
    blocked until a process that has it comes, not failed.

    A runtime had better name what it serves, in an attribute ``workflows``: a collection of
    workflow names or WorkflowSpecs (of a mapping, the keys). Its workers then claim no run of
    another workflow, and an engine that is asked to drive one raises UnknownWorkflow before
    ``run_workflow`` is called. Without the attribute a runtime is asked about every workflow.
    """

    def run_workflow(self, invocation: WorkflowInvocation) -> Decision | Awaitable[Decision]:
        """Decide what is next from the invocation alone: no I/O, no clock, no random numbers. Any
        exception that is no engine fault fails the run."""
        raise _missing(self, "run_workflow")

    def run_step(self, invocation: StepInvocation) -> Any:
        """Do the work of one step and return a JSON value. It may run more than once. An
        exception is a failed attempt; NonRetryable and RetryLater say how to go on."""
        raise _missing(self, "run_step")


def undefined(runtime: object) -> str | None:
    """The method of FlowRuntime that the class of ``runtime`` only inherits, None if it has
    both of its own."""
    for name in ("run_workflow", "run_step"):
        if getattr(type(runtime), name, None) is getattr(FlowRuntime, name):
            return name
    return None


def known(runtime: object, kind: str = "workflows") -> tuple[str, ...] | None:
    """The names of the ``workflows`` or ``steps`` of a runtime that says which it has, in order;
    None for one that does not. InvalidArgument if ``workflows`` is a text, or holds anything but
    names and specs."""
    found = getattr(runtime, kind, None)
    if found is None:
        return None
    plain = isinstance(found, Collection) and not isinstance(found, (str, bytes))
    names: list[Any] = list(found) if plain else [None]
    names = [one.name if isinstance(one, WorkflowSpec) else one for one in names]
    if all(isinstance(name, str) for name in names):
        return tuple(sorted(set(names)))
    if kind == "workflows":
        raise InvalidArgument(
            f"the attribute workflows of {type(runtime).__name__} must be a collection of workflow "
            "names or WorkflowSpecs"
        )
    return None


def serves(runtime: object, workflow: str) -> bool:
    """Whether a runtime is to be asked about a workflow: it names that, or names none at all."""
    found = getattr(runtime, "workflows", None)
    if isinstance(found, (dict, set, frozenset)) and workflow in found:
        return True
    names = known(runtime)
    return names is None or workflow in names


def _missing(runtime: object, method: str) -> EngineFault:
    kind = type(runtime)
    return EngineFault(
        f"{kind.__module__}.{kind.__qualname__} does not define {method}, which this run needs; "
        "start a worker whose runtime does"
    )
