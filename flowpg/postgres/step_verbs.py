"""The calls about single attempts of steps: their completion in a transaction, their outcome as a
task of another queue, and their heartbeats."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from flowpg.model import jsontext
from flowpg.model.records import StepHeartbeat, StepLease
from flowpg.postgres.calls import Call, Function, Row, bool_text, time_text, utc

_COMPLETE = Function(
    "flow_complete_step",
    ("text", "bigint", "text", "integer", "json", "boolean"),
    ("outcome", "head_sequence", "recorded_at", "detail:text"),
)
_COMPLETED = Function(
    "flow_step_completed", ("text", "text"), ("is_completed", "sequence", "recorded_at")
)
_SETTLE = Function(
    "flow_settle_step",
    ("text", "bigint", "bigint", "text", "integer", "json", "boolean"),
    ("outcome", "head_sequence", "recorded_at", "detail:text"),
)
_EXPIRE = Function("flow_expire_steps", ("text", "json"), ("step_id", "outcome"))
_SUPERSEDED = Function("flow_superseded_steps", ("json",), ("task_id",))
_RECORD = Function("flow_record_heartbeats", ("json",), ("outcome",))
_HEARTBEAT = Function("flow_step_heartbeat", ("text", "text"), ("details:text",))


@dataclass(frozen=True, slots=True)
class StepCompletion:
    """What became of a completion: ``appended``, with the sequence and time of its event, or why it
    was refused, such as ``transaction_ended``: it was not the transaction the step began in."""

    outcome: str
    sequence: int
    recorded_at: datetime
    reason: str = ""


def complete_step(
    run_id: str, epoch: int, step_id: str, attempt: int, payload: str, task_id: int | None = None
) -> Call[StepCompletion]:
    """Record that an attempt has returned, in the deferrable transaction of its work; ``payload``
    is that of ``step_completed``. ``epoch`` is the fence of the run, or of the task ``task_id``."""
    if task_id is not None:
        subject = jsontext.quote(step_id)
        event = f'{{"type":"step_completed","subject":{subject},"payload":{payload}}}'
        lease = StepLease(run_id, step_id, attempt, task_id, epoch)
        return settle_step(lease, event, deferrable=True)
    values = (run_id, str(epoch), step_id, str(attempt), payload, "true")
    return Call(_COMPLETE, values, _read_completion)


def _read_completion(rows: Sequence[Row]) -> StepCompletion:
    outcome, sequence, recorded_at, detail = rows[0]
    said: dict[str, Any] = json.loads(detail) if detail else {}
    return StepCompletion(outcome, sequence, utc(recorded_at), str(said.get("reason", "")))


def settle_step(lease: StepLease, event: str, *, deferrable: bool = False) -> Call[StepCompletion]:
    """Record how the attempt of a task ended; ``event`` is the text of an event in an append.
    ``deferrable``: only in a transaction that is."""
    attempt = (lease.run_id, str(lease.task_id), str(lease.epoch), lease.step_id)
    values = (*attempt, str(lease.attempt), event, bool_text(deferrable))
    return Call(_SETTLE, values, _read_completion)


class Overdue(NamedTuple):
    """An attempt in another queue whose deadline has passed: the event to record if nobody has
    begun it, and the one if nobody has it now, each as the text of an event in an append or None;
    and when the step is to have ended."""

    step_id: str
    attempt: int
    not_begun: str | None
    not_closed: str | None
    closes_at: datetime | None


def expire_steps(run_id: str, steps: Sequence[Overdue]) -> Call[dict[str, str]]:
    """Fail those attempts that no worker has; what became of each step."""
    items = [
        f'{{"step_id":{jsontext.quote(step.step_id)},"attempt":{step.attempt}'
        f',"not_begun":{step.not_begun or "null"},"not_closed":{step.not_closed or "null"}'
        f',"closes_at":{json.dumps(time_text(step.closes_at))}}}'
        for step in steps
    ]
    return Call(_EXPIRE, (run_id, f"[{','.join(items)}]"), lambda rows: {r[0]: r[1] for r in rows})


def superseded_steps(leases: Sequence[StepLease]) -> Call[set[int]]:
    """The tasks of those attempts that nobody waits for any more."""
    items = [
        {
            "task_id": lease.task_id,
            "run_id": lease.run_id,
            "step_id": lease.step_id,
            "attempt": lease.attempt,
        }
        for lease in leases
    ]
    return Call(_SUPERSEDED, (json.dumps(items),), lambda rows: {int(row[0]) for row in rows})


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
            **({} if beat.task_id is None else {"task_id": beat.task_id}),
        }
        for beat in beats
    ]
    values = (jsontext.encode(said, "heartbeats"),)
    return Call(_RECORD, values, lambda rows: [str(row[0]) for row in rows])


def step_heartbeat(run_id: str, step_id: str) -> Call[str | None]:
    """What the latest heartbeat of a step said, None if there was none."""
    return Call(_HEARTBEAT, (run_id, step_id), lambda rows: str(rows[0][0]) if rows else None)
