"""How long a worker waits between two looks at its queue."""

from __future__ import annotations

import random

_LONGEST_BACKOFF = 10.0


class Pace:
    """Short pauses while there is work, doubling up to ``longest`` seconds while there is none,
    and a backoff of its own while claims fail. All with jitter, so that workers that began together
    do not stay together."""

    def __init__(self, shortest: float, longest: float) -> None:
        self._shortest = min(shortest, longest)
        self._longest = longest
        self._pause = self._shortest
        self._failures = 0

    def found(self, busy: bool) -> None:
        """A claim succeeded; ``busy`` says that there was work, or no slot was free for any."""
        self._failures = 0
        self._pause = self._shortest if busy else min(self._longest, self._pause * 2)

    def failed(self) -> None:
        """A claim failed."""
        self._failures += 1

    @property
    def idle(self) -> bool:
        """Whether looks at the queue have become as rare as they get."""
        return not self._failures and self._pause >= self._longest

    def seconds(self) -> float:
        """The pause to make now."""
        if self._failures:
            # Full jitter: after an outage of the database everyone comes back at once otherwise.
            return random.uniform(0.5, 1.0) * min(
                _LONGEST_BACKOFF, self._shortest * 2.0 ** min(self._failures, 12)
            )
        return self._pause * random.uniform(0.8, 1.2)
