"""Short ways to write histories down, for the tests of model and replay."""

from collections.abc import Callable
from copy import deepcopy
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from flowpg.errors import InvalidTransition
from flowpg.model import events
from flowpg.model.commands import RuntimeCommand
from flowpg.model.events import FlowEventEnvelope, NewEvent
from flowpg.model.retry import RetryPolicy
from flowpg.model.snapshot import WorkflowRunSnapshot
from flowpg.model.spec import WorkflowSpec
from flowpg.replay import projection
from flowpg.replay.context import WorkflowContext
from flowpg.replay.decision import decide
from flowpg.replay.plan import Plan
from flowpg.replay.runtime import WorkflowInvocation

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
SECOND = timedelta(seconds=1)
RUN = "run-1"
SPEC = WorkflowSpec.python("orders.checkout", "3")
CONTINUE = RetryPolicy.none().continue_workflow_on_failure()


def event(type: str, **data: Any) -> NewEvent:
    """An event with any payload, well formed or not."""
    return NewEvent(type, data)


def created(input: Any = None, spec: WorkflowSpec = SPEC) -> NewEvent:
    """The first event of a run."""
    return event(events.RUN_CREATED, spec=spec.wire(), input=input)


def step(step_id: str, retry: RetryPolicy | None = None, input: Any = None) -> NewEvent:
    """A step was decided on."""
    return events.step_created(step_id, "work", input, (retry or RetryPolicy()).wire())


def started(step_id: str, attempt: int = 1) -> NewEvent:
    """An attempt began."""
    return events.step_started(step_id, attempt)


def retrying(step_id: str, attempt: int, after: datetime | None = None, **more: Any) -> NewEvent:
    """An attempt failed and another follows."""
    data: dict[str, Any] = {"step_id": step_id, "attempt": attempt, "error": "boom", **more}
    if after is not None:
        data["retry_after"] = after.isoformat().replace("+00:00", "Z")
    return NewEvent(events.STEP_RETRYING, data)


def cancellation(reason: str | None = "stop") -> NewEvent:
    """Someone asked the run to end."""
    return event(
        events.RUN_CANCELLATION_REQUESTED, request={} if reason is None else {"reason": reason}
    )


def received(hook_id: str, payload: Any) -> NewEvent:
    """A hook was answered."""
    return event(events.HOOK_RECEIVED, hook_id=hook_id, payload=payload)


def fold(*folded: NewEvent, now: datetime = NOW) -> WorkflowRunSnapshot:
    """The snapshot of exactly these events."""
    first, *others = folded
    snapshot = begun(first, now)
    add(snapshot, *others, now=now)
    return snapshot


def begun(first: NewEvent, now: datetime = NOW) -> WorkflowRunSnapshot:
    """The snapshot after the first event of a run."""
    return projection.apply(None, RUN, first.type, first.data, 1, now)


def running(*folded: NewEvent, now: datetime = NOW) -> WorkflowRunSnapshot:
    """The snapshot of a run that was created and started, and then these events."""
    return fold(created(), events.run_started(), *folded, now=now)


def add(snapshot: WorkflowRunSnapshot, *folded: NewEvent, now: datetime = NOW) -> None:
    """Fold more events, in place."""
    projection.fold_new(snapshot, folded, now)


def envelopes(*stored: NewEvent, run_id: str = RUN) -> list[FlowEventEnvelope]:
    """These events as stored: numbered from 1, a second apart."""
    return [
        FlowEventEnvelope(
            run_id,
            number,
            f"00000000-0000-4000-8000-{number:012}",
            NOW + number * SECOND,
            one.type,
            payload=one.payload(),
        )
        for number, one in enumerate(stored, 1)
    ]


def assert_refused(snapshot: WorkflowRunSnapshot, refused: NewEvent, reason: str) -> None:
    """The event may not follow: the error says why, and the snapshot is as it was."""
    before = deepcopy(snapshot)
    with pytest.raises(InvalidTransition, match=reason) as caught:
        add(snapshot, refused)
    assert caught.value.run_id == snapshot.run_id
    assert snapshot == before
    assert snapshot.open == before.open


def context(snapshot: WorkflowRunSnapshot) -> WorkflowContext:
    """What workflow code of this run sees."""
    return WorkflowInvocation(snapshot.run_id, snapshot.spec, snapshot.input, snapshot).context()


def plan(
    snapshot: WorkflowRunSnapshot,
    *decisions: Callable[[WorkflowContext], RuntimeCommand],
    now: datetime = NOW,
) -> Plan:
    """The plan of a decision, which must leave the snapshot alone."""
    before = deepcopy(snapshot)
    seen = context(snapshot)
    made = decide(snapshot, tuple(decision(seen) for decision in decisions), now)
    assert snapshot == before
    assert snapshot.open == before.open
    return made


def types(planned: Plan) -> list[str]:
    """The types of a plan's events, in order."""
    return [one.type for one in planned.events]
