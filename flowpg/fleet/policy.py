"""How a task is retried, bounded and told apart from others of its kind."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from flowpg.errors import InvalidArgument
from flowpg.postgres.calls import bool_text, interval_text

_ZERO = timedelta(0)
LATEST_WINS = frozenset({"resume_scheduled_run", "resume_due_waits", "resume_due_retries"})
"""Kinds of which a second task, made while the first is at work, means: look once more."""


class TaskDeduplication(StrEnum):
    """When a task is the same as one that is open already, and is not made.

    Two tasks are the same if they have the same kind and address the same run, wait, hook or
    token; what they carry does not count.
    """

    DISABLED = "off"
    UNTIL_TERMINAL = "until_terminal"
    UNTIL_TERMINAL_OR_TTL = "until_terminal_or_ttl"


@dataclass(frozen=True, slots=True)
class TaskPolicy:
    """What holds for the tasks that are enqueued with it.

    A task that fails is tried ``attempts`` times in all, after ``retry_delay``, doubled with each
    failure; then it is a dead letter. Retries of a step are another matter and are not touched. One
    attempt may take ``timeout`` (None: as long as its lease). ``max_stalled_count`` is how many
    workers may be lost with it. ``keep_completed`` leaves a line about it when it is done, without
    what it carried. ``deduplication`` may name a ``deduplication_ttl``. Tasks with one
    ``concurrency_key`` share its limit in their queue.
    """

    attempts: int = 1
    retry_delay: timedelta = _ZERO
    timeout: timedelta | None = None
    max_stalled_count: int = 1
    keep_completed: bool = False
    deduplication: TaskDeduplication = TaskDeduplication.DISABLED
    deduplication_ttl: timedelta | None = None
    concurrency_key: str | None = None

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise InvalidArgument("a task needs at least one attempt")
        if self.retry_delay < _ZERO:
            raise InvalidArgument("the retry delay of a task must not be negative")
        if self.timeout is not None and self.timeout <= _ZERO:
            raise InvalidArgument("the timeout of a task must be positive")
        if self.max_stalled_count < 0:
            raise InvalidArgument("the stalled count of a task must not be negative")
        wants_ttl = self.deduplication is TaskDeduplication.UNTIL_TERMINAL_OR_TTL
        if wants_ttl and (self.deduplication_ttl is None or self.deduplication_ttl <= _ZERO):
            raise InvalidArgument("deduplication with a TTL needs one that is positive")
        if not wants_ttl and self.deduplication_ttl is not None:
            raise InvalidArgument("a deduplication TTL needs the mode until_terminal_or_ttl")

    def options(self, kind: str) -> dict[str, str | None]:
        """The arguments of ``flow_enqueue_task`` for a task of this kind. A drive task has none:
        there is one a run whatever is asked."""
        if kind == "drive_run":
            return DEFAULT_POLICY.options("") | {"max_attempts": None, "max_stalled": None}
        mode: str = self.deduplication
        if self.deduplication is TaskDeduplication.UNTIL_TERMINAL and kind in LATEST_WINS:
            mode = "keep_latest"
        return {
            "dedupe_mode": mode,
            "dedupe_ttl": _interval(self.deduplication_ttl),
            "max_attempts": str(self.attempts),
            "retry_delay": _interval(self.retry_delay),
            "timeout": _interval(self.timeout),
            "concurrency_key": self.concurrency_key,
            "max_stalled": str(self.max_stalled_count),
            "keep": bool_text(self.keep_completed),
        }


def _interval(duration: timedelta | None) -> str | None:
    return None if duration is None else interval_text(duration)


DEFAULT_POLICY = TaskPolicy()
"""One attempt, no deduplication."""
