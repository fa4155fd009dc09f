"""The one table from the SQLSTATEs of the schema to exceptions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from flowpg.errors import (
    EventConflict,
    FlowError,
    HookConflict,
    HookTokenConflict,
    HookTokenNotFound,
    InvalidArgument,
    InvalidRunId,
    InvalidTransition,
    LeaseLost,
    NonDeterministic,
    PayloadTooLarge,
    RunConflict,
    RunNotFound,
    RunTerminal,
)


def _text(detail: Mapping[str, Any], name: str) -> str:
    value = detail.get(name)
    return value if isinstance(value, str) else ""


# The one table from the SQLSTATEs of sql/README.md to exception classes. ``detail`` is the JSON
# object of the error's DETAIL field, ``message`` its MESSAGE, ``token`` the token of the call.
SQLSTATES: dict[str, Callable[[Mapping[str, Any], str, str], FlowError]] = {
    "WF001": lambda d, m, t: RunNotFound(_text(d, "run_id")),
    "WF002": lambda d, m, t: RunConflict(_text(d, "run_id"), _text(d, "reason")),
    "WF003": lambda d, m, t: EventConflict(
        _text(d, "run_id"), int(d.get("expected") or 0), int(d.get("actual") or 0)
    ),
    "WF004": lambda d, m, t: RunTerminal(_text(d, "run_id"), _text(d, "status") or "terminal"),
    "WF005": lambda d, m, t: HookTokenConflict(t, _text(d, "run_id"), _text(d, "hook_id")),
    "WF006": lambda d, m, t: HookTokenNotFound(t),
    "WF007": lambda d, m, t: HookConflict(
        _text(d, "run_id"), _text(d, "hook_id"), _text(d, "reason")
    ),
    "WF008": lambda d, m, t: LeaseLost(_text(d, "run_id"), int(d.get("epoch") or 0)),
    "WF009": lambda d, m, t: InvalidTransition(
        _text(d, "reason") or m, run_id=_text(d, "run_id") or None
    ),
    "WF010": lambda d, m, t: InvalidArgument(_text(d, "reason") or m),
    "WF011": lambda d, m, t: NonDeterministic(_text(d, "run_id"), _text(d, "reason")),
    "WF012": lambda d, m, t: PayloadTooLarge(
        _text(d, "run_id"),
        _text(d, "event_type"),
        int(d.get("bytes") or 0),
        int(d.get("max_bytes") or 0),
    ),
    "WF013": lambda d, m, t: InvalidRunId(_text(d, "run_id")),
}


def from_sqlstate(
    sqlstate: str, detail: Mapping[str, Any], message: str, token: str = ""
) -> FlowError | None:
    """The exception for one of flowpg's own SQLSTATEs, or None for any other code."""
    make = SQLSTATES.get(sqlstate)
    return make(detail, message, token) if make else None
