"""Every exception flowpg raises, as one tree.

::

    FlowError
    ├── RunNotFound                 no such run
    ├── InvalidRunId                a run id outside the allowed characters or length
    ├── RunConflict                 the id is taken by a run with another definition
    ├── RunTerminal                 new work for a run that has ended
    ├── EventConflict               the stream moved on: another writer appended first
    ├── LeaseLost                   another worker drives the run now
    ├── HookTokenNotFound           no active hook has this token
    ├── HookTokenConflict           the token belongs to an active hook already
    ├── HookConflict                the hook was resolved in another way
    ├── InvalidTransition           an event, command or argument that the rules forbid here
    │   ├── InvalidWorkflow         a workflow spec that cannot be run
    │   └── InvalidArgument         a value no call of this kind accepts
    │       └── AnswerRejected      an answer that is not what the workflow waits for
    ├── NonDeterministic            replay took another path than the history
    ├── PayloadTooLarge             one event's payload is over the limit
    ├── SerializationError          a value that JSON cannot carry, or text that is not JSON
    ├── ReplayLimitExceeded         the workflow keeps deciding without doing work
    ├── EngineFault                 this process cannot drive the run; another may
    │   ├── UnknownWorkflow         no workflow of this name is registered here
    │   ├── UnknownStep             no step of this name is registered here
    │   ├── UndecodablePayload      a recorded value does not fit the code of this process
    │   │   └── UnknownKey          it is encrypted with a key that this process does not have
    │   ├── RuntimeBuildUnavailable the run is pinned to another build
    │   ├── RuntimeBuildRouteNotFound no route leads to workers of a build
    │   └── TransactionsUnavailable transactional steps need PostgreSQL
    ├── StepError                   raised by step code to steer its retries
    │   ├── NonRetryable            do not try again
    │   └── RetryLater              try again after a given delay
    ├── StepTimeout                 a step took longer than it may; a TimeoutError too
    │   ├── StartToCloseTimeout     one attempt took too long
    │   ├── HeartbeatTimeout        an attempt gave no sign of life for too long
    │   ├── ScheduleToStartTimeout  the code of a step did not begin in time
    │   └── ScheduleToCloseTimeout  a step with all its attempts took too long
    └── StoreError                  the database could not do it
        ├── StoreUnavailable        no connection, or it was lost
        ├── PermissionDenied        the role lacks a privilege
        ├── MigrationFailed         a migration did not go through
        │   └── MigrationBlocked    it did not get a lock in time; run it again
        └── SchemaError             the schema is not the one this release needs
            ├── SchemaMissing
            ├── SchemaBehind
            ├── SchemaAhead
            └── SchemaAltered

Messages never contain a hook token or a payload; a token stays readable as an attribute for
programmatic routing only.
"""

from __future__ import annotations

from datetime import timedelta


class FlowError(Exception):
    """Base of every error raised by flowpg."""


class RunNotFound(FlowError):
    """There is no run with this id."""

    def __init__(self, run_id: str) -> None:
        super().__init__(f"run {run_id!r} does not exist; start it first or check the id")
        self.run_id = run_id


class InvalidRunId(FlowError):
    """The run id is not 1 to 255 of ``A-Z a-z 0-9 . _ : @ + -`` starting with a letter or digit."""

    def __init__(self, run_id: str) -> None:
        shown = ascii(run_id if len(run_id) <= 80 else run_id[:77] + "...")
        super().__init__(
            f"run id {shown} is not valid: use 1 to 255 characters of A-Z a-z 0-9 . _ : @ + -, "
            "the first a letter or a digit"
        )
        self.run_id = run_id


class RunConflict(FlowError):
    """The id belongs to a run with another spec, input, or request."""

    def __init__(self, run_id: str, reason: str) -> None:
        super().__init__(f"run {run_id!r} conflicts with what is recorded: {reason}")
        self.run_id = run_id
        self.reason = reason


class RunTerminal(FlowError):
    """The run has ended and takes no new work."""

    def __init__(self, run_id: str, status: str = "terminal") -> None:
        super().__init__(f"run {run_id!r} has ended ({status}) and takes no new work")
        self.run_id = run_id
        self.status = status


class EventConflict(FlowError):
    """The stream was longer than the writer believed. Reload and decide again."""

    def __init__(self, run_id: str, expected: int, actual: int) -> None:
        super().__init__(
            f"run {run_id!r} is at sequence {actual}, not {expected}: another writer was first; "
            "reload and decide again"
        )
        self.run_id = run_id
        self.expected = expected
        self.actual = actual


class LeaseLost(FlowError):
    """The lease of the run is held under a newer epoch; nothing of this writer was stored."""

    def __init__(self, run_id: str, epoch: int) -> None:
        super().__init__(
            f"lease {epoch} of run {run_id!r} is no longer valid: another worker drives the run; "
            "nothing was written"
        )
        self.run_id = run_id
        self.epoch = epoch


class HookTokenNotFound(FlowError):
    """No active hook has this token: never created, already resolved, or its run ended."""

    token = ""

    def __init__(self, token: str) -> None:
        super().__init__(
            "no active hook has this token (redacted); redeliver by run and hook id instead"
        )
        self.token = token

    def __repr__(self) -> str:
        return "HookTokenNotFound(token=<redacted>)"


class HookTokenConflict(FlowError):
    """The token is held by another active hook, ``hook_id`` of run ``run_id``. It is free again
    once that hook is resolved.

    Workflow code, whose hook was refused, catches it without the token: that is then empty.
    """

    token = run_id = hook_id = ""

    def __init__(self, token: str, run_id: str, hook_id: str) -> None:
        super().__init__(
            f"the token (redacted) is held by active hook {hook_id!r} of run {run_id!r}; "
            "use another token or resolve that hook first"
        )
        self.token = token
        self.run_id = run_id
        self.hook_id = hook_id

    def __repr__(self) -> str:
        return (
            f"HookTokenConflict(token=<redacted>, run_id={self.run_id!r}, hook_id={self.hook_id!r})"
        )


class HookConflict(FlowError):
    """The hook was resolved already, in another way than now asked for."""

    def __init__(self, run_id: str, hook_id: str, reason: str) -> None:
        super().__init__(f"hook {hook_id!r} of run {run_id!r}: {reason}")
        self.run_id = run_id
        self.hook_id = hook_id
        self.reason = reason


class InvalidTransition(FlowError):
    """The rules of the event stream forbid this event or command here; nothing was written."""

    def __init__(self, reason: str, *, run_id: str | None = None) -> None:
        super().__init__(f"run {run_id!r}: {reason}" if run_id else reason)
        self.reason = reason
        self.run_id = run_id


class InvalidWorkflow(InvalidTransition):
    """The workflow spec is not usable."""


class InvalidArgument(InvalidTransition):
    """An argument that no call of this kind accepts."""


class AnswerRejected(InvalidArgument):
    """The answer to a hook is not of the type that the workflow waits for. Nothing was stored, and
    the run still waits.

    ``failures`` are pairs of a place (``lines.0.cents``; empty for the answer itself) and what is
    expected there. They hold no part of the answer.
    """

    def __init__(self, run_id: str, hook_id: str, failures: tuple[tuple[str, str], ...]) -> None:
        listed = "; ".join(f"{place or 'it'} {wanted}" for place, wanted in failures)
        super().__init__(
            f"the answer to hook {hook_id!r} is not what the workflow waits for: {listed}. "
            "Nothing was stored and the run still waits: send one that fits",
            run_id=run_id,
        )
        self.hook_id = hook_id
        self.failures = failures


class NonDeterministic(FlowError):
    """A replayed command differs from the durable definition of the same id."""

    def __init__(self, run_id: str, reason: str) -> None:
        super().__init__(f"run {run_id!r} did not replay as recorded: {reason}")
        self.run_id = run_id
        self.reason = reason


class PayloadTooLarge(FlowError):
    """One event's payload is larger than the limit. Nothing was written."""

    run_id = event_type = ""
    size = limit = 0

    def __init__(
        self, run_id: str, event_type: str, size: int, limit: int, subject: str | None = None
    ) -> None:
        about = "" if subject is None else f" {subject!r}"
        # A run that is refused before it has an id is the caller's own.
        whose = f"run {run_id!r}: " if run_id else ""
        super().__init__(
            f"{whose}the payload of {event_type}{about} is {size} bytes, the limit is "
            f"{limit}; store the value elsewhere and pass a reference"
        )
        self.run_id = run_id
        self.event_type = event_type
        self.size = size
        self.limit = limit


class SerializationError(FlowError):
    """A value that JSON cannot carry unchanged, or a payload that cannot be decoded."""


class ReplayLimitExceeded(FlowError):
    """The workflow was replayed too often without a step being run. The run stays resumable."""

    def __init__(self, run_id: str, limit: int) -> None:
        super().__init__(
            f"run {run_id!r} was replayed {limit} times in one drive without running a step; "
            "the workflow makes no progress, or the replay limit is too low for it"
        )
        self.run_id = run_id
        self.limit = limit


class EngineFault(FlowError):
    """This process cannot drive the run. No event is written; the run is blocked, not failed."""


class UnknownWorkflow(EngineFault):
    """No workflow of this name is registered in this process."""

    def __init__(self, name: str) -> None:
        super().__init__(f"no workflow named {name!r} is registered here")
        self.name = name


class UnknownStep(EngineFault):
    """No step of this name is registered in this process."""

    def __init__(self, name: str) -> None:
        super().__init__(f"no step named {name!r} is registered here")
        self.name = name


class UndecodablePayload(EngineFault):
    """A value in the history does not fit what the code of this process says it is, or cannot be
    decrypted or decompressed here."""


class UnknownKey(UndecodablePayload):
    """A value is encrypted with a key that this process does not have."""


class RuntimeBuildUnavailable(EngineFault):
    """The run is pinned to a build that this process is not."""

    def __init__(self, run_id: str, required: str | None, current: str | None) -> None:
        super().__init__(
            f"run {run_id!r} needs build {required or 'unpinned'}, this process is "
            f"{current or 'unpinned'}; start a worker of that build"
        )
        self.run_id = run_id
        self.required = required
        self.current = current


class RuntimeBuildRouteNotFound(EngineFault):
    """A router has no route for the build that a run needs. Nothing was dispatched."""

    def __init__(self, required: str | None) -> None:
        what = "runs without a build" if required is None else f"build {required!r}"
        super().__init__(f"no route leads to workers of {what}; nothing was dispatched")
        self.required = required


class TransactionsUnavailable(EngineFault):
    """A transactional step in an engine whose runs are not kept in PostgreSQL."""

    def __init__(self, step_id: str) -> None:
        super().__init__(
            f"step {step_id!r} is transactional, which needs its run in PostgreSQL: use an engine "
            "on a PostgresEventStore; in a test of the step alone call its function with a "
            "connection of your own"
        )
        self.step_id = step_id


class StepError(FlowError):
    """Raised by step code to say how its failure is to be treated."""


class NonRetryable(StepError):
    """The step failed for good: no further attempt is made whatever its retry policy says."""


class RetryLater(StepError):
    """The step failed and asks for its next attempt after ``delay``, if any attempt is left."""

    def __init__(self, message: str, delay: timedelta) -> None:
        if not isinstance(delay, timedelta):
            raise TypeError(f"RetryLater needs a timedelta, not {type(delay).__name__}")
        super().__init__(message)
        self.delay = delay


class StepTimeout(FlowError, TimeoutError):
    """A step took longer than its ``StepTimeouts`` allow. Raised where the workflow awaits the
    step, once its retry policy allows no further attempt."""


class StartToCloseTimeout(StepTimeout):
    """One attempt took longer than ``start_to_close``."""


class HeartbeatTimeout(StepTimeout):
    """An attempt gave no heartbeat for longer than ``heartbeat``."""


class ScheduleToStartTimeout(StepTimeout):
    """The code of a step did not begin within ``schedule_to_start``; it is not tried again."""


class ScheduleToCloseTimeout(StepTimeout):
    """A step with all its attempts and pauses took longer than ``schedule_to_close``."""


class StoreError(FlowError):
    """The database refused or failed."""


class StoreUnavailable(StoreError):
    """No connection to the server, or it was lost; whether a write happened is unknown."""


class PermissionDenied(StoreError):
    """The database role lacks a privilege."""


class MigrationFailed(StoreError):
    """A migration did not go through. Nothing of it stays, unless the message says otherwise."""


class MigrationBlocked(MigrationFailed):
    """A migration did not get a lock in time and gave way. Run it again."""


class SchemaError(StoreError):
    """The schema in the database is not the one this release of flowpg needs."""


class SchemaMissing(SchemaError):
    """The schema was never migrated."""


class SchemaBehind(SchemaError):
    """The schema misses migrations that this release needs."""


class SchemaAhead(SchemaError):
    """The schema has migrations that this release does not know."""


class SchemaAltered(SchemaError):
    """An applied migration, or an object it made, is not what this release pinned."""
