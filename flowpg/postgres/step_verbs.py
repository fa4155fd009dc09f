"""The calls of a step that works in a transaction of the database."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from flowpg.postgres.calls import Call, Function, Row, utc

_COMPLETE = Function(
    "flow_complete_step",
    ("text", "bigint", "text", "integer", "json"),
    ("outcome", "head_sequence", "recorded_at", "detail:text"),
)
_COMPLETED = Function(
    "flow_step_completed", ("text", "text"), ("is_completed", "sequence", "recorded_at")
)


@dataclass(frozen=True, slots=True)
class StepCompletion:
    """What became of a completion: ``appended``, with the sequence and time of its event, or why it
    was refused."""

    outcome: str
    sequence: int
    recorded_at: datetime
    reason: str = ""


def complete_step(
    run_id: str, epoch: int, step_id: str, attempt: int, payload: str
) -> Call[StepCompletion]:
    """Record that an attempt has returned; ``payload`` is that of ``step_completed``."""

    def read(rows: Sequence[Row]) -> StepCompletion:
        outcome, sequence, recorded_at, detail = rows[0]
        said: dict[str, Any] = json.loads(detail) if detail else {}
        return StepCompletion(outcome, sequence, utc(recorded_at), str(said.get("reason", "")))

    return Call(_COMPLETE, (run_id, str(epoch), step_id, str(attempt), payload), read)


def step_completed(run_id: str, step_id: str) -> Call[StepCompletion | None]:
    """The completion of a step, None if it is not completed, once nobody is about to do so."""

    def read(rows: Sequence[Row]) -> StepCompletion | None:
        for is_completed, sequence, recorded_at in rows:
            if is_completed:
                return StepCompletion("appended", sequence, utc(recorded_at))
        return None

    return Call(_COMPLETED, (run_id, step_id), read)
