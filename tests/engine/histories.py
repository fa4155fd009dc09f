"""Histories as another engine, or one that died, may have left them."""

from flowpg.model.events import RUN_CREATED, FlowEventEnvelope, NewEvent
from flowpg.store.protocol import FlowEventStore
from tests.engine.support import SPEC


async def left_behind(store: FlowEventStore, run_id: str, *events: NewEvent) -> None:
    """Store a run with these events after its ``run_created``."""
    now = await store.now()
    first = NewEvent(RUN_CREATED, {"spec": SPEC.wire(), "input": None})
    await store.import_history(
        [
            FlowEventEnvelope(
                run_id,
                sequence,
                f"00000000-0000-4000-8000-{sequence:012d}",
                now,
                event.type,
                data=event.data,
            )
            for sequence, event in enumerate([first, *events], start=1)
        ]
    )
