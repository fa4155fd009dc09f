"""What the inspection verbs return: rows about runs, suspensions, hooks and wake-ups."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, TypeVar

from flowpg.model.decoding import decode_as
from flowpg.model.snapshot import RunStatus

T = TypeVar("T")


class WakeupKind(StrEnum):
    """What a scheduled wake-up resumes. A ``STEP_DEADLINE`` is that of a step in another queue."""

    WAIT = "wait"
    STEP_RETRY = "step_retry"
    HOOK_EXPIRY = "hook_expiry"
    STEP_DEADLINE = "step_deadline"


class SuspensionKind(StrEnum):
    """What an open suspension waits for."""

    WAIT = "wait"
    HOOK = "hook"
    RETRY = "retry"
    STEP = "step"


@dataclass(frozen=True, slots=True)
class RunRow:
    """One run as the list page shows it. Times are the database's.

    ``attributes`` are what the workflow set with ``set_attributes``. ``blocked_reason`` is what the
    last worker said that could not go on. ``waiting_for`` is found out at the moment of the call:
    why no live worker takes a run that has work to do (its queue is paused, or none serves its
    queue, build or workflow); None in a store without a list of workers. ``lease_owner`` held the
    run last if it was not given back, until ``lease_expires_at``; ``available_at`` is from when a
    worker may take it. They are known of a run that was asked for by its id, in a store in
    PostgreSQL, and None elsewhere.
    """

    run_id: str
    workflow_name: str
    workflow_version: str
    runtime_build: str | None
    queue: str
    status: RunStatus
    head_sequence: int
    blocked_reason: str | None
    created_at: datetime
    updated_at: datetime
    ended_at: datetime | None
    attributes: dict[str, Any] = field(default_factory=dict, hash=False)
    waiting_for: str | None = field(default=None, compare=False)
    lease_owner: str | None = field(default=None, compare=False)
    lease_expires_at: datetime | None = field(default=None, compare=False)
    available_at: datetime | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class WorkflowRunSummary:
    """How many runs stand where, and what the non-terminal ones wait for."""

    total: int = 0
    pending: int = 0
    running: int = 0
    suspended: int = 0
    cancelling: int = 0
    completed: int = 0
    failed: int = 0
    cancelled: int = 0
    continued_as_new: int = 0
    terminal: int = 0
    non_terminal: int = 0
    open_waits: int = 0
    active_hooks: int = 0
    pending_retries: int = 0


@dataclass(frozen=True, slots=True)
class WorkflowRunSuspension:
    """One thing a run waits for; ``due`` is None where there is no deadline.
    A ``STEP`` is in another queue than its run, on PostgreSQL."""

    run_id: str
    kind: SuspensionKind
    subject_id: str
    due_at: datetime | None
    due: bool | None


@dataclass(frozen=True, slots=True)
class ScheduledWakeup:
    """A deadline the scheduler watches."""

    run_id: str
    kind: WakeupKind
    subject_id: str
    due_at: datetime
    runtime_build: str | None = None


@dataclass(frozen=True, slots=True)
class ActiveHookSnapshot:
    """A hook that can still be answered. ``token`` is a credential: show it to no one else.
    ``payload_schema`` is the JSON Schema of the answer, if the workflow said what it waits for."""

    run_id: str
    hook_id: str
    token: str = field(repr=False)
    metadata: Any = field(repr=False)
    expires_at: datetime | None
    created_at: datetime
    payload_schema: Any = field(default=None, repr=False)

    def metadata_as(self, kind: type[T]) -> T:
        """The metadata validated as ``kind``; SerializationError if it does not fit."""
        return decode_as(self.metadata, kind, f"the metadata of hook {self.hook_id!r}")
