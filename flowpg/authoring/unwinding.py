"""Letting go of a plain function that waits, without running any of its code.

A workflow that is a plain function runs on a stack of its own, a greenlet. Dropping a greenlet that
waits raises GreenletExit where it waits, and ``finally`` and ``except`` blocks run. For a workflow
that is only put aside, to be replayed later, that would be wrong, as it would for a coroutine (see
``forgetting``).

So the stack is unwound while nothing on it can notice: for as long as that takes, the functions on
it have no exception handlers, and generators have no finalizers. Both are words in memory that the
interpreter reads: the table of handlers in a code object, and a slot of three types. CPython does
not document how to set them. So before the first use their places are looked for and the whole is
tried out, on a function with a ``finally`` and an open ``with`` block. Where anything is not as
expected, stacks that are put aside are kept until the process ends: no code runs there either, at
the price of memory.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import logging
import sys
import sysconfig
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

from greenlet import GreenletExit, getcurrent, greenlet

from flowpg.authoring.forgetting import forget

logger = logging.getLogger("flowpg.authoring")

_WORD = ctypes.sizeof(ctypes.c_void_p)
_NO_HANDLERS = b""
_FINALIZED_TYPES = (types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType)

_kept: list[greenlet] = []
_abroad: dict[int, list[greenlet]] = {}


class Strand(greenlet):  # type: ignore[misc]
    """The stack of a plain function that can wait. ``thread`` is the only one it can run on."""

    def __init__(self, run: Any) -> None:
        super().__init__(run)
        self.thread = threading.get_ident()


def drop(strand: Strand) -> None:
    """Free a waiting stack, and what its frames hold, without running any of its code."""
    here = threading.get_ident()
    if strand.dead or strand.gr_frame is None:
        return
    if strand.thread != here:
        _abroad.setdefault(strand.thread, []).append(strand)  # its own thread will
    elif _can_drop():
        _unwind(strand)
    else:
        _kept.append(strand)


def drop_abroad() -> None:
    """Free the stacks of this thread that others put aside."""
    for strand in _abroad.pop(threading.get_ident(), ()):
        drop(strand)


def _unwind(strand: greenlet) -> None:
    codes = set()
    frame: types.FrameType | None = strand.gr_frame
    while frame is not None:
        codes.add(frame.f_code)
        forget(frame.f_locals.values())
        frame = frame.f_back
    with _unnoticed(codes):
        strand.throw(GreenletExit)


@contextlib.contextmanager
def _unnoticed(codes: set[types.CodeType]) -> Iterator[None]:
    words = [
        *(_word(code, _handlers_at) for code in codes),
        *(_word(kind, _finalizer_at) for kind in _FINALIZED_TYPES),
    ]
    values = [word.value for word in words]
    collecting, unraisable = gc.isenabled(), sys.unraisablehook
    gc.disable()
    # Where it waits in a finalizer, such as a generator's, the interpreter reports what ends that.
    sys.unraisablehook = _except_exits(unraisable)
    try:
        for number, word in enumerate(words):
            word.value = id(_NO_HANDLERS) if number < len(codes) else None
        yield
    finally:
        for word, value in zip(words, values, strict=True):
            word.value = value
        sys.unraisablehook = unraisable
        if collecting:
            gc.enable()


def _except_exits(report: Callable[[Any], None]) -> Callable[[Any], None]:
    def reported(found: Any) -> None:
        if found.exc_type is not GreenletExit:
            report(found)

    return reported


# -- finding out ---------------------------------------------------------------------------------

_handlers_at = 0
_finalizer_at = 0
_answer: bool | None = None


def _can_drop() -> bool:
    global _answer
    if _answer is None:
        try:
            _answer = _find_out()
        except Exception:  # noqa: BLE001  whatever it is, this interpreter is not as expected
            _answer = False
        if not _answer:
            logger.warning(
                "this interpreter cannot drop a waiting function without running its code; "
                "workflows that are plain functions and are put aside stay in memory until the "
                "process ends"
            )
    return _answer


def _find_out() -> bool:
    global _handlers_at, _finalizer_at
    if sys.implementation.name != "cpython" or sysconfig.get_config_var("Py_GIL_DISABLED"):
        return False
    seen: list[str] = []

    @contextlib.contextmanager
    def manager() -> Iterator[None]:
        try:
            yield
        finally:
            seen.append("manager")

    def waits() -> None:
        try:
            with manager():
                getcurrent().parent.switch()
        finally:
            seen.append("function")

    code = waits.__code__
    found = _places(code, id(code.co_exceptiontable))
    slots = _finalizer_slots()
    if len(found) != 1 or len(slots) != 1:
        return False
    [_handlers_at], [_finalizer_at] = found, slots
    put_aside, finishes = greenlet(waits), greenlet(waits)
    put_aside.switch()
    _unwind(put_aside)
    if not put_aside.dead or seen:
        return False
    finishes.switch()
    finishes.switch()
    return seen == ["manager", "function"]


def _finalizer_slots() -> list[int]:
    """Where types keep what finalizes their objects: a word that a class with ``__del__`` has and
    one without has not, and that is the same for generators of all kinds."""

    class Without:
        pass

    class With:
        def __del__(self) -> None: ...

    kind_of_types: Any = type
    size: int = kind_of_types.__basicsize__
    found = []
    for offset in range(0, size - size % _WORD, _WORD):
        values = {_word(kind, offset).value for kind in _FINALIZED_TYPES}
        has, lacks = _word(With, offset).value, _word(Without, offset).value
        if lacks is None and has is not None and len(values) == 1 and None not in values:
            found.append(offset)
    return found


def _places(item: object, value: int) -> list[int]:
    kind: Any = type(item)
    size: int = kind.__basicsize__
    offsets = range(0, size - size % _WORD, _WORD)
    return [offset for offset in offsets if _word(item, offset).value == value]


def _word(item: object, offset: int) -> ctypes.c_void_p:
    return ctypes.c_void_p.from_address(id(item) + offset)
