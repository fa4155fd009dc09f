"""Appends as one call: the text that goes out, and the one row that comes back.

A worker sends and reads this for every step, so both are made with few operations: the text of an
event is put together from what is encoded already, and an answer names only what is out of the
ordinary.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import timedelta
from types import MappingProxyType

from flowpg.errors import SchemaBehind
from flowpg.model import jsontext
from flowpg.model.arguments import check_append_head, check_batch, check_event, check_size
from flowpg.model.events import (
    HOOK_DISPOSED,
    MAX_PAYLOAD_BYTES,
    RUN_RETRY_EXHAUSTED,
    RUN_STARTED,
    STEP_CANCELLED,
    STEP_COMPLETED,
    STEP_CREATED,
    STEP_FAILED,
    STEP_NON_RETRYABLE,
    STEP_STARTED,
    TERMINAL_TYPES,
    WAIT_COMPLETED,
    NewEvent,
)
from flowpg.model.ids import check_id
from flowpg.model.records import Append, AppendOutcome, AppendResult
from flowpg.postgres.calls import Call, Function, Row, nothing, time_text, utc
from flowpg.replay.plan import Route

_APPEND_BATCH = Function(
    "flow_append_batch", ("json",), ("recorded_at", "marks", "heads", "exceptions")
)
_ROUTE = Function(
    "flow_route_steps",
    ("json", "text", "json"),
    ("recorded_at", "marks", "heads", "exceptions"),
)
_ENSURE = Function("flow_ensure_step_tasks", ("text", "json"), ())

_OUTCOMES = {outcome.value: outcome for outcome in AppendOutcome}
_APPENDED = AppendOutcome.APPENDED
_NO_DETAIL = MappingProxyType[str, object]({})

_STEP_TYPES = (
    STEP_CREATED,
    STEP_STARTED,
    STEP_COMPLETED,
    STEP_FAILED,
    STEP_NON_RETRYABLE,
    STEP_CANCELLED,
    RUN_RETRY_EXHAUSTED,
)
_ABOUT = {
    **dict.fromkeys(_STEP_TYPES, "step_id"),
    WAIT_COMPLETED: "wait_id",
    HOOK_DISPOSED: "hook_id",
}
"""The usual events that are about something, without deadline or token, and where its id stands."""
_HEADS = {kind: f'{{"type":"{kind}","subject":' for kind in _ABOUT}
_BARE = {
    kind: f'{{"type":"{kind}","payload":'
    for kind in (RUN_STARTED, *TERMINAL_TYPES)
    if kind not in _ABOUT
}
_SURELY_SMALL = MAX_PAYLOAD_BYTES // 4
"""Characters that fit into an event whatever they are."""


def append_many(appends: Sequence[Append]) -> Call[list[AppendResult]]:
    """Store the events of many runs, each on its own merits. One that has its ``text`` already was
    checked."""
    check_batch(appends)
    texts = [append.text or append_text(append) for append in appends]
    return Call(_APPEND_BATCH, ("[" + ",".join(texts) + "]",), _reader(appends))


def route_steps(append: Append, steps: Sequence[Route]) -> Call[list[AppendResult]]:
    """Store the events of one run, and make the tasks of attempts that begin with them."""
    values = (f"[{append_text(append)}]", append.run_id, _routed_text(steps))
    return Call(_ROUTE, values, _reader([append]))


def ensure_step_tasks(run_id: str, steps: Sequence[Route]) -> Call[None]:
    """Make the tasks of attempts that began before, where one is missing."""
    return Call(_ENSURE, (run_id, _routed_text(steps)), nothing)


def _routed_text(steps: Sequence[Route]) -> str:
    items = [
        {
            "step_id": step.step_id,
            "step_name": step.step_name,
            "attempt": step.attempt,
            "queue": step.queue,
            "due_in_us": None if due_in is None else due_in // timedelta(microseconds=1),
            "due_at": time_text(due_at),
        }
        for step, due_in, due_at in steps
    ]
    return jsontext.encode(items, "steps")


def _reader(appends: Sequence[Append]) -> Callable[[Sequence[Row]], list[AppendResult]]:
    def read(rows: Sequence[Row]) -> list[AppendResult]:
        at, marks, heads, exceptions = rows[0]
        places: list[int] = json.loads(heads) if heads else []
        if len(places) != len(appends):
            raise SchemaBehind(
                f"{_APPEND_BATCH.name} answered {len(places)} rows for {len(appends)} elements: "
                "the schema is of another release; run `flowpg migrate --check`"
            )
        at = utc(at)
        results = [
            AppendResult(append.run_id, _APPENDED, head, at, mark == "r", 0, _NO_DETAIL)
            for append, head, mark in zip(appends, places, marks, strict=True)
        ]
        if exceptions is not None:
            for ordinal, outcome, wakes, detail in json.loads(exceptions):
                result = results[ordinal - 1]
                result.outcome, result.wakes = _OUTCOMES[outcome], wakes
                result.detail = detail or _NO_DETAIL
        return results

    return read


def append_text(append: Append) -> str:
    """The element of one append in the argument of ``flow_append_batch``. Checks it, and raises
    what ``check_append`` does."""
    check_append_head(append)
    # Put together as text: payloads are spliced in as they are, and are encoded only once.
    run_id = append.run_id
    text = f'{{"run_id":"{run_id}"'  # a run id has nothing to escape
    if append.expected is not None:
        text += f',"expected":{append.expected}'
    if append.epoch is not None:
        text += f',"epoch":{append.epoch}'
    if append.release is not None:
        text += f',"release":{append.release}'
    if append.queue != "default":
        text += f',"queue":{jsontext.quote(append.queue)}'
    before: list[str] = []
    steps: list[str] = []
    after: list[str] = []
    for event in append.events:
        head = _BUNDLED.get(event.type)
        # Step events that stand together travel, and are stored, as one bundle.
        item = _bundle_item(head, event) if head is not None and not after else None
        if item is not None:
            steps.append(item)
        elif steps:
            after.append(event_text(run_id, event))
        else:
            before.append(event_text(run_id, event))
    if not steps:
        return f'{text},"events":[{",".join(before)}]}}'
    if before:
        text += f',"before":{len(before)}'
    if before or after:
        text += f',"events":[{",".join(before + after)}]'
    return f'{text},"steps":[{",".join(steps)}]}}'


_BUNDLED = {STEP_CREATED: '["c",', STEP_STARTED: '["s",', STEP_COMPLETED: '["d",'}
_SHORT = {
    STEP_CREATED: ('["C",', ',"retry":{"max_attempts":3,"delay_ms":0}}'),
    STEP_STARTED: ('["S",', ',"attempt":1}'),
}
"""Letters that stand for a type and for the usual end of its payload."""
_MAX_BUNDLED = 8192
"""Characters of a payload that may share a row with others: who reads one reads all."""


def _bundle_item(head: str, event: NewEvent) -> str | None:
    """The event in a bundle, see ``flow_unbundle``, or None where it has to stand alone."""
    payload = event.text or event.payload()
    subject = event.data.get("step_id")
    if type(subject) is not str or len(payload) > _MAX_BUNDLED:
        return None
    quoted = _quoted_ids.get(subject) or _quoted_id(subject, event.type)
    if event.due_in is not None or event.due_at is not None:
        return None
    if not payload.startswith(f'{{"step_id":{quoted}'):
        return None
    short = _SHORT.get(event.type)
    if short is not None and payload.endswith(short[1]):
        return f"{short[0]}{payload[: -len(short[1])]}}}]"
    return f"{head}{payload}]"


# The ids of steps and waits come back again and again, in one run and in all runs of a workflow.
_quoted_ids: dict[str, str] = {}
_MAX_IDS = 4096


def event_text(run_id: str, event: NewEvent) -> str:
    """One event of an append, checked."""
    kind = event.type
    member = _ABOUT.get(kind)
    if member is not None:
        subject = event.data.get(member)
        if type(subject) is str and event.due_in is None and event.due_at is None:
            quoted = _quoted_ids.get(subject) or _quoted_id(subject, kind)
            payload = event.text or event.payload()
            if len(payload) > _SURELY_SMALL:
                check_size(run_id, kind, payload)
            return f'{_HEADS[kind]}{quoted},"payload":{payload}}}'
    elif kind in _BARE and event.due_in is None and event.due_at is None:
        payload = event.text or event.payload()
        if len(payload) > _SURELY_SMALL:
            check_size(run_id, kind, payload)
        return f"{_BARE[kind]}{payload}}}"
    check_event(run_id, event)
    return _any_event(event)


def _quoted_id(subject: str, kind: str) -> str:
    check_id(subject, "the id of a " + kind.partition("_")[0])
    if len(_quoted_ids) >= _MAX_IDS:
        _quoted_ids.clear()
    quoted = _quoted_ids[subject] = jsontext.quote(subject)
    return quoted


def _any_event(event: NewEvent) -> str:
    subject, due = event.subject, ""
    about = "" if subject is None else f',"subject":{jsontext.quote(subject)}'
    if event.due_at is not None:
        due = f',"due_at":"{time_text(event.due_at)}"'
    elif event.due_in is not None:
        due = f',"due_in_us":{event.due_in // timedelta(microseconds=1)}'
    kind = jsontext.quote(event.type)
    return f'{{"type":{kind}{about}{due},"payload":{event.payload()}}}'
