"""Folding small facts: progress, links to operations of other systems, attributes, patches."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from flowpg.errors import InvalidTransition
from flowpg.model.attributes import attributes_refusal, merged
from flowpg.model.events import (
    CHILD_OPERATION_LINKED,
    PATCH_RECORDED,
    RUN_ATTRIBUTES_SET,
    RUN_PROGRESS_RECORDED,
)
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


def _attributes(run: WorkflowRunSnapshot, data: Data, at: datetime, due: datetime | None) -> None:
    changes: Any = data.get("attributes")
    refusal = attributes_refusal(changes)
    if refusal is not None:
        raise InvalidTransition(refusal)
    run.attributes = merged(run.attributes, changes)


def _patch(run: WorkflowRunSnapshot, data: Data, at: datetime, due: datetime | None) -> None:
    patch_id = members.text(data, "patch_id")
    if patch_id in run.patches:
        raise InvalidTransition(f"patch {patch_id!r} was recorded before")
    run.patches[patch_id] = None


FOLDS: dict[str, Fold] = {
    RUN_PROGRESS_RECORDED: _progress,
    CHILD_OPERATION_LINKED: _linked,
    RUN_ATTRIBUTES_SET: _attributes,
    PATCH_RECORDED: _patch,
}
"""Event type to the function that folds it."""
