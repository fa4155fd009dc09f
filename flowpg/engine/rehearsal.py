"""Would the code at hand go on with a recorded history? Asked without writing anything.

A rehearsal replays the history of one run as a worker would at its next turn, and looks at what
comes of it instead of storing that. Of a run that has ended it asks whether the code comes to the
same end.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from flowpg.engine.errortext import blocked_reason, ends_the_loop
from flowpg.engine.tip import RunTip
from flowpg.errors import (
    EngineFault,
    InvalidTransition,
    NonDeterministic,
    PayloadTooLarge,
    SerializationError,
)
from flowpg.model import events, jsontext
from flowpg.model.events import FlowEventEnvelope, NewEvent
from flowpg.model.records import LoadedRun
from flowpg.model.snapshot import RunStatus
from flowpg.replay.decision import commands_of, decide
from flowpg.replay.runtime import FlowRuntime, WorkflowInvocation, serves


class Verdict(StrEnum):
    """What the code at hand would do to a run."""

    FITS = "fits"
    """It goes on with the run."""
    DIVERGES = "diverges"
    """It takes another path than the history: the run would be blocked."""
    BLOCKED = "blocked"
    """It cannot go on for another reason that blocks the run."""
    FAILS = "fails"
    """It raises, or decides what cannot be stored: the run would fail at its next turn."""
    UNSERVED = "unserved"
    """It has no workflow of that name: the run would wait for a worker that has."""


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """The verdict about one run. ``reason`` is empty if it fits; of a divergence it names the
    event, what was expected and found, and the line of the call. It holds no payload."""

    run_id: str
    workflow: str
    verdict: Verdict
    reason: str = ""


async def rehearse(runtime: FlowRuntime, loaded: LoadedRun) -> Rehearsal:
    """Replay one history over ``runtime``. Raises what ends the process, and nothing else.

    ``loaded.history`` must be whole. Nothing is written, and no step is run.
    """
    run_id = loaded.run_id
    history, ended = _before_the_end(loaded.history)
    try:
        head = history[-1].sequence if history else 0
        tip = RunTip(replace(loaded, history=history, head_sequence=head))
    except (SerializationError, InvalidTransition) as error:
        return Rehearsal(run_id, "", Verdict.BLOCKED, blocked_reason(error))
    workflow = tip.snapshot.spec.name
    if not serves(runtime, workflow):
        reason = f"no workflow named {workflow!r} is registered here"
        return Rehearsal(run_id, workflow, Verdict.UNSERVED, reason)
    if tip.terminal:
        # It was ended from outside, which no code has a say in.
        return Rehearsal(run_id, workflow, Verdict.FITS)
    if tip.snapshot.status is RunStatus.PENDING:
        tip.fold([events.run_started()])
    verdict, reason = await _verdict(runtime, tip, ended)
    return Rehearsal(run_id, workflow, verdict, reason)


async def _verdict(
    runtime: FlowRuntime, tip: RunTip, ended: FlowEventEnvelope | None
) -> tuple[Verdict, str]:
    snapshot = tip.snapshot
    invocation = WorkflowInvocation(
        tip.run_id, snapshot.spec, snapshot.input, snapshot, tip.history
    )
    try:
        decision = runtime.run_workflow(invocation)
        if inspect.isawaitable(decision):
            decision = await decision
        plan = decide(snapshot, commands_of(decision), tip.now)
    except NonDeterministic as error:
        return Verdict.DIVERGES, error.reason
    except (EngineFault, InvalidTransition) as error:
        return Verdict.BLOCKED, blocked_reason(error)
    except (SerializationError, PayloadTooLarge) as error:
        return _failing(ended, blocked_reason(error))
    except BaseException as error:
        if ends_the_loop(error):
            raise
        return _failing(ended, f"{type(error).__name__} at {_place(error)}")
    if ended is not None:
        return _same_end(plan.events, ended)
    for event in plan.events:
        if event.type == events.RUN_FAILED:
            # Of its text only the name: a message of the user's may hold anything.
            name = str(event.data.get("error", "")).partition(":")[0].partition("\n")[0]
            return Verdict.FAILS, f"the workflow raises {name[:200]}"
    return Verdict.FITS, ""


def _failing(ended: FlowEventEnvelope | None, reason: str) -> tuple[Verdict, str]:
    if ended is not None and ended.type == events.RUN_FAILED:
        return Verdict.FITS, ""  # as it did then
    return Verdict.FAILS, reason


def _before_the_end(
    history: Sequence[FlowEventEnvelope],
) -> tuple[list[FlowEventEnvelope], FlowEventEnvelope | None]:
    """The history without the end that workflow code decided on, and that end."""
    last = history[-1] if history else None
    if last is not None and last.type in (events.RUN_COMPLETED, events.RUN_FAILED):
        return list(history[:-1]), last
    return list(history), None


def _same_end(planned: Sequence[NewEvent], ended: FlowEventEnvelope) -> tuple[Verdict, str]:
    where = f"event {ended.sequence} ({ended.type}): expected the end of the run"
    last = planned[-1] if planned else None
    if last is None or last.type != ended.type:
        found = "nothing new" if last is None else f"{last.type} {last.subject or ''}".strip()
        return Verdict.DIVERGES, f"{where}, found {found}"
    if ended.type == events.RUN_COMPLETED and not jsontext.equal(last.data, ended.data):
        return Verdict.DIVERGES, f"{where} with the recorded result, found another result"
    return Verdict.FITS, ""


def _place(error: BaseException) -> str:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return (
        "an unknown line"
        if trace is None
        else (f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}")
    )
