"""What a decision or an outcome becomes: events to append and steps to run once they are stored."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from flowpg.model.events import NewEvent


@dataclass(slots=True)
class StepLaunch:
    """A step to run: attempt ``attempt`` (from 1) of the handler ``step_name``.

    ``input`` is the value the snapshot holds; whoever calls a handler passes on a copy, as
    ``StepInvocation`` does. ``again`` says that this very attempt was begun before, by a
    process that did not live to see its outcome.
    """

    step_id: str
    step_name: str
    input: Any = field(repr=False)
    attempt: int
    again: bool = False


@dataclass(slots=True)
class Plan:
    """``events`` go into one append, in order; ``launches`` may start when that is committed.

    ``ended`` says that the last event ends the run. ``resolved`` says that something the decision
    names has its outcome already, so workflow code that comes back with the same decision has not
    looked at it.
    ``news`` says that the same code, asked again once this is recorded, could decide on more.
    """

    events: list[NewEvent] = field(default_factory=list)
    launches: list[StepLaunch] = field(default_factory=list)
    ended: bool = False
    resolved: bool = False
    news: bool = False
