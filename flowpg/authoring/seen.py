"""What of a history was seen by workflow code before, in whatever process."""

from __future__ import annotations

from collections.abc import Sequence

from flowpg.model import events
from flowpg.model.records import AnyEvent

DECISIONS = frozenset(
    {
        events.STEP_CREATED,
        events.STEP_CANCELLED,
        events.WAIT_CREATED,
        events.WAIT_CANCELLED,
        events.HOOK_CREATED,
        events.HOOK_CONFLICTED,
        events.PATCH_RECORDED,
        events.RUN_ATTRIBUTES_SET,
        *events.TERMINAL_TYPES,
    }
)
"""Events that only a decision writes: whatever came before one was seen by workflow code."""


def last_decision(new: Sequence[AnyEvent], after: int) -> int:
    """The sequence of the last decision among new events, which follow sequence ``after``; 0
    without one."""
    sequence = after + len(new)
    for event in reversed(new):
        if event.type in DECISIONS:
            return sequence
        sequence -= 1
    return 0
