"""How long a step may take, and how long it may be silent.

The wire shape holds what is set, in milliseconds: ``{"start_to_close_ms":5000}``.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import timedelta
from functools import lru_cache
from typing import Any

from flowpg.errors import InvalidArgument, InvalidTransition
from flowpg.model.retry import MAX_DELAY_MS

_MILLISECOND = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class StepTimeouts:
    """The limits of a step, None where there is none; InvalidArgument unless each is above zero.

    ``start_to_close`` bounds one attempt, from when its code begins. ``heartbeat`` bounds the time
    between two heartbeats of an attempt. Both fail the attempt, and the retry policy decides on
    another. ``schedule_to_start`` bounds how long an attempt may wait until its code begins, for a
    free thread say; ``schedule_to_close`` bounds the step with all its attempts and pauses, from
    when it was recorded, by the database's clock. Either ends the step whatever the policy says.
    """

    start_to_close: timedelta | None = None
    schedule_to_start: timedelta | None = None
    schedule_to_close: timedelta | None = None
    heartbeat: timedelta | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            limit = getattr(self, field.name)
            if limit is None:
                continue
            if not isinstance(limit, timedelta):
                raise InvalidArgument(f"{field.name} must be a timedelta")
            if not timedelta(0) < limit <= MAX_DELAY_MS * _MILLISECOND:
                raise InvalidArgument(f"{field.name} must be above zero and at most 100 years")

    def __bool__(self) -> bool:
        return any(getattr(self, field.name) is not None for field in fields(self))

    @classmethod
    def read(cls, wire: object) -> StepTimeouts | None:
        """The timeouts of a JSON object, None for None. InvalidTransition, which names no value,
        if it holds anything else."""
        if wire is None:
            return None
        if isinstance(wire, dict) and all(type(value) is int for value in wire.values()):
            try:
                return _read(tuple(wire.items()))
            except (InvalidArgument, KeyError, OverflowError):
                pass
        raise InvalidTransition("the timeouts of a step have an unknown or a wrong member")

    def wire(self) -> dict[str, int]:
        """The JSON object; a part of a millisecond counts as one."""
        return {
            f"{field.name}_ms": -(-limit // _MILLISECOND)
            for field in fields(self)
            if (limit := getattr(self, field.name)) is not None
        }


_NAMES = {f"{field.name}_ms": field.name for field in fields(StepTimeouts)}


@lru_cache(maxsize=1024)
def _read(members: tuple[tuple[str, int], ...]) -> StepTimeouts:
    limits: dict[str, Any] = {_NAMES[name]: value * _MILLISECOND for name, value in members}
    return StepTimeouts(**limits)


def same_timeouts(one: StepTimeouts | None, other: StepTimeouts | None) -> bool:
    """Whether both mean the same on the wire; without any limit is as good as none."""
    return one == other or (one.wire() if one else {}) == (other.wire() if other else {})
