"""Durable calls of workflow code: steps, timers, hooks, and notes such as progress reports.

Each is a command until the history holds the event that records it, and open until the history
holds its outcome. Its id says where it was made: name, task, and number of the call in that task.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime, timedelta
from hashlib import sha256
from typing import TYPE_CHECKING, Any, ClassVar

from flowpg.authoring.sites import Site
from flowpg.model import jsontext
from flowpg.model.commands import (
    CancelStep,
    CancelWait,
    CreateHook,
    DisposeHook,
    OnConflict,
    RecordPatch,
    RecordProgress,
    RuntimeCommand,
    ScheduleStep,
    SetAttributes,
    StepCommand,
    WaitUntil,
)
from flowpg.model.events import (
    HOOK_CONFLICTED,
    HOOK_CREATED,
    PATCH_RECORDED,
    RUN_ATTRIBUTES_SET,
    RUN_PROGRESS_RECORDED,
    STEP_CREATED,
    WAIT_CREATED,
)
from flowpg.model.ids import MAX_ID_LENGTH
from flowpg.model.operations import WorkflowProgress
from flowpg.model.records import AnyEvent
from flowpg.model.retry import RetryPolicy
from flowpg.model.sizes import is_omitted
from flowpg.model.timeouts import StepTimeouts

if TYPE_CHECKING:
    from flowpg.authoring.steps import StepBase


def operation_id(name: str, position: str) -> str:
    """The id of the call of ``name`` at ``position``, such as ``charge#3`` or ``charge#2.1/1``."""
    found = f"{name}#{position}"
    if len(found) <= MAX_ID_LENGTH:
        return found
    # A task nested a hundred levels deep: its position still tells it from all others.
    digest = sha256(found.encode()).hexdigest()
    return f"{name[: MAX_ID_LENGTH - 70]}#~{digest}"


class Operation:
    """One durable call; ``recorded`` once the history holds it. ``future`` is what waits for it."""

    kind: ClassVar[str] = ""
    event_type: ClassVar[str] = ""

    __slots__ = ("future", "id", "name", "recorded", "site")

    def __init__(
        self, id: str, name: str, site: Site, future: asyncio.Future[Any] | None = None
    ) -> None:
        self.id = id
        self.name = name
        self.site = site
        self.future: Any = future
        self.recorded = False

    @property
    def dropped(self) -> bool:
        """Whether nobody waits for the outcome any more. A call that is dropped before it is
        recorded never will be."""
        return self.future is not None and self.future.cancelled()

    def command(self) -> RuntimeCommand:
        """The command that has this call recorded."""
        raise NotImplementedError

    def closing(self) -> RuntimeCommand:
        """The command that closes this call, for nobody waits for its outcome any more."""
        raise NotImplementedError

    def cancel(self, reason: str | None) -> None:
        """Cancel whoever waits for it."""
        if self.future is not None and not self.future.done():
            self.future.cancel(reason)

    def records(self, event: AnyEvent) -> bool:
        """Whether an event is of the type that records such a call."""
        return event.type == self.event_type

    def difference(self, data: dict[str, Any]) -> str | None:
        """How the recorded definition differs from this one, in words without any value."""
        return None

    def __str__(self) -> str:
        return f"{self.kind} {self.id!r}"


class StepOperation(Operation):
    """A call of ``step``."""

    kind = "step"
    event_type = STEP_CREATED

    __slots__ = ("input", "plain", "retry", "step", "timeouts")

    def __init__(
        self,
        id: str,
        step: StepBase,
        site: Site,
        input: dict[str, Any],
        plain: dict[str, Any],
        future: asyncio.Future[Any],
    ) -> None:
        """``input`` as it is stored; ``plain`` is what it is."""
        self.id = id
        self.name = step.name
        self.site = site
        self.future = future
        self.recorded = False
        self.input = input
        self.plain = plain
        self.step = step
        self.retry = step.retry
        self.timeouts = step.timeouts

    def command(self) -> ScheduleStep:
        queue = self.step.queue
        if self.timeouts is None and queue is None:
            # The usual call: what is not given is not checked.
            return ScheduleStep(
                step_id=self.id, step_name=self.name, input=self.input, retry=self.retry
            )
        return ScheduleStep(
            step_id=self.id,
            step_name=self.name,
            input=self.input,
            retry=self.retry,
            timeouts=self.timeouts,
            queue=queue,
        )

    def closing(self) -> CancelStep:
        return CancelStep(step_id=self.id)

    def member(self) -> StepCommand:
        """The same as a member of a batch."""
        return StepCommand(
            step_id=self.id,
            step_name=self.name,
            input=self.input,
            retry=self.retry,
            timeouts=self.timeouts,
            queue=self.step.queue,
        )

    def adopt(self, retry: RetryPolicy, timeouts: StepTimeouts | None) -> None:
        """What was recorded is what holds; a changed policy is for calls to come."""
        self.retry = retry
        self.timeouts = timeouts

    def difference(self, data: dict[str, Any], *, opened: bool = False) -> str | None:
        if data["step_name"] != self.name:
            return f"has another step name ({data['step_name']!r})"
        recorded = data["input"]
        if jsontext.equal(recorded, self.plain if opened else self.input):
            return None
        if is_omitted(recorded):
            return None  # it was too large to be stored, so there is nothing to compare
        if not isinstance(recorded, dict):
            return "has other arguments"
        names = sorted(
            name
            for name in recorded.keys() | self.plain.keys()
            if name not in recorded
            or name not in self.plain
            or not jsontext.equal(recorded[name], self.plain[name])
        )
        return f"has another value of {', '.join(map(repr, names))}"


class TimerOperation(Operation):
    """A timer, for ``delay`` or until ``until``; ``fire`` is called when it fires. ``stopped``
    says that its handle was cancelled."""

    kind = "timer"
    event_type = WAIT_CREATED

    __slots__ = ("delay", "fire", "stopped", "until")

    def __init__(
        self,
        id: str,
        name: str,
        site: Site,
        fire: Callable[[], None],
        future: asyncio.Future[Any] | None,
        delay: timedelta | None = None,
        until: datetime | None = None,
    ) -> None:
        super().__init__(id, name, site, future)
        self.fire = fire
        self.delay = delay
        self.until = until
        self.stopped = False

    @property
    def dropped(self) -> bool:
        return self.stopped or super().dropped

    def command(self) -> WaitUntil:
        return WaitUntil(wait_id=self.id, delay=self.delay, resume_at=self.until)

    def closing(self) -> CancelWait:
        return CancelWait(wait_id=self.id)


class HookOperation(Operation):
    """A hook; its ``token`` is never shown. ``claimed``, of one whose code goes on only when the
    token is its own, is done when the history says whether it is."""

    kind = "hook"
    event_type = HOOK_CREATED

    __slots__ = (
        "claimed",
        "decode",
        "expires",
        "metadata",
        "on_conflict",
        "payload_schema",
        "token",
    )

    def __init__(
        self,
        id: str,
        name: str,
        site: Site,
        token: str,
        metadata: Any,
        expires: timedelta | None,
        decode: Callable[[Any], Any],
        future: asyncio.Future[Any],
        payload_schema: dict[str, Any] | None = None,
        on_conflict: OnConflict = "wait",
        claimed: asyncio.Future[Any] | None = None,
    ) -> None:
        super().__init__(id, name, site, future)
        self.token = token
        self.metadata = metadata
        self.expires = expires
        self.payload_schema = payload_schema
        self.decode = decode
        self.on_conflict = on_conflict
        self.claimed: Any = claimed

    def command(self) -> CreateHook:
        return CreateHook(
            hook_id=self.id,
            token=self.token,
            metadata=self.metadata,
            expires_in=self.expires,
            payload_schema=self.payload_schema,
            on_conflict=self.on_conflict,
            acquire=self.claimed is not None,
        )

    def cancel(self, reason: str | None) -> None:
        super().cancel(reason)
        if self.claimed is not None:
            self.claimed.cancel(reason)

    def records(self, event: AnyEvent) -> bool:
        return event.type == HOOK_CONFLICTED or super().records(event)

    def closing(self) -> DisposeHook:
        return DisposeHook(hook_id=self.id)

    def difference(self, data: dict[str, Any]) -> str | None:
        if "token" not in data:  # it was refused it
            return None if self.on_conflict == "raise" else "was to give way to another hook"
        if data["token"] != self.token:
            return "has another token (redacted)"
        # Not the schema: another release of pydantic may say the same type in another way.
        if not jsontext.equal(data["metadata"], self.metadata):
            return "has other metadata"
        return None


class Note(Operation):
    """A small fact: recorded, and closed with that. It may stand beside the end of the run."""

    __slots__ = ()


class ProgressOperation(Note):
    """A progress report."""

    kind = "progress"
    event_type = RUN_PROGRESS_RECORDED

    __slots__ = ("progress",)

    def __init__(self, id: str, site: Site, progress: WorkflowProgress) -> None:
        super().__init__(id, "progress", site)
        self.progress = progress

    def command(self) -> RecordProgress:
        return RecordProgress(progress=self.progress)

    def difference(self, data: dict[str, Any]) -> str | None:
        if jsontext.equal(data["progress"], self.progress.wire()):
            return None
        return "has other values"


class AttributesOperation(Note):
    """Attributes of the run that are set."""

    kind = "attributes"
    event_type = RUN_ATTRIBUTES_SET

    __slots__ = ("attributes",)

    def __init__(self, site: Site, attributes: dict[str, Any]) -> None:
        super().__init__("attributes", "attributes", site)
        self.attributes = attributes

    def command(self) -> SetAttributes:
        return SetAttributes(attributes=self.attributes)

    def difference(self, data: dict[str, Any]) -> str | None:
        if jsontext.equal(data["attributes"], self.attributes):
            return None
        return "has other values"


class PatchOperation(Note):
    """A patch that the run is marked with; its id is that of the patch."""

    kind = "patch"
    event_type = PATCH_RECORDED

    __slots__ = ()

    def __init__(self, id: str, site: Site) -> None:
        super().__init__(id, "patch", site)

    def command(self) -> RecordPatch:
        return RecordPatch(patch_id=self.id)


KINDS = {
    STEP_CREATED: "step",
    WAIT_CREATED: "timer",
    HOOK_CREATED: "hook",
    HOOK_CONFLICTED: "hook",
    RUN_PROGRESS_RECORDED: "progress",
    RUN_ATTRIBUTES_SET: "attributes",
    PATCH_RECORDED: "patch",
}
"""Which events record an operation, and of which kind."""


def recorded_as(event: AnyEvent) -> str:
    """What an event recorded, in words: ``step 'charge#1'``."""
    kind, subject = KINDS[event.type], event.subject
    return kind if subject is None else f"{kind} {subject!r}"
