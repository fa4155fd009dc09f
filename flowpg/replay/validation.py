"""Comparing what replay decided with what the history says about the same id."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from flowpg.errors import NonDeterministic
from flowpg.model import jsontext
from flowpg.model.commands import CreateHook, RuntimeCommand, StepCommand
from flowpg.model.operations import ChildOperationReference, WorkflowProgress
from flowpg.model.snapshot import HookSnapshot, StepSnapshot, WorkflowRunSnapshot

MAX_SHOWN = 400
"""Longest text of one side of a difference; of a longer value the differing part is shown."""

REDACTED = "<redacted>"


@dataclass(frozen=True, slots=True)
class Replay:
    """What is compared: a run as recorded, and the commands that its code returned now."""

    run: WorkflowRunSnapshot
    commands: Sequence[RuntimeCommand]

    def secrets(self) -> list[str]:
        """Every hook token that either side knows: a token stands not only in its hook; a step
        mails it, a report or a link tells of it. The longest first: one may be part of another."""
        found = {hook.token for hook in self.run.hooks.values()}
        found.update(c.token for c in self.commands if isinstance(c, CreateHook))
        return sorted(found, key=len, reverse=True)


def check_step(replay: Replay, step: StepSnapshot, command: StepCommand) -> None:
    """NonDeterministic if ``command`` is not the definition that was recorded for its id."""
    what = f"step {step.step_id!r}"
    if step.step_name != command.step_name:
        raise _drift(replay, f"{what} has another name", step.step_name, command.step_name)
    if not jsontext.equal(step.input, command.input):
        raise _drift(replay, f"{what} has another input", step.input, command.input)
    if step.retry is not command.retry and step.retry != command.retry:
        raise _drift(
            replay,
            f"{what} has another retry policy",
            step.retry.wire(),
            command.retry.wire(),
        )


def check_hook(replay: Replay, hook: HookSnapshot, command: CreateHook) -> None:
    """NonDeterministic if the token or the metadata differ; an expiry may be recomputed freely."""
    what = f"hook {hook.hook_id!r}"
    if hook.token != command.token:
        raise NonDeterministic(
            replay.run.run_id, f"{what} has another token: history={REDACTED}; replay={REDACTED}"
        )
    if not jsontext.equal(hook.metadata, command.metadata):
        raise _drift(replay, f"{what} has other metadata", hook.metadata, command.metadata)


def check_progress(replay: Replay, recorded: WorkflowProgress, again: WorkflowProgress) -> None:
    """NonDeterministic if the same progress id now holds another value."""
    if not jsontext.equal(recorded.wire(), again.wire()):
        what = f"progress {recorded.progress_id!r} has another value"
        raise _drift(replay, what, recorded.wire(), again.wire())


def check_child(
    replay: Replay, linked: ChildOperationReference, again: ChildOperationReference
) -> None:
    """NonDeterministic if the same reference id now links something else."""
    if not jsontext.equal(linked.wire(), again.wire()):
        what = f"child reference {linked.reference_id!r} links something else"
        raise _drift(replay, what, linked.wire(), again.wire())


def difference(history: Any, replay: Any, secrets: Sequence[str] = ()) -> str:
    """``history=<JSON>; replay=<JSON>`` of two values, or of the first part in which two long
    values differ, with the path to it. ``secrets`` are redacted wherever they stand."""
    path = "$"
    left, right = _shown(history, secrets), _shown(replay, secrets)
    while len(left) > MAX_SHOWN or len(right) > MAX_SHOWN:
        step = _first_difference(history, replay)
        if step is None:
            break
        name, history, replay = step
        path += name
        left, right = _shown(history, secrets), _shown(replay, secrets)
    at = "" if path == "$" else " at " + _redacted(path, secrets)
    return f"{at}: history={_short(left)}; replay={_short(right)}"


def _drift(replay: Replay, what: str, history: Any, again: Any) -> NonDeterministic:
    text = what + difference(history, again, replay.secrets())
    return NonDeterministic(replay.run.run_id, text)


def _shown(value: Any, secrets: Sequence[str]) -> str:
    # Redacted before it is cut, or the beginning of a secret could stay at the end.
    text = jsontext.encode(value, "a replayed value", jsontext.MAX_STORED_DEPTH)
    return _redacted(text, secrets)


def _redacted(text: str, secrets: Sequence[str]) -> str:
    for secret in secrets:
        inside_json = jsontext.encode(secret)[1:-1]
        text = text.replace(inside_json, REDACTED).replace(secret, REDACTED)
    return text


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
