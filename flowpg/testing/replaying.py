"""Replaying a recorded history over the code at hand, in a debugger if you like.

``await replay(app, Path("run.jsonl"))`` runs workflow code in this process and this thread, over
the history that ``flowpg history RUN --jsonl`` printed: breakpoints in the workflow are hit, no
step is run, and nothing is written.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from flowpg.authoring.app import FlowApp
from flowpg.engine.rehearsal import Rehearsal, Verdict, rehearse
from flowpg.errors import InvalidArgument, NonDeterministic
from flowpg.model import events, jsontext
from flowpg.model.events import DEADLINE_FIELDS, FlowEventEnvelope, NewEvent
from flowpg.model.jsonl import load_history
from flowpg.model.records import LoadedRun
from flowpg.model.snapshot import RunStatus
from flowpg.replay.decision import commands_of, decide
from flowpg.replay.projection import project
from flowpg.replay.runtime import FlowRuntime, WorkflowInvocation

History = Path | str | Iterable[FlowEventEnvelope]
"""A file of JSON lines, their text, or the events themselves."""

_DECIDED = frozenset(
    {events.STEP_CREATED, events.WAIT_CREATED, events.HOOK_CREATED, events.HOOK_CONFLICTED}
)


async def replay(runtime: FlowRuntime, history: History) -> Rehearsal:
    """Replay one run and return the verdict, which is that it fits, or that the app does not have
    its workflow.

    NonDeterministic says which event the code does not repeat, what was expected and found, and
    where the call is; AssertionError if it raises or comes to another end; InvalidArgument or
    SerializationError for what is no history. A hand-written runtime is asked again for every
    decision that is recorded; the code of an app runs once through all of it.
    """
    recorded = _events(history)
    last = recorded[-1]
    loaded = LoadedRun(last.run_id, last.sequence, RunStatus.RUNNING, 0, last.recorded_at, recorded)
    if isinstance(runtime, FlowApp):
        runtime = runtime.for_debugging()
    else:
        for upto, decided in _decisions(recorded):
            await _repeats(runtime, recorded[:upto], decided)
    found = await rehearse(runtime, loaded)
    if found.verdict is Verdict.DIVERGES:
        raise NonDeterministic(found.run_id, found.reason)
    assert found.verdict in (Verdict.FITS, Verdict.UNSERVED), (
        f"run {found.run_id!r} of workflow {found.workflow!r} {found.verdict}: {found.reason}"
    )
    return found


def _events(history: History) -> list[FlowEventEnvelope]:
    if isinstance(history, Path):
        history = history.read_text(encoding="utf-8")
    found = load_history(history) if isinstance(history, str) else list(history)
    if not found:
        raise InvalidArgument("the history holds no event")
    return found


def _decisions(
    history: Sequence[FlowEventEnvelope],
) -> Iterator[tuple[int, Sequence[FlowEventEnvelope]]]:
    """How many events come before each decision, and what that became."""
    at = 0
    while at < len(history):
        until = at
        while until < len(history) and history[until].type in {*_DECIDED, events.STEP_STARTED}:
            until += 1
        if until > at and history[at].type in _DECIDED:
            yield at, history[at:until]
        at = until + 1


async def _repeats(
    runtime: FlowRuntime, history: Sequence[FlowEventEnvelope], decided: Sequence[FlowEventEnvelope]
) -> None:
    run_id = decided[0].run_id
    snapshot = project(run_id, history)
    invocation = WorkflowInvocation(run_id, snapshot.spec, snapshot.input, snapshot, list(history))
    decision = runtime.run_workflow(invocation)
    if inspect.isawaitable(decision):
        decision = await decision
    planned = decide(snapshot, commands_of(decision), decided[0].recorded_at).events
    for number, event in enumerate(decided):
        found = planned[number] if number < len(planned) else None
        if found is None or not _same(found, event):
            what = "nothing more" if found is None else f"{found.type} {found.subject or ''}"
            raise NonDeterministic(
                run_id,
                f"event {event.sequence} ({event.type}): expected {event.type} {event.subject}, "
                f"found {what.strip()}"
                + (" of another definition" if found and found.subject == event.subject else ""),
            )


def _same(found: NewEvent, event: FlowEventEnvelope) -> bool:
    if event.type == events.HOOK_CONFLICTED:
        # What the store made of a hook that was to give way.
        wanted = found.type == events.HOOK_CREATED and found.data.get("on_conflict") == "raise"
        return wanted and found.subject == event.subject
    if (found.type, found.subject) != (event.type, event.subject):
        return False
    deadline = DEADLINE_FIELDS.get(event.type)

    def definition(data: dict[str, object]) -> dict[str, object]:
        # A deadline may be computed anew at each replay; a token may be made up at random.
        return {name: value for name, value in data.items() if name not in (deadline, "token")}

    return jsontext.equal(definition(found.data), definition(event.data))
