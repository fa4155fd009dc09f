"""The calls about tasks that carry out a verb later, and about who may still need a build."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from flowpg.model import jsontext
from flowpg.model.arguments import check_lease, check_queue
from flowpg.model.records import Capabilities, RunLease
from flowpg.postgres.calls import (
    Call,
    Function,
    Row,
    array_text,
    interval_text,
    utc_or_none,
)
from flowpg.postgres.claim_verbs import claim_values

_ENQUEUE = Function(
    "flow_enqueue_task",
    (
        "text",
        "json",
        "text",
        "text",
        "smallint",
        "interval",
        "text",
        "interval",
        "integer",
        "interval",
        "interval",
        "text",
        "integer",
        "boolean",
    ),
    ("task_id", "enqueued"),
)
_CLAIM = Function(
    "flow_claim_tasks",
    ("text[]", "integer", "text", "interval", "text[]", "boolean", "text[]", "integer", "text[]"),
    ("task_id", "kind", "run_id", "payload:text", "epoch", "attempts", "crashes", "timeout"),
)
_COMPLETE = Function("flow_complete_tasks", ("json",), ("task_id", "outcome", "dead_letter_id"))
_BEAT = Function("flow_heartbeat", ("json", "interval"), ("task_id", "held"))
_RELEASE = Function("flow_release_tasks", ("json", "interval"), ("task_id", "released"))
_USAGE = Function(
    "flow_build_usage", (), ("runtime_build", "open_runs", "oldest_created_at", "live_workers")
)


@dataclass(frozen=True, slots=True)
class TaskRow:
    """A claimed task. ``epoch`` is its fence, ``attempts`` and ``crashes`` include this claim."""

    task_id: int
    kind: str
    run_id: str | None
    payload: str | None = field(repr=False)
    epoch: int
    attempts: int
    crashes: int
    timeout: timedelta | None


@dataclass(frozen=True, slots=True)
class TaskDone:
    """How a claimed task ended. ``error`` holds no token and no payload; ``dead`` says that no
    retry can help."""

    task_id: int
    epoch: int
    error: str | None = None
    dead: bool = False


@dataclass(frozen=True, slots=True)
class RuntimeBuildUsage:
    """How many runs of a build are open, since when the oldest is, and how many live workers can
    drive them."""

    runtime_build: str
    open_runs: int
    oldest_created_at: datetime | None
    live_workers: int

    @property
    def may_be_retired(self) -> bool:
        """Whether no open run needs the build any more."""
        return self.open_runs == 0


def enqueue_task(
    kind: str,
    run_id: str | None,
    payload: Mapping[str, Any] | None,
    queue: str,
    priority: int,
    delay: timedelta,
    options: Mapping[str, str | None],
    token: str = "",
) -> Call[tuple[int, bool]]:
    """Make a task, or find the open one that takes it in; ``options`` are those of a policy."""
    values = (
        kind,
        None if payload is None else jsontext.encode(dict(payload), f"a task {kind}"),
        check_queue(queue),
        run_id,
        str(priority),
        interval_text(delay),
        options["dedupe_mode"],
        options["dedupe_ttl"],
        options["max_attempts"],
        options["retry_delay"],
        options["timeout"],
        options["concurrency_key"],
        options["max_stalled"],
        options["keep"],
    )
    return Call(_ENQUEUE, values, lambda rows: (int(rows[0][0]), bool(rows[0][1])), token)


def claim_tasks(
    queues: str | Sequence[str],
    limit: int,
    owner: str,
    lease: timedelta,
    may: Capabilities,
    kinds: Sequence[str],
) -> Call[list[TaskRow]]:
    """Take the leases of tasks of these kinds."""
    values = (*claim_values(queues, limit, owner, lease, may), array_text(kinds))
    return Call(_CLAIM, values, lambda rows: [TaskRow(*row) for row in rows])


def complete_tasks(done: Sequence[TaskDone]) -> Call[list[str]]:
    """Say how claimed tasks ended; the outcome of each, as ``flow_complete_tasks`` names it."""
    items = [
        {
            "task_id": item.task_id,
            "epoch": item.epoch,
            "ok": item.error is None,
            "error": item.error,
            "dead": item.dead,
        }
        for item in done
    ]
    return Call(_COMPLETE, (json.dumps(items),), lambda rows: [str(row[1]) for row in rows])


def extend_tasks(rows: Sequence[TaskRow], lease: timedelta) -> Call[dict[int, bool]]:
    """Extend the leases of claimed tasks to ``lease`` from now; which of them are held still."""
    values = (fences_text(rows), interval_text(check_lease(lease)))
    return Call(_BEAT, values, lambda found: {int(row[0]): bool(row[1]) for row in found})


def release_tasks(held: Sequence[TaskRow | RunLease]) -> Call[list[bool]]:
    """Give tasks, or the leases of runs, back with work left, claimable at once and without a mark
    of the attempt; in order, whether each is given back. One that is not was lost, or its run is
    busy: that is not waited for. Each names its task."""

    def read(rows: Sequence[Row]) -> list[bool]:
        released = {row[0]: row[1] for row in rows}
        return [bool(released.get(item.task_id)) for item in held]

    return Call(_RELEASE, (fences_text(held), interval_text(timedelta(0))), read)


def build_usage() -> Call[list[RuntimeBuildUsage]]:
    """Every build that open runs are pinned to or that live workers run."""

    def read(rows: Sequence[Row]) -> list[RuntimeBuildUsage]:
        return [
            RuntimeBuildUsage(build, runs, utc_or_none(oldest), workers)
            for build, runs, oldest, workers in rows
        ]

    return Call(_USAGE, (), read)


def fences_text(held: Sequence[TaskRow | RunLease]) -> str:
    """The tasks that somebody says he holds, each with its fence, as the functions take them."""
    return json.dumps([{"task_id": item.task_id, "epoch": item.epoch} for item in held])
