"""Comparing what replay decided with what the history says about the same id."""

from __future__ import annotations

from typing import Any

from flowpg.errors import NonDeterministic
from flowpg.model import jsontext
from flowpg.model.commands import CreateHook, StepCommand
from flowpg.model.operations import ChildOperationReference, WorkflowProgress
from flowpg.model.snapshot import HookSnapshot, StepSnapshot

MAX_SHOWN = 400
"""Longest text of one side of a difference; of a longer value the differing part is shown."""

REDACTED = "<redacted>"


def check_step(run_id: str, step: StepSnapshot, command: StepCommand) -> None:
    """NonDeterministic if ``command`` is not the definition that was recorded for its id."""
    what = f"step {step.step_id!r}"
    if step.step_name != command.step_name:
        raise _drift(run_id, f"{what} has another name", step.step_name, command.step_name)
    if not jsontext.equal(step.input, command.input):
        raise _drift(run_id, f"{what} has another input", step.input, command.input)
    if step.retry is not command.retry and step.retry != command.retry:
        raise _drift(
            run_id,
            f"{what} has another retry policy",
            step.retry.wire(),
            command.retry.wire(),
        )


def check_hook(run_id: str, hook: HookSnapshot, command: CreateHook) -> None:
    """NonDeterministic if the token or the metadata differ; an expiry may be recomputed freely."""
    what = f"hook {hook.hook_id!r}"
    if hook.token != command.token:
        raise NonDeterministic(
            run_id, f"{what} has another token: history={REDACTED}; replay={REDACTED}"
        )
    if not jsontext.equal(hook.metadata, command.metadata):
        raise _drift(
            run_id,
            f"{what} has other metadata",
            hook.metadata,
            command.metadata,
            secret=hook.token,
        )


def check_progress(run_id: str, recorded: WorkflowProgress, again: WorkflowProgress) -> None:
    """NonDeterministic if the same progress id now holds another value."""
    if not jsontext.equal(recorded.wire(), again.wire()):
        what = f"progress {recorded.progress_id!r} has another value"
        raise _drift(run_id, what, recorded.wire(), again.wire())


def check_child(
    run_id: str, linked: ChildOperationReference, again: ChildOperationReference
) -> None:
    """NonDeterministic if the same reference id now links something else."""
    if not jsontext.equal(linked.wire(), again.wire()):
        what = f"child reference {linked.reference_id!r} links something else"
        raise _drift(run_id, what, linked.wire(), again.wire())


def difference(history: Any, replay: Any, secret: str = "") -> str:
    """``history=<JSON>; replay=<JSON>`` of two values, or of the first part in which two long
    values differ, with the path to it. ``secret`` is redacted wherever it stands."""
    path = "$"
    left, right = _shown(history, secret), _shown(replay, secret)
    while len(left) > MAX_SHOWN or len(right) > MAX_SHOWN:
        step = _first_difference(history, replay)
        if step is None:
            break
        name, history, replay = step
        path += name
        left, right = _shown(history, secret), _shown(replay, secret)
    at = "" if path == "$" else " at " + _redacted(path, secret)
    return f"{at}: history={_short(left)}; replay={_short(right)}"


def _drift(run_id: str, what: str, history: Any, replay: Any, secret: str = "") -> NonDeterministic:
    return NonDeterministic(run_id, what + difference(history, replay, secret))


def _shown(value: Any, secret: str) -> str:
    # Redacted before it is cut, or the beginning of a secret could stay at the end.
    return _redacted(jsontext.encode(value, "a replayed value"), secret)


def _redacted(text: str, secret: str) -> str:
    if not secret:
        return text
    inside_json = jsontext.encode(secret)[1:-1]
    return text.replace(inside_json, REDACTED).replace(secret, REDACTED)


def _first_difference(history: Any, replay: Any) -> tuple[str, Any, Any] | None:
    # Only a member that both sides have can be walked into; one that is missing is shown whole.
    if isinstance(history, dict) and isinstance(replay, dict):
        if history.keys() != replay.keys():
            return None
        for key, value in history.items():
            if not jsontext.equal(value, replay[key]):
                return f".{key}", value, replay[key]
    elif isinstance(history, (list, tuple)) and isinstance(replay, (list, tuple)):
        for index, (value, other) in enumerate(zip(history, replay, strict=False)):
            if not jsontext.equal(value, other):
                return f"[{index}]", value, other
    return None


def _short(text: str) -> str:
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}... ({len(text)} characters)"
