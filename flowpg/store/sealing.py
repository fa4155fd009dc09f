"""Sealing what is handed to a store, and opening what a client reads."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from flowpg.model import events, jsontext
from flowpg.model.codecs import (
    HOOK_PAYLOAD,
    RUN_ERROR,
    RUN_INPUT,
    RUN_OUTPUT,
    STEP_ERROR,
    STEP_INPUT,
    STEP_OUTPUT,
    CodecChain,
)
from flowpg.model.events import FlowEventEnvelope
from flowpg.model.ids import new_run_id
from flowpg.model.records import StartOutcome, StartRequest, StartResult
from flowpg.model.snapshot import (
    CompletedOutcome,
    FailedOutcome,
    HookStatus,
    WorkflowRunSnapshot,
)


def fresh_run_id() -> str:
    """An id for a run whose input is sealed before a store makes one up."""
    return new_run_id(time.time_ns() // 1_000_000)


def sealed_request(codecs: CodecChain, request: StartRequest) -> StartRequest:
    """A run to start with its input sealed, under an id that is made here if it has none."""
    if not codecs:
        return request
    run_id = fresh_run_id() if request.run_id is None else request.run_id
    return replace(request, run_id=run_id, input=codecs.seal(request.input, run_id, RUN_INPUT))


def same_start(codecs: CodecChain, request: StartRequest, run: WorkflowRunSnapshot) -> bool:
    """Whether a run is the one that ``request`` asks for, though its input was sealed in another
    way, such as with an older key."""
    if run.spec != request.spec:
        return False
    asked = codecs.open(request.input, run.run_id, RUN_INPUT)
    found = codecs.open(run.input, run.run_id, RUN_INPUT)
    return jsontext.equal(asked, found)


def in_conflict(codecs: CodecChain, results: Sequence[StartResult]) -> dict[int, str]:
    """Which of many starts are to be looked at again with ``same_start``: position and run id."""
    if not codecs:
        return {}
    refused = StartOutcome.RUN_CONFLICT
    return {at: found.run_id for at, found in enumerate(results) if found.outcome is refused}


def same_answer(codecs: CodecChain, run: WorkflowRunSnapshot, hook_id: str, sealed: object) -> bool:
    """Whether a hook was answered with what is ``sealed`` here, though that was sealed in another
    way, such as with an older key."""
    hook = run.hooks.get(hook_id)
    if hook is None or hook.status is not HookStatus.RECEIVED:
        return False
    asked = codecs.open_answer(sealed, run.run_id, hook_id, hook.token)
    found = codecs.open_answer(hook.payload, run.run_id, hook_id, hook.token)
    return jsontext.equal(asked, found)


def opened_snapshot(codecs: CodecChain, run: WorkflowRunSnapshot) -> WorkflowRunSnapshot:
    """``run`` itself, with all its values opened. UnknownKey, UndecodablePayload."""
    run_id = run.run_id
    run.input = codecs.open(run.input, run_id, RUN_INPUT)
    run.output = codecs.open(run.output, run_id, RUN_OUTPUT)
    if run.error:
        run.error = codecs.open_error(run.error, run_id, RUN_ERROR)
    outcome = run.terminal_outcome
    if isinstance(outcome, CompletedOutcome):
        run.terminal_outcome = outcome.model_copy(update={"output": run.output})
    elif isinstance(outcome, FailedOutcome):
        run.terminal_outcome = outcome.model_copy(update={"error": run.error})
    for step_id, step in run.steps.items():
        step.input = codecs.open(step.input, run_id, STEP_INPUT, step_id)
        step.output = codecs.open(step.output, run_id, STEP_OUTPUT, step_id)
        if step.error:
            step.error = codecs.open_error(step.error, run_id, STEP_ERROR, step_id)
    for hook_id, hook in run.hooks.items():
        hook.payload = codecs.open_answer(hook.payload, run_id, hook_id, hook.token)
    return run


def opened_history(
    codecs: CodecChain, history: Sequence[FlowEventEnvelope]
) -> list[FlowEventEnvelope]:
    """A whole history with all its values opened. UnknownKey, UndecodablePayload."""
    tokens = {e.data["hook_id"]: e.data["token"] for e in history if e.type == events.HOOK_CREATED}
    found: list[FlowEventEnvelope] = []
    for event in history:
        role, member = _SEALED.get(event.type, ("", ""))
        sealed = event.data.get(member)
        subject = "" if role in (RUN_INPUT, RUN_OUTPUT, RUN_ERROR) else str(event.subject)
        if role == HOOK_PAYLOAD:
            opened = codecs.open_answer(sealed, event.run_id, subject, tokens.get(subject, ""))
        elif member == "error":
            opened = codecs.open_error(str(sealed), event.run_id, role, subject)
        else:
            opened = codecs.open(sealed, event.run_id, role, subject)
        found.append(event if opened is sealed else event.with_data({**event.data, member: opened}))
    return found


_SEALED = {
    events.RUN_CREATED: (RUN_INPUT, "input"),
    events.RUN_COMPLETED: (RUN_OUTPUT, "output"),
    events.RUN_FAILED: (RUN_ERROR, "error"),
    events.STEP_CREATED: (STEP_INPUT, "input"),
    events.STEP_COMPLETED: (STEP_OUTPUT, "output"),
    events.STEP_RETRYING: (STEP_ERROR, "error"),
    events.STEP_FAILED: (STEP_ERROR, "error"),
    events.STEP_NON_RETRYABLE: (STEP_ERROR, "error"),
    events.HOOK_RECEIVED: (HOOK_PAYLOAD, "payload"),
}
"""Which member of an event is sealed, and as what."""
