"""Where in the user's code a durable call was made. Kept cheaply, looked up only for an error."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from types import CodeType, FrameType

_OURS = (
    str(Path(__file__).resolve().parent),
    str(Path(asyncio.__file__).resolve().parent),
)


class Site(tuple[CodeType, int]):
    """A place in the code: its line is worked out when someone asks."""

    __slots__ = ()

    def __str__(self) -> str:
        code, offset = self
        line = code.co_firstlineno
        for start, end, number in code.co_lines():
            if start <= offset < end and number is not None:
                line = number
        return f"{Path(code.co_filename).name}:{line} in {code.co_qualname}"


def calling_site() -> Site:
    """The nearest caller outside this package and asyncio."""
    frame = sys._getframe(1)
    while _is_ours(frame.f_code) and frame.f_back is not None:
        frame = frame.f_back
    return Site((frame.f_code, frame.f_lasti))


def site_of(frame: FrameType) -> Site:
    """The same, for the call that ``frame`` made or passed on."""
    code = frame.f_code
    if _known.get(code.co_filename) is False:
        return Site((code, frame.f_lasti))
    while _is_ours(frame.f_code) and frame.f_back is not None:
        frame = frame.f_back
    return Site((frame.f_code, frame.f_lasti))


# By file, since that is a string whose hash is known, and there are few.
_known: dict[str, bool] = {}


def _is_ours(code: CodeType) -> bool:
    name = code.co_filename
    found = _known.get(name)
    if found is None:
        found = name.startswith(_OURS)
        if len(_known) < 10_000:
            _known[name] = found
    return found
