"""What a decision of workflow code becomes: the plan of one replay.

A decision is a tuple of commands; they are planned in order and commit in one append. Planning
only reads the snapshot, and all of it happens before there is any event: a decision that breaks a
rule leaves nothing behind.

Definitions are compared with the history whenever an id comes back, also when its outcome is long
known. The exception is time: the deadline of a wait and the expiry of a hook may be recomputed at
each replay, the first one recorded is the durable one.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from flowpg.errors import (
    InvalidRunId,
    InvalidTransition,
    PayloadTooLarge,
)
from flowpg.model import events
from flowpg.model.commands import (
    Cancel,
    Complete,
    CreateHook,
    Fail,
    LinkChildOperation,
    RecordProgress,
    RuntimeCommand,
    ScheduleStep,
    ScheduleSteps,
    StepCommand,
    Timeout,
    WaitUntil,
)
from flowpg.model.events import NewEvent
from flowpg.model.sizes import limits, omitted
from flowpg.model.snapshot import (
    HookStatus,
    RunStatus,
    StepSnapshot,
    StepStatus,
    WaitStatus,
    WorkflowRunSnapshot,
)
from flowpg.replay import closings, definitions, validation
from flowpg.replay.plan import Plan, StepLaunch, following


def is_decision(value: object) -> bool:
    """Whether this is a decision and nothing that is to be awaited first."""
    return type(value) in _PLANNERS or type(value) is tuple


def commands_of(decision: object) -> tuple[RuntimeCommand, ...]:
    """What workflow code returned, as a tuple of commands. TypeError if it is anything else."""
    if type(decision) in _PLANNERS:
        return (decision,)  # type: ignore[return-value]
    if isinstance(decision, (tuple, list)):
        for command in decision:
            if type(command) not in _PLANNERS:
                raise TypeError(
                    f"a decision holds {type(command).__name__}, which is not a command"
                )
        return tuple(decision)
    raise TypeError(
        f"workflow code must return a command or a tuple of commands, not {type(decision).__name__}"
    )


def decide(
    snapshot: WorkflowRunSnapshot, commands: tuple[RuntimeCommand, ...], now: datetime
) -> Plan:
    """The plan of ``commands`` at the store's time ``now``.

    New work is declared and started; a running step is launched again under its attempt (a driver
    leaves out those it runs already); a pending step whose deadline has passed gets its next
    attempt; what is awaited stays as it is.

    Raises NonDeterministic if an id comes back with another definition, InvalidTransition (or
    InvalidArgument) if the rules forbid a command here or the decision could never make progress,
    PayloadTooLarge and SerializationError for a value that cannot be stored. All name the run or
    the id. An input that is too large for a step whose failure the workflow hears of is no error
    here: the plan declares the step without it, and has it fail.
    """
    run_id = snapshot.run_id
    if snapshot.status is RunStatus.PENDING or snapshot.terminal:
        reason = f"the run is {snapshot.status.value}, so nothing can be decided"
        raise InvalidTransition(reason, run_id=run_id)
    planner = _Planner(snapshot, commands, now)
    try:
        for command in commands:
            planner.add(command)
        planner.check_progress(commands)
        planner.fail_refused()
    except InvalidTransition as error:
        if error.run_id is None:
            raise type(error)(error.reason, run_id=run_id) from None
        raise
    except InvalidRunId:
        raise InvalidTransition(
            "a linked child operation names a malformed run id", run_id=run_id
        ) from None
    return planner.plan


class _Planner:
    """One decision being planned. ``live`` counts what is new or open, ``work`` what of it keeps
    a run from ending; ``named`` holds the subjects that the decision named so far."""

    __slots__ = ("attributes", "closed", "commands", "live", "named", "now", "plan", "run", "work")

    def __init__(
        self,
        run: WorkflowRunSnapshot,
        commands: tuple[RuntimeCommand, ...],
        now: datetime,
    ) -> None:
        self.run = run
        self.commands = commands
        self.now = now
        self.plan = Plan()
        self.live = 0
        self.work = 0
        self.named: set[tuple[str, str]] = set()
        self.attributes = self.run.attributes
        self.closed: set[str] = set()  # the open steps that the decision gives up

    def add(self, command: RuntimeCommand) -> None:
        if self.plan.ended:
            raise InvalidTransition("a command that ends the run must be the last of its decision")
        plan = _PLANNERS.get(type(command))
        if plan is None:
            raise InvalidTransition(f"{type(command).__name__} is not a command")
        plan(self, command)

    def check_progress(self, commands: tuple[RuntimeCommand, ...]) -> None:
        if self.live:
            # What was only closed, or recorded, leaves the question what is next.
            self.plan.news |= not (self.work or self.plan.ended)
            return
        named = ", ".join(_describe(command) for command in commands[:5]) or "an empty decision"
        raise InvalidTransition(
            f"no progress: {named} asks only for what has its outcome already; read the outcome "
            "from the context and decide on something else"
        )

    @property
    def replay(self) -> validation.Replay:
        """Both sides of a comparison."""
        return validation.Replay(self.run, self.commands)

    def name(self, kind: str, subject: str) -> None:
        key = (kind, subject)
        if key in self.named:
            raise InvalidTransition(f"the decision names {kind} {subject!r} twice")
        self.named.add(key)

    def cancelled(self, what: str) -> InvalidTransition:
        if self.run.status is not RunStatus.CANCELLING:
            return InvalidTransition(f"{what} was cancelled and stays so; use a new id")
        return InvalidTransition(
            f"{what} was cancelled because cancellation was requested: the workflow should look "
            "at ctx.cancellation_request(), clean up under new ids, and return ctx.cancel(); or "
            "`flowpg cancel RUN --force` ends the run as it is"
        )

    def emit(self, event: NewEvent) -> NewEvent:
        # No character takes more than four bytes.
        if event.text is None or len(event.text) * 4 > limits.warn:
            definitions.check_size(self.run.run_id, event)
        self.plan.events.append(event)
        return event

    # -- steps ----------------------------------------------------------------------------------

    def schedule_step(self, command: ScheduleStep) -> None:
        start = self.declare(command)
        if start is not None:
            self.start(*start)

    def schedule_steps(self, command: ScheduleSteps) -> None:
        if not command.steps:
            raise InvalidTransition("a batch of steps must not be empty")
        # All are declared before the first one starts, so a crash in between loses no sibling.
        starts = [self.declare(step) for step in command.steps]
        for start in starts:
            if start is not None:
                self.start(*start)

    def declare(self, command: StepCommand) -> tuple[StepLaunch, bool] | None:
        """The launch that ``command`` asks for now and whether it is a new attempt."""
        step_id = command.step_id
        self.name("step", step_id)
        step = self.run.steps.get(step_id)
        if step is not None:
            validation.check_step(self.replay, step, command)
            return self.redeclare(step)
        self.live += 1
        self.work += 1
        event = definitions.new_step(command, self.now)
        try:
            self.emit(event)
        except PayloadTooLarge as error:
            if not command.retry.continues_workflow:
                raise  # it fails the run, as any failure of this step does
            self.refuse(command, error)
            return None
        launch = StepLaunch(step_id, command.step_name, event.data["input"], 1)
        launch.queue = command.queue
        return launch, True

    def redeclare(self, step: StepSnapshot) -> tuple[StepLaunch, bool] | None:
        status = step.status
        if status is StepStatus.CANCELLED:
            raise self.cancelled(f"step {step.step_id!r}")
        if not status.open:
            return None
        self.live += 1
        self.work += 1
        if status is StepStatus.RUNNING:
            return following(step, again=True), False
        if step.retry_after is not None and step.retry_after > self.now:
            return None
        return following(step), True

    def refuse(self, command: StepCommand, error: PayloadTooLarge) -> None:
        """Record a step without its input. Its failure follows in the same append, so no replay
        asks again how large it is, by limits that may be others by then."""
        without = command.model_copy(update={"input": omitted(error.size)})
        self.plan.events.append(definitions.new_step(without, self.now))
        self.plan.refused.append((command.step_id, f"{type(error).__name__}: {error}"))

    def fail_refused(self) -> None:
        """Let the steps fail whose input is too large: after everything that the decision declares,
        for what hears of a failure may give up what is declared beside it."""
        for step_id, error in self.plan.refused:
            self.plan.events.append(events.step_started(step_id, 1))
            self.plan.events.append(events.step_non_retryable(step_id, 1, error))
            self.plan.news = True

    def start(self, launch: StepLaunch, new_attempt: bool) -> None:
        if new_attempt:
            self.plan.events.append(events.step_started(launch.step_id, launch.attempt))
        self.plan.launches.append(launch)

    # -- timers and hooks -----------------------------------------------------------------------

    def wait_until(self, command: WaitUntil) -> None:
        wait_id = command.wait_id
        if (command.resume_at is None) == (command.delay is None):
            raise InvalidTransition(f"wait {wait_id!r} needs either a time or a delay")
        self.name("wait", wait_id)
        wait = self.run.waits.get(wait_id)
        if wait is None:
            self.emit(definitions.new_wait(command, self.now))
        elif wait.status is WaitStatus.CANCELLED:
            raise self.cancelled(f"wait {wait_id!r}")
        elif wait.status is WaitStatus.COMPLETED:
            return
        self.live += 1
        self.work += 1

    def create_hook(self, command: CreateHook) -> None:
        hook_id = command.hook_id
        self.name("hook", hook_id)
        hook = self.run.hooks.get(hook_id)
        if hook is None:
            self.emit(definitions.new_hook(command, self.now))
            self.plan.news |= command.acquire
        else:
            validation.check_hook(self.replay, hook, command)
            if hook.status is HookStatus.CANCELLED:
                raise self.cancelled(f"hook {hook_id!r}")
            if hook.status is not HookStatus.ACTIVE:
                return
        self.live += 1
        self.work += 1

    # -- small facts ----------------------------------------------------------------------------

    def record_progress(self, command: RecordProgress) -> None:
        progress = command.progress
        self.name("progress", progress.progress_id)
        recorded = self.run.open.progress.get(progress.progress_id)
        if recorded is not None:
            validation.check_progress(self.replay, recorded, progress)
            return
        self.emit(definitions.new_progress(command))
        self.plan.news = True
        self.live += 1

    def link_child(self, command: LinkChildOperation) -> None:
        child = command.child
        self.name("child reference", child.reference_id)
        linked = self.run.child_operations.get(child.reference_id)
        if linked is not None:
            validation.check_child(self.replay, linked, child)
            return
        self.emit(definitions.new_child(command))
        self.plan.news = True
        self.live += 1

    # -- ends -----------------------------------------------------------------------------------

    def complete(self, command: Complete) -> None:
        if self.run.status is RunStatus.CANCELLING and not command.despite_cancellation:
            raise InvalidTransition(
                "complete is not allowed once cancellation was requested; clean up, then return "
                "cancel or fail, or say that it completes despite the cancellation"
            )
        for step_id in self.run.open.steps:
            if step_id not in self.closed:
                raise InvalidTransition(
                    f"complete while step {step_id!r} is open; schedule it again and read its "
                    "outcome, or cancel it"
                )
        self.end(definitions.completed(command.output))

    def fail(self, command: Fail) -> None:
        self.end(events.run_failed(command.error))

    def cancel(self, command: Cancel) -> None:
        request = self.run.cancellation
        if request is None:
            raise InvalidTransition("cancel without a cancellation request; return fail instead")
        self.end(events.run_cancelled(request.reason))

    def timeout(self, command: Timeout) -> None:
        self.end(events.run_timed_out(command.deadline, command.reason))

    def end(self, event: NewEvent) -> None:
        if self.work:
            raise InvalidTransition(
                "a command that ends the run cannot stand beside open steps, waits or hooks in "
                "one decision"
            )
        self.emit(event)
        self.plan.ended = True
        self.live += 1


_PLANNERS: dict[type, Callable[[_Planner, Any], None]] = {
    ScheduleStep: _Planner.schedule_step,
    ScheduleSteps: _Planner.schedule_steps,
    WaitUntil: _Planner.wait_until,
    CreateHook: _Planner.create_hook,
    RecordProgress: _Planner.record_progress,
    LinkChildOperation: _Planner.link_child,
    Complete: _Planner.complete,
    Fail: _Planner.fail,
    Cancel: _Planner.cancel,
    Timeout: _Planner.timeout,
    **closings.PLANNERS,
}


def _describe(command: RuntimeCommand) -> str:
    if isinstance(command, ScheduleSteps):
        ids = ", ".join(repr(step.step_id) for step in command.steps[:5])
        return f"{command.type} {ids}"
    for name in ("step_id", "wait_id", "hook_id", "patch_id"):
        if hasattr(command, name):
            return f"{command.type} {getattr(command, name)!r}"
    if isinstance(command, RecordProgress):
        return f"{command.type} {command.progress.progress_id!r}"
    if isinstance(command, LinkChildOperation):
        return f"{command.type} {command.child.reference_id!r}"
    return command.type
