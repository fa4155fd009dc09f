"""Whether a history from elsewhere may be stored as it is."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from flowpg.errors import InvalidTransition
from flowpg.model.arguments import check_size, check_time
from flowpg.model.events import FlowEventEnvelope, deadline_of
from flowpg.model.ids import check_run_id
from flowpg.replay.projection import project


def check_history(history: Sequence[FlowEventEnvelope]) -> str:
    """The run id of a complete, legal history.

    Raises InvalidTransition (also for an empty history or an event id that is no UUID),
    InvalidRunId, SerializationError or PayloadTooLarge.
    """
    if not history:
        raise InvalidTransition("an empty history cannot be imported")
    run_id = check_run_id(history[0].run_id)
    project(run_id, history)
    for event in history:
        check_time(event.recorded_at, f"event {event.sequence} of run {run_id!r}")
        check_size(run_id, event.type, event.payload)
        deadline_of(event)
        try:
            UUID(event.event_id)
        except ValueError:
            raise InvalidTransition(
                f"the id of event {event.sequence} is not a UUID", run_id=run_id
            ) from None
    return run_id
