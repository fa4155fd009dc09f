"""How long a worker waits between two looks at its queue."""

from __future__ import annotations

import random

_LONGEST_BACKOFF = 10.0
_TOLD = 2.5
"""How much rarer an idle worker looks that is told of work."""
_IN_VAIN, _LONGEST_REACTION = 3, 0.05


class Pace:
    """Short pauses while there is work, doubling up to ``longest`` seconds while there is none,
    and a backoff of its own while claims fail. All with jitter, so that workers that began together
    do not stay together."""

    def __init__(self, shortest: float, longest: float) -> None:
        self._shortest = min(shortest, longest)
        self._longest = longest
        self._pause = self._shortest
        self._failures = 0
        self._empty = 0
        self._in_vain = 0

    def found(self, busy: bool) -> None:
        """A claim succeeded; ``busy`` says that there was work, or no slot was free for any."""
        self._failures = 0
        self._empty = 0 if busy else self._empty + 1
        self._pause = self._shortest if busy else min(self._longest, self._pause * 2)

    def failed(self) -> None:
        """A claim failed."""
        self._failures += 1

    def followed(self, found: bool) -> None:
        """Work was said to be there, and was ``found`` or not."""
        self._in_vain = 0 if found else self._in_vain + 1

    @property
    def reaction(self) -> float:
        """How many seconds to let pass when work is said to be there: none, but where others were
        faster again and again, they are left to it."""
        if self._in_vain < _IN_VAIN:
            return 0.0
        return random.uniform(0.0, min(_LONGEST_REACTION, 0.001 * 2.0 ** min(self._in_vain, 8)))

    @property
    def quiet(self) -> bool:
        """Whether there was no work at least twice in a row."""
        return not self._failures and self._empty >= 2

    def seconds(self, told: bool = False) -> float:
        """The pause to make now; ``told`` says that whoever brings work will say so, and that
        looking is only for what gets lost."""
        if self._failures:
            # Full jitter: after an outage of the database everyone comes back at once otherwise.
            return random.uniform(0.5, 1.0) * min(
                _LONGEST_BACKOFF, self._shortest * 2.0 ** min(self._failures, 12)
            )
        pause = self._pause * _TOLD if told and self._pause >= self._longest else self._pause
        return pause * random.uniform(0.8, 1.2)
