"""The garbage collector of a worker process: less often, and past what never becomes garbage.

A worker makes few cycles and holds many small records for as long as its runs are at work. At
Python's own pace the collector walks over all of them, and over every imported module, again and
again: a seventh of the processor time of a step.
"""

from __future__ import annotations

import gc

_MOST_BY_DEFAULT = 2000
"""New objects between two collections in any release of Python, unless somebody chose."""

_SELDOM = (50_000, 20, 100)


def calm_collector() -> None:
    """Collect seldom from now on, and leave out what exists already. It does nothing in a process
    whose owner has chosen a pace, or has switched the collector off."""
    if not gc.isenabled() or not 0 < gc.get_threshold()[0] <= _MOST_BY_DEFAULT:
        return
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_SELDOM)
