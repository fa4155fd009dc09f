"""What workflow code reads and returns: outcomes by id, and one constructor per command.

Outcomes that are containers are copied at each call, so workflow code may change what it gets.
An outcome can be any JSON value, None included: ask ``step_completed``, ``hook_received`` and
their like whether it is there, or give a default that no outcome equals, such as ``MISSING``.
``step_output`` and the typed readers insist: without a default they raise InvalidTransition for an
outcome that is not there, which blocks the run until the workflow code is mended.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, TypeVar, overload

from flowpg.errors import HookTokenConflict, InvalidTransition
from flowpg.model.commands import (
    Cancel,
    CancelStep,
    CancelWait,
    Complete,
    CreateHook,
    DisposeHook,
    Fail,
    LinkChildOperation,
    OnConflict,
    RecordPatch,
    RecordProgress,
    ScheduleStep,
    ScheduleSteps,
    SetAttributes,
    StepCommand,
    Timeout,
    WaitUntil,
)
from flowpg.model.decoding import decode_as
from flowpg.model.events import FlowEventEnvelope
from flowpg.model.hooks import HookMetadata
from flowpg.model.jsontext import copied
from flowpg.model.operations import (
    CancellationRequest,
    ChildOperationReference,
    WorkflowProgress,
)
from flowpg.model.payload_schema import schema_of
from flowpg.model.retry import DEFAULT_RETRY, RetryPolicy
from flowpg.model.snapshot import (
    HookSnapshot,
    HookStatus,
    StepSnapshot,
    StepStatus,
    WaitStatus,
    conflict_of,
)
from flowpg.model.spec import WorkflowSpec
from flowpg.model.timeouts import StepTimeouts

if TYPE_CHECKING:
    from flowpg.replay.runtime import WorkflowInvocation

T = TypeVar("T")
D = TypeVar("D")


class _Missing:
    __slots__ = ()

    def __repr__(self) -> str:
        return "MISSING"

    def __bool__(self) -> bool:
        return False


MISSING: Final = _Missing()
"""A default that is never an outcome."""

_REQUIRED: Final = _Missing()


class WorkflowContext:
    """Deterministic reads of one replay, and the commands it may return."""

    __slots__ = ("_invocation", "_run")

    def __init__(self, invocation: WorkflowInvocation) -> None:
        self._invocation = invocation
        self._run = invocation.snapshot

    # -- the run --------------------------------------------------------------------------------

    @property
    def run_id(self) -> str:
        """The run being replayed."""
        return self._invocation.run_id

    @property
    def spec(self) -> WorkflowSpec:
        """The identity of its workflow."""
        return self._invocation.spec

    @property
    def input(self) -> Any:
        """The run's input, a copy at each call."""
        return self._invocation.input

    def input_as(self, kind: type[T]) -> T:
        """The input validated as ``kind``; SerializationError if it does not fit."""
        return self._invocation.input_as(kind)

    @property
    def history(self) -> Sequence[FlowEventEnvelope]:
        """The events so far, decoded when read; not to be changed."""
        return self._invocation.history

    def cancellation_request(self) -> CancellationRequest | None:
        """The request to clean up and end, if there is one."""
        cancellation = self._run.cancellation
        return None if cancellation is None else CancellationRequest(reason=cancellation.reason)

    def progress(self, progress_id: str) -> WorkflowProgress | None:
        """A progress report that was recorded under this id."""
        found = self._run.open.progress.get(progress_id)
        return found and found.model_copy(update={"details": copied(found.details)})

    def child_operation(self, reference_id: str) -> ChildOperationReference | None:
        """A link that was recorded under this id."""
        found = self._run.child_operations.get(reference_id)
        return found and found.model_copy(update={"metadata": copied(found.metadata)})

    def patched(self, patch_id: str) -> bool:
        """Whether the run was marked with this patch; ``record_patch`` marks it. A run without the
        mark that has passed the place takes the old branch."""
        return patch_id in self._run.patches

    @property
    def attributes(self) -> dict[str, Any]:
        """The attributes of the run, a copy."""
        return dict(self._run.attributes)

    # -- outcomes -------------------------------------------------------------------------------

    def step_completed(self, step_id: str) -> bool:
        """Whether the step returned."""
        step = self._run.steps.get(step_id)
        return step is not None and step.status is StepStatus.COMPLETED

    def step_output(self, step_id: str, default: Any = _REQUIRED) -> Any:
        """What the step returned, or ``default`` if it has not (yet). InvalidTransition if there
        is neither: perhaps no step has this id."""
        step = self._completed(step_id)
        if step is not None:
            return copied(step.output)
        if default is _REQUIRED:
            raise self._absent(f"step {step_id!r} has no output", "step_completed")
        return default

    @overload
    def step_output_as(self, step_id: str, kind: type[T]) -> T: ...
    @overload
    def step_output_as(self, step_id: str, kind: type[T], default: D) -> T | D: ...
    def step_output_as(self, step_id: str, kind: type[T], default: Any = MISSING) -> Any:
        """What the step returned, validated as ``kind``, or ``default`` if it has not (yet).
        SerializationError if it does not fit; InvalidTransition if there is neither."""
        step = self._completed(step_id)
        if step is None:
            if default is MISSING:
                raise self._absent(f"step {step_id!r} has no output", "step_completed")
            return default
        return decode_as(copied(step.output), kind, f"the output of step {step_id!r}")

    def step_failed(self, step_id: str) -> str | None:
        """The error of a step that failed for good, out of attempts or not retryable."""
        step = self._run.steps.get(step_id)
        return step.error if step is not None and step.status is StepStatus.FAILED else None

    def wait_completed(self, wait_id: str) -> bool:
        """Whether the timer fired."""
        wait = self._run.waits.get(wait_id)
        return wait is not None and wait.status is WaitStatus.COMPLETED

    def wait_cancelled(self, wait_id: str) -> bool:
        """Whether the timer was given up, by ``cancel_wait`` or with the request to cancel."""
        wait = self._run.waits.get(wait_id)
        return wait is not None and wait.status is WaitStatus.CANCELLED

    def step_cancelled(self, step_id: str) -> bool:
        """Whether the step was given up, by ``cancel_step`` or with the request to cancel."""
        step = self._run.steps.get(step_id)
        return step is not None and step.status is StepStatus.CANCELLED

    def hook_received(self, hook_id: str) -> bool:
        """Whether the hook was answered."""
        return self._received(hook_id) is not None

    def hook_payload(self, hook_id: str, default: Any = None) -> Any:
        """What the hook was answered with, or ``default`` if it was not (yet)."""
        hook = self._received(hook_id)
        return default if hook is None else copied(hook.payload)

    @overload
    def hook_payload_as(self, hook_id: str, kind: type[T]) -> T: ...
    @overload
    def hook_payload_as(self, hook_id: str, kind: type[T], default: D) -> T | D: ...
    def hook_payload_as(self, hook_id: str, kind: type[T], default: Any = MISSING) -> Any:
        """What the hook was answered with, validated as ``kind``, or ``default`` if it was not
        (yet). SerializationError if it does not fit; InvalidTransition if there is neither."""
        hook = self._received(hook_id)
        if hook is None:
            if default is MISSING:
                raise self._absent(f"hook {hook_id!r} has no payload", "hook_received")
            return default
        return decode_as(copied(hook.payload), kind, f"the payload of hook {hook_id!r}")

    def hook_disposed(self, hook_id: str) -> bool:
        """Whether the hook was withdrawn or has expired."""
        hook = self._run.hooks.get(hook_id)
        return hook is not None and hook.status is HookStatus.DISPOSED

    def hook_active(self, hook_id: str) -> bool:
        """Whether the hook is open: its token is this run's, and nobody has answered it yet."""
        return hook_id in self._run.open.hooks

    def hook_conflict(self, hook_id: str) -> HookTokenConflict | None:
        """Who held the token of a hook that was created with ``on_conflict="raise"`` and refused
        for it, as an error that may be raised; None for any other hook."""
        hook = self._run.hooks.get(hook_id)
        return None if hook is None else conflict_of(hook)

    # -- commands: work -------------------------------------------------------------------------

    def step(
        self,
        step_id: str,
        step_name: str,
        input: Any = None,
        retry: RetryPolicy | None = None,
        timeouts: StepTimeouts | None = None,
    ) -> StepCommand:
        """A member of a batch for ``schedule_steps``."""
        return StepCommand(
            step_id=step_id,
            step_name=step_name,
            input=input,
            retry=retry or DEFAULT_RETRY,
            timeouts=timeouts,
        )

    def schedule_step(
        self,
        step_id: str,
        step_name: str,
        input: Any = None,
        retry: RetryPolicy | None = None,
        timeouts: StepTimeouts | None = None,
        queue: str | None = None,
    ) -> ScheduleStep:
        """Run one step. The default policy is three attempts without a pause, and no timeouts.
        ``queue`` is whose workers run it, by default those that drive the run."""
        return ScheduleStep(
            step_id=step_id,
            step_name=step_name,
            input=input,
            retry=retry or DEFAULT_RETRY,
            timeouts=timeouts,
            queue=queue,
        )

    def schedule_steps(self, steps: Iterable[StepCommand]) -> ScheduleSteps:
        """Run a batch of steps concurrently."""
        return ScheduleSteps(steps=tuple(steps))

    def wait_until(self, wait_id: str, resume_at: datetime) -> WaitUntil:
        """Suspend until ``resume_at``, which needs a time zone."""
        return WaitUntil(wait_id=wait_id, resume_at=resume_at)

    def sleep(self, wait_id: str, delay: timedelta) -> WaitUntil:
        """Suspend for ``delay``, counted on the store's clock from when the wait is recorded."""
        return WaitUntil(wait_id=wait_id, delay=delay)

    def create_hook(
        self,
        hook_id: str,
        token: str,
        metadata: Any = None,
        expires_in: timedelta | None = None,
        kind: Any = Any,
        on_conflict: OnConflict = "wait",
        acquire: bool = False,
    ) -> CreateHook:
        """Suspend until someone answers under ``token``, which must be a secret of its own;
        ``metadata`` is a HookMetadata or any JSON value and must not hold the token. An answer
        that cannot be read as ``kind`` is refused to whoever sends it.

        If another hook holds the token, the run is blocked until it is free, or, with ``raise``,
        asked again with a ``hook_conflict``. ``acquire`` has it asked again too if it gets the
        token, to go on with the hook open (``hook_active``): a lock.
        """
        if isinstance(metadata, HookMetadata):
            metadata = metadata.wire()
        return CreateHook(
            hook_id=hook_id,
            token=token,
            metadata=metadata,
            expires_in=expires_in,
            payload_schema=schema_of(kind),
            on_conflict=on_conflict,
            acquire=acquire,
        )

    def record_progress(self, progress: WorkflowProgress) -> RecordProgress:
        """Record a progress report; look with ``progress`` first whether it is recorded."""
        return RecordProgress(progress=progress)

    def link_child_operation(self, child: ChildOperationReference) -> LinkChildOperation:
        """Record a link; look with ``child_operation`` first whether it is recorded."""
        return LinkChildOperation(child=child)

    def record_patch(self, patch_id: str) -> RecordPatch:
        """Mark the run with a patch; look with ``patched`` first."""
        return RecordPatch(patch_id=patch_id)

    def set_attributes(self, attributes: Mapping[str, Any]) -> SetAttributes:
        """Set attributes of the run: texts, numbers, true or false; None takes one away."""
        return SetAttributes(attributes=dict(attributes))

    # -- commands: what is given up -------------------------------------------------------------

    def cancel_wait(self, wait_id: str) -> CancelWait:
        """Close an open timer, beside any other command: the one that lost a race, say. Nothing
        happens if it has fired or is closed."""
        return CancelWait(wait_id=wait_id)

    def dispose_hook(self, hook_id: str) -> DisposeHook:
        """Withdraw an open hook, beside any other command. Nothing happens if it was answered or
        is closed."""
        return DisposeHook(hook_id=hook_id)

    def cancel_step(self, step_id: str, reason: str | None = None) -> CancelStep:
        """Close an open step, beside any other command: its handler is cancelled and its outcome
        never known. Nothing happens if it has settled."""
        if reason is None:
            return CancelStep(step_id=step_id)
        return CancelStep(step_id=step_id, reason=reason)

    # -- commands: ends -------------------------------------------------------------------------

    def complete(self, output: Any = None, *, despite_cancellation: bool = False) -> Complete:
        """End the run with ``output``. A run that was asked to cancel can complete only where the
        workflow says so."""
        return Complete(output=output, despite_cancellation=despite_cancellation)

    def fail(self, error: str) -> Fail:
        """End the run as failed."""
        return Fail(error=error)

    def cancel(self) -> Cancel:
        """End the run as cancelled, after a cancellation request."""
        return Cancel()

    def timeout(self, deadline: datetime, reason: str | None = None) -> Timeout:
        """End the run because ``deadline`` has passed."""
        return Timeout(deadline=deadline, reason=reason)

    def _absent(self, what: str, question: str) -> InvalidTransition:
        return InvalidTransition(
            f"{what} yet; ask {question} first or give a default", run_id=self.run_id
        )

    def _completed(self, step_id: str) -> StepSnapshot | None:
        step = self._run.steps.get(step_id)
        return step if step is not None and step.status is StepStatus.COMPLETED else None

    def _received(self, hook_id: str) -> HookSnapshot | None:
        hook = self._run.hooks.get(hook_id)
        return hook if hook is not None and hook.status is HookStatus.RECEIVED else None
