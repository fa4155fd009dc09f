"""How large the payload of an event may be in this process: what is warned of, what refused.

The database itself refuses what is over ``MAX_PAYLOAD_BYTES``, whatever is set here. The limits of
a process may change at any time, so no replay looks at them: what they refused is in the history,
and a value that was too large is recorded as one that was left out.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any, Final

from flowpg.errors import InvalidArgument
from flowpg.model.events import (
    MAX_PAYLOAD_BYTES,
    RUN_FAILED,
    RUN_RETRY_EXHAUSTED,
    STEP_FAILED,
    STEP_NON_RETRYABLE,
    STEP_RETRYING,
)

logger = logging.getLogger("flowpg.sizes")

_ERRORS = frozenset(
    {STEP_RETRYING, STEP_FAILED, STEP_NON_RETRYABLE, RUN_FAILED, RUN_RETRY_EXHAUSTED}
)

_LEAST = 1_000
"""No limit may be lower: what flowpg itself says of a run needs some room."""


@dataclass(slots=True)
class SizeLimits:
    """Bytes of one event's payload: above ``warn`` it is logged, above ``most`` refused. ``asked``
    is what ``warn`` is to be where ``most`` is no lower."""

    warn: int = 262_144
    most: int = MAX_PAYLOAD_BYTES
    asked: int = 262_144


limits = SizeLimits()
"""The limits of this process."""


def set_size_limits(warn_bytes: int | None = None, max_bytes: int | None = None) -> None:
    """Set the limits of this process for the payload of one event, in bytes (256 KiB and 1 MiB).

    Above ``warn_bytes`` run and step are logged; above ``max_bytes`` a step, run or call fails with
    PayloadTooLarge. InvalidArgument for less than 1,000 or more than the 1 MiB of the database.
    """
    for wanted in (warn_bytes, max_bytes):
        if wanted is not None and not _LEAST <= wanted <= MAX_PAYLOAD_BYTES:
            raise InvalidArgument(
                f"a limit for the payload of an event is from {_LEAST} to {MAX_PAYLOAD_BYTES} bytes"
            )
    if warn_bytes is not None:
        limits.asked = warn_bytes
    if max_bytes is not None:
        limits.most = max_bytes
    # What is refused is at least looked at.
    limits.warn = min(limits.asked, limits.most)


def most_of(event_type: str) -> int:
    """The most bytes that this process stores as the payload of such an event. Error texts are cut
    as they are made; no lower limit may keep a failure from being recorded."""
    return MAX_PAYLOAD_BYTES if event_type in _ERRORS else limits.most


_OMITTED: Final = "omitted"


def omitted(size: int) -> dict[str, Any]:
    """What is stored in the place of a value that was too large, for ``size`` bytes of payload."""
    return {"$": _OMITTED, "bytes": size}


def is_omitted(value: Any) -> bool:
    """Whether a JSON value stands for one that was too large to be stored."""
    return type(value) is dict and value.get("$") == _OMITTED


def oversize_of(
    text: str, run_id: str, event_type: str, subject: str | None = None, extra: int = 0
) -> int:
    """The size of a payload in bytes if that is over the limit, else 0. Logs one that is large."""
    # Four bytes is the most a character takes: short texts need no encoding to be measured.
    if len(text) * 4 + extra <= limits.warn:
        return 0
    size = len(text.encode()) + extra
    if size > most_of(event_type):
        return size
    if size > limits.warn and event_type not in _ERRORS:
        logger.warning(
            "run %r: the payload of %s%s is %d bytes, over the %d that are thought too much; store "
            "the value elsewhere and pass a reference",
            run_id,
            event_type,
            "" if subject is None else f" {subject!r}",
            size,
            limits.warn,
        )
    return 0
