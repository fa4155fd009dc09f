"""What the store in memory holds: runs with their histories, and the rows that follow from them.

``fold_in`` is the only way events get in: all of an append, or none. Active hooks and wake-ups are
not kept by their own rules but read off the folded snapshot, which makes this the model that the
projections in SQL are compared with.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from uuid import UUID

from flowpg.errors import HookTokenConflict, InvalidArgument, InvalidTransition, RunNotFound
from flowpg.model.events import (
    DEADLINE_FIELDS,
    HOOK_CREATED,
    FlowEventEnvelope,
    NewEvent,
)
from flowpg.model.inspection import WakeupKind
from flowpg.model.snapshot import HookSnapshot, RunStatus, WorkflowRunSnapshot
from flowpg.replay.projection import fold_onto, project


@dataclass(slots=True)
class ActiveHook:
    """A hook that can be answered."""

    run_id: str
    hook_id: str
    token: str = field(repr=False)
    created_at: datetime
    expires_at: datetime | None


@dataclass(slots=True)
class Wakeup:
    """A deadline; ``dispatched_at`` is when it was turned into a drive task."""

    run_id: str
    kind: WakeupKind
    subject_id: str
    due_at: datetime
    dispatched_at: datetime | None = None


@dataclass(slots=True)
class Task:
    """The one open drive task of a run. Leased while ``lease_owner`` is set."""

    task_id: int
    run_id: str
    queue: str
    available_at: datetime
    wakes: int = 1
    attempts: int = 0
    crashes: int = 0
    epoch: int | None = None
    lease_owner: str | None = None
    lease_expires_at: datetime | None = None

    def held_under(self, epoch: int) -> bool:
        """Whether this is still the lease of that epoch."""
        return self.lease_owner is not None and self.epoch == epoch


@dataclass(slots=True)
class Run:
    """A run: its history, what folding it gives, and what is not part of the history."""

    run_id: str
    queue: str
    history: list[FlowEventEnvelope]
    snapshot: WorkflowRunSnapshot
    created_at: datetime
    updated_at: datetime
    ended_at: datetime | None = None
    lease_epoch: int = 0
    blocked_reason: str | None = None
    dead: bool = False  # its drive task took too many workers with it
    hooks: dict[str, ActiveHook] = field(default_factory=dict)
    wakeups: dict[tuple[WakeupKind, str], Wakeup] = field(default_factory=dict)

    @property
    def head(self) -> int:
        """Sequence of the last event."""
        return self.snapshot.last_sequence

    @property
    def status(self) -> RunStatus:
        """Where the run stands."""
        return self.snapshot.status

    @property
    def terminal(self) -> bool:
        """Whether the run has ended."""
        return self.snapshot.terminal


Stored = Callable[[str, int, datetime], FlowEventEnvelope]


class TokensTaken(HookTokenConflict):
    """Hooks of one append are refused their tokens; ``refused`` are all of them, in their order, as
    (hook id, run id of the owner, hook id of the owner)."""

    def __init__(self, token: str, refused: list[tuple[str, str, str]]) -> None:
        super().__init__(token, *refused[0][1:])
        self.refused = refused


class State:
    """All runs, tasks, hooks and wake-ups, and the clock."""

    def __init__(self, clock: Callable[[], datetime] | None = None) -> None:
        self._clock = clock or (lambda: datetime.now(UTC))
        self._offset = timedelta(0)
        self.runs: dict[str, Run] = {}
        self.tasks: dict[str, Task] = {}
        self.tokens: dict[str, tuple[str, str]] = {}  # of active hooks, to (run id, hook id)
        self.heartbeats: dict[tuple[str, str], str] = {}  # of (run id, step id)
        self._last_task_id = 0

    def now(self) -> datetime:
        """The store's clock, in UTC."""
        return self._clock().astimezone(UTC) + self._offset

    def advance(self, by: timedelta) -> None:
        """Let time pass."""
        self._offset += by

    def run(self, run_id: str) -> Run:
        """The run, or RunNotFound."""
        try:
            return self.runs[run_id]
        except KeyError:
            raise RunNotFound(run_id) from None

    def fold_in(
        self, run_id: str, events: Sequence[Stored], now: datetime, queue: str = "default"
    ) -> Run:
        """Append events to a run, or create it: all of them or none.

        Raises InvalidTransition if one may not follow, TokensTaken if tokens are taken.
        """
        run = self.runs.get(run_id)
        head = run.head if run else 0
        new = [make(run_id, head + number, now) for number, make in enumerate(events, 1)]
        if run is None:
            snapshot = project(run_id, new)
            created_at = new[0].recorded_at
            run = Run(run_id, queue, new, snapshot, created_at, created_at)
            self._refuse_taken_tokens(run_id, snapshot)
            self.runs[run_id] = run
        else:
            try:
                fold_onto(run.snapshot, new)
                self._refuse_taken_tokens(run_id, run.snapshot)
            except (InvalidTransition, TokensTaken):
                run.snapshot = project(run_id, run.history)
                raise
            run.history.extend(new)
        run.updated_at = new[-1].recorded_at
        run.ended_at = run.updated_at if run.terminal else None
        if run.terminal or not run.dead:
            run.blocked_reason = None
        self._keep_rows(run, new)
        return run

    def enqueue(self, run_id: str) -> None:
        """Wake a run: one open drive task, woken once more."""
        task, now = self.tasks.get(run_id), self.now()
        if task is None:
            if not self.run(run_id).dead:  # nothing wakes it any more
                self.tasks[run_id] = self.new_task(self.run(run_id), now)
            return
        task.wakes += 1
        if task.lease_owner is None:
            task.available_at = min(task.available_at, now)

    def new_task(self, run: Run, now: datetime) -> Task:
        """A drive task that anyone may claim."""
        self._last_task_id += 1
        return Task(self._last_task_id, run.run_id, run.queue, now)

    def _refuse_taken_tokens(self, run_id: str, snapshot: WorkflowRunSnapshot) -> None:
        open_hooks, here = _open_hooks(snapshot), dict[str, str]()
        refused: list[tuple[str, str, str]] = []
        for hook_id, hook in open_hooks.items():
            owner = self.tokens.get(hook.token)
            if hook.token in here:
                owner = (run_id, here[hook.token])
            elif owner is None or (owner[0] == run_id and owner[1] not in open_hooks):
                owner = (run_id, hook_id)
            if owner == (run_id, hook_id):
                here[hook.token] = hook_id
            else:
                refused.append((hook_id, *owner))
        if refused:
            raise TokensTaken(open_hooks[refused[0][0]].token, refused)

    def _keep_rows(self, run: Run, new: Sequence[FlowEventEnvelope]) -> None:
        open_hooks = _open_hooks(run.snapshot)
        for hook_id in run.hooks.keys() - open_hooks.keys():
            self.tokens.pop(run.hooks.pop(hook_id).token, None)
        for event in new:
            hook = open_hooks.get(event.data["hook_id"]) if event.type == HOOK_CREATED else None
            if hook is not None:
                run.hooks[hook.hook_id] = ActiveHook(
                    run.run_id, hook.hook_id, hook.token, event.recorded_at, hook.expires_at
                )
                self.tokens[hook.token] = (run.run_id, hook.hook_id)
        if run.terminal or run.snapshot.status is RunStatus.CANCELLING:
            for key in [key for key in self.heartbeats if key[0] == run.run_id]:
                del self.heartbeats[key]
        due = _deadlines(run.snapshot)
        for key in [key for key, row in run.wakeups.items() if due.get(key) != row.due_at]:
            # Gone, or replaced: a retry that was started and failed again has another deadline.
            del run.wakeups[key]
        for key, at in due.items():
            run.wakeups.setdefault(key, Wakeup(run.run_id, *key, at))


def time_text(moment: datetime) -> str:
    """A time as the store writes it: RFC 3339, UTC, always microseconds."""
    return moment.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


def stored(event: NewEvent) -> Stored:
    """How the store writes ``event`` down: it computes the deadline that the event leaves to it."""

    def make(run_id: str, sequence: int, now: datetime) -> FlowEventEnvelope:
        payload = event.payload()
        if event.due_in is not None:
            try:
                due = time_text(now + event.due_in)
            except OverflowError:
                raise InvalidArgument("a deadline after the year 9999 is not valid") from None
            member = f'"{DEADLINE_FIELDS[event.type]}":"{due}"}}'
            payload = payload[:-1] + ("," if len(payload) > 2 else "") + member
        event_id = UUID(hashlib.md5(f"{run_id}/{sequence}".encode()).hexdigest())
        return FlowEventEnvelope(run_id, sequence, str(event_id), now, event.type, payload=payload)

    return make


def _open_hooks(snapshot: WorkflowRunSnapshot) -> dict[str, HookSnapshot]:
    return {} if snapshot.terminal else snapshot.open.hooks


def _deadlines(snapshot: WorkflowRunSnapshot) -> dict[tuple[WakeupKind, str], datetime]:
    if snapshot.terminal:
        return {}
    work = snapshot.open
    due = {(WakeupKind.WAIT, key): wait.resume_at for key, wait in work.waits.items()}
    for key, step in work.delayed.items():
        if step.retry_after is not None:
            due[WakeupKind.STEP_RETRY, key] = step.retry_after
    for key, hook in work.timed_hooks.items():
        if hook.expires_at is not None:
            due[WakeupKind.HOOK_EXPIRY, key] = hook.expires_at
    return due
