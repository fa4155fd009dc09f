"""flowpg: durable workflows that live in PostgreSQL.

The names below are the public interface; docs/reference/api.md lists them. Everything else may
change without notice.
"""

from flowpg.authoring import FlowApp, Retry, hook
from flowpg.client import FlowClient
from flowpg.engine.builder import FlowEngineBuilder
from flowpg.engine.flow_engine import FlowEngine
from flowpg.engine.local import open_engine
from flowpg.engine.observer import (
    FanoutFlowEventObserver,
    FlowEventObserver,
    InMemoryFlowEventObserver,
)
from flowpg.errors import (
    EngineFault,
    EventConflict,
    FlowError,
    HeartbeatTimeout,
    HookConflict,
    HookTokenConflict,
    HookTokenNotFound,
    InvalidArgument,
    InvalidRunId,
    InvalidTransition,
    InvalidWorkflow,
    LeaseLost,
    NonDeterministic,
    NonRetryable,
    PayloadTooLarge,
    PermissionDenied,
    ReplayLimitExceeded,
    RetryLater,
    RunConflict,
    RunNotFound,
    RunTerminal,
    RuntimeBuildRouteNotFound,
    RuntimeBuildUnavailable,
    ScheduleToCloseTimeout,
    ScheduleToStartTimeout,
    SchemaAhead,
    SchemaAltered,
    SchemaBehind,
    SchemaError,
    SchemaMissing,
    SerializationError,
    StartToCloseTimeout,
    StepError,
    StepTimeout,
    StoreError,
    StoreUnavailable,
    TransactionsUnavailable,
    UndecodablePayload,
    UnknownKey,
    UnknownStep,
    UnknownWorkflow,
)
from flowpg.fleet.builds import (
    RuntimeBuildCompatibility,
    RuntimeBuildId,
    RuntimeBuildTaskRouter,
)
from flowpg.fleet.liveness import Liveness
from flowpg.fleet.policy import TaskDeduplication, TaskPolicy
from flowpg.fleet.scheduler import FlowScheduler, FlowSchedulerTick
from flowpg.fleet.services import Surroundings
from flowpg.fleet.task_worker import FlowTaskWorker
from flowpg.fleet.tasks import FlowTask, FlowTaskOutcome, FlowTaskQueue
from flowpg.fleet.worker import FlowWorker
from flowpg.model.codecs import Compression, PayloadCodec
from flowpg.model.commands import Decision, RuntimeCommand, StepCommand
from flowpg.model.encryption import Encryption
from flowpg.model.events import FlowEventEnvelope
from flowpg.model.hooks import HookCallbackRoute, HookMetadata
from flowpg.model.inspection import (
    ActiveHookSnapshot,
    RunRow,
    ScheduledWakeup,
    SuspensionKind,
    WakeupKind,
    WorkflowRunSummary,
    WorkflowRunSuspension,
)
from flowpg.model.jsonl import dump_history, load_history
from flowpg.model.operations import (
    CancellationRequest,
    ChildOperationReference,
    WorkflowProgress,
)
from flowpg.model.records import StartRequest, StartResult, VerbResult
from flowpg.model.retry import Backoff, RetryPolicy, StepFailureAction
from flowpg.model.sizes import set_size_limits
from flowpg.model.snapshot import (
    HookSnapshot,
    HookStatus,
    RunStatus,
    StepSnapshot,
    StepStatus,
    WaitSnapshot,
    WaitStatus,
    WorkflowRunSnapshot,
    WorkflowTerminalOutcome,
)
from flowpg.model.spec import WorkflowRuntime, WorkflowSpec
from flowpg.model.timeouts import StepTimeouts
from flowpg.model.typed import FlowEvent
from flowpg.replay.context import WorkflowContext
from flowpg.replay.runtime import AttemptOver, FlowRuntime, StepInvocation, WorkflowInvocation
from flowpg.store.memory import InMemoryEventStore
from flowpg.store.postgres import PostgresEventStore
from flowpg.store.protocol import FlowEventStore

__all__ = [
    "ActiveHookSnapshot",
    "AttemptOver",
    "Backoff",
    "CancellationRequest",
    "ChildOperationReference",
    "Compression",
    "Decision",
    "Encryption",
    "EngineFault",
    "EventConflict",
    "FanoutFlowEventObserver",
    "FlowApp",
    "FlowClient",
    "FlowEngine",
    "FlowEngineBuilder",
    "FlowError",
    "FlowEvent",
    "FlowEventEnvelope",
    "FlowEventObserver",
    "FlowEventStore",
    "FlowRuntime",
    "FlowScheduler",
    "FlowSchedulerTick",
    "FlowTask",
    "FlowTaskOutcome",
    "FlowTaskQueue",
    "FlowTaskWorker",
    "FlowWorker",
    "HeartbeatTimeout",
    "HookCallbackRoute",
    "HookConflict",
    "HookMetadata",
    "HookSnapshot",
    "HookStatus",
    "HookTokenConflict",
    "HookTokenNotFound",
    "InMemoryEventStore",
    "InMemoryFlowEventObserver",
    "InvalidArgument",
    "InvalidRunId",
    "InvalidTransition",
    "InvalidWorkflow",
    "LeaseLost",
    "Liveness",
    "NonDeterministic",
    "NonRetryable",
    "PayloadCodec",
    "PayloadTooLarge",
    "PermissionDenied",
    "PostgresEventStore",
    "ReplayLimitExceeded",
    "Retry",
    "RetryLater",
    "RetryPolicy",
    "RunConflict",
    "RunNotFound",
    "RunRow",
    "RunStatus",
    "RunTerminal",
    "RuntimeBuildCompatibility",
    "RuntimeBuildId",
    "RuntimeBuildRouteNotFound",
    "RuntimeBuildTaskRouter",
    "RuntimeBuildUnavailable",
    "RuntimeCommand",
    "ScheduleToCloseTimeout",
    "ScheduleToStartTimeout",
    "ScheduledWakeup",
    "SchemaAhead",
    "SchemaAltered",
    "SchemaBehind",
    "SchemaError",
    "SchemaMissing",
    "SerializationError",
    "StartRequest",
    "StartResult",
    "StartToCloseTimeout",
    "StepCommand",
    "StepError",
    "StepFailureAction",
    "StepInvocation",
    "StepSnapshot",
    "StepStatus",
    "StepTimeout",
    "StepTimeouts",
    "StoreError",
    "StoreUnavailable",
    "Surroundings",
    "SuspensionKind",
    "TaskDeduplication",
    "TaskPolicy",
    "TransactionsUnavailable",
    "UndecodablePayload",
    "UnknownKey",
    "UnknownStep",
    "UnknownWorkflow",
    "VerbResult",
    "WaitSnapshot",
    "WaitStatus",
    "WakeupKind",
    "WorkflowContext",
    "WorkflowInvocation",
    "WorkflowProgress",
    "WorkflowRunSnapshot",
    "WorkflowRunSummary",
    "WorkflowRunSuspension",
    "WorkflowRuntime",
    "WorkflowSpec",
    "WorkflowTerminalOutcome",
    "dump_history",
    "hook",
    "load_history",
    "open_engine",
    "set_size_limits",
]
