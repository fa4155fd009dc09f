"""One turn: ask workflow code for its decision and plan what that becomes."""

from __future__ import annotations

import asyncio
import inspect
from datetime import datetime

from flowpg.engine.errortext import blocks_run, describe, ends_the_loop
from flowpg.engine.tip import RunTip
from flowpg.errors import PayloadTooLarge, SerializationError
from flowpg.model.commands import Fail
from flowpg.replay.decision import commands_of, decide
from flowpg.replay.plan import Plan
from flowpg.replay.runtime import FlowRuntime, WorkflowInvocation


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
        if inspect.isawaitable(decision):
            decision = await decision
        commands = commands_of(decision)
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        # Nobody cancelled this drive: the workflow awaited something that was cancelled.
        return decide(snapshot, (Fail(error=describe(error)),), now)
    except BaseException as error:
        if blocks_run(error) or ends_the_loop(error):
            raise
        return decide(snapshot, (Fail(error=describe(error)),), now)
    try:
        return decide(snapshot, commands, now)
    except (SerializationError, PayloadTooLarge) as error:
        return decide(snapshot, (Fail(error=describe(error)),), now)
