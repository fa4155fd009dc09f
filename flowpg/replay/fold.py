"""The shape of the functions that fold one type of event each."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from flowpg.model.snapshot import WorkflowRunSnapshot

Fold = Callable[[WorkflowRunSnapshot, dict[str, Any], datetime, datetime | None], None]
"""Checks the event (payload, recorded time, deadline computed by the store), raises
InvalidTransition before it changes anything, and then changes the snapshot."""
