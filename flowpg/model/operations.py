"""Small durable facts about a run: a cancellation request, progress, links to other systems."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict

from flowpg.errors import InvalidTransition
from flowpg.model.ids import check_id, check_run_id


class CancellationRequest(BaseModel):
    """Why a run is asked to clean up and end; at most one per run."""

    model_config = ConfigDict(frozen=True, strict=True)

    reason: str | None = None

    def wire(self) -> dict[str, Any]:
        """The JSON object; the reason is left out when there is none."""
        return {} if self.reason is None else {"reason": self.reason}


class WorkflowProgress(BaseModel):
    """One progress report under a stable id: ``completed`` of ``total`` units, in the caller's
    own unit, and any JSON ``details``."""

    model_config = ConfigDict(frozen=True, strict=True)

    progress_id: str
    completed: int
    total: int | None = None
    message: str | None = None
    details: Any = None

    def check(self) -> None:
        """InvalidTransition for a blank id, a total of 0, or more completed than there is."""
        check_id(self.progress_id, "progress id")
        if self.completed < 0:
            raise InvalidTransition("progress: completed must not be negative")
        if self.total is not None and self.total <= 0:
            raise InvalidTransition("progress: total must be above 0; leave it out if unknown")
        if self.total is not None and self.completed > self.total:
            raise InvalidTransition("progress: completed is more than total")

    def wire(self) -> dict[str, Any]:
        """The JSON object; an absent total and message are left out."""
        shape: dict[str, Any] = {"progress_id": self.progress_id, "completed": self.completed}
        if self.total is not None:
            shape["total"] = self.total
        if self.message is not None:
            shape["message"] = self.message
        return {**shape, "details": self.details}


class ChildOperationReference(BaseModel):
    """A link from a run to a task that another system, or another run, owns.

    It drives nothing and cancels nothing. ``flow_run_id`` must name an existing run.
    """

    model_config = ConfigDict(frozen=True, strict=True)

    reference_id: str
    kind: str
    operation_id: str
    flow_run_id: str | None = None
    metadata: Any = None

    def check(self) -> None:
        """InvalidTransition for a blank id or kind, InvalidRunId for a malformed run id."""
        check_id(self.reference_id, "child reference id")
        check_id(self.kind, "child operation kind")
        check_id(self.operation_id, "child operation id")
        if self.flow_run_id is not None:
            check_run_id(self.flow_run_id)

    def wire(self) -> dict[str, Any]:
        """The JSON object; an absent run id is left out."""
        shape: dict[str, Any] = {
            "reference_id": self.reference_id,
            "kind": self.kind,
            "operation_id": self.operation_id,
        }
        if self.flow_run_id is not None:
            shape["flow_run_id"] = self.flow_run_id
        return {**shape, "metadata": self.metadata}
