"""Folding progress reports and links to operations of other systems."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from flowpg.errors import InvalidTransition
from flowpg.model.events import CHILD_OPERATION_LINKED, RUN_PROGRESS_RECORDED
from flowpg.model.operations import ChildOperationReference, WorkflowProgress
from flowpg.model.snapshot import WorkflowRunSnapshot
from flowpg.replay import members
from flowpg.replay.fold import Fold

Data = dict[str, Any]


def _progress(run: WorkflowRunSnapshot, data: Data, at: datetime, due: datetime | None) -> None:
    progress = members.record(data, "progress", WorkflowProgress, WorkflowProgress.check)
    if progress.progress_id in run.open.progress:
        raise InvalidTransition(f"progress {progress.progress_id!r} was recorded before")
    run.open.progress[progress.progress_id] = progress
    run.progress.append(progress)


def _linked(run: WorkflowRunSnapshot, data: Data, at: datetime, due: datetime | None) -> None:
    child = members.record(data, "child", ChildOperationReference, ChildOperationReference.check)
    if child.reference_id in run.child_operations:
        raise InvalidTransition(f"child reference {child.reference_id!r} was linked before")
    run.child_operations[child.reference_id] = child


FOLDS: dict[str, Fold] = {RUN_PROGRESS_RECORDED: _progress, CHILD_OPERATION_LINKED: _linked}
"""Event type to the function that folds it."""
