"""What a store takes and gives back: appends, verb results, leases, loaded runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from flowpg.errors import InvalidArgument
from flowpg.model.events import FlowEventEnvelope, NewEvent
from flowpg.model.snapshot import RunStatus
from flowpg.model.spec import WorkflowSpec

AnyEvent = NewEvent | FlowEventEnvelope
"""An event that is stored, or about to be."""


@dataclass(slots=True)
class Append:
    """Events for one run, stored together or not at all.

    ``expected`` is the head the writer knows (None: append at whatever the head is). ``epoch`` is
    the lease epoch it holds. ``release`` gives the lease back in the same transaction, provided
    the run was not woken more than ``release`` times meanwhile; it needs ``epoch``. ``queue`` is
    read only by an append that creates the run.
    """

    run_id: str
    events: Sequence[NewEvent]
    expected: int | None = None
    epoch: int | None = None
    release: int | None = None
    queue: str = "default"
    text: str | None = field(default=None, repr=False, compare=False)
    """How a store sends it, kept between the check and the call."""


class AppendOutcome(StrEnum):
    """What became of one ``Append``; everything but ``appended`` wrote nothing."""

    APPENDED = "appended"
    EVENT_CONFLICT = "event_conflict"
    LEASE_LOST = "lease_lost"
    RUN_TERMINAL = "run_terminal"
    RUN_NOT_FOUND = "run_not_found"
    RUN_CONFLICT = "run_conflict"
    HOOK_TOKEN_CONFLICT = "hook_token_conflict"
    LINK_NOT_FOUND = "link_not_found"
    INVALID = "invalid"


_APPENDED = AppendOutcome.APPENDED  # a member costs more to look up than it takes to compare it


@dataclass(slots=True)
class AppendResult:
    """The answer to one ``Append``.

    ``recorded_at`` is the time of all its events; a deadline given as a duration is that time plus
    the duration. ``released`` False after asking for a release: the run was woken meanwhile
    (``wakes`` times by now, else 0), the lease is still held, reload and drive again. ``detail``
    never holds a token or a payload.
    """

    run_id: str
    outcome: AppendOutcome
    head_sequence: int
    recorded_at: datetime
    released: bool = False
    wakes: int = 0
    detail: Mapping[str, Any] = field(default_factory=dict)

    @property
    def appended(self) -> bool:
        """Whether the events were stored."""
        return self.outcome is _APPENDED


@dataclass(frozen=True, slots=True)
class VerbResult:
    """What a client verb did. ``applied`` is True only for the call that committed the event.

    ``payload_schema`` is the JSON text of the schema that an answer is to be checked against
    first, if it was not: then nothing was done. Only who asks a store for that gets one.
    """

    run_id: str
    applied: bool
    head_sequence: int
    subject_id: str | None = None
    payload_schema: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class StartRequest:
    """One run to start; ``run_id`` None asks for a generated one."""

    spec: WorkflowSpec
    input: Any = field(default=None, repr=False)
    run_id: str | None = None
    queue: str = "default"

    def __post_init__(self) -> None:
        if not isinstance(self.spec, WorkflowSpec):
            kind = type(self.spec).__name__
            raise InvalidArgument(
                f"a run needs a WorkflowSpec, not {kind}: pass a WorkflowSpec, e.g. "
                "WorkflowSpec.python('orders.fulfil')"
            )


class StartOutcome(StrEnum):
    """What became of one ``StartRequest``."""

    CREATED = "created"
    EXISTS = "exists"
    RUN_CONFLICT = "run_conflict"
    INVALID = "invalid"


@dataclass(frozen=True, slots=True)
class StartResult:
    """The answer to one ``StartRequest``; ``reason`` says why it was refused."""

    run_id: str
    outcome: StartOutcome
    reason: str | None = None


@dataclass(slots=True)
class RunLease:
    """The right to drive one run until it expires or is lost. ``epoch`` is the fence.

    ``wakes`` is how often the run had been woken when this was last read; ``now`` the store's
    clock at that moment. ``loaded`` is the run's whole history, if the claim has read it;
    ``previous_owner`` is who was lost with the lease that had run out before the claim.
    """

    run_id: str
    epoch: int
    wakes: int
    head_sequence: int
    now: datetime
    task_id: int = 0
    attempts: int = 0
    loaded: LoadedRun | None = field(default=None, repr=False, compare=False)
    previous_owner: str | None = None


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Which runs a worker may be given: pinned to one of ``builds``, or not pinned if
    ``accept_unpinned``; of one of ``workflows``. None is whatever there is. A run whose workers
    died ``max_crashes`` times is set aside in place of being given out once more."""

    builds: tuple[str, ...] | None = None
    accept_unpinned: bool = True
    workflows: tuple[str, ...] | None = None
    max_crashes: int = 3

    def admit(self, name: str, build: str | None) -> bool:
        """Whether a run of this workflow and build may be given to the worker."""
        if build is None:
            fits = self.accept_unpinned
        else:
            fits = self.builds is None or build in self.builds
        return fits and (self.workflows is None or name in self.workflows)


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The answer to the heartbeat of one lease: still ``held``, and how often woken by now."""

    run_id: str
    held: bool
    wakes: int
    head_sequence: int


@dataclass(frozen=True, slots=True)
class StepHeartbeat:
    """What a step at work says of its progress, as JSON text; None once it has its outcome."""

    run_id: str
    epoch: int
    step_id: str
    attempt: int
    details: str | None = field(repr=False)
    task_id: int | None = None
    """The task that ``epoch`` is the fence of; None for that of the run."""


@dataclass(frozen=True, slots=True)
class StepLease:
    """The right to carry out one attempt of a step that its run has left to another queue.
    ``epoch`` is the fence of the task; ``again``: a worker was lost with this attempt before."""

    run_id: str
    step_id: str
    attempt: int
    task_id: int
    epoch: int
    again: bool = False


@dataclass(slots=True)
class LoadedRun:
    """A run's history, its events after sequence ``after``, and its wake counter and the store's
    clock at the same moment."""

    run_id: str
    head_sequence: int
    status: RunStatus
    wakes: int
    now: datetime
    history: list[FlowEventEnvelope]
    after: int = 0
