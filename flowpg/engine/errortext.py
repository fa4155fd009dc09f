"""How errors become text: what a history keeps of a failure, and what a blocked run shows."""

from __future__ import annotations

import asyncio
import traceback
from datetime import timedelta

from flowpg.errors import EngineFault, FlowError, InvalidTransition, NonDeterministic
from flowpg.replay.outcomes import error_text

MAX_BLOCKED_REASON = 2_000
"""Longest blocked reason shown on a run, in characters."""

_MAX_CAUSES = 8


def describe(error: BaseException) -> str:
    """``TypeName: message``, then one line for each note, cause and member of a group.

    Always valid text: a NUL or a lone surrogate is shown by its escape, and an error whose message
    cannot be made is described by its type.
    """
    lines: list[str] = []
    try:
        lines.append(_one_line(error))
        _add_details(error, lines, "  ", {id(error)})
    except Exception:  # noqa: BLE001  its notes and causes may be anything, or raise anything
        lines = lines or ["an error without a name"]
    return _text(error_text("\n".join(lines)))


def traceable(error: BaseException | None) -> BaseException | None:
    """``error`` if its traceback can be printed, for a log line; None for one of hostile code."""
    try:
        return error if error is not None and traceback.format_exception(error) else None
    except BaseException as failure:
        if ends_the_loop(failure):
            raise
        return None


def blocked_reason(error: BaseException) -> str:
    """Why a run cannot be driven here, as its row shows it.

    Only errors of flowpg speak for themselves: they hold no token and no payload. Of any other
    only the type is named.
    """
    reason = f"{type(error).__name__}: {error}" if isinstance(error, FlowError) else ""
    reason = reason or type(error).__name__
    if len(reason) > MAX_BLOCKED_REASON:
        reason = reason[:MAX_BLOCKED_REASON] + "..."
    return _text(reason)


def blocks_run(error: BaseException) -> bool:
    """Whether an error that workflow or step code raised is a fault that another process or
    another deploy can mend, so that it must not fail the run."""
    return isinstance(error, (EngineFault, NonDeterministic)) or type(error) is InvalidTransition


def ends_the_loop(error: BaseException) -> bool:
    """Whether an error says that the process or the event loop ends, and is no failure of the code
    it came through: someone's Ctrl-C, or the end of a coroutine that no loop runs any more."""
    if isinstance(error, GeneratorExit):
        return asyncio._get_running_loop() is None
    return isinstance(error, KeyboardInterrupt)


def blocked_delay(attempts: int) -> timedelta:
    """How long a blocked run rests before it is tried again: 1 s, doubling to 30 s."""
    return timedelta(seconds=min(30, 1 << min(max(attempts - 1, 0), 5)))


def _add_details(error: BaseException, lines: list[str], indent: str, seen: set[int]) -> None:
    lines += [f"{indent}note: {_printable(note)}" for note in getattr(error, "__notes__", ())]
    if isinstance(error, BaseExceptionGroup):
        for member in error.exceptions[:_MAX_CAUSES]:
            lines.append(f"{indent}with {_one_line(member)}")
            if id(member) not in seen:
                seen.add(id(member))
                _add_details(member, lines, indent + "  ", seen)
    cause = error.__cause__
    if cause is None and not error.__suppress_context__:
        cause = error.__context__
    if cause is not None and id(cause) not in seen and len(seen) < _MAX_CAUSES:
        seen.add(id(cause))
        lines.append(f"{indent}caused by {_one_line(cause)}")
        _add_details(cause, lines, indent, seen)


def _one_line(error: BaseException) -> str:
    message = _printable(error)
    name = type(error).__name__
    return f"{name}: {message}" if message else name


def _printable(value: object) -> str:
    try:
        return str(value)
    except BaseException as error:
        if ends_the_loop(error):
            raise
        return "<its message cannot be printed>"


def _text(text: str) -> str:
    text = text.replace("\x00", "\\x00")
    return text.encode("utf-8", "backslashreplace").decode()
