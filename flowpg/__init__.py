"""flowpg: durable workflows that live in PostgreSQL.

The names below are the public interface; docs/reference/api.md lists them. Everything else may
change without notice.
"""

from flowpg.authoring.app import FlowApp
from flowpg.authoring.context import (
    RunInfo,
    hook,
    info,
    logger,
    now,
    patched,
    progress,
    random,
    set_attributes,
    time_ns,
    uuid4,
    uuid7,
    wait_until,
)
from flowpg.authoring.errors import (
    HookClosed,
    NotDurable,
    OutsideStep,
    OutsideWorkflow,
    StepFailed,
    WorkflowFailed,
    WorkflowStuck,
)
from flowpg.authoring.failures import FailureOrigin, failure_origin
from flowpg.authoring.hooks import Hook
from flowpg.authoring.step_context import StepContext, step_context
from flowpg.authoring.steps import AsyncStep, SyncStep
from flowpg.authoring.workflows import Workflow
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
    AnswerRejected,
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
from flowpg.model.retry import RetryPolicy as Retry
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
    "AnswerRejected",
    "AsyncStep",
    "AttemptOver",
    "Backoff",
    "CancellationRequest",
    "ChildOperationReference",
    "Compression",
    "Decision",
    "Encryption",
    "EngineFault",
    "EventConflict",
    "FailureOrigin",
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
    "Hook",
    "HookCallbackRoute",
    "HookClosed",
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
    "NotDurable",
    "OutsideStep",
    "OutsideWorkflow",
    "PayloadCodec",
    "PayloadTooLarge",
    "PermissionDenied",
    "PostgresEventStore",
    "ReplayLimitExceeded",
    "Retry",
    "RetryLater",
    "RetryPolicy",
    "RunConflict",
    "RunInfo",
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
    "StepContext",
    "StepError",
    "StepFailed",
    "StepFailureAction",
    "StepInvocation",
    "StepSnapshot",
    "StepStatus",
    "StepTimeout",
    "StepTimeouts",
    "StoreError",
    "StoreUnavailable",
    "SuspensionKind",
    "SyncStep",
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
    "Workflow",
    "WorkflowContext",
    "WorkflowFailed",
    "WorkflowInvocation",
    "WorkflowProgress",
    "WorkflowRunSnapshot",
    "WorkflowRunSummary",
    "WorkflowRunSuspension",
    "WorkflowRuntime",
    "WorkflowSpec",
    "WorkflowStuck",
    "WorkflowTerminalOutcome",
    "dump_history",
    "failure_origin",
    "hook",
    "info",
    "load_history",
    "logger",
    "now",
    "open_engine",
    "patched",
    "progress",
    "random",
    "set_attributes",
    "set_size_limits",
    "step_context",
    "time_ns",
    "uuid4",
    "uuid7",
    "wait_until",
]
