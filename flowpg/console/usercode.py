"""Running the user's own code at the start of a command: what it raises is shown with its place."""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, TracebackType

import typer

from flowpg.errors import FlowError, InvalidArgument

_PACKAGE = str(Path(__file__).parents[1])
_OURS = (str(Path(__file__).parent), str(Path(importlib.__file__).parent), "<frozen importlib")


def imported(name: str) -> ModuleType:
    """The module of this name. InvalidArgument says where it was looked for, or, after the
    traceback of the module's own code on standard error, what that raised and in which line."""
    with users_code(f"importing {name!r}"):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{name}.".startswith(f"{error.name}."):
                raise  # a module that this one imports
            places = ", ".join(place or "." for place in sys.path)
            raise InvalidArgument(
                f"--app: cannot import {name!r}: no module {error.name!r} in {places}; start the "
                "command in the directory that holds it, or set PYTHONPATH"
            ) from None


@contextmanager
def users_code(what: str) -> Iterator[None]:
    """Code of the user runs inside. InvalidArgument for what it raises, errors of ours included,
    which say enough without a traceback."""
    try:
        yield
    except FlowError as error:
        line = _users_line(error.__traceback__)
        if line is None:
            raise  # not from the user's code
        raise InvalidArgument(f"--app: {what} raised {_headline(error)} ({line})") from error
    except Exception as error:
        own = _own_frames(error.__traceback__)
        shown = traceback.TracebackException.from_exception(error.with_traceback(own))
        typer.echo("".join(shown.format()), err=True, nl=False)
        raise InvalidArgument(
            f"--app: {what} raised {_headline(error)} ({_place(error, own)})"
        ) from error


def _own_frames(frames: TracebackType | None) -> TracebackType | None:
    while frames is not None and frames.tb_frame.f_code.co_filename.startswith(_OURS):
        frames = frames.tb_next
    return frames


def _users_line(frames: TracebackType | None) -> str | None:
    """The last line that is not of this package."""
    own = traceback.extract_tb(_own_frames(frames))
    theirs = [frame for frame in own if not frame.filename.startswith((_PACKAGE, *_OURS))]
    return f"{theirs[-1].filename}, line {theirs[-1].lineno}" if theirs else None


def _headline(error: Exception) -> str:
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _place(error: Exception, own: TracebackType | None) -> str:
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}, line {error.lineno}"
    found = traceback.extract_tb(own)
    return f"{found[-1].filename}, line {found[-1].lineno}" if found else "outside of its code"
