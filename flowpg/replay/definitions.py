"""The event that first records what a command defines, checked as far as the command alone tells.

Workflow code may keep and change the objects it handed over, and a tuple comes back from the store
as a list. So each event holds what the store will give back, from the first run on, and its text is
made in the same go.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from flowpg.errors import InvalidArgument, PayloadTooLarge
from flowpg.model import events, jsontext
from flowpg.model.arguments import deadline_room
from flowpg.model.commands import (
    CreateHook,
    LinkChildOperation,
    RecordProgress,
    StepCommand,
    WaitUntil,
)
from flowpg.model.events import NewEvent
from flowpg.model.ids import check_id, check_token
from flowpg.model.retry import stored_form
from flowpg.model.sizes import limits, oversize_of
from flowpg.replay.projection_steps import LAST_SAFE_YEAR, check_representable

_NO_TIME = timedelta(0)

# Step names come back in every run of a workflow; the bound is for programs that make them up.
_checked_names: set[str] = set()
_MOST_NAMES = 1024


def new_step(command: StepCommand, now: datetime) -> NewEvent:
    """``step_created``. InvalidTransition for a blank id or a policy that cannot be followed."""
    step_id, name, retry = command.step_id, command.step_name, command.retry
    check_id(step_id, "step id")
    if name not in _checked_names:
        check_id(name, "step name")
        if len(_checked_names) < _MOST_NAMES:
            _checked_names.add(name)
    if now.year >= LAST_SAFE_YEAR:
        check_representable(retry, now)
    retry_text, retry_wire = stored_form(retry)
    text, value = jsontext.stored(command.input, "the input of a step")
    event = NewEvent(
        events.STEP_CREATED,
        {"step_id": step_id, "step_name": name, "input": value, "retry": retry_wire},
        text=f'{{"step_id":{jsontext.quote(step_id)},"step_name":{jsontext.quote(name)},'
        f'"input":{text},"retry":{retry_text}}}',
    )
    if command.timeouts:
        spans = event.data["timeouts"] = command.timeouts.wire()
        event.text = f'{event.payload()[:-1]},"timeouts":{jsontext.encode(spans)}}}'
    if command.queue is not None:
        queue = event.data["queue"] = check_id(command.queue, "queue name", 255)
        event.text = f'{event.payload()[:-1]},"queue":{jsontext.quote(queue)}}}'
    return event


def new_wait(command: WaitUntil, now: datetime) -> NewEvent:
    """``wait_created``. A delay below zero is one that is over."""
    check_id(command.wait_id, "wait id")
    delay = _span(command.delay, now, f"wait {command.wait_id!r}")
    return events.wait_created(command.wait_id, resume_at=command.resume_at, delay=delay)


def new_hook(command: CreateHook, now: datetime) -> NewEvent:
    """``hook_created``."""
    check_id(command.hook_id, "hook id")
    check_token(command.token)
    expiry = _span(command.expires_in, now, f"hook {command.hook_id!r}")
    _, metadata = jsontext.stored(command.metadata, "the metadata of a hook")
    policy = command.on_conflict
    plain = events.hook_created(
        command.hook_id, command.token, metadata, expires_in=expiry, on_conflict=policy
    )
    if command.payload_schema is None:
        return plain
    _, schema = jsontext.stored(command.payload_schema, "the payload schema of a hook")
    event = events.hook_created(
        command.hook_id,
        command.token,
        metadata,
        expires_in=expiry,
        payload_schema=schema,
        on_conflict=policy,
    )
    # It is a help for others, and no reason to refuse a hook.
    return event if len(event.payload().encode()) <= limits.most else plain


def new_progress(command: RecordProgress) -> NewEvent:
    """``run_progress_recorded``."""
    command.progress.check()
    return _single(
        events.RUN_PROGRESS_RECORDED, "progress", command.progress.wire(), "a progress report"
    )


def new_child(command: LinkChildOperation) -> NewEvent:
    """``child_operation_linked``."""
    command.child.check()
    return _single(
        events.CHILD_OPERATION_LINKED, "child", command.child.wire(), "a child operation link"
    )


def completed(output: Any) -> NewEvent:
    """``run_completed``."""
    return _single(events.RUN_COMPLETED, "output", output, "the output of the run")


def check_size(run_id: str, event: NewEvent) -> None:
    """PayloadTooLarge if the payload of ``event`` is over the limit."""
    size = oversize(event, run_id)
    if size:
        raise PayloadTooLarge(run_id, event.type, size, limits.most, event.subject)


def oversize(event: NewEvent, run_id: str, subject: str | None = None) -> int:
    """The size of the payload in bytes if that is over the limit, else 0. One that is large is
    logged with the run and what it is about (default: what the event says)."""
    # The text is made once and kept for the append. No character takes more than four bytes.
    text = event.payload()
    extra = deadline_room(event)
    if len(text) * 4 + extra <= limits.warn:
        return 0
    return oversize_of(text, run_id, event.type, subject or event.subject, extra)


def _single(event_type: str, member: str, value: Any, what: str) -> NewEvent:
    text, value = jsontext.stored(value, what)
    return NewEvent(event_type, {member: value}, text=f'{{"{member}":{text}}}')


def _span(span: timedelta | None, now: datetime, what: str) -> timedelta | None:
    if span is None:
        return None
    span = max(span, _NO_TIME)
    try:
        now + span
    except OverflowError:
        raise InvalidArgument(f"the deadline of {what} would be after the year 9999") from None
    return span
