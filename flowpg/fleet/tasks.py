"""Tasks: verbs of a client that are queued and carried out later, by whichever worker is free.

A hook token travels in the payload of a task and nowhere else: not in what tells two tasks apart,
not in a log, a repr, an error or a dead letter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError

from flowpg.errors import (
    HookConflict,
    InvalidArgument,
    InvalidRunId,
    PayloadTooLarge,
    RunNotFound,
    RunTerminal,
    SerializationError,
)
from flowpg.fleet.policy import DEFAULT_POLICY, TaskPolicy
from flowpg.model.answers import AnswerCheck
from flowpg.model.arguments import MAX_PAGE
from flowpg.model.dumping import written
from flowpg.model.inspection import WakeupKind
from flowpg.model.records import VerbResult
from flowpg.postgres.enlist import run_enlisted
from flowpg.postgres.task_verbs import enqueue_task
from flowpg.store.postgres import PostgresEventStore
from flowpg.store.protocol import Enlisted, FlowEventStore

Answer = Annotated[Any, BeforeValidator(written)]
"""What a hook is answered with: it waits in the queue as JSON."""


class _Task(BaseModel):
    model_config = ConfigDict(frozen=True, hide_input_in_errors=True)

    @property
    def target_run_id(self) -> str | None:
        """The run it is about; None for those that name a token or are about all runs."""
        found: str | None = getattr(self, "run_id", None)
        return found

    @property
    def token_inside(self) -> str:
        """The hook token it carries, or nothing."""
        found: str = getattr(self, "token", "")
        return found

    def carried(self) -> dict[str, Any] | None:
        """What it carries beside its type and run, None if nothing."""
        return self.model_dump(exclude={"type", "run_id"}) or None


class DriveRun(_Task):
    """Drive a run."""

    type: Literal["drive_run"] = "drive_run"
    run_id: str


class ResumeWait(_Task):
    """Complete a timer that is due."""

    type: Literal["resume_wait"] = "resume_wait"
    run_id: str
    wait_id: str


class ResumeHook(_Task):
    """Answer a hook."""

    type: Literal["resume_hook"] = "resume_hook"
    run_id: str
    hook_id: str
    payload: Answer = Field(default=None, repr=False)


class ResumeHookByToken(_Task):
    """Answer the hook with this token."""

    type: Literal["resume_hook_by_token"] = "resume_hook_by_token"
    token: str = Field(repr=False)
    payload: Answer = Field(default=None, repr=False)


class DisposeHook(_Task):
    """Withdraw a hook."""

    type: Literal["dispose_hook"] = "dispose_hook"
    run_id: str
    hook_id: str


class DisposeHookByToken(_Task):
    """Withdraw the hook with this token."""

    type: Literal["dispose_hook_by_token"] = "dispose_hook_by_token"
    token: str = Field(repr=False)


class ResumeScheduledRun(_Task):
    """Settle whatever of one run is due."""

    type: Literal["resume_scheduled_run"] = "resume_scheduled_run"
    run_id: str


class ResumeDueWaits(_Task):
    """Complete the due timers of all runs."""

    type: Literal["resume_due_waits"] = "resume_due_waits"


class ResumeDueRetries(_Task):
    """Dispatch the due retries of all runs."""

    type: Literal["resume_due_retries"] = "resume_due_retries"


AnyTask = (
    DriveRun
    | ResumeWait
    | ResumeHook
    | ResumeHookByToken
    | DisposeHook
    | DisposeHookByToken
    | ResumeScheduledRun
    | ResumeDueWaits
    | ResumeDueRetries
)
FlowTask = Annotated[AnyTask, Field(discriminator="type")]
"""Any task; its ``type`` says which."""

VERB_KINDS = (
    "resume_wait",
    "resume_hook",
    "resume_hook_by_token",
    "dispose_hook",
    "dispose_hook_by_token",
    "resume_scheduled_run",
    "resume_due_waits",
    "resume_due_retries",
)
"""All kinds but ``drive_run``, which is what workers of runs claim."""

_ADAPTER: TypeAdapter[AnyTask] = TypeAdapter(FlowTask)


def read_task(wire: Mapping[str, Any]) -> AnyTask:
    """A task from its wire form, ``{"type": ..., ...}``. InvalidArgument, which names the members
    that are wrong and quotes none."""
    try:
        return _ADAPTER.validate_python(dict(wire))
    except ValidationError as error:
        where = sorted({".".join(map(str, item["loc"])) or "type" for item in error.errors()})
        raise InvalidArgument(f"this is no task: check {', '.join(where)}") from None


@dataclass(frozen=True, slots=True)
class FlowTaskOutcome:
    """What carrying out a task did. Only what this very call committed is named: a redelivery, or
    the loser of a race, names nothing. ``run_ids`` are the runs that may go on now."""

    task: AnyTask
    run_ids: tuple[str, ...] = ()
    resumed_waits: tuple[tuple[str, str], ...] = ()
    resumed_retries: tuple[tuple[str, str], ...] = ()
    resumed_hook: tuple[str, str] | None = None
    disposed_hooks: tuple[tuple[str, str], ...] = ()


async def carry_out(store: FlowEventStore, task: AnyTask) -> FlowTaskOutcome:
    """Do what a task says. Runs that can go on are left to workers that drive runs. Raises what the
    verb of the same name raises; every task may be carried out again."""
    match task:
        case DriveRun():
            await store.wake_run(task.run_id)
            return FlowTaskOutcome(task, (task.run_id,))
        case ResumeWait():
            done = await store.resume_wait(task.run_id, task.wait_id)
            wait = ((task.run_id, task.wait_id),) if done.applied else ()
            return FlowTaskOutcome(task, (task.run_id,), resumed_waits=wait)
        case ResumeHook() | ResumeHookByToken():
            done = await _answer(store, task)
            hook = (done.run_id, done.subject_id or "") if done.applied else None
            return FlowTaskOutcome(task, (done.run_id,), resumed_hook=hook)
        case DisposeHook() | DisposeHookByToken():
            if isinstance(task, DisposeHook):
                done = await store.dispose_hook(task.run_id, task.hook_id)
            else:
                done = await store.dispose_hook_by_token(task.token)
            hooks = ((done.run_id, done.subject_id or ""),) if done.applied else ()
            return FlowTaskOutcome(task, (done.run_id,), disposed_hooks=hooks)
        case ResumeScheduledRun():
            settled = await _settle(store, task.run_id)
            # Retries are the driver's: it commits the attempt that it begins.
            await store.wake_run(task.run_id)
            return FlowTaskOutcome(task, (task.run_id,), settled[0], disposed_hooks=settled[1])
        case ResumeDueWaits():
            waits, _ = await _settle(store, None)
            return FlowTaskOutcome(task, tuple(dict.fromkeys(w[0] for w in waits)), waits)
        case ResumeDueRetries():
            moved = await store.enqueue_due()
            retries = tuple(
                (wakeup.run_id, wakeup.subject_id)
                for wakeup in moved
                if wakeup.kind is WakeupKind.STEP_RETRY
            )
            runs = tuple(dict.fromkeys(wakeup.run_id for wakeup in moved))
            return FlowTaskOutcome(task, runs, resumed_retries=retries)


async def _answer(store: FlowEventStore, task: ResumeHook | ResumeHookByToken) -> VerbResult:
    # Who sent it is not there any more: one that does not fit fails the task for good, and says so.
    check = AnswerCheck(task.payload, getattr(task, "hook_id", ""))
    if isinstance(task, ResumeHook):
        verb = partial(store.resume_hook, task.run_id, task.hook_id, check.payload)
    else:
        verb = partial(store.resume_hook_by_token, task.token, check.payload)
    return await check.send(verb)


async def _settle(
    store: FlowEventStore, run_id: str | None
) -> tuple[tuple[tuple[str, str], ...], tuple[tuple[str, str], ...]]:
    """The timers this call completed, and for one run the expired hooks it disposed."""
    waits: list[tuple[str, str]] = []
    while True:
        found = await store.resume_due_waits(run_id=run_id)
        waits += [(wakeup.run_id, wakeup.subject_id) for wakeup in found]
        if len(found) < MAX_PAGE:
            break
    hooks = [] if run_id is None else await store.dispose_expired_hooks(run_id=run_id)
    return tuple(waits), tuple((wakeup.run_id, wakeup.subject_id) for wakeup in hooks)


@dataclass(frozen=True, slots=True)
class EnqueuedTask:
    """Where a task is; ``enqueued`` is False if one that was open already took it in."""

    task_id: int
    enqueued: bool


class FlowTaskQueue:
    """Puts tasks into a queue of a database, all under one policy."""

    def __init__(
        self,
        store: FlowEventStore,
        queue: str = "default",
        policy: TaskPolicy = DEFAULT_POLICY,
    ) -> None:
        if not isinstance(store, PostgresEventStore):
            raise InvalidArgument("tasks need a store on PostgreSQL: call the verb itself instead")
        self._store = store
        self.queue = queue
        self.policy = policy

    async def dispatch(
        self,
        task: AnyTask,
        *,
        delay: timedelta = timedelta(0),
        priority: int = 0,
        connection: Enlisted = None,
    ) -> EnqueuedTask:
        """Make the task; it can be claimed after ``delay``, those of a smaller ``priority`` first.
        A drive task goes to the queue of its run. Raises RunNotFound, InvalidArgument,
        StoreError."""
        call = enqueue_task(
            task.type,
            task.target_run_id,
            task.carried(),
            self.queue,
            priority,
            max(delay, timedelta(0)),
            self.policy.options(task.type),
            task.token_inside,
        )
        if connection is None:
            task_id, enqueued = await self._store.call(call)
        else:
            task_id, enqueued = await run_enlisted(connection, call, self._store.schema)
        return EnqueuedTask(task_id, enqueued)


def retryable(error: BaseException) -> bool:
    """Whether a task that failed so may succeed later by itself."""
    return not isinstance(error, _FOR_GOOD)


_FOR_GOOD = (
    InvalidArgument,
    InvalidRunId,
    RunNotFound,
    RunTerminal,
    HookConflict,
    PayloadTooLarge,
    SerializationError,
)
