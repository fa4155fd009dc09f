"""What every store refuses before it does anything: the arguments that no call accepts.

Checked here, once, so that the stores and the synchronous client refuse the same values in the
same words, and nothing malformed or oversized ever reaches a server.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from flowpg.errors import InvalidArgument, InvalidTransition, PayloadTooLarge
from flowpg.model import jsontext
from flowpg.model.events import (
    CHILD_OPERATION_LINKED,
    DEADLINE_FIELDS,
    HOOK_CREATED,
    HOOK_RECEIVED,
    MAX_PAYLOAD_BYTES,
    RUN_CREATED,
    RUN_PROGRESS_RECORDED,
    NewEvent,
)
from flowpg.model.ids import check_id, check_run_id, check_token
from flowpg.model.operations import ChildOperationReference, WorkflowProgress
from flowpg.model.records import Append, StartRequest
from flowpg.model.sizes import most_of, oversize_of

MAX_PAGE = 1000
"""Most rows of one page of a read verb."""

# ,"resume_at":"2026-01-02T03:04:05.123456Z"
_DEADLINE_BYTES = len(',"":""') + len("2026-01-02T03:04:05.123456Z")


def check_limit(limit: int, most: int = MAX_PAGE) -> int:
    """``limit`` itself if it is from 1 to ``most``, else InvalidArgument."""
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= most:
        raise InvalidArgument(f"the limit must be from 1 to {most}")
    return limit


def check_text(value: str | None, what: str) -> str | None:
    """Free text such as a reason: anything that is text, which NUL and lone surrogates are not."""
    if value is None:
        return None
    if not isinstance(value, str):
        raise InvalidArgument(f"{what} must be a string, not {type(value).__name__}")
    if "\x00" in value:
        raise InvalidArgument(f"{what} must not contain a NUL character")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidArgument(f"{what} contains a lone surrogate, which is not text") from None
    return value


def check_time(moment: datetime | None, what: str) -> datetime | None:
    """A time with a zone, of the years 1 to 9999 also in UTC, or None."""
    if moment is None:
        return None
    if moment.tzinfo is None:
        raise InvalidArgument(f"{what} has no time zone and is ambiguous; give it one, such as UTC")
    try:
        moment.astimezone(UTC)
    except OverflowError:
        raise InvalidArgument(f"{what} is not between the years 1 and 9999 in UTC") from None
    return moment


def check_lease(lease: timedelta) -> timedelta:
    """A lease: a duration above zero."""
    if lease <= timedelta(0):
        raise InvalidArgument("a lease must be longer than nothing")
    return lease


def check_timeout(timeout: timedelta | None) -> float | None:
    """Its seconds; None is for ever. InvalidArgument unless it is one of these."""
    if timeout is not None and not isinstance(timeout, timedelta):
        raise InvalidArgument(f"timeout must be a timedelta, not {type(timeout).__name__}")
    return None if timeout is None else timeout.total_seconds()


def check_queue(queue: str) -> str:
    """The name of a queue."""
    return check_id(queue, "queue name", 255)


def check_queues(queues: str | Sequence[str]) -> tuple[str, ...]:
    """The names of the queues that somebody serves: one, or several different ones."""
    names = (queues,) if isinstance(queues, str) else tuple(queues)
    if not names:
        raise InvalidArgument("name at least one queue")
    return tuple(dict.fromkeys(map(check_queue, names)))


def check_size(run_id: str, event_type: str, text: str, extra: int = 0) -> None:
    """PayloadTooLarge if ``text`` and ``extra`` bytes more are over the limit of one event."""
    _check_room(run_id, event_type, text, extra, most_of(event_type))


def check_storable(run_id: str, event: NewEvent) -> None:
    """PayloadTooLarge if no process could store the payload of ``event``, whatever its limits are:
    the answer of every replay. SerializationError if JSON cannot carry it."""
    extra = deadline_room(event)
    _check_room(run_id, event.type, event.payload(), extra, MAX_PAYLOAD_BYTES, event.subject)


def _check_room(
    run_id: str, event_type: str, text: str, extra: int, most: int, subject: str | None = None
) -> None:
    # Four bytes is the most a character takes: short texts need no encoding to be measured.
    if len(text) * 4 + extra > most:
        size = len(text.encode()) + extra
        if size > most:
            raise PayloadTooLarge(run_id, event_type, size, most, subject)


def deadline_room(event: NewEvent) -> int:
    """How many bytes the deadline adds that the store computes, 0 if there is none."""
    if event.due_in is None:
        return 0
    return len(DEADLINE_FIELDS.get(event.type, "")) + _DEADLINE_BYTES


def check_start(request: StartRequest, seen: dict[int, str] | None = None) -> tuple[str, str]:
    """A run to start; returns its spec and its input as JSON text.

    ``seen`` is kept by whoever starts a batch: most of its runs share one spec object, which is
    looked at and written down once. Raises InvalidRunId, InvalidWorkflow, InvalidArgument,
    SerializationError or PayloadTooLarge.
    """
    if request.run_id is not None:
        check_run_id(request.run_id)
    spec = seen.get(id(request.spec)) if seen is not None else None
    if spec is None:
        request.spec.check()
        spec = jsontext.encode(request.spec.wire(), "the workflow spec")
        if seen is not None:
            seen[id(request.spec)] = spec
    check_queue(request.queue)
    text = jsontext.encode(request.input, "the workflow input")
    payload = created_payload(spec, text)
    check_size(request.run_id or "", RUN_CREATED, payload)
    oversize_of(payload, request.run_id or "(new)", RUN_CREATED, request.spec.name)
    return spec, text


def created_payload(spec: str, input: str) -> str:
    """The payload of ``run_created`` from its two JSON texts."""
    return f'{{"spec":{spec},"input":{input}}}'


def check_hook_payload(run_id: str, payload: Any) -> str:
    """The JSON text of what a hook is answered with."""
    text = jsontext.encode(payload, "the hook payload")
    check_size(run_id, HOOK_RECEIVED, text)
    oversize_of(text, run_id, HOOK_RECEIVED)
    return text


def check_progress(run_id: str, progress: WorkflowProgress) -> str:
    """The JSON text of a progress report. Raises as ``WorkflowProgress.check`` does, InvalidRunId,
    SerializationError or PayloadTooLarge."""
    check_run_id(run_id)
    progress.check()
    text = jsontext.encode(progress.wire(), "the progress report")
    check_size(run_id, RUN_PROGRESS_RECORDED, f'{{"progress":{text}}}')
    return text


def check_child(run_id: str, child: ChildOperationReference) -> str:
    """The JSON text of a link. Raises as ``ChildOperationReference.check`` does, InvalidRunId,
    SerializationError or PayloadTooLarge."""
    check_run_id(run_id)
    child.check()
    text = jsontext.encode(child.wire(), "the child operation")
    check_size(run_id, CHILD_OPERATION_LINKED, f'{{"child":{text}}}')
    return text


def check_batch(batch: Sequence[object]) -> None:
    """InvalidArgument for more elements than one call takes."""
    if len(batch) > MAX_PAGE:
        raise InvalidArgument(f"one call takes at most {MAX_PAGE} runs, not {len(batch)}")


def check_append(append: Append) -> None:
    """An append: ids are text, every payload is encoded and within the limit.

    Raises InvalidRunId, InvalidArgument, InvalidTransition, SerializationError or
    PayloadTooLarge. Whether the events may follow is the store's to say.
    """
    check_append_head(append)
    for event in append.events:
        check_event(append.run_id, event)


def check_append_head(append: Append) -> None:
    """An append, its events apart: InvalidRunId or InvalidArgument."""
    check_run_id(append.run_id)
    if append.release is not None and append.epoch is None:
        raise InvalidArgument("an append that releases a lease must name the lease's epoch")


def check_event(run_id: str, event: NewEvent) -> None:
    """One event of an append. Raises what ``check_append`` does."""
    try:
        subject = event.subject
        token = event.data["token"] if event.type == HOOK_CREATED else None
    except (KeyError, TypeError):
        raise InvalidTransition(
            f"an event of type {event.type} lacks the id it is about", run_id=run_id
        ) from None
    if subject is not None:
        check_id(subject, "the id of a " + event.type.partition("_")[0])
    if token is not None:
        check_token(token)
    if event.due_in is not None and (event.type not in DEADLINE_FIELDS or event.due_at is not None):
        raise InvalidTransition(
            f"an event of type {event.type} takes no such deadline", run_id=run_id
        )
    check_size(run_id, event.type, event.payload(), deadline_room(event))


def check_run_ids(run_ids: Sequence[str]) -> None:
    """InvalidRunId for the first id that is none."""
    for run_id in run_ids:
        check_run_id(run_id)
