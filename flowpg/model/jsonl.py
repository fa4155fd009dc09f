"""Histories as text, one envelope a line, in the shape in which engines exchange them::

    {"schema_version":1,"run_id":"r","sequence":1,"event_id":"...","timestamp":"...",
     "event":{"type":"run_created","spec":{...},"input":null}}

(on one line). What was read is written again byte for byte: payloads keep their text, times finer
than a microsecond keep their digits, and an envelope without ``schema_version`` stays without one.
Only white space between members, and their order within the envelope, become the usual ones.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any
from uuid import UUID

from flowpg.errors import InvalidArgument, SerializationError
from flowpg.model import jsontext
from flowpg.model.events import FlowEventEnvelope
from flowpg.model.times import format_time, parse_time

_MEMBERS = frozenset({"schema_version", "run_id", "sequence", "event_id", "timestamp", "event"})
_SPACE = re.compile(r"[ \t\n\r]*")
_raw_decode = json.JSONDecoder().raw_decode


def dump_history(envelopes: Iterable[FlowEventEnvelope]) -> str:
    """The lines of a history, each with its line feed. It holds hook tokens: treat it as a secret.
    SerializationError if a payload cannot be read."""
    return "".join(f"{_dump(envelope)}\n" for envelope in envelopes)


def load_history(text: str) -> list[FlowEventEnvelope]:
    """The envelopes of a text as ``dump_history`` writes it; the last line feed may be missing.

    SerializationError naming the line that is no envelope. Whether the events may follow one
    another is for ``replay.projection`` to say, whether each has its members for ``model.typed``.
    """
    # Only a line feed ends a line: the other separators may stand inside a JSON string.
    lines = text.split("\n")
    while lines and not lines[-1].strip():
        lines.pop()
    return [_load(line, number) for number, line in enumerate(lines, 1)]


def _dump(envelope: FlowEventEnvelope) -> str:
    version = envelope.schema_version
    prefix = "" if version is None else f'"schema_version":{version},'
    return (
        f'{{{prefix}"run_id":{jsontext.encode(envelope.run_id)},"sequence":{envelope.sequence},'
        f'"event_id":{jsontext.encode(envelope.event_id)},'
        f'"timestamp":{jsontext.encode(envelope.timestamp)},"event":{_event(envelope)}}}'
    )


def _event(envelope: FlowEventEnvelope) -> str:
    type_text = f'{{"type":{jsontext.encode(envelope.type)}'
    payload = envelope.payload.strip()
    if not payload.startswith("{"):
        raise SerializationError(
            f"event {envelope.sequence} of run {envelope.run_id!r}: its payload is not an object"
        )
    rest = payload[1:].lstrip()
    # A store may keep a payload over several lines; a line of the dump is one line.
    if "\n" in rest or "\r" in rest:
        rest = jsontext.encode(envelope.data, "an event", jsontext.MAX_STORED_DEPTH)[1:]
    return f"{type_text}{rest}" if rest.startswith("}") else f"{type_text},{rest}"


def _load(line: str, number: int) -> FlowEventEnvelope:
    where = f"line {number} of the history"
    envelope = jsontext.decode(line, where)
    if not isinstance(envelope, dict) or not _MEMBERS.issuperset(envelope):
        raise SerializationError(f"{where} is not an event envelope, or has unknown members")
    spans = list(_spans(line, 0))
    if len(spans) != len(envelope):
        raise SerializationError(f"{where} has a member twice")
    timestamp = _text(envelope, "timestamp", where)
    event_id = _text(envelope, "event_id", where)
    sequence = envelope.get("sequence")
    version = envelope.get("schema_version")
    try:
        recorded_at = parse_time(timestamp)
        if str(UUID(event_id)) != event_id.lower():
            raise ValueError
    except (InvalidArgument, ValueError):
        raise SerializationError(
            f"{where}: its timestamp must be an RFC 3339 time and its event_id a UUID"
        ) from None
    if type(sequence) is not int or sequence < 1:
        raise SerializationError(f"{where}: its sequence must be a number from 1")
    if "schema_version" in envelope and (type(version) is not int or version < 0):
        raise SerializationError(f"{where}: its schema_version must be a number")
    event = envelope.get("event")
    if not isinstance(event, dict):
        raise SerializationError(f"{where}: its event must be an object")
    event_type = _text(event, "type", where)
    return FlowEventEnvelope(
        _text(envelope, "run_id", where),
        sequence,
        event_id,
        recorded_at,
        event_type,
        payload=_payload(line, dict(spans)["event"][0], where),
        data={name: value for name, value in event.items() if name != "type"},
        schema_version=version,
        timestamp=None if timestamp == format_time(recorded_at) else timestamp,
    )


def _payload(line: str, event_at: int, where: str) -> str:
    """The text of the event object without its type, every other member verbatim."""
    members = []
    types = 0
    for name, (start, end) in _spans(line, event_at, from_key=True):
        if name == "type":
            types += 1
        else:
            members.append(line[start:end])
    if types != 1:
        raise SerializationError(f"{where}: its event has more than one type")
    return "{" + ",".join(members) + "}"


def _spans(text: str, at: int, *, from_key: bool = False) -> Iterator[tuple[str, tuple[int, int]]]:
    """Name and place of each member of the object that begins at ``at`` of a valid JSON text: of
    its value, or of name and value."""
    at = _skip(text, at) + 1
    while True:
        start = _skip(text, at)
        if text[start] == "}":
            return
        name, colon = _raw_decode(text, start)
        value_at = _skip(text, _skip(text, colon) + 1)
        _, end = _raw_decode(text, value_at)
        yield name, (start if from_key else value_at, end)
        at = _skip(text, end)
        if text[at] == ",":
            at += 1


def _skip(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return match.end() if match else at


def _text(members: dict[str, Any], name: str, where: str) -> str:
    value = members.get(name)
    if not isinstance(value, str) or not value:
        raise SerializationError(f"{where}: its {name} must be a text")
    return value
