"""How a run ends, once its workflow has returned, raised, or was cancelled.

As with ``asyncio.run``, tasks that are still at work are then cancelled and may clean up, durable
calls included; asynchronous generators are closed. What those tasks waited for is given up with
them and closed beside the end. A run completes only when every other step that it started has
settled, because a step's outcome belongs to the run; a run that fails or is cancelled does not wait
for them.

A run that was asked to cancel ends as its workflow says: cancelled if that lets the cancellation
pass, completed if it catches it and returns, or had returned before it saw the request.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from flowpg.authoring.failures import failure_body, place_of_failure, shown_failure
from flowpg.errors import (
    EngineFault,
    InvalidTransition,
    NonDeterministic,
    SerializationError,
)
from flowpg.model.codecs import RUN_ERROR, RUN_OUTPUT
from flowpg.model.commands import Cancel, Complete, Decision, Fail, RuntimeCommand
from flowpg.model.snapshot import WorkflowRunSnapshot

if TYPE_CHECKING:
    from flowpg.authoring.tasks import RunTask
    from flowpg.authoring.turns import RunTurns

logger = logging.getLogger("flowpg.authoring")


class Ending:
    """The workflow's own task, and what is left to do when it is done."""

    def __init__(self, turns: RunTurns) -> None:
        self.main: RunTask | None = None
        self.final = False
        """Whether the latest decision ended the run."""
        self._turns = turns
        self._closing = False
        self._refusal: Exception | None = None

    def refuse(self, error: Exception) -> None:
        """The workflow cannot even begin: its input does not fit."""
        self._refusal = error

    def cancel(self, reason: str | None) -> None:
        """Cancel the workflow, once; its tasks follow as asyncio has it."""
        if self.main is not None and not self.main.done():
            self.main.cancel(reason)

    def look(self) -> None:
        """If the workflow is done, cancel what it left behind and let that clean up."""
        if self._closing or self.main is None or not self.main.done():
            return
        self._closing = True
        loop = self._turns.loop
        for task in loop.live_tasks():
            task.cancel()
        loop.run_ready()
        loop.close_generators()
        loop.run_ready()

    @property
    def reached(self) -> bool:
        """Whether nothing of the run is left to wait for, but perhaps steps it abandoned."""
        if self._refusal is not None:
            return True
        if self.main is None or not self.main.done():
            return False
        # A task that ignores its cancellation and waits for nothing durable is left behind.
        return not self._turns.loop.live_tasks() or self._turns.ledger.idle

    def decision(self, snapshot: WorkflowRunSnapshot) -> Decision:
        """The end of the run, or the steps that must settle before it completes."""
        ledger = self._turns.ledger
        end = self._end()
        if isinstance(end, Complete) and ledger.steps:
            return (*ledger.closings(), *ledger.open_steps(snapshot))
        self.final = True
        self._turns.loop.report_unseen()
        return (*ledger.reports(), end)

    def _end(self) -> RuntimeCommand:
        if self._refusal is not None:
            return self._fail(self._refusal)
        main = self.main
        assert main is not None
        cancelling = self._turns.cancelling
        if main.cancelled():
            if cancelling:
                return Cancel()
            return Fail(error="CancelledError: the workflow cancelled itself")
        error = main.exception()
        if error is not None:
            return self._failed(error)
        try:
            turns = self._turns
            output = turns.definition.codec.encode_result(main.result())
            return Complete(
                output=turns.codecs.seal(output, turns.run_id, RUN_OUTPUT),
                despite_cancellation=cancelling,
            )
        except SerializationError as refused:
            return self._fail(refused)

    def _failed(self, error: BaseException) -> RuntimeCommand:
        # Faults block the run, they do not fail it: another deploy can mend them.
        if isinstance(error, (KeyboardInterrupt, EngineFault, NonDeterministic)):
            raise error
        if type(error) is InvalidTransition:
            raise error
        return self._fail(error)

    def _fail(self, error: BaseException) -> Fail:
        codecs, run_id = self._turns.codecs, self._turns.run_id
        shown = (place_of_failure(error) if codecs else shown_failure(error)).rstrip("\n")
        logger.warning(
            "workflow %r fails run %r: %s%s",
            self._turns.definition.spec.name,
            run_id,
            type(error).__name__,
            f"\n{shown}" if shown else f"; flowpg show {run_id} says why",
        )
        body = codecs.seal_error(failure_body(error), run_id, RUN_ERROR)
        return Fail(error=f"{type(error).__name__}: {body}")
