"""Comparing what replay decided with what the history says about the same id."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from flowpg.errors import NonDeterministic
from flowpg.model import jsontext
from flowpg.model.commands import CreateHook, RuntimeCommand, StepCommand
from flowpg.model.operations import ChildOperationReference, WorkflowProgress
from flowpg.model.sizes import is_omitted
from flowpg.model.snapshot import HookSnapshot, HookStatus, StepSnapshot, WorkflowRunSnapshot
from flowpg.model.timeouts import same_timeouts

MAX_SHOWN = 200
"""Longest text of one side of a difference, or of the path to it, in characters."""

MAX_PLACES = 5
"""How many of the places in which two values differ are named."""

REDACTED = "<redacted>"

_ABSENT = object()


@dataclass(frozen=True, slots=True)
class Replay:
    """What is compared: a run as recorded, and the commands that its code returned now."""

    run: WorkflowRunSnapshot
    commands: Sequence[RuntimeCommand]

    def secrets(self) -> list[str]:
        """Every hook token that either side knows: a token stands not only in its hook; a step
        mails it, a report or a link tells of it. The longest first: one may be part of another."""
        found = {hook.token for hook in self.run.hooks.values() if hook.token}
        found.update(c.token for c in self.commands if isinstance(c, CreateHook))
        return sorted(found, key=len, reverse=True)


def check_step(replay: Replay, step: StepSnapshot, command: StepCommand) -> None:
    """NonDeterministic if ``command`` is not the definition that was recorded for its id."""
    what = f"step {step.step_id!r}"
    if step.step_name != command.step_name:
        raise _told(replay, f"{what} has another name", step.step_name, command.step_name)
    if not jsontext.equal(step.input, command.input) and not is_omitted(step.input):
        raise _drift(replay, f"{what} has another input", step.input, command.input)
    if step.retry is not command.retry and step.retry != command.retry:
        policies = step.retry.wire(), command.retry.wire()
        raise _told(replay, f"{what} has another retry policy", *policies)
    if step.timeouts is not command.timeouts and not same_timeouts(step.timeouts, command.timeouts):
        limits = [found.wire() if found else {} for found in (step.timeouts, command.timeouts)]
        raise _told(replay, f"{what} has other timeouts", *limits)


def check_hook(replay: Replay, hook: HookSnapshot, command: CreateHook) -> None:
    """NonDeterministic if the token or the metadata differ; an expiry may be recomputed freely. Of
    a hook that was refused its token the history knows only that it was to be refused it."""
    what = f"hook {hook.hook_id!r}"
    if hook.status is HookStatus.CONFLICTED:
        if command.on_conflict != "raise":
            sides = hook.on_conflict, command.on_conflict
            raise _told(replay, f"{what} has another on_conflict", *sides)
        return
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
    """Where two JSON values differ and by which types, at most ``MAX_PLACES`` places. The values
    themselves are payloads and stay out of errors, logs and blocked reasons; ``secrets`` are
    redacted in paths too."""
    places = list(itertools.islice(_places("$", history, replay), MAX_PLACES + 1))
    shown = [
        f"{_short(_redacted(path, secrets))} (history: {kind}; replay: {other})"
        for path, kind, other in places[:MAX_PLACES]
    ]
    more = " and elsewhere" if len(places) > MAX_PLACES else ""
    return f": differs at {', '.join(shown) or '$'}{more}"


def _drift(replay: Replay, what: str, history: Any, again: Any) -> NonDeterministic:
    text = what + difference(history, again, replay.secrets())
    return NonDeterministic(replay.run.run_id, text)


def _shown(value: Any, secrets: Sequence[str]) -> str:
    # Redacted before it is cut, or the beginning of a secret could stay at the end.
    return _short(_redacted(jsontext.encode(value), secrets))


def _told(replay: Replay, what: str, history: Any, again: Any) -> NonDeterministic:
    """As ``_drift``, of what is code and no payload: both sides are shown."""
    secrets = replay.secrets()
    sides = f"history={_shown(history, secrets)}; replay={_shown(again, secrets)}"
    return NonDeterministic(replay.run.run_id, f"{what}: {sides}")


def _redacted(text: str, secrets: Sequence[str]) -> str:
    for secret in secrets:
        inside_json = jsontext.encode(secret)[1:-1]
        text = text.replace(inside_json, REDACTED).replace(secret, REDACTED)
    return text


def _places(path: str, history: Any, replay: Any) -> Iterator[tuple[str, str, str]]:
    """Path and both types of each part that differs."""
    if isinstance(history, dict) and isinstance(replay, dict):
        for key in [*history, *(key for key in replay if key not in history)]:
            mine, other = history.get(key, _ABSENT), replay.get(key, _ABSENT)
            if mine is _ABSENT or other is _ABSENT:
                yield f"{path}.{key}", _kind(mine), _kind(other)
            else:
                yield from _places(f"{path}.{key}", mine, other)
    elif isinstance(history, (list, tuple)) and isinstance(replay, (list, tuple)):
        if len(history) != len(replay):
            yield path, f"array of {len(history)}", f"array of {len(replay)}"
        for index, (mine, other) in enumerate(zip(history, replay, strict=False)):
            yield from _places(f"{path}[{index}]", mine, other)
    elif not jsontext.equal(history, replay):
        yield path, _kind(history), _kind(replay)


def _kind(value: Any) -> str:
    if value is _ABSENT:
        return "absent"
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, str):
        return "string"
    if isinstance(value, (int, float)):
        return "number"
    if isinstance(value, dict):
        return "object"
    return "array" if isinstance(value, (list, tuple)) else type(value).__name__


def _short(text: str) -> str:
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}... ({len(text)} characters)"
