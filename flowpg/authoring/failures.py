"""Exceptions as data: what a history keeps of one, and the exception that comes back from it.

An exception is stored as its class, message, notes, traceback text, cause and members, never
pickled. It comes back as its own class if that is imported in the reading process; its ``__init__``
is not run, so it does not matter what that wants. Otherwise it comes back as StepFailed.

The error text of an event begins as people read it, ``TypeName: message`` and its causes, and its
last line holds the whole record as JSON.
"""

from __future__ import annotations

import asyncio
import re
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flowpg.authoring import tags
from flowpg.authoring.errors import StepFailed
from flowpg.errors import (
    HeartbeatTimeout,
    HookTokenConflict,
    HookTokenNotFound,
    PayloadTooLarge,
    ScheduleToCloseTimeout,
    ScheduleToStartTimeout,
    SerializationError,
    StartToCloseTimeout,
    StepTimeout,
)
from flowpg.model import jsontext
from flowpg.model.errortext import RECORD, human_text

MAX_MESSAGE = 4_000
"""Longest message kept of one exception, in characters."""

MAX_TRACEBACK = 4_000
"""Longest traceback text kept of one exception; its end is what is kept."""

MAX_RECORD = 16_000
"""Longest record inside an error text; a longer one is kept without what is dispensable."""

_INITIALISED: tuple[Any, ...] = (
    UnicodeDecodeError,
    UnicodeEncodeError,
    ImportError,
    SyntaxError,
    StopIteration,
)
_TIMEOUTS: dict[str, type[StepTimeout]] = {
    kind.__name__: kind
    for kind in (
        StartToCloseTimeout,
        HeartbeatTimeout,
        ScheduleToStartTimeout,
        ScheduleToCloseTimeout,
    )
}
_SIZES = re.compile(r" (\d+) bytes, the limit is (\d+)")
_MAX_LINKS = 8
_MAX_MEMBERS = 16
_PACKAGE = str(Path(__file__).resolve().parents[1])
_ASYNCIO = str(Path(asyncio.__file__).parent)


@dataclass(slots=True)
class ErrorRecord:
    """One exception as data. ``key`` is ``module:qualified name``; ``args`` and ``state`` (its
    attributes) are tagged JSON values, None if they have no JSON form."""

    key: str
    message: str
    notes: list[str] = field(default_factory=list)
    traceback: str | None = None
    args: list[Any] | None = None
    state: dict[str, Any] | None = None
    cause: ErrorRecord | None = None
    context: ErrorRecord | None = None
    members: list[ErrorRecord] = field(default_factory=list)

    @property
    def type_name(self) -> str:
        """The name of the class, without its module."""
        return self.key.rpartition(":")[2].rpartition(".")[2]

    def wire(self) -> dict[str, Any]:
        """The JSON object; what is empty is left out."""
        shape: dict[str, Any] = {"type": self.key, "message": self.message}
        for name in ("notes", "traceback", "args", "state"):
            value = getattr(self, name)
            if value:
                shape[name] = value
        if self.cause is not None:
            shape["cause"] = self.cause.wire()
        if self.context is not None:
            shape["context"] = self.context.wire()
        if self.members:
            shape["members"] = [member.wire() for member in self.members]
        return shape

    @classmethod
    def read(cls, shape: Any) -> ErrorRecord:
        """The record of a JSON object. Unfit if it is none."""
        if not isinstance(shape, dict) or not isinstance(shape.get("type"), str):
            raise tags.Unfit("a stored exception is malformed")
        cause, context = shape.get("cause"), shape.get("context")
        return cls(
            key=shape["type"],
            message=str(shape.get("message", "")),
            notes=[str(note) for note in shape.get("notes", ())],
            traceback=shape.get("traceback"),
            args=shape.get("args"),
            state=shape.get("state"),
            cause=None if cause is None else cls.read(cause),
            context=None if context is None else cls.read(context),
            members=[cls.read(member) for member in shape.get("members", ())],
        )


@dataclass(frozen=True, slots=True)
class FailureOrigin:
    """Where an error that a step raised comes from. ``attempt`` is the last one, from 1;
    ``traceback`` is the text of the traceback in the process that ran the step."""

    step_id: str
    step_name: str
    attempt: int
    traceback: str | None = None


def failure_origin(error: BaseException) -> FailureOrigin | None:
    """Which step raised ``error``, or None for an error that came from no step."""
    origin = getattr(error, "__flowpg_origin__", None)
    return origin if isinstance(origin, FailureOrigin) else None


# -- exception to record ------------------------------------------------------------------------


def record_of(error: BaseException) -> ErrorRecord:
    """Everything of ``error`` that can be kept."""
    return _record(error, set(), _MAX_LINKS)


def _record(error: BaseException, seen: set[int], links: int) -> ErrorRecord:
    seen.add(id(error))
    kind = type(error)
    record = ErrorRecord(tags.class_key(kind), _message(error))
    record.notes = [_cut(_text(note), MAX_MESSAGE) for note in getattr(error, "__notes__", ())]
    record.traceback = _traceback(error)
    if isinstance(error, BaseExceptionGroup):
        record.message = _cut(_text(error.message), MAX_MESSAGE)
        record.members = [
            _record(member, seen, links - 1)
            for member in error.exceptions[:_MAX_MEMBERS]
            if links > 0 and id(member) not in seen
        ]
    elif isinstance(error, StepFailed) and failure_origin(error) is not None:
        # It stands for an error whose class is unknown here; elsewhere it may be known.
        record.key = f"?:{error.error_type}"
        record.message = error.error_message
    else:
        record.args = _encoded(list(_arguments(error)))
        secret = ("token",) if isinstance(error, (HookTokenConflict, HookTokenNotFound)) else ()
        state = {k: v for k, v in vars(error).items() if not k.startswith("__") and k not in secret}
        record.state = _encoded(state) if state else None
    for name in ("cause", "context"):
        linked = getattr(error, f"__{name}__")
        hidden = name == "context" and (error.__suppress_context__ or record.cause is not None)
        if linked is not None and not hidden and links > 0 and id(linked) not in seen:
            setattr(record, name, _record(linked, seen, links - 1))
    return record


def _arguments(error: BaseException) -> tuple[Any, ...]:
    if isinstance(error, OSError) and error.filename is not None:
        # It takes these out of ``args``, and needs them to be what it was.
        found = (error.errno, error.strerror, error.filename)
        return found if error.filename2 is None else (*found, None, error.filename2)
    return error.args


def _encoded(value: Any) -> Any:
    try:
        shape = tags.encode(value)
        if len(jsontext.encode(shape)) > MAX_MESSAGE:
            return None
    except (tags.Unfit, SerializationError, RecursionError):
        return None
    return shape if not tags.is_tagged(shape) else None


def _message(error: BaseException) -> str:
    return _cut(_text(error), MAX_MESSAGE)


def _text(value: object) -> str:
    try:
        text = str(value)
    except (Exception, SystemExit):  # noqa: BLE001  an exception's own __str__ may raise anything
        return "<its message cannot be printed>"
    text = text.replace("\x00", "\\x00")
    return text.encode("utf-8", "backslashreplace").decode()


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]}... ({len(text)} characters)"


def _traceback(error: BaseException) -> str | None:
    # Frames of this package and of asyncio say nothing about what went wrong.
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith((_PACKAGE, _ASYNCIO))
    ]
    text = "".join(traceback.format_list(frames))
    origin = failure_origin(error)
    if origin is not None and origin.traceback:
        text = f"{origin.traceback}{text}"
    text = text.replace("\x00", "\\x00").encode("utf-8", "backslashreplace").decode()
    return text[-MAX_TRACEBACK:] or None


# -- record to exception ------------------------------------------------------------------------


def rebuild(record: ErrorRecord, origin: FailureOrigin | None = None) -> Exception:
    """The exception that ``record`` describes, with its causes and members."""
    error = _rebuild_one(record)
    for note in record.notes:
        error.add_note(note)
    if record.cause is not None:
        error.__cause__ = rebuild(record.cause)
    elif record.context is not None:
        error.__context__ = rebuild(record.context)
    if origin is None:
        origin = FailureOrigin("", "", 0, record.traceback)
    error.__flowpg_origin__ = origin  # type: ignore[attr-defined]
    return error


def _rebuild_one(record: ErrorRecord) -> Exception:
    cls = tags.imported(record.key)
    if record.members:
        members = [rebuild(member) for member in record.members]
        group = cls if cls is not None and issubclass(cls, ExceptionGroup) else ExceptionGroup
        return group.__new__(group, record.message, members)
    if cls is not None and issubclass(cls, Exception):
        try:
            error = _bare(cls, record)
            if _message(error) == record.message:
                return error
        except Exception:  # noqa: BLE001  a class may make itself in any way it likes
            pass
    return StepFailed(record.type_name, record.message)


def _bare(cls: type[Exception], record: ErrorRecord) -> Exception:
    args = tuple(tags.decode(record.args)) if record.args is not None else (record.message,)
    error = cls.__new__(cls, *args)
    error.args = args
    for builtin in _INITIALISED:
        if isinstance(error, builtin):
            # These keep their parts outside ``args``; this is not the constructor of a subclass.
            builtin.__init__(error, *args)
    if record.state:
        vars(error).update(tags.decode(record.state))
    return error


# -- error texts of events ----------------------------------------------------------------------


def failure_body(error: BaseException) -> str:
    """What follows ``TypeName: `` in the error text of ``error``."""
    lines = [_message(error)]
    _describe_links(error, lines, {id(error)})
    lines.append(RECORD + _fitting(record_of(error)))
    return "\n".join(lines)


def failure_text(error: BaseException) -> str:
    """The whole error text of ``error``."""
    return f"{type(error).__name__}: {failure_body(error)}"


def shown_failure(error: BaseException) -> str:
    """``error`` as a log shows it: where in the user's code it was raised, and what it says."""
    return f"{place_of_failure(error)}{human_text(failure_text(error))}"


def place_of_failure(error: BaseException) -> str:
    """The lines of the user's code through which ``error`` came, without what it says."""
    return _traceback(error) or ""


def read_failure(text: str, origin: FailureOrigin | None = None) -> Exception:
    """The exception that an error text describes. A text without a record, such as one that the
    engine wrote, becomes a StepFailed, or the StepTimeout that it names."""
    last = text.rpartition("\n")[2]
    if last.startswith(RECORD):
        try:
            record = ErrorRecord.read(jsontext.decode(last[len(RECORD) :]))
        except (SerializationError, tags.Unfit, TypeError):
            pass
        else:
            if origin is not None:
                origin = FailureOrigin(
                    origin.step_id, origin.step_name, origin.attempt, record.traceback
                )
            return rebuild(record, origin)
    name, separator, message = human_text(text).partition(": ")
    if not separator or not name.isidentifier():
        name, message = "Error", text
    known = _TIMEOUTS.get(name)
    error: Exception = StepFailed(name, message) if known is None else known(message)
    if name == PayloadTooLarge.__name__:
        # The engine says so, in words alone.
        error = rebuild(ErrorRecord(tags.class_key(PayloadTooLarge), message))
        said = _SIZES.search(message)
        if said is not None:
            vars(error).update(size=int(said[1]), limit=int(said[2]))
    error.__flowpg_origin__ = origin or FailureOrigin("", "", 0)  # type: ignore[attr-defined]
    return error


def raisable(error: BaseException) -> BaseException:
    """``error`` for a future: one cannot hold a StopIteration, which would end the coroutine that
    awaits it."""
    if isinstance(error, StopIteration):
        replaced = RuntimeError("a step raised StopIteration")
        replaced.__cause__ = error
        return replaced
    return error


def _describe_links(error: BaseException, lines: list[str], seen: set[int]) -> None:
    lines += [f"  note: {_cut(_text(note), 500)}" for note in getattr(error, "__notes__", ())]
    if isinstance(error, BaseExceptionGroup):
        lines += [f"  with {_line(member)}" for member in error.exceptions[:_MAX_MEMBERS]]
    cause = error.__cause__
    if cause is None and not error.__suppress_context__:
        cause = error.__context__
    if cause is not None and id(cause) not in seen and len(seen) < _MAX_LINKS:
        seen.add(id(cause))
        lines.append(f"  caused by {_line(cause)}")
        _describe_links(cause, lines, seen)


def _line(error: BaseException) -> str:
    message = _cut(_text(error), 500)
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def _fitting(record: ErrorRecord) -> str:
    text = jsontext.encode(record.wire())
    for names in (("traceback",), ("state", "args"), ("cause", "context", "notes")):
        if len(text) <= MAX_RECORD:
            break
        _strip(record, names)
        text = jsontext.encode(record.wire())
    if len(text) > MAX_RECORD:
        text = jsontext.encode({"type": record.key, "message": record.message[:1000]})
    return text


def _strip(record: ErrorRecord, names: tuple[str, ...]) -> None:
    for linked in (record.cause, record.context, *record.members):
        if linked is not None:
            _strip(linked, names)
    for name in names:
        setattr(record, name, [] if name == "notes" else None)


tags.register(
    "exception",
    BaseException,
    lambda value, known: record_of(value).wire(),
    lambda value, known: rebuild(ErrorRecord.read(value)),
)
