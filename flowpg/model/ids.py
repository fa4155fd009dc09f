"""Identifiers: what a run id may look like, how one is made, and what other ids must satisfy."""

from __future__ import annotations

import re
import secrets
from uuid import UUID

from flowpg.errors import InvalidArgument, InvalidRunId

_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@+-]{0,254}\Z", re.ASCII)

MAX_ID_LENGTH = 512
"""Longest step, wait, hook, progress or reference id, in characters: an index entry holds it beside
a run id, and an entry of a B-tree ends at 2,704 bytes."""

MAX_TOKEN_LENGTH = 16384
"""Longest hook token, in characters."""


def check_run_id(run_id: str) -> str:
    """``run_id`` itself if it is well formed, else InvalidRunId."""
    if not isinstance(run_id, str) or _RUN_ID.match(run_id) is None:
        raise InvalidRunId(run_id if isinstance(run_id, str) else repr(type(run_id)))
    return run_id


def new_run_id(unix_millis: int) -> str:
    """A fresh run id: a UUIDv7 (RFC 9562) of that time, so that ids made later sort later."""
    value = (unix_millis & ((1 << 48) - 1)) << 80 | 0x7 << 76
    value |= secrets.randbits(12) << 64 | 0b10 << 62 | secrets.randbits(62)
    return str(UUID(int=value))


def check_id(value: str, what: str, limit: int = MAX_ID_LENGTH) -> str:
    """A non-blank text without NUL or lone surrogates, at most ``limit`` characters long.

    ``what`` names the kind of id in the error; the value itself is never shown.
    """
    if not isinstance(value, str):
        raise InvalidArgument(f"{what} must be a string, not {type(value).__name__}")
    if value.isascii() and value.isprintable() and len(value) <= limit and value.strip():
        return value  # what nearly every id is
    if not value.strip():
        raise InvalidArgument(f"{what} must not be blank")
    if len(value) > limit:
        raise InvalidArgument(f"{what} is {len(value)} characters long, the limit is {limit}")
    if "\x00" in value:
        raise InvalidArgument(f"{what} must not contain a NUL character")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidArgument(f"{what} contains a lone surrogate, which is not text") from None
    return value


def check_token(token: str) -> str:
    """A hook token: non-blank text of at most 16 384 characters."""
    return check_id(token, "hook token", MAX_TOKEN_LENGTH)
