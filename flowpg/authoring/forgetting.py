"""Letting go of a parked coroutine without running any of its code.

A coroutine that is dropped while it waits is closed by the interpreter: GeneratorExit is raised
where it waits, and its ``finally`` and ``except`` blocks run. For a workflow that is only put
aside, to be replayed later, that would be wrong: its cleanup belongs to the end of the run.

The interpreter closes an object once in its life, in the object's finalizer, and keeps a mark on
the object that says that the finalizer has run. ``forget`` sets that mark on every coroutine and
generator that hangs in the run. They are then freed like any other object, frames and all, and no
code runs. Objects with a ``__del__`` of their own are finalized as ever, and so is a generator that
only some object's attribute holds.

CPython has a public question for that mark (``PyObject_GC_IsFinalized``) and no public way to set
it. So before the first use the place of the mark is read and compared with what that question
answers, for an object with and one without it. Where they do not agree, as on an interpreter this
code does not know, dropped coroutines are kept until the process ends: no code runs there either,
at the price of memory.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import sys
import sysconfig
import types
from collections import deque
from collections.abc import Iterable
from gc import get_referents
from typing import Any

from greenlet import greenlet

logger = logging.getLogger("flowpg.authoring")

_FINALIZED = 1
_WORD = ctypes.sizeof(ctypes.c_void_p)
_MAX_DEPTH = 12
_MAX_MEMBERS = 4096

_SUSPENDED = (types.CoroutineType, types.GeneratorType, types.AsyncGeneratorType)
_CONTAINERS = (list, tuple, dict, set, frozenset, deque)
# What stands between a coroutine and others: loops over them, open ``with`` blocks, awaiting.
_LINKS: tuple[type, ...] = (
    *(type(iter(it)) for it in ((), [], {}, {}.values(), {}.items(), set())),  # type: ignore[var-annotated]
    *(enumerate, filter, map, reversed, zip),
    types.MethodType,
    contextlib._GeneratorContextManagerBase,
    contextlib.ExitStack,
    contextlib.AsyncExitStack,
)
_LINK_NAMES = frozenset(
    {
        "async_generator_asend",
        "async_generator_athrow",
        "anext_awaitable",
        "coroutine_wrapper",
    }
)

_kept: list[Any] = []


def forget(coroutines: Iterable[Any]) -> list[Any]:
    """Arrange that the given suspended coroutines, and what hangs in their frames, are freed
    without any of their code running. The caller drops its references afterwards, and sees to the
    stacks of plain functions that are returned: what hangs in their frames is not known here."""
    found: list[Any] = []
    strands: list[Any] = []
    for item in _hanging_in(coroutines):
        (strands if isinstance(item, greenlet) else found).append(item)
    if _can_mark():
        for item in found:
            _mark(item)
    else:
        _kept.extend(found)
    return strands


def _hanging_in(coroutines: Iterable[Any]) -> Iterable[Any]:
    """The coroutines, and every suspended coroutine or generator that their frames hold: awaited,
    in a variable or a container, or inside an open ``with`` block."""
    seen: set[int] = set()
    waiting: list[tuple[Any, int]] = [(coroutine, 0) for coroutine in coroutines]
    while waiting:
        item, depth = waiting.pop()
        if id(item) in seen or depth > _MAX_DEPTH:
            continue
        if isinstance(item, _SUSPENDED):
            seen.add(id(item))
            yield item
            waiting.extend((found, 1) for found in get_referents(item))
        elif isinstance(item, greenlet):
            seen.add(id(item))
            yield item
        elif (
            isinstance(item, _LINKS)
            or type(item).__name__ in _LINK_NAMES
            or (isinstance(item, _CONTAINERS) and len(item) <= _MAX_MEMBERS)
        ):
            seen.add(id(item))
            waiting.extend((found, depth + 1) for found in get_referents(item))


def _word_of(item: Any) -> ctypes.c_size_t:
    """The word before an object in which the garbage collector keeps its marks."""
    return ctypes.c_size_t.from_address(id(item) - _WORD)


def _mark(item: Any) -> None:
    word = _word_of(item)
    word.value |= _FINALIZED


class _Probe:
    revived: _Probe | None = None

    def __del__(self) -> None:
        type(self).revived = self


def _find_out() -> bool:
    if sys.implementation.name != "cpython" or sysconfig.get_config_var("Py_GIL_DISABLED"):
        return False
    try:
        is_finalized = ctypes.pythonapi.PyObject_GC_IsFinalized
    except AttributeError:
        return False
    is_finalized.argtypes = [ctypes.py_object]
    is_finalized.restype = ctypes.c_int
    _Probe()
    marked, fresh = _Probe.revived, _Probe()
    agrees = all(
        (_word_of(item).value & _FINALIZED) == is_finalized(item) == expected
        for item, expected in ((marked, 1), (fresh, 0))
    )
    if agrees:
        _mark(fresh)
        agrees = bool(is_finalized(fresh))
    _Probe.revived = None
    return agrees


_answer: bool | None = None


def _can_mark() -> bool:
    global _answer
    if _answer is None:
        _answer = _find_out()
        if not _answer:
            logger.warning(
                "this interpreter cannot drop a waiting coroutine without running its code; "
                "workflows that are put aside stay in memory until the process ends"
            )
    return _answer
