"""One turn: ask workflow code for its decision and plan what that becomes."""

from __future__ import annotations

import asyncio
import inspect
import logging
from datetime import datetime

from flowpg.engine.errortext import blocks_run, describe, ends_the_loop, traceable
from flowpg.engine.tip import RunTip
from flowpg.errors import PayloadTooLarge, SerializationError
from flowpg.model.commands import Fail
from flowpg.replay.decision import commands_of, decide, is_decision
from flowpg.replay.plan import Plan
from flowpg.replay.runtime import FlowRuntime, WorkflowInvocation

logger = logging.getLogger("flowpg.engine.workflows")


async def take_turn(runtime: FlowRuntime, tip: RunTip, now: datetime) -> Plan:
    """The plan of the decision that ``runtime`` makes at the tip, at the store's time ``now``.

    Whatever workflow code raises fails the run, and so does a decision that is none or that holds
    a value JSON cannot carry. Faults that another process or another deploy can mend are raised:
    EngineFault, NonDeterministic and InvalidTransition. The tip is only read.
    """
    snapshot = tip.snapshot
    invocation = WorkflowInvocation(
        tip.run_id, snapshot.spec, snapshot.input, snapshot, tip.history
    )
    try:
        decision = runtime.run_workflow(invocation)
        if not is_decision(decision) and inspect.isawaitable(decision):
            decision = await decision
        commands = commands_of(decision)
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        # Nobody cancelled this drive: the workflow awaited something that was cancelled.
        _log(invocation, error)
        return decide(snapshot, (Fail(error=describe(error)),), now)
    except BaseException as error:
        if blocks_run(error) or ends_the_loop(error):
            raise
        _log(invocation, error)
        return decide(snapshot, (Fail(error=describe(error)),), now)
    try:
        plan = decide(snapshot, commands, now)
    except (SerializationError, PayloadTooLarge) as error:
        return decide(snapshot, (Fail(error=describe(error)),), now)
    for step_id, reason in plan.refused:
        logger.warning("step %r is not run and fails with %s", step_id, reason)
    return plan


def _log(run: WorkflowInvocation, error: BaseException) -> None:
    logger.warning(
        "workflow %r fails run %r: %s",
        run.spec.name,
        run.run_id,
        type(error).__name__,
        exc_info=traceable(error),
    )
