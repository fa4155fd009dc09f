"""Steps whose work and whose completion commit in one transaction of the database.

The code of the step works in an open transaction; what it returns is recorded in it with
``flow_complete_step``, which checks fence and attempt, and then all of it commits or nothing does.
An answer to the commit that was lost is asked for again: the stream tells, under the lock that the
transaction in doubt holds until its end. So a step that has committed is never run again.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from flowpg.errors import (
    InvalidTransition,
    LeaseLost,
    NonRetryable,
    PayloadTooLarge,
    StoreError,
    StoreUnavailable,
)
from flowpg.model import events, jsontext
from flowpg.model.sizes import limits
from flowpg.postgres.enlist import run_enlisted, run_enlisted_sync
from flowpg.postgres.errors import fault_of, is_driver_error, translate
from flowpg.postgres.step_sessions import Kind, Opened, StepSessions, check_kind, is_lost
from flowpg.postgres.step_verbs import StepCompletion, complete_step, step_completed
from flowpg.replay.definitions import oversize
from flowpg.replay.outcomes import Success
from flowpg.replay.runtime import AttemptOver, StepInvocation

logger = logging.getLogger("flowpg.engine.steps")

_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 2.0


@dataclass(slots=True)
class Committed:
    """A step that has committed: ``run_step`` returns it as it came. ``sequence`` and
    ``recorded_at`` are those of its ``step_completed``."""

    step_id: str
    attempt: int
    output: Success = field(repr=False)
    sequence: int
    recorded_at: datetime


class _InDoubt(Exception):
    """Whether the transaction was committed is unknown."""


class _Again(Exception):
    """Nothing was committed, for a reason that has nothing to do with the code of the step."""

    def __init__(self, cause: StoreUnavailable) -> None:
        super().__init__(str(cause))
        self.cause = cause


class StepTransactions:
    """The transactional steps of one engine. ``patience`` is for how many seconds a step is begun
    again while the database is unavailable: by then the lease may be another's."""

    def __init__(self, sessions: StepSessions, schema: str, patience: float) -> None:
        self._sessions = sessions
        self._schema = schema
        self._patience = patience

    async def close(self) -> None:
        """Close the connections."""
        await self._sessions.close()

    async def run(
        self,
        step: StepInvocation,
        epoch: int,
        function: Callable[[Any], Any],
        kind: Kind,
        finishing: Callable[[], bool],
    ) -> Committed:
        """Await ``function(connection)`` and commit what it returns with what it wrote.

        ``finishing`` is asked right before, and may still refuse. Raises what the function raises,
        after a rollback; AttemptOver; SerializationError or PayloadTooLarge for a value that cannot
        be stored; NonRetryable if the function has ended the transaction itself.
        """
        check_kind(kind)
        patience = _Patience(step, self._patience)
        while True:
            try:
                return await self._attempt(step, epoch, function, kind, finishing)
            except _Again as error:
                await asyncio.sleep(patience.pause(error.cause))
            except _InDoubt:
                done = await self._find_out(step, patience)
                if done is not None:
                    return done

    async def _attempt(
        self,
        step: StepInvocation,
        epoch: int,
        function: Callable[[Any], Any],
        kind: Kind,
        finishing: Callable[[], bool],
    ) -> Committed:
        work: _Work | None = None
        try:
            async with self._sessions.open(kind) as opened:
                work = _Work(step, epoch, opened)
                output = function(opened.given)
                if inspect.isawaitable(output):
                    output = await output
                if not finishing():
                    raise AttemptOver
                # Not to be cut off between the two: what has begun to commit is waited for.
                return await _to_its_end(self._finish(work, output))
        except Exception as error:
            found = _meaning(error, work, self._schema)
            if found is error:
                raise
            raise found from None

    async def _finish(self, work: _Work, output: Any) -> Committed:
        work.stage = "recording"
        success, call = work.completion(output)
        await work.opened.flush()
        try:
            await work.opened.lift()
        except Exception as error:  # noqa: BLE001  those of any driver
            raise _unlifted(error, work, self._schema) from None
        done = await run_enlisted(work.opened.connection, call, self._schema)
        work.accepted(done)
        work.stage = "committing"
        await work.opened.commit()
        return work.committed(success, done)

    async def _find_out(self, step: StepInvocation, patience: _Patience) -> Committed | None:
        call = step_completed(step.run_id, step.step_id)
        while True:
            try:
                async with self._sessions.open("psycopg") as opened:
                    found = await run_enlisted(opened.connection, call, self._schema)
                return _found(step, found)
            except StoreUnavailable as error:
                await asyncio.sleep(patience.pause(error))

    def run_sync(
        self,
        step: StepInvocation,
        epoch: int,
        function: Callable[[Any], Any],
        kind: Kind,
        finishing: Callable[[], bool],
    ) -> Committed:
        """As ``run``, for a plain function, in the thread that runs it."""
        check_kind(kind)
        patience = _Patience(step, self._patience)
        while True:
            try:
                return self._attempt_sync(step, epoch, function, kind, finishing)
            except _Again as error:
                time.sleep(patience.pause(error.cause))
            except _InDoubt:
                done = self._find_out_sync(step, patience)
                if done is not None:
                    return done

    def _attempt_sync(
        self,
        step: StepInvocation,
        epoch: int,
        function: Callable[[Any], Any],
        kind: Kind,
        finishing: Callable[[], bool],
    ) -> Committed:
        work: _Work | None = None
        try:
            with self._sessions.open_sync(kind) as opened:
                work = _Work(step, epoch, opened)
                output = function(opened.given)
                if not finishing():
                    raise AttemptOver
                work.stage = "recording"
                success, call = work.completion(output)
                opened.flush()
                try:
                    opened.lift()
                except Exception as error:  # noqa: BLE001
                    raise _unlifted(error, work, self._schema) from None
                done = run_enlisted_sync(opened.connection, call, self._schema)
                work.accepted(done)
                work.stage = "committing"
                opened.commit()
                return work.committed(success, done)
        except Exception as error:
            found = _meaning(error, work, self._schema)
            if found is error:
                raise
            raise found from None

    def _find_out_sync(self, step: StepInvocation, patience: _Patience) -> Committed | None:
        call = step_completed(step.run_id, step.step_id)
        while True:
            try:
                with self._sessions.open_sync("psycopg") as opened:
                    found = run_enlisted_sync(opened.connection, call, self._schema)
                return _found(step, found)
            except StoreUnavailable as error:
                time.sleep(patience.pause(error))


class _Work:
    """One try: how far it is, and what that makes of an error."""

    __slots__ = ("epoch", "opened", "stage", "step")

    def __init__(self, step: StepInvocation, epoch: int, opened: Opened) -> None:
        self.step = step
        self.epoch = epoch
        self.opened = opened
        self.stage = "working"

    def completion(self, output: Any) -> tuple[Success, Any]:
        """What is stored of the output, and the call that stores it."""
        step = self.step
        what = f"the output of step {step.step_id!r} ({type(output).__name__})"
        success = Success.of(output, what)
        payload = f'{{"step_id":{jsontext.encode(step.step_id)},"output":{success.text}}}'
        event = events.NewEvent(events.STEP_COMPLETED, {}, text=payload)
        if size := oversize(event, step.run_id, step.step_id):
            raise PayloadTooLarge(step.run_id, event.type, size, limits.most, step.step_id)
        about = step.run_id, self.epoch, step.step_id, step.attempt
        call = complete_step(*about, payload, step.task_id)
        return success, call

    def accepted(self, done: StepCompletion) -> None:
        """Raise unless the completion was taken."""
        if done.outcome == "lease_lost":
            raise AttemptOver(LeaseLost(self.step.run_id, self.epoch))
        if done.outcome in ("superseded", "run_terminal", "run_not_found"):
            raise AttemptOver
        if done.outcome == "transaction_ended":
            raise NonRetryable(
                "the step has ended its transaction itself, so that it could not be committed "
                "together with the step's completion; leave commit and rollback to flowpg"
            )
        if done.outcome != "appended":
            raise NonRetryable(f"its completion was refused: {done.reason or done.outcome}")

    def committed(self, success: Success, done: StepCompletion) -> Committed:
        """The result."""
        step = self.step
        return Committed(step.step_id, step.attempt, success, done.sequence, done.recorded_at)


_OUT_OF_TIME = {
    code: f"the server ended the transaction of the step by {setting} (SQLSTATE {code}): its work "
    "took, or stood still, longer than that; nothing of it was stored"
    for code, setting in (
        ("25P03", "idle_in_transaction_session_timeout"),
        ("25P04", "transaction_timeout"),
    )
}
"""What looks like a lost connection and is a limit: the failure of the step, or it would be begun
again for as long as the limit stands."""


def _meaning(error: Exception, work: _Work | None, schema: str) -> Exception:
    """What an error of one try means for the step."""
    if work is None:  # there was no transaction yet
        return _Again(error) if isinstance(error, StoreUnavailable) else error
    if is_driver_error(error) and fault_of(error).sqlstate in _OUT_OF_TIME:
        return StoreError(_OUT_OF_TIME[fault_of(error).sqlstate])
    if work.stage == "working":
        if is_lost(work.opened.connection, error):
            return _Again(_translated(error, "a transactional step", schema))
        return error
    if work.stage == "recording":
        if isinstance(error, StoreUnavailable):
            return _Again(error)
        if isinstance(error, InvalidTransition):
            return NonRetryable(f"its completion was refused: {error}")
        if is_driver_error(error) and is_lost(work.opened.connection, error):
            return _Again(_translated(error, "a transactional step", schema))
        return error
    # An answer is a verdict, such as that of a deferred constraint; silence leaves it open.
    if is_driver_error(error) and (
        not fault_of(error).sqlstate or is_lost(work.opened.connection, error)
    ):
        return _InDoubt()
    return error


def _unlifted(error: Exception, work: _Work, schema: str) -> Exception:
    if not is_driver_error(error) or is_lost(work.opened.connection, error):
        return error
    found = translate(error, "the completion of a transactional step", schema=schema, enlisted=True)
    # Of a database that goes on: a limit of the step that is too short even for lifting it.
    return StoreError(str(found)) if isinstance(found, StoreUnavailable) else found


def _translated(error: Exception, what: str, schema: str) -> StoreUnavailable:
    found = translate(error, what, schema=schema, enlisted=True)
    return found if isinstance(found, StoreUnavailable) else StoreUnavailable(str(found))


def _found(step: StepInvocation, found: StepCompletion | None) -> Committed | None:
    if found is None:
        return None
    # What it returned stands in the history, which is read again.
    unknown = Success(None)
    return Committed(step.step_id, step.attempt, unknown, -1, found.recorded_at)


class _Patience:
    """How long to go on without the database: growing pauses, and then AttemptOver."""

    def __init__(self, step: StepInvocation, seconds: float) -> None:
        self._step = step
        self._seconds = seconds
        self._since = self._last = 0.0
        self._next = _FIRST_PAUSE

    def pause(self, error: StoreUnavailable) -> float:
        """Seconds to wait after ``error``."""
        now = time.monotonic()
        if not self._last or now - self._last > 5 * _LONGEST_PAUSE:  # it was back in between
            self._since, self._next = now, _FIRST_PAUSE
        self._last = now
        if now - self._since >= self._seconds or self._step.cancelled:
            raise AttemptOver(error)
        logger.warning(
            "the transaction of step %r of run %r was lost and begins again: %s",
            self._step.step_id,
            self._step.run_id,
            error,
        )
        pause, self._next = self._next, min(_LONGEST_PAUSE, 2 * self._next)
        return pause * random.uniform(0.5, 1.0)


async def _to_its_end(work: Any) -> Committed:
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        if not task.cancelled():
            task.exception()
        raise cancelled
    found: Committed = task.result()
    return found
