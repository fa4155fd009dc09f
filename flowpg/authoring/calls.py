"""The durable calls that the code of a run can make, and where each is kept.

What a call needs to know of the history is there when it is made: the snapshot of all of it, and
how far workflow code has got in it.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, cast

from flowpg.authoring.claims import Claims
from flowpg.authoring.ledger import Ledger
from flowpg.authoring.loop import RunLoop, RunTimer
from flowpg.authoring.operations import (
    AttributesOperation,
    HookOperation,
    Operation,
    PatchOperation,
    StepOperation,
    TimerOperation,
    operation_id,
)
from flowpg.authoring.sites import Site, calling_site
from flowpg.authoring.tasks import RunFuture
from flowpg.errors import InvalidArgument
from flowpg.model.arguments import check_storable
from flowpg.model.attributes import check_attributes, merged
from flowpg.model.codecs import STEP_INPUT, CodecChain
from flowpg.model.commands import OnConflict
from flowpg.model.events import RUN_ATTRIBUTES_SET, NewEvent, hook_created
from flowpg.model.ids import check_id
from flowpg.model.jsontext import copied, equal
from flowpg.replay.runtime import WorkflowInvocation

if TYPE_CHECKING:
    from flowpg.authoring.steps import StepBase


class RunCalls:
    """What workflow code asks of its run."""

    def __init__(self, invocation: WorkflowInvocation, codecs: CodecChain) -> None:
        self.codecs = codecs
        self.run_id = invocation.run_id
        self.spec = invocation.spec
        self.snapshot = invocation.snapshot
        # Abstract only to type checkers: it refuses what it does not have.
        self.loop: RunLoop = cast("Any", RunLoop)(self.run_id, self)
        self.ledger = Ledger(self.run_id, codecs)
        self.claims = Claims(self.ledger)
        self.consumed = 0
        """The sequence up to which workflow code has seen the history."""
        self.decided = 0
        """The sequence of the newest event, as far as it is known, that only a decision writes."""
        self.attributes: dict[str, Any] = {}
        self._patches: dict[str, bool] = {}
        self._hook_names: set[str] = set()
        self._own_ids: set[str] = set()

    def call_step(
        self,
        step: StepBase,
        input: dict[str, Any],
        position: str,
        site: Site,
    ) -> RunFuture:
        """A call of a step becomes part of the run; returns what waits for it. InvalidArgument if
        its own id was used."""
        if step.call_id is not None:
            if step.call_id in self._own_ids:
                raise InvalidArgument(f"the run has called a step under id {step.call_id!r} before")
            self._own_ids.add(step.call_id)
        step_id = step.call_id or operation_id(step.name, position)
        stored = input
        if self.codecs.codecs:
            stored = self.codecs.seal(input, self.run_id, STEP_INPUT, step_id)
        future = self.loop.create_future()
        operation = StepOperation(step_id, step, site, stored, input, future)
        future.operation = operation
        self.ledger.add(operation)
        return future

    def open_hook(
        self,
        name: str,
        token: str | None,
        metadata: Any,
        expires: timedelta | None,
        decode: Callable[[Any], Any],
        payload_schema: dict[str, Any] | None = None,
        on_conflict: OnConflict = "wait",
        *,
        claims: bool = False,
    ) -> HookOperation:
        """A hook becomes part of the run. Its id is its name, or, for a name that the run has used
        before, name and position. ``claims`` says that its code is to go on when the history knows
        whether the token is its own, which matters only where the hook gives way if it is not.
        PayloadTooLarge or SerializationError for its metadata."""
        hook_id = name
        if name in self._hook_names:
            hook_id = operation_id(name, self.loop.next_position())
        recorded = self.snapshot.hooks.get(hook_id)
        if token is not None:
            wanted = token
        elif recorded is not None and recorded.token:
            # Made up at random when it was opened: the history knows it.
            wanted = recorded.token
        else:
            wanted = secrets.token_urlsafe(32)
        if token is None:
            on_conflict = "wait"  # chance lets no two be the same
        if metadata is not None:
            event = hook_created(
                hook_id, wanted, metadata, expires_in=expires, on_conflict=on_conflict
            )
            check_storable(self.run_id, event)
        self._hook_names.add(name)
        # As it was when the hook was recorded: runs of the time before there were conflicts went on
        # at once.
        gives_way = on_conflict if recorded is None else recorded.on_conflict
        claimed = self.loop.create_future() if claims and gives_way == "raise" else None
        hook = HookOperation(
            hook_id,
            name,
            calling_site(),
            wanted,
            metadata,
            expires,
            decode,
            self.loop.create_future(),
            payload_schema,
            on_conflict,
            claimed,
        )
        self.ledger.add(hook)
        if claimed is not None:
            self.claims.wait_for(hook)
        hook.future.operation = hook
        return hook

    def start_timer(self, delay: timedelta, handle: RunTimer) -> None:
        """See ``Keeper``."""
        handle.operation = TimerOperation(
            operation_id("sleep", self.loop.next_position()),
            "sleep",
            calling_site(),
            lambda: self.loop.wake(handle),
            # What sleeps, so that it can be told when a cancellation request closes the timer.
            next((arg for arg in handle._args or () if isinstance(arg, RunFuture)), None),
            delay=delay,
        )
        self.ledger.add(handle.operation)

    def stop_timer(self, handle: RunTimer) -> None:
        """See ``Keeper``."""
        handle.operation.stopped = True
        self.ledger.give_up(handle.operation)
        handle.operation = None

    def give_up(self, operation: Operation) -> None:
        """Nobody waits for a durable call any more."""
        self.ledger.give_up(operation)

    def wait_until(self, until: datetime) -> Any:
        """A future that is done when ``until`` has passed."""
        future = self.loop.create_future()
        timer = TimerOperation(
            operation_id("until", self.loop.next_position()),
            "until",
            calling_site(),
            lambda: _fired(future),
            future,
            until=until,
        )
        self.ledger.add(timer)
        future.operation = timer
        return future

    def durable_call(self, function: Any, args: Any, kwargs: Any) -> Any:
        """See ``Keeper``."""
        call = getattr(function, "durable_call", None)
        return None if call is None else call(self, args, kwargs, calling_site())

    def patched(self, patch_id: str) -> bool:
        """Whether the code behind a patch is to be taken; see ``flowpg.authoring.patched``."""
        known = self._patches.get(check_id(patch_id, "patch id", 255))
        if known is not None:
            return known
        taken = patch_id in self.snapshot.patches
        if not taken and self.decided <= self.consumed:
            # Nothing was decided after this place, so nothing can contradict the new code.
            taken = True
            self.ledger.add(PatchOperation(patch_id, calling_site()))
        self._patches[patch_id] = taken
        return taken

    def set_attributes(self, changes: dict[str, Any]) -> None:
        """Set attributes of the run; see ``flowpg.authoring.set_attributes``."""
        check_attributes(changes)
        check_storable(self.run_id, NewEvent(RUN_ATTRIBUTES_SET, {"attributes": changes}))
        after = merged(self.attributes, changes)
        if equal(after, self.attributes):
            return
        self.attributes = after
        self.ledger.add(AttributesOperation(calling_site(), copied(changes)))


def _fired(future: RunFuture) -> None:
    future.operation = None
    future.set_result(None)
