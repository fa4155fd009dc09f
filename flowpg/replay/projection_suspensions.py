"""Folding the events of timers and hooks, which suspend a run."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from flowpg.errors import InvalidTransition
from flowpg.model.events import (
    HOOK_CONFLICTED,
    HOOK_CREATED,
    HOOK_DISPOSED,
    HOOK_RECEIVED,
    WAIT_CANCELLED,
    WAIT_COMPLETED,
    WAIT_CREATED,
)
from flowpg.model.snapshot import (
    HookSnapshot,
    HookStatus,
    WaitSnapshot,
    WaitStatus,
    WorkflowRunSnapshot,
)
from flowpg.replay import members
from flowpg.replay.fold import Fold

Data = dict[str, Any]


def _wait_created(run: WorkflowRunSnapshot, data: Data, at: datetime, due: datetime | None) -> None:
    wait_id = members.text(data, "wait_id")
    resume_at = members.deadline(data, "resume_at", due)
    if resume_at is None:
        raise members.wrong("resume_at", "an RFC 3339 time")
    if wait_id in run.waits:
        raise InvalidTransition(f"wait {wait_id!r} exists already")
    run.waits[wait_id] = run.open.waits[wait_id] = WaitSnapshot(wait_id, resume_at)


def _wait_completed(
    run: WorkflowRunSnapshot, data: Data, at: datetime, due: datetime | None
) -> None:
    _close_wait(run, data, WaitStatus.COMPLETED)


def _wait_cancelled(
    run: WorkflowRunSnapshot, data: Data, at: datetime, due: datetime | None
) -> None:
    _close_wait(run, data, WaitStatus.CANCELLED)


def _close_wait(run: WorkflowRunSnapshot, data: Data, status: WaitStatus) -> None:
    wait_id = members.text(data, "wait_id")
    wait = run.waits.get(wait_id)
    if wait is None:
        raise InvalidTransition("it names a wait that was never created")
    if wait.status is not WaitStatus.WAITING:
        raise InvalidTransition(f"wait {wait_id!r} is {wait.status.value}, not waiting")
    wait.status = status
    del run.open.waits[wait_id]


def _hook_created(run: WorkflowRunSnapshot, data: Data, at: datetime, due: datetime | None) -> None:
    hook_id = members.text(data, "hook_id")
    token = members.text(data, "token")
    metadata = members.anything(data, "metadata")
    expires_at = members.deadline(data, "expires_at", due)
    on_conflict = data.get("on_conflict", "wait")
    if on_conflict not in ("wait", "raise"):
        raise members.wrong("on_conflict", "wait or raise, or not there")
    _refuse_known(run, hook_id)
    hook = HookSnapshot(hook_id, token, metadata, expires_at=expires_at, on_conflict=on_conflict)
    # For those who answer; whatever it is, the run goes on.
    hook.payload_schema = data.get("payload_schema")
    run.hooks[hook_id] = run.open.hooks[hook_id] = hook
    if expires_at is not None:
        run.open.timed_hooks[hook_id] = hook


def _hook_conflicted(
    run: WorkflowRunSnapshot, data: Data, at: datetime, due: datetime | None
) -> None:
    hook_id = members.text(data, "hook_id")
    owner_run_id = members.text(data, "owner_run_id")
    owner_hook_id = members.text(data, "owner_hook_id")
    _refuse_known(run, hook_id)
    run.hooks[hook_id] = _refused(hook_id, owner_run_id, owner_hook_id)


def _refused(hook_id: str, owner_run_id: str, owner_hook_id: str) -> HookSnapshot:
    hook = HookSnapshot(hook_id, "", None, HookStatus.CONFLICTED, on_conflict="raise")
    hook.owner_run_id, hook.owner_hook_id = owner_run_id, owner_hook_id
    return hook


def concede(run: WorkflowRunSnapshot, conflict: Data) -> None:
    """A hook that was folded as opened, or as refused by another one, and is not stored yet, was
    refused its token instead."""
    hook_id = conflict["hook_id"]
    if run.hooks[hook_id].status is HookStatus.ACTIVE:
        _close(run, run.hooks[hook_id])
    run.hooks[hook_id] = _refused(hook_id, conflict["owner_run_id"], conflict["owner_hook_id"])


def _refuse_known(run: WorkflowRunSnapshot, hook_id: str) -> None:
    if hook_id in run.hooks:
        raise InvalidTransition(f"hook {hook_id!r} exists already")


def _hook_received(
    run: WorkflowRunSnapshot, data: Data, at: datetime, due: datetime | None
) -> None:
    payload = members.anything(data, "payload")
    hook = _active_hook(run, data)
    hook.status = HookStatus.RECEIVED
    hook.payload = payload
    _close(run, hook)


def _hook_disposed(
    run: WorkflowRunSnapshot, data: Data, at: datetime, due: datetime | None
) -> None:
    hook = _active_hook(run, data)
    hook.status = HookStatus.DISPOSED
    _close(run, hook)


def _active_hook(run: WorkflowRunSnapshot, data: Data) -> HookSnapshot:
    hook_id = members.text(data, "hook_id")
    hook = run.hooks.get(hook_id)
    if hook is None:
        raise InvalidTransition("it names a hook that was never created")
    if hook.status is not HookStatus.ACTIVE:
        raise InvalidTransition(f"hook {hook_id!r} is {hook.status.value}, not active")
    return hook


def _close(run: WorkflowRunSnapshot, hook: HookSnapshot) -> None:
    del run.open.hooks[hook.hook_id]
    run.open.timed_hooks.pop(hook.hook_id, None)


FOLDS: dict[str, Fold] = {
    WAIT_CREATED: _wait_created,
    WAIT_COMPLETED: _wait_completed,
    WAIT_CANCELLED: _wait_cancelled,
    HOOK_CREATED: _hook_created,
    HOOK_CONFLICTED: _hook_conflicted,
    HOOK_RECEIVED: _hook_received,
    HOOK_DISPOSED: _hook_disposed,
}
"""Event type to the function that folds it."""
