"""The queue of the store in memory: drive tasks, leases, and due wake-ups that become tasks.

Every time is the store's. A lease is fenced by its epoch, which only grows; an expired lease is
still held until somebody else takes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from flowpg.model.inspection import ScheduledWakeup
from flowpg.model.records import Capabilities, Heartbeat, RunLease
from flowpg.store.memory_state import Run, State, Task


def acquire(state: State, run_id: str, owner: str, lease: timedelta) -> RunLease | None:
    """The lease of one run, unless it has ended or another owner holds a live one."""
    run, now = state.run(run_id), state.now()
    if run.terminal:
        return None
    task = state.tasks.get(run_id)
    if task is None:
        task = state.tasks[run_id] = state.new_task(run, now)
    elif _live(task, now) and task.lease_owner != owner:
        return None
    return _take(run, task, owner, now + lease, now)


def claim(
    state: State,
    queues: Sequence[str],
    limit: int,
    owner: str,
    lease: timedelta,
    capabilities: Capabilities,
) -> list[RunLease]:
    """Leases of up to ``limit`` runs of these queues that have work, oldest first."""

    def admitted(run_id: str) -> bool:
        spec = state.run(run_id).snapshot.spec
        return capabilities.admit(spec.name, spec.runtime_build)

    now = state.now()
    ready = [
        task
        for task in state.tasks.values()
        if task.queue in queues
        and task.available_at <= now
        and not _live(task, now)
        and admitted(task.run_id)
    ]
    ready.sort(key=lambda task: (task.available_at, task.task_id))
    for task in ready:
        if _crashes(task) > capabilities.max_crashes:
            _bury(state, task)
    ready = [task for task in ready if task.run_id in state.tasks]
    return [
        _take(state.run(task.run_id), task, owner, now + lease, now, claimed=True)
        for task in ready[:limit]
    ]


def heartbeat(state: State, leases: Sequence[RunLease], lease: timedelta) -> list[Heartbeat]:
    """Extend leases; a lost one says so."""
    until = state.now() + lease
    answers = []
    for item in leases:
        run, task = state.runs.get(item.run_id), state.tasks.get(item.run_id)
        held = task is not None and task.held_under(item.epoch)
        if task is not None and held:
            task.lease_expires_at = until
        wakes = task.wakes if task is not None else 0
        answers.append(Heartbeat(item.run_id, held, wakes, run.head if run is not None else 0))
    return answers


def release(state: State, run_id: str, epoch: int, wakes: int) -> bool:
    """Drop the task and its lease, unless the run was woken more often than ``wakes``.

    True as well when the task of this lease is gone already and nobody took another lease since,
    as after a release whose answer was lost.
    """
    run, task = state.run(run_id), state.tasks.get(run_id)
    if task is None or task.epoch != epoch:
        return run.lease_epoch == epoch
    if task.lease_owner is None or (task.wakes != wakes and not run.terminal):
        return False
    del state.tasks[run_id]
    if not run.dead:
        run.blocked_reason = None
    return True


def give_back(state: State, lease: RunLease, delay: timedelta, blocked_reason: str | None) -> bool:
    """Let go of a lease with work left: claimable again after ``delay``."""
    task = state.tasks.get(lease.run_id)
    if task is None or not task.held_under(lease.epoch):
        return False
    task.lease_owner = task.lease_expires_at = None
    task.available_at = state.now() + delay
    if blocked_reason is not None:
        state.run(lease.run_id).blocked_reason = blocked_reason
    elif not delay and lease.task_id:
        task.attempts = max(0, task.attempts - 1)  # nothing was wrong: as if it was not claimed
    return True


def enqueue_due(state: State, as_of: datetime | None, limit: int) -> list[ScheduledWakeup]:
    """Turn due wake-ups that nobody dispatched yet into one drive task per run."""
    now = state.now()
    rows = [row for run in state.runs.values() for row in run.wakeups.values()]
    due = [row for row in rows if row.dispatched_at is None and row.due_at <= (as_of or now)]
    due.sort(key=lambda row: (row.due_at, row.run_id, row.kind, row.subject_id))
    for row in due[:limit]:
        row.dispatched_at = now
    for run_id in sorted({row.run_id for row in due[:limit]}):
        state.enqueue(run_id)
    return [
        ScheduledWakeup(row.run_id, row.kind, row.subject_id, row.due_at) for row in due[:limit]
    ]


def _live(task: Task, now: datetime) -> bool:
    return task.lease_expires_at is not None and task.lease_expires_at > now


def _crashes(task: Task) -> int:
    # A lease that stands here although its task can be claimed has run out.
    return task.crashes + (task.lease_owner is not None)


def _bury(state: State, task: Task) -> None:
    """Give a run up that took too many workers with it: its last one, if it comes back, is refused,
    and nothing wakes the run."""
    del state.tasks[task.run_id]
    run = state.run(task.run_id)
    if not run.terminal:
        run.blocked_reason = f"lost {_crashes(task)} workers while they worked on it"
        run.lease_epoch += 1
        run.dead = True


def _take(
    run: Run, task: Task, owner: str, until: datetime, now: datetime, *, claimed: bool = False
) -> RunLease:
    previous = task.lease_owner
    run.lease_epoch += 1
    task.epoch = run.lease_epoch
    task.lease_owner = owner
    task.lease_expires_at = until
    lease = RunLease(run.run_id, task.epoch, task.wakes, run.head, now)
    if claimed:
        # Only a claim counts as an attempt, and tells of attempts: acquiring asks for no task.
        task.attempts += 1
        task.crashes += previous is not None
        lease.task_id, lease.attempts = task.task_id, task.attempts
        lease.previous_owner = previous
    return lease
