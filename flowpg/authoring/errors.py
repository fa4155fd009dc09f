"""The errors of workflow code, beside those of ``flowpg.errors``.

::

    FlowError
    ├── OutsideWorkflow             a call that only workflow code can make
    ├── OutsideStep                 a call that only step code can make
    ├── StepFailed                  a step failed for good, and its own error cannot be rebuilt
    ├── HookClosed                  a hook was withdrawn, or expired, before it was answered
    ├── WorkflowFailed              the outcome of a run that did not complete
    └── EngineFault
        ├── NotDurable              workflow code tried what replay cannot repeat
        ├── WorkflowStuck           workflow code waits for what nothing will ever bring
        │   └── TurnTooLong         workflow code ran for too long without waiting
        └── UndecodablePayload      (of flowpg.errors) a recorded value does not fit the code here

The last four block a run and do not fail it: once the code is mended it goes on.
"""

from __future__ import annotations

from flowpg.errors import EngineFault, FlowError


class OutsideWorkflow(FlowError):
    """Only workflow code, while it is being run or replayed, can call this."""

    def __init__(self, call: str, instead: str) -> None:
        super().__init__(f"{call} was called outside a workflow; {instead}")
        self.call = call


class OutsideStep(FlowError):
    """Only the code of a step, while it is run for a workflow, can call this."""

    def __init__(self, call: str) -> None:
        super().__init__(
            f"{call} was called outside a step; a step that is called as a plain function has no "
            "run, so give it what it needs as arguments"
        )
        self.call = call


class StepFailed(FlowError):
    """A step failed for good, and the class of its error is not known in this process.

    ``error_type`` and ``error_message`` are those of the error that the step raised.
    """

    def __init__(self, error_type: str, error_message: str) -> None:
        super().__init__(f"{error_type}: {error_message}" if error_message else error_type)
        self.error_type = error_type
        self.error_message = error_message


class HookClosed(FlowError):
    """The hook was withdrawn, or its expiry passed, before anyone answered it."""

    def __init__(self, hook_id: str) -> None:
        super().__init__(f"hook {hook_id!r} was withdrawn or has expired without an answer")
        self.hook_id = hook_id


class WorkflowFailed(FlowError):
    """The run ended without a result; ``status`` says how, ``__cause__`` is the workflow's error
    if it failed with one."""

    def __init__(self, run_id: str, status: str, reason: str | None) -> None:
        super().__init__(f"run {run_id!r} ended {status}" + (f": {reason}" if reason else ""))
        self.run_id = run_id
        self.status = status
        self.reason = reason


class NotDurable(EngineFault):
    """Workflow code did something that a replay could not repeat, such as opening a connection."""

    def __init__(self, call: str, instead: str) -> None:
        super().__init__(f"{call} is not possible in workflow code, which is replayed: {instead}")
        self.call = call


class WorkflowStuck(EngineFault):
    """The workflow waits, and nothing is open that could end its waiting, or it never waits."""

    def __init__(self, run_id: str, reason: str) -> None:
        super().__init__(f"run {run_id!r} cannot go on: {reason}")
        self.run_id = run_id


class TurnTooLong(WorkflowStuck):
    """Workflow code ran for too long without waiting for a step, a timer or a hook; its turn was
    abandoned, because every other run of the process waits meanwhile."""

    def __init__(self, run_id: str, seconds: float | None = None) -> None:
        when = "in an earlier drive of this process"
        if seconds is not None:
            when = f"after {seconds:.1f} s"
        super().__init__(
            run_id,
            f"a turn of its workflow was abandoned {when}: it did not wait for a step, a timer or "
            "a hook, and every other run waited for it; do the work in a step",
        )
