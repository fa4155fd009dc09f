"""The user's own code at the start of a command: the app that ``--app`` names, and the place of
what it raises."""

from __future__ import annotations

import importlib
import inspect
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

import typer

from flowpg.authoring.annotations import signature_of
from flowpg.errors import FlowError, InvalidArgument
from flowpg.replay.runtime import FlowRuntime, known, undefined

_PACKAGE = str(Path(__file__).parents[1])
_OURS = (str(Path(__file__).parent), str(Path(importlib.__file__).parent), "<frozen importlib")


def load_runtime(application: str) -> FlowRuntime:
    """The runtime that ``module:attribute`` names: an instance, a class, or a factory that takes
    no arguments. InvalidArgument with a sentence if it is none of these."""
    module_name, colon, path = application.partition(":")
    if not (module_name and colon and path):
        raise InvalidArgument(f"--app {application!r} is not of the form module:attribute")
    # As `python -m` does: a module beside you is found.
    here = str(Path.cwd())
    if "" not in sys.path and here not in sys.path:
        sys.path.insert(0, here)
    found: Any = _imported(module_name)
    for name in path.split("."):
        if not hasattr(found, name):
            raise InvalidArgument(f"--app: module {module_name!r} has no {path!r}")
        found = getattr(found, name)
    if inspect.isclass(found) or not _is_runtime(found):
        found = _made_by(found, application)
    if not _is_runtime(found):
        raise InvalidArgument(
            f"--app: {application!r} is no FlowRuntime: it needs run_workflow and run_step"
        )
    runtime: FlowRuntime = found
    missing = undefined(runtime)
    if missing:
        raise InvalidArgument(
            f"--app: {type(runtime).__name__} of {application!r} does not define {missing}; a "
            "FlowRuntime needs run_workflow and run_step"
        )
    known(runtime)
    return runtime


def _is_runtime(value: object) -> bool:
    return all(callable(getattr(value, name, None)) for name in ("run_workflow", "run_step"))


def _made_by(factory: Callable[[], Any], application: str) -> Any:
    if not callable(factory):
        return factory
    try:
        signature_of(factory).bind()
    except (TypeError, ValueError):
        raise InvalidArgument(
            f"--app: {application!r} needs arguments; name an instance or a factory without any"
        ) from None
    with _users_code(f"calling {application!r}"):
        return factory()


def _imported(name: str) -> ModuleType:
    """The module of this name. InvalidArgument says where it was looked for, or, after the
    traceback of the module's own code on standard error, what that raised and in which line."""
    with _users_code(f"importing {name!r}"):
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
def _users_code(what: str) -> Iterator[None]:
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
