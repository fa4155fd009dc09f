"""The calls of a step that works in a transaction of the database."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from flowpg.model import jsontext
from flowpg.model.records import StepHeartbeat
from flowpg.postgres.calls import Call, Function, Row, utc

_COMPLETE = Function(
    "flow_complete_step",
    ("text", "bigint", "text", "integer", "json"),
    ("outcome", "head_sequence", "recorded_at", "detail:text"),
)
_COMPLETED = Function(
    "flow_step_completed", ("text", "text"), ("is_completed", "sequence", "recorded_at")
)
_RECORD = Function("flow_record_heartbeats", ("json",), ("outcome",))
_HEARTBEAT = Function("flow_step_heartbeat", ("text", "text"), ("details:text",))


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


def record_heartbeats(beats: Sequence[StepHeartbeat]) -> Call[list[str]]:
    """Keep what steps at work say, or forget it, one outcome a beat."""
    said = [
        {
            "run_id": beat.run_id,
            "epoch": beat.epoch,
            "step_id": beat.step_id,
            "attempt": beat.attempt,
            "details": beat.details,
        }
        for beat in beats
    ]
    values = (jsontext.encode(said, "heartbeats"),)
    return Call(_RECORD, values, lambda rows: [str(row[0]) for row in rows])


def step_heartbeat(run_id: str, step_id: str) -> Call[str | None]:
    """What the latest heartbeat of a step said, None if there was none."""
    return Call(_HEARTBEAT, (run_id, step_id), lambda rows: str(rows[0][0]) if rows else None)
