"""What workflow code asks for instead of what a replay cannot repeat: time, ids, chance, and more.

Each raises OutsideWorkflow where no workflow is running.
"""

from __future__ import annotations

import logging
import random as _random
from asyncio import events
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar, overload
from uuid import UUID

from flowpg.authoring.errors import OutsideWorkflow
from flowpg.authoring.hooks import Hook
from flowpg.authoring.loop import RunLoop
from flowpg.authoring.operations import ProgressOperation, operation_id
from flowpg.authoring.sites import calling_site
from flowpg.authoring.turns import RunTurns
from flowpg.errors import InvalidArgument
from flowpg.model.arguments import check_storable
from flowpg.model.commands import OnConflict
from flowpg.model.events import RUN_PROGRESS_RECORDED, NewEvent
from flowpg.model.operations import WorkflowProgress

T = TypeVar("T")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class RunInfo:
    """The run whose workflow is running. ``replaying``: what it does now was done before."""

    run_id: str
    workflow_name: str
    version: str
    runtime_build: str | None
    started_at: datetime
    cancellation_requested: bool
    cancellation_reason: str | None
    replaying: bool


def info() -> RunInfo:
    """What there is to know about the run."""
    run = _run("info()", "it describes the run of a workflow")
    return RunInfo(
        run.run_id,
        run.spec.name,
        run.spec.version,
        run.spec.runtime_build,
        run.started_at,
        run.cancelling,
        run.cancellation_reason,
        run.loop.replaying,
    )


def now() -> datetime:
    """The time in UTC, the same in every replay.

    It is the time of the newest thing the workflow knows of: that its run was created, that the
    attempt of a step began whose outcome it got, that a timer was due, that an answer came. It
    never goes back. For the time to the second, ask in a step.
    """
    return _run("now()", "use datetime.now(UTC) there").moment.astimezone(UTC)


def time_ns() -> int:
    """``now()`` in nanoseconds since 1970."""
    return (_run("time_ns()", "use time.time_ns() there").moment - _EPOCH) // _MICROSECOND * 1000


def random() -> _random.Random:
    """Random numbers, the same in every replay; each task has its own. They can be guessed from
    the run id: make secrets in a step."""
    return _run("random()", "use the module random there").loop.random()


def uuid4() -> UUID:
    """A random UUID, the same in every replay. It can be guessed from the run id."""
    run = _run("uuid4()", "use uuid.uuid4() there")
    return UUID(int=run.loop.random().getrandbits(128), version=4)


def uuid7() -> UUID:
    """A UUID that sorts by ``now()``, the same in every replay."""
    run = _run("uuid7()", "use uuid.uuid7() of Python 3.14 or a library there")
    millis = (run.moment - _EPOCH) // timedelta(milliseconds=1)
    chance = run.loop.random()
    value = (millis & ((1 << 48) - 1)) << 80 | 0x7 << 76
    value |= chance.getrandbits(12) << 64 | 0b10 << 62 | chance.getrandbits(62)
    return UUID(int=value)


async def wait_until(moment: datetime) -> None:
    """Wait until ``moment``, by the database's clock. It needs a time zone."""
    run = _run("wait_until()", "use asyncio.sleep there")
    if moment.tzinfo is None:
        raise InvalidArgument("wait_until() needs a time with a time zone, such as UTC")
    await run.wait_until(moment)


def progress(
    completed: int, total: int | None = None, message: str | None = None, details: Any = None
) -> None:
    """Report how far the workflow is: ``completed`` of ``total`` units, and any JSON ``details``.

    It is recorded with what the workflow does next. Anyone who may read the run can read it.
    InvalidArgument for numbers that are none, or do not go together; PayloadTooLarge or
    SerializationError for details that cannot be stored.
    """
    run = _run("progress()", "a client reports with record_progress")
    for name, given, kind in (
        ("completed", completed, int),
        ("total", total, int | None),
        ("message", message, str | None),
    ):
        if isinstance(given, bool) or not isinstance(given, kind):
            raise InvalidArgument(
                f"progress() takes whole numbers, and a text as message=; {name} is "
                f"{type(given).__name__}"
            )
    report = WorkflowProgress(
        progress_id=operation_id("progress", run.loop.next_position()),
        completed=completed,
        total=total,
        message=message,
        details=details,
    )
    report.check()
    check_storable(run.run_id, NewEvent(RUN_PROGRESS_RECORDED, {"progress": report.wire()}))
    run.ledger.add(ProgressOperation(report.progress_id, calling_site(), report))


def patched(patch_id: str) -> bool:
    """Whether the run takes the code behind a patch: ``if patched("pay-later"): ... else: ...``.

    True in a run that comes here for the first time with this code, and in every replay of that
    run: the history is marked. False in a run that has passed this place with the code from before,
    which keeps the old branch until it ends. The answer is the same everywhere in a run. When no
    run without the mark is open any more, remove the old branch and the call: histories with the
    mark do not miss it.
    """
    return _run("patched()", "a patch is a question about a run's history").patched(patch_id)


def set_attributes(attributes: Mapping[str, Any] | None = None, /, **named: Any) -> None:
    """Set attributes of the run: ``set_attributes(customer="acme", total=100)``.

    Texts, numbers, true and false; None takes one away, what is not named stays. They are recorded
    with what the workflow does next, and anyone who may list runs can read them. InvalidArgument
    for anything else.
    """
    run = _run("set_attributes()", "attributes belong to a run")
    run.set_attributes({**(attributes or {}), **named})


@overload
def hook(
    name: str,
    kind: type[T],
    *,
    token: str | None = None,
    expires: timedelta | None = None,
    metadata: Any = None,
    on_conflict: OnConflict = "raise",
) -> Hook[T]: ...
@overload
def hook(
    name: str,
    kind: Any = Any,
    *,
    token: str | None = None,
    expires: timedelta | None = None,
    metadata: Any = None,
    on_conflict: OnConflict = "raise",
) -> Hook[Any]: ...
def hook(
    name: str,
    kind: Any = Any,
    *,
    token: str | None = None,
    expires: timedelta | None = None,
    metadata: Any = None,
    on_conflict: OnConflict = "raise",
) -> Hook[Any]:
    """Something to be answered from outside: ``decision = await hook("approval", Approval)``.

    The answer is read as ``kind``; whoever sends one that cannot be is told so. ``token`` is the
    secret it is answered under, made up at random if none is given; the run and the name will do as
    well for callers who may know them. Nobody can answer after ``expires``. ``metadata`` (a
    HookMetadata or any JSON) tells operators what is asked; it must not hold the token. Where it
    cannot be stored, opening the hook raises PayloadTooLarge or SerializationError.

    A token that another hook, of this or any other run, holds at that time raises
    HookTokenConflict, which names that hook and its run. With ``on_conflict="wait"`` the run is
    blocked until the token is free, and then goes on by itself.
    """
    run = _run("hook()", "a test answers it through the engine")
    return Hook(run, name, kind, token, expires, metadata, on_conflict)


class WorkflowLogger(logging.LoggerAdapter[logging.Logger]):
    """Says nothing while a workflow is replayed, and adds the run id to what it says."""

    def isEnabledFor(self, level: int) -> bool:  # noqa: N802  the name of the standard library
        """Whether a record of this level would be written now."""
        loop = events._get_running_loop()
        if isinstance(loop, RunLoop) and loop.replaying:
            return False
        return super().isEnabledFor(level)

    def process(
        self, msg: Any, kwargs: MutableMapping[str, Any]
    ) -> tuple[Any, MutableMapping[str, Any]]:
        """Add ``run_id`` to the record."""
        loop = events._get_running_loop()
        if isinstance(loop, RunLoop):
            kwargs["extra"] = {**(kwargs.get("extra") or {}), "run_id": loop.run_id}
        return msg, kwargs


logger = WorkflowLogger(logging.getLogger("flowpg.workflow"))
"""For workflow code: every line once, however often it is replayed. A plain logger elsewhere."""


def _run(call: str, instead: str) -> RunTurns:
    loop = events._get_running_loop()
    if not isinstance(loop, RunLoop):
        raise OutsideWorkflow(call, instead)
    run: RunTurns = loop.run
    return run
