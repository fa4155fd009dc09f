"""Sealed values: what a chain of codecs makes of a value before it is stored.

A sealed value is JSON itself: ``{"$": "sealed", "c": ["zlib", "aes-gcm:2026-01"], "v": "..."}``,
where ``c`` names the codecs in the order in which they were applied, each with what it needs to
know to be undone, and ``v`` is the base64 of the bytes. Values that are not sealed are read as they
are, so a chain can be given to an application that has runs already.

A codec is told the place of a value: its run, what it is to it, and of which step or hook. One that
authenticates binds the value to that, so that it is worth nothing anywhere else. The same value at
the same place must become the same bytes: that is how a repeated call is recognised.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import zlib
from collections.abc import Iterable, Iterator
from typing import Any, Final, Protocol

from flowpg.errors import InvalidArgument, SerializationError, UndecodablePayload
from flowpg.model import jsontext
from flowpg.model.encryption import Encryption

RUN_INPUT: Final = "run.input"
RUN_OUTPUT: Final = "run.output"
RUN_ERROR: Final = "run.error"
STEP_INPUT: Final = "step.input"
STEP_OUTPUT: Final = "step.output"
STEP_ERROR: Final = "step.error"
STEP_HEARTBEAT: Final = "step.heartbeat"
HOOK_PAYLOAD: Final = "hook.payload"
BY_TOKEN: Final = "token"

_TAG: Final = "sealed"
_MARK: Final = "flowpg.sealed: "
_MAX_ERROR: Final = 30_000
"""Longest sealed error text in characters, so that an event always holds it whole."""

MAX_EXPANDED: Final = 64 * 1024 * 1024
"""Most bytes that a compressed value may become."""


class PayloadCodec(Protocol):
    """One link of a chain. ``name`` must not change: stored values name it. No colon in it."""

    name: str

    def encode(self, data: bytes, place: bytes) -> tuple[bytes, str] | None:
        """The bytes to store, and a short text that ``decode`` needs, such as the id of a key;
        None to leave this value alone. The same for the same data and place."""
        ...

    def decode(self, data: bytes, place: bytes, parameter: str) -> bytes:
        """Undo ``encode``. UnknownKey, UndecodablePayload or ValueError if that cannot be done."""
        ...


class Compression:
    """zlib, for values of at least ``least`` bytes, where that makes them shorter."""

    name = "zlib"

    def __init__(self, least: int = 1024, level: int = 6) -> None:
        if least < 0 or not -1 <= level <= 9:
            raise InvalidArgument("compression needs a size from 0 on and a level from -1 to 9")
        self._least = least
        self._level = level

    def encode(self, data: bytes, place: bytes) -> tuple[bytes, str] | None:
        """See ``PayloadCodec``."""
        if len(data) < self._least:
            return None
        packed = zlib.compress(data, self._level)
        return (packed, "") if len(packed) < len(data) else None

    def decode(self, data: bytes, place: bytes, parameter: str) -> bytes:
        """See ``PayloadCodec``."""
        unpacking = zlib.decompressobj()
        try:
            found = unpacking.decompress(data, MAX_EXPANDED)
        except zlib.error:
            raise ValueError("it is no zlib stream") from None
        if not unpacking.eof:
            raise ValueError(f"it is cut, or longer than {MAX_EXPANDED} bytes")
        return found


class CodecChain:
    """Codecs in the order in which they are applied to what is stored; without any, only reads
    what is not sealed. Errors name run and place, never a value."""

    def __init__(self, codecs: Iterable[PayloadCodec] = ()) -> None:
        self.codecs = tuple(codecs)
        self._by_name = {codec.name: codec for codec in self.codecs}
        if len(self._by_name) < len(self.codecs) or any(":" in name for name in self._by_name):
            raise InvalidArgument("the names of codecs must differ and must not hold a colon")

    def __bool__(self) -> bool:
        return bool(self.codecs)

    def __iter__(self) -> Iterator[PayloadCodec]:
        # So that what an app has can be given on: ``FlowClient(dsn, codecs=app.codecs)``.
        return iter(self.codecs)

    # -- values ---------------------------------------------------------------------------------

    def seal(self, value: Any, run_id: str, role: str, subject: str = "") -> Any:
        """A JSON value as it is stored; one that is sealed already stays as it is.
        SerializationError if it is no JSON value."""
        if not self.codecs or is_sealed(value):
            return value
        return self._sealed(value, place_of(run_id, role, subject))

    def open(self, value: Any, run_id: str, role: str, subject: str = "") -> Any:
        """The value that was sealed at this place. UnknownKey if a key is not here,
        UndecodablePayload if it cannot be read otherwise."""
        if not is_sealed(value):
            return value
        place = place_of(run_id, role, subject)
        return self._opened(value, place, f"{role} {subject!r} of run {run_id!r}")

    def seal_answer(self, payload: Any, run_id: str, hook_id: str) -> Any:
        """The answer to a hook as it is stored. It comes from outside, so it is sealed whatever it
        looks like."""
        if not self.codecs:
            return payload
        return self._sealed(payload, place_of(run_id, HOOK_PAYLOAD, hook_id))

    def seal_answer_by_token(self, token: str, payload: Any) -> Any:
        """The same for whoever knows only the token."""
        if not self.codecs:
            return payload
        return {**self._sealed(payload, _token_place(token)), "p": BY_TOKEN}

    def open_answer(self, payload: Any, run_id: str, hook_id: str, token: str) -> Any:
        """The answer to a hook, sealed in either way, or not."""
        if is_sealed(payload) and payload.get("p") == BY_TOKEN:
            what = f"{HOOK_PAYLOAD} {hook_id!r} of run {run_id!r}"
            return self._opened(payload, _token_place(token), what)
        return self.open(payload, run_id, HOOK_PAYLOAD, hook_id)

    # -- error texts ----------------------------------------------------------------------------

    def seal_error(self, body: str, run_id: str, role: str, subject: str = "") -> str:
        """What follows ``TypeName: `` in an error text, sealed; the name stays readable."""
        if not self.codecs:
            return body
        place = place_of(run_id, role, subject)
        head, _, record = body.rpartition("\n")
        # Shorter ones in case it does not fit: without what people read, or without the record.
        for text in (body, f"{head[:200]}\n{record}", head[:4000], head[:1000]):
            sealed = f"(sealed)\n{_MARK}{jsontext.encode(self._sealed(text, place))}"
            if len(sealed) <= _MAX_ERROR:
                return sealed
        return "(sealed)"

    def open_error(self, text: str, run_id: str, role: str, subject: str = "") -> str:
        """A whole error text, with what was sealed in it. Raises as ``open``."""
        head, _, last = text.rpartition("\n")
        if not last.startswith(_MARK):
            return text
        sealed = jsontext.decode(last[len(_MARK) :], f"the error of run {run_id!r}")
        body = self.open(sealed, run_id, role, subject)
        name, colon, _ = head.partition(": ")
        return f"{name}: {body}" if colon else str(body)

    # -- helpers --------------------------------------------------------------------------------

    def _sealed(self, value: Any, place: bytes) -> dict[str, Any]:
        data = jsontext.encode(value).encode()
        applied: list[str] = []
        for codec in self.codecs:
            coded = codec.encode(data, place)
            if coded is not None:
                data, parameter = coded
                applied.append(f"{codec.name}:{parameter}" if parameter else codec.name)
        return {"$": _TAG, "c": applied, "v": base64.b64encode(data).decode()}

    def _opened(self, value: dict[str, Any], place: bytes, what: str) -> Any:
        try:
            data = base64.b64decode(value["v"], validate=True)
            applied = [str(label) for label in reversed(value["c"])]
        except (KeyError, TypeError, binascii.Error):
            raise UndecodablePayload(f"{what} is sealed and malformed") from None
        for label in applied:
            name, _, parameter = label.partition(":")
            codec = self._by_name.get(name)
            if codec is None:
                raise UndecodablePayload(
                    f"{what} is sealed with the codec {name[:80]!r}, which is not here; "
                    "give it to FlowApp(codecs=[...])"
                )
            try:
                data = codec.decode(data, place, parameter)
            except UndecodablePayload as error:
                raise type(error)(f"{what}: {error}") from None
            except ValueError as error:
                raise UndecodablePayload(f"{what} cannot be opened: {error}") from None
        try:
            return jsontext.decode(data)
        except Exception:  # noqa: BLE001  whatever is wrong with the text
            raise UndecodablePayload(f"{what} is sealed and holds no JSON") from None


NO_CODECS: Final = CodecChain()


def is_sealed(value: Any) -> bool:
    """Whether a JSON value was sealed."""
    return type(value) is dict and value.get("$") == _TAG


def label_of(value: Any) -> str:
    """How a sealed value is shown to people who cannot open it: ``sealed (zlib, aes-gcm with key
    '2026-01')``."""
    applied = value.get("c")
    names = []
    for label in applied if isinstance(applied, list) else ():
        name, _, parameter = str(label)[:120].partition(":")
        kind = "key" if name == Encryption.name else "parameter"
        names.append(f"{name} with {kind} {parameter!r}" if parameter else name)
    return f"sealed ({', '.join(names)})" if names else "sealed"


def error_label_of(text: str) -> str | None:
    """The same for a whole error text, its type included; None if it is not sealed."""
    head, _, last = text.rpartition("\n")
    if not last.startswith(_MARK):
        return None
    try:
        sealed = jsontext.decode(last[len(_MARK) :], "a sealed error")
    except SerializationError:
        return head
    return f"{head.removesuffix('(sealed)')}{label_of(sealed)}" if is_sealed(sealed) else head


def place_of(run_id: str, role: str, subject: str) -> bytes:
    """What a value is bound to, as bytes that no other place has."""
    place = b"flowpg.value.v1"
    for part in (run_id, role, subject):
        raw = part.encode("utf-8", "surrogatepass")
        place += len(raw).to_bytes(4, "big") + raw
    return place


def _token_place(token: str) -> bytes:
    digest = hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()
    return place_of("", f"{HOOK_PAYLOAD}.{BY_TOKEN}", digest)
