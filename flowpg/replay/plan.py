"""What a decision or an outcome becomes: events to append and steps to run once they are stored."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from flowpg.model.events import NewEvent
from flowpg.model.snapshot import StepSnapshot


@dataclass(slots=True)
class StepLaunch:
    """A step to run: attempt ``attempt`` (from 1) of the handler ``step_name``.

    ``input`` is the value the snapshot holds; whoever calls a handler passes on a copy, as
    ``StepInvocation`` does. ``again`` says that this very attempt was begun before, by a
    process that did not live to see its outcome. ``queue`` is whose workers run it, None for the
    process that drives the run.
    """

    step_id: str
    step_name: str
    input: Any = field(repr=False)
    attempt: int
    again: bool = False
    queue: str | None = None


class Route(NamedTuple):
    """A step that is left to workers of another queue. Its run is to be woken at ``due_at``, or
    ``due_in`` after its start is stored, whichever is earlier; None for no such deadline."""

    step: StepLaunch
    due_in: timedelta | None = None
    due_at: datetime | None = None


def following(step: StepSnapshot, *, again: bool = False) -> StepLaunch:
    """The next attempt of a step, or, ``again``, the one that was begun already."""
    attempt = step.attempt if again else step.attempt + 1
    return StepLaunch(step.step_id, step.step_name, step.input, attempt, again, step.queue)


@dataclass(slots=True)
class Plan:
    """``events`` go into one append, in order; ``launches`` may start when that is committed.

    ``ended`` says that the last event ends the run. ``refused`` holds the steps whose input is too
    large, with the error they fail with at once. ``news`` says that the same code, asked again once
    this is recorded, could decide on more.
    """

    events: list[NewEvent] = field(default_factory=list)
    launches: list[StepLaunch] = field(default_factory=list)
    ended: bool = False
    refused: list[tuple[str, str]] = field(default_factory=list)
    news: bool = False
