"""Calls in workflow code that a replay cannot repeat: the clock, chance, the world outside.

On Python 3.12 and newer ``sys.monitoring`` tells of them, nearly for free: a place in the code that
calls nothing of the kind is looked at once and never again. On 3.11 ``sys.setprofile`` does, which
is slow, so only where every turn is replayed, as in tests.

A C function is looked for where the user's own code calls it; a Python function that does such a
thing, such as ``uuid.uuid4``, wherever it is called from. Either is reported with the nearest line
of the user's code, once a line. What the logging package does is left alone.
"""

from __future__ import annotations

import _thread
import builtins
import datetime as dt
import io
import logging
import os
import pathlib
import random
import secrets
import socket
import subprocess
import sys
import sysconfig
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import BuiltinFunctionType, CodeType, FrameType, FunctionType
from typing import Any, NamedTuple

from flowpg.authoring.errors import NotDurable
from flowpg.authoring.strands import waiting_allowed
from flowpg.authoring.watchdog import Turn, turn_of_this_thread

logger = logging.getLogger("flowpg.hazards")


class Hazard(NamedTuple):
    """What was called, and what to write instead."""

    call: str
    instead: str


NOW = "use flowpg.now() or time_ns(), the time of the history"
CHANCE = "use flowpg.random(), the same in every replay"
SECRET = "make secrets in a step; flowpg.random() can be guessed"
IDS = "use flowpg.uuid4() or uuid7(), the same in every replay"
SLEEP = "use `await asyncio.sleep(...)`, or flowpg.sync.sleep(...): durable timers"
SETTINGS = "pass it as an argument, or read it in a step"
IN_STEP = "do it in a step (@app.step) and await that"
THREADS = "use asyncio tasks, or a step that is a plain function"

_CLOCKS = ("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns",
           "process_time", "process_time_ns", "localtime", "gmtime", "ctime")  # fmt: skip
_CALLS: dict[Any, Hazard] = {
    **{getattr(time, name): Hazard(f"time.{name}()", NOW) for name in _CLOCKS},
    time.sleep: Hazard("time.sleep()", SLEEP),
    os.urandom: Hazard("os.urandom()", SECRET),
    os.getrandom: Hazard("os.getrandom()", SECRET),
    builtins.open: Hazard("open()", IN_STEP),
    io.open_code: Hazard("io.open_code()", IN_STEP),
    os.open: Hazard("os.open()", IN_STEP),
    os.listdir: Hazard("os.listdir()", IN_STEP),
    os.scandir: Hazard("os.scandir()", IN_STEP),
    os.stat: Hazard("os.stat()", IN_STEP),
    os.system: Hazard("os.system()", IN_STEP),
    os.fork: Hazard("os.fork()", IN_STEP),
    builtins.input: Hazard("input()", "use hook(...) to wait for a person"),
    socket.socket: Hazard("socket.socket()", IN_STEP),
    _thread.start_new_thread: Hazard("starting a thread", THREADS),
}
# Methods of built-in classes, by class and name: each look at one makes another object.
_METHODS: dict[tuple[type, str], Hazard] = {
    (dt.datetime, "now"): Hazard("datetime.now()", NOW),
    (dt.datetime, "utcnow"): Hazard("datetime.utcnow()", NOW),
    (dt.datetime, "today"): Hazard("datetime.today()", NOW),
    (dt.date, "today"): Hazard("date.today()", NOW),
}
_SHARED_RANDOM: Any = random._inst

_FUNCTIONS: dict[CodeType, Hazard] = {}
"""Python functions that are hazards, by their code."""


def _add(function: Any, call: str, instead: str) -> None:
    found = getattr(function, "__func__", function)
    if isinstance(found, FunctionType):
        _FUNCTIONS[found.__code__] = Hazard(call, instead)


_add(uuid.uuid1, "uuid.uuid1()", IDS)
_add(uuid.uuid4, "uuid.uuid4()", IDS)
_add(getattr(uuid, "uuid6", None), "uuid.uuid6()", IDS)
_add(getattr(uuid, "uuid7", None), "uuid.uuid7()", IDS)
for _name in ("token_bytes", "token_hex", "token_urlsafe", "randbelow"):
    _add(getattr(secrets, _name), f"secrets.{_name}()", SECRET)
_add(type(os.environ).__getitem__, "os.environ", SETTINGS)
_add(type(os.environ).__setitem__, "os.environ", SETTINGS)
_add(socket.socket.__init__, "socket.socket()", IN_STEP)
_add(socket.create_connection, "socket.create_connection()", IN_STEP)
_add(socket.getaddrinfo, "socket.getaddrinfo()", IN_STEP)
_add(subprocess.Popen.__init__, "a subprocess", IN_STEP)
_add(threading.Thread.start, "threading.Thread", THREADS)
_add(ThreadPoolExecutor.submit, "a thread pool", THREADS)
for _name, _method in vars(random.Random).items():
    if not _name.startswith("_"):
        _add(_method, f"random.{_name}()", CHANCE)
for _name in ("open", "stat", "read_text", "read_bytes", "write_text", "write_bytes", "iterdir"):
    _add(getattr(pathlib.Path, _name), f"Path.{_name}()", IN_STEP)


def hazard_in(frame: FrameType) -> Hazard | None:
    """The hazard whose code begins to run in ``frame``."""
    found = _FUNCTIONS.get(frame.f_code)
    if found is not None and frame.f_code.co_filename == random.__file__:
        # The numbers of a generator that the workflow made itself can be repeated.
        shared = frame.f_locals.get("self")
        if shared is not _SHARED_RANDOM and not isinstance(shared, random.SystemRandom):
            return None
    return found


def hazard_of(called: Any, owner: Any = None) -> Hazard | None:
    """The hazard that a called object is, None for anything else. ``owner`` is what a method that
    is not bound was called on."""
    if isinstance(called, (BuiltinFunctionType, type)):
        found = _CALLS.get(called)
        if found is not None:
            return found
    owner = getattr(called, "__self__", owner)
    if owner is _SHARED_RANDOM and isinstance(called, BuiltinFunctionType):
        return Hazard(f"random.{getattr(called, '__name__', 'random')}()", CHANCE)
    if isinstance(owner, type) and issubclass(owner, dt.date):
        name = getattr(called, "__name__", "")
        kind = dt.datetime if issubclass(owner, dt.datetime) else dt.date
        return _METHODS.get((kind, name))
    return None


# -- where --------------------------------------------------------------------------------------

_PACKAGE = str(pathlib.Path(__file__).resolve().parents[1]) + os.sep
_LIBRARY = tuple(
    {
        _PACKAGE,
        *(sysconfig.get_paths()[name] + os.sep for name in ("stdlib", "platstdlib")),
        *(sysconfig.get_paths()[name] + os.sep for name in ("purelib", "platlib")),
        "<frozen",
    }
)
# What is read there is no business of the workflow, or the same on every machine.
_ALLOWED = tuple(
    str(pathlib.Path(sysconfig.get_paths()["stdlib"], name))
    for name in ("logging", "zoneinfo", "importlib", "linecache", "traceback", "warnings")
)
_seen: set[tuple[str, int]] = set()


def _is_users(code: CodeType) -> bool:
    return not code.co_filename.startswith(_LIBRARY)


def report(turn: Turn, hazard: Hazard, frame: FrameType | None) -> None:
    """Warn of a hazard, once a line; NotDurable for a strict app. Nothing if logging does it, or
    no line of the user's code is to blame."""
    while frame is not None and not _is_users(frame.f_code):
        # Logging, or this package, which knows what it does.
        if frame.f_code.co_filename.startswith((*_ALLOWED, _PACKAGE)):
            return
        frame = frame.f_back
    # Below the turn, not above: whoever drives it may do as they like.
    if frame is None or not _within_turn(frame):
        return
    place = (frame.f_code.co_filename, frame.f_lineno)
    if turn.rules.strict:
        raise NotDurable(f"{hazard.call} ({_shown(place)})", hazard.instead)
    if place in _seen:
        return
    _seen.add(place)
    logger.warning(
        "%s: workflow %r calls %s, which a replay cannot repeat; %s",
        _shown(place),
        turn.workflow,
        hazard.call,
        hazard.instead,
    )


def _within_turn(frame: FrameType) -> bool:
    outer = frame.f_back
    while outer is not None:
        if outer.f_code is _TURN_CODE:
            return True
        if outer.f_code.co_filename.startswith(_ALLOWED):
            return False
        outer = outer.f_back
    # A workflow that is a plain function has a stack of its own, which ends with it.
    return waiting_allowed()


_TURN_CODE = Turn.run.__code__


def _shown(place: tuple[str, int]) -> str:
    return f"{pathlib.PurePath(place[0]).name}:{place[1]}"


# -- Python 3.12 and newer ----------------------------------------------------------------------

MONITORS = hasattr(sys, "monitoring")
"""Whether this Python can look for hazards nearly for free."""

_TOOLS = (4, 3)
_watching = False


def watch() -> None:
    """Look for hazards in all turns of this process from now on, where that is cheap."""
    global _watching
    if _watching or not MONITORS:
        return
    _watching = True
    monitoring: Any = sys.monitoring  # type: ignore[attr-defined]
    tool = next((tool for tool in _TOOLS if monitoring.get_tool(tool) is None), None)
    if tool is None:
        logger.info("hazards are not looked for: other tools have taken the places for monitors")
        return
    monitoring.use_tool_id(tool, "flowpg")
    disable = monitoring.DISABLE
    events = monitoring.events

    def on_call(code: CodeType, _offset: int, called: Any, owner: Any) -> Any:
        if not _is_users(code):
            return disable
        hazard = hazard_of(called, owner)
        if hazard is None:
            return disable
        turn = turn_of_this_thread()
        if turn is not None:
            report(turn, hazard, sys._getframe(1))
        return None

    def on_start(code: CodeType, _offset: int) -> Any:
        turn = turn_of_this_thread()
        frame = sys._getframe(1)
        hazard = hazard_in(frame) if turn is not None else None
        if turn is not None and hazard is not None:
            report(turn, hazard, frame)

    monitoring.register_callback(tool, events.CALL, on_call)
    monitoring.register_callback(tool, events.PY_START, on_start)
    for code in _FUNCTIONS:
        monitoring.set_local_events(tool, code, events.PY_START)
    monitoring.set_events(tool, events.CALL)


# -- Python 3.11 --------------------------------------------------------------------------------


def _profile(turn: Turn) -> Callable[[FrameType, str, Any], None]:
    def on_event(frame: FrameType, event: str, called: Any) -> None:
        hazard = None
        if event == "c_call" and _is_users(frame.f_code):
            hazard = hazard_of(called)
        elif event == "call":
            hazard = hazard_in(frame)
        if hazard is not None and turn.open:
            report(turn, hazard, frame)

    return on_event


@contextmanager
def profiled(turn: Turn) -> Iterator[None]:
    """Look for hazards inside, at any price; nothing where ``watch`` is enough."""
    if _watching:
        yield
        return
    before = sys.getprofile()
    sys.setprofile(_profile(turn))
    try:
        yield
    finally:
        sys.setprofile(before)
