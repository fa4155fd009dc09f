"""Appends to the store in memory: who may append what, and what becomes of a refused one."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from flowpg.errors import InvalidTransition
from flowpg.model.events import CHILD_OPERATION_LINKED, RUN_CREATED, TERMINAL_TYPES
from flowpg.model.records import Append, AppendOutcome, AppendResult
from flowpg.store.memory_queue import release
from flowpg.store.memory_state import Run, State, TokensTaken, stored


def append(state: State, request: Append, now: datetime) -> AppendResult:
    """Store the events of ``request``, or say why not; a refusal changes nothing.

    The order of the questions is part of the contract: is it well formed, does the run exist, is
    the lease valid, is the head as expected, has the run ended, do links exist, are tokens free.
    """
    run = state.runs.get(request.run_id)
    head = run.head if run is not None else 0
    refusal = _refusal(state, request, run, head)
    if refusal is None and request.events:
        try:
            events = [stored(event) for event in request.events]
            run = state.fold_in(request.run_id, events, now, request.queue)
        except TokensTaken as error:
            refusal = AppendOutcome.HOOK_TOKEN_CONFLICT, _conflicts(error)
        except InvalidTransition as error:
            refusal = _invalid(error.reason)
    if refusal is not None:
        outcome, detail = refusal
        return AppendResult(request.run_id, outcome, head, now, detail=detail)
    assert run is not None
    released, wakes = False, 0
    if request.release is not None and request.epoch is not None:
        released = release(state, request.run_id, request.epoch, request.release)
        task = state.tasks.get(request.run_id)
        wakes = task.wakes if task is not None and task.epoch == request.epoch else 0
    return AppendResult(
        request.run_id, AppendOutcome.APPENDED, run.head, now, released=released, wakes=wakes
    )


Refusal = tuple[AppendOutcome, dict[str, Any]]


def _refusal(state: State, request: Append, run: Run | None, head: int) -> Refusal | None:
    if not request.events and request.release is None:
        return _invalid("there is neither an event nor a release")
    creates = [event.type == RUN_CREATED for event in request.events]
    ends = [event.type in TERMINAL_TYPES for event in request.events]
    if any(creates[1:]) or any(ends[:-1]):
        return _invalid("run_created can only be the first event, and nothing follows the last")
    if run is None and not any(creates):
        return AppendOutcome.RUN_NOT_FOUND, {}
    current = run.lease_epoch if run is not None else 0
    if request.epoch is not None and request.epoch != current:
        return AppendOutcome.LEASE_LOST, {"epoch": request.epoch, "current": current}
    expected = 0 if any(creates) else request.expected
    if expected not in (None, head) or request.expected not in (None, expected):
        return AppendOutcome.EVENT_CONFLICT, {"expected": expected, "actual": head}
    if run is not None and run.terminal and request.events:
        return AppendOutcome.RUN_TERMINAL, {"status": run.status.value}
    for event in request.events:
        if event.type == CHILD_OPERATION_LINKED:
            target = event.data["child"].get("flow_run_id")
            if target is not None and target not in state.runs and target != request.run_id:
                return AppendOutcome.LINK_NOT_FOUND, {"flow_run_id": target}
    return None


def _invalid(reason: str) -> Refusal:
    return AppendOutcome.INVALID, {"sqlstate": "WF009", "reason": reason}


def _conflicts(error: TokensTaken) -> dict[str, Any]:
    first, *others = (
        {"run_id": run_id, "hook_id": owner, "requested_hook_id": hook_id}
        for hook_id, run_id, owner in error.refused
    )
    return {**first, "others": others} if others else first
