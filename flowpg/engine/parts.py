"""What the drives of one engine share."""

from __future__ import annotations

import functools
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass

from flowpg.engine.commit import PatientStore
from flowpg.engine.handlers import StepHandlers
from flowpg.engine.lease import Keeper
from flowpg.engine.observer import ObserverGate
from flowpg.engine.options import EngineOptions
from flowpg.engine.step_heartbeats import StepHeartbeats
from flowpg.engine.transactional import StepTransactions
from flowpg.model.records import RunLease, StepLease
from flowpg.replay.runtime import FlowRuntime


@dataclass(frozen=True, slots=True)
class DriveParts:
    """What the drives of one engine share. ``in_loop``: ``run_step`` is a coroutine function."""

    store: PatientStore
    runtime: FlowRuntime
    in_loop: bool
    options: EngineOptions
    keeper: Keeper
    gate: ObserverGate
    executor: Callable[[], Executor]
    transactions: Callable[[], StepTransactions | None]
    heartbeats: Callable[[], StepHeartbeats]

    def handlers(self, lease: RunLease | StepLease, on_settled: Callable[[], None]) -> StepHandlers:
        """The handlers of one drive, or of one step of another queue's run, under its ``lease``."""
        return StepHandlers(
            self.runtime,
            self.executor,
            on_settled,
            in_loop=self.in_loop,
            epoch=lease.epoch,
            transactions=self.transactions,
            heartbeats=self.heartbeats(),
            recall=functools.partial(self.store.step_heartbeat, lease.run_id),
        )
