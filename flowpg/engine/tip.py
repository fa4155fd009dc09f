"""A driven run in memory: its snapshot folded forward, its history, and the store's clock.

Events are folded before they are stored, so that an outcome and the decision that follows from it
share one append. Whatever is folded and not stored in the end makes the whole tip useless: it is
then loaded again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from time import monotonic

from flowpg.engine.attempt_clock import Limits
from flowpg.engine.history import RunHistory
from flowpg.errors import InvalidTransition
from flowpg.model.events import (
    DEADLINE_FIELDS,
    HOOK_CONFLICTED,
    HOOK_CREATED,
    STEP_CREATED,
    STEP_STARTED,
    NewEvent,
    hook_conflicted,
)
from flowpg.model.records import LoadedRun
from flowpg.model.snapshot import TERMINAL_STATUSES, StepSnapshot, WorkflowRunSnapshot
from flowpg.replay import projection
from flowpg.replay.outcomes import close_deadline
from flowpg.replay.plan import StepLaunch
from flowpg.replay.repair import due_events, due_retries, next_deadline, repair_events

# Where the limits of a step count from.
_TIMED = frozenset({STEP_CREATED, STEP_STARTED})

# How a store writes a deadline that it computed.
_STORED_TIME = "%Y-%m-%dT%H:%M:%S.%fZ"


class RunTip:
    """The newest known state of one run, stored events and those about to be."""

    def __init__(self, loaded: LoadedRun) -> None:
        """Project a loaded history. SerializationError or InvalidTransition if that is broken."""
        self.run_id = loaded.run_id
        self.history = RunHistory(loaded.run_id, loaded.history)
        self.snapshot: WorkflowRunSnapshot = projection.project(self.run_id, loaded.history)
        self._look()
        self._take_stored(loaded)
        self.queue: str | None = None
        """The queue of the run, once somebody has asked."""
        self.pending: list[NewEvent] = []
        self._now = loaded.now
        self._read_at = monotonic()

    def resume(self, loaded: LoadedRun) -> bool:
        """Take in what was stored since this tip was put aside; ``loaded`` begins with the last
        event that the tip knows. False, and the tip is useless, if the store does not know that
        event: it was restored, or failed over, to another history.
        """
        last = self.history[-1]
        found = loaded.history[0] if loaded.history else None
        if (
            found is None
            or (found.sequence, found.type) != (last.sequence, last.type)
            or found.recorded_at != last.recorded_at
        ):
            return False
        news = loaded.history[1:]
        projection.fold_onto(self.snapshot, news)
        self._look()
        self.history.take_in(news)
        self._take_stored(loaded)
        self._now = max(self._now, loaded.now)
        self._read_at = monotonic()
        return True

    def _take_stored(self, loaded: LoadedRun) -> None:
        self.stored = self.snapshot.last_sequence
        if self.stored != loaded.head_sequence:
            # Both were read in one moment. Whatever is decided on that would be refused for ever.
            raise InvalidTransition(
                f"its history ends at event {self.stored}, but its row says "
                f"{loaded.head_sequence}: someone has changed one of them past the guards; see "
                "`A run that cannot be read` in docs/production.md",
                run_id=self.run_id,
            )

    @property
    def now(self) -> datetime:
        """The latest known reading of the store's clock: it is at least this late there."""
        return self._now

    @property
    def reckoned(self) -> datetime:
        """What the store's clock should say now, by this process's monotonic clock."""
        return self._now + timedelta(seconds=monotonic() - self._read_at)

    def limits(self, step: StepSnapshot, launch: StepLaunch) -> Limits | None:
        """How much time an attempt that is launched now has left, None if there is no limit."""
        timeouts = step.timeouts
        if not timeouts:
            return None
        to_start, to_close, deadline = None, None, close_deadline(step)
        if timeouts.schedule_to_start is not None:
            to_start = timeouts.schedule_to_start.total_seconds()
            # One that another process began may have begun in time there. A delayed retry may have
            # lain where no worker was.
            if step.due_since is not None and not launch.again:
                to_start -= max(0.0, (self.reckoned - step.due_since).total_seconds())
        if deadline is not None:
            to_close = (deadline - self.reckoned).total_seconds()
        return Limits(timeouts, to_start, to_close)

    def saw(self, now: datetime) -> None:
        """Take a new reading of the store's clock."""
        self._now = max(self._now, now)
        self._read_at = monotonic()

    def _look(self) -> None:
        # After each fold, and not at each of the many questions in between.
        snapshot = self.snapshot
        work = snapshot.open
        self.terminal = snapshot.status in TERMINAL_STATUSES
        """Whether the run has ended, the pending events included."""
        self.suspends = bool(work.waits or work.hooks or work.delayed)
        """Whether the run waits for a timer, a hook or a delayed retry. If not, nothing of it has a
        deadline."""

    def fold(self, events: Sequence[NewEvent]) -> None:
        """Fold events and keep them for the next append. InvalidTransition if they may not be."""
        if events:
            projection.fold_new(self.snapshot, events, self._now)
            self._look()
            self.pending += events
            self.history.pend(events, self._now)

    def concede_hooks(self, refused: Mapping[str, tuple[str, str]]) -> bool:
        """Replace the pending events of hooks by those of their conflicts with the hooks that hold
        their tokens: ``refused`` has the owner's run and hook id for each hook id. False, and
        nothing is replaced, if one of them is not pending, or is to wait for its token."""
        places = {
            event.data["hook_id"]: place
            for place, event in enumerate(self.pending)
            if event.type == HOOK_CREATED and event.data.get("on_conflict") == "raise"
        }
        if not places.keys() >= refused.keys():
            return False
        for hook_id, owner in refused.items():
            self._concede(places[hook_id], hook_conflicted(hook_id, *owner))
        for place, event in enumerate(self.pending):
            # It gave way to a hook of this run that has to give way itself now.
            if event.type == HOOK_CONFLICTED and event.data["owner_run_id"] == self.run_id:
                other = refused.get(event.data["owner_hook_id"])
                if other is not None:
                    self._concede(place, hook_conflicted(event.data["hook_id"], *other))
        self._look()
        return True

    def _concede(self, place: int, conflict: NewEvent) -> None:
        self.pending[place] = conflict
        projection.concede_hook(self.snapshot, conflict.data)
        self.history.replace_pending(place, conflict)

    def drop_pending(self) -> None:
        """Store nothing of what was folded: the tip can only be loaded again after that."""
        self.pending = []
        self.history.drop_pending()

    def fold_repairs(self) -> None:
        """Complete what an interrupted writer left undone; to be asked for after each load."""
        self.fold(repair_events(self.snapshot))

    def fold_due(self, now: datetime) -> bool:
        """Complete timers and dispose hooks whose time has come. Says whether the time of a
        delayed retry has come too: a replay is to start that, so that code which does not fit the
        history burns no attempts."""
        self.fold(due_events(self.snapshot, now))
        return bool(due_retries(self.snapshot, now).launches)

    def fold_retries(self, now: datetime) -> list[StepLaunch]:
        """Start the delayed retries whose time has come and that the replay did not ask for;
        returns the steps to launch."""
        retries = due_retries(self.snapshot, now)
        self.fold(retries.events)
        return retries.launches

    def something_is_due(self) -> bool:
        """Whether a deadline is not after the latest reading of the clock."""
        deadline = next_deadline(self.snapshot)
        return deadline is not None and deadline <= self._now

    def committed(self, recorded_at: datetime) -> None:
        """The pending events are stored: set their times."""
        events, self.pending = self.pending, []
        if not events:
            return
        for event in events:
            event.text = None  # it was sent, and would only take room
            event.recorded_at = recorded_at
            if event.due_in is not None:
                due = (recorded_at + event.due_in).astimezone(UTC)
                event.data[DEADLINE_FIELDS[event.type]] = due.strftime(_STORED_TIME)
                projection.restamp(self.snapshot, (event,), recorded_at)
            elif event.type in _TIMED and self.snapshot.steps[event.data["step_id"]].timeouts:
                projection.restamp(self.snapshot, (event,), recorded_at)
        self.history.stored()
        self.stored = self.snapshot.last_sequence
        self.saw(recorded_at)

    def seconds_to_deadline(self, elsewhere: datetime | None = None) -> float | None:
        """How long until the store's clock should reach the run's next deadline, or that of a step
        ``elsewhere``; None without one.

        An estimate by this process's monotonic clock; the store's own has the last word.
        """
        deadline = next_deadline(self.snapshot)
        if elsewhere is not None and (deadline is None or elsewhere < deadline):
            deadline = elsewhere
        if deadline is None:
            return None
        elapsed = timedelta(seconds=monotonic() - self._read_at)
        return max(0.0, (deadline - self._now - elapsed).total_seconds())
