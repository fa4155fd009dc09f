"""Claiming runs: their leases, and with them the histories of those that have hardly begun."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from flowpg.errors import SerializationError
from flowpg.model.arguments import check_lease, check_limit, check_queues
from flowpg.model.ids import check_id
from flowpg.model.records import Capabilities, LoadedRun, RunLease
from flowpg.postgres.calls import Call, Function, Row, array_text, bool_text, interval_text
from flowpg.postgres.reads import STATUSES, history_of

SHORT_HISTORY = 8
"""Events of the longest history that comes with a claim. A new run has one; a run that waited here
for a timer or an answer is known up to its news."""

_CLAIM_RUNS = Function(
    "flow_claim_runs",
    (
        "text[]",
        "integer",
        "text",
        "interval",
        "text[]",
        "boolean",
        "text[]",
        "integer",
        "bigint",
        "boolean",
    ),
    (
        "run_id",
        "epoch",
        "wakes",
        "head_sequence",
        "db_now",
        "task_id",
        "attempts",
        "status",
        "events",
        "previous_owner",
    ),
)


def claim_runs(
    queues: str | Sequence[str],
    limit: int,
    owner: str,
    lease: timedelta,
    capabilities: Capabilities | None = None,
    *,
    due: bool = False,
) -> Call[list[RunLease]]:
    """Take the leases of runs that have work to do, after making work of what is ``due``."""
    asked = claim_values(queues, limit, owner, lease, capabilities or Capabilities())
    return Call(_CLAIM_RUNS, (*asked, str(SHORT_HISTORY), bool_text(due)), _leases)


def claim_values(
    queues: str | Sequence[str], limit: int, owner: str, lease: timedelta, may: Capabilities
) -> tuple[str | None, ...]:
    """What every claim says first: where, how much, for whom, how long, and what may be given."""
    return (
        array_text(check_queues(queues)),
        str(check_limit(limit)),
        check_id(owner, "lease owner"),
        interval_text(check_lease(lease)),
        array_text(may.builds),
        bool_text(may.accept_unpinned),
        array_text(may.workflows),
        str(may.max_crashes),
    )


def _leases(rows: Sequence[Row]) -> list[RunLease]:
    leases: list[RunLease] = []
    if rows:
        now = datetime.fromisoformat(rows[0][4])  # the same in every row
    for run_id, epoch, wakes, head, _, task_id, attempts, status, events, previous in rows:
        loaded = None
        if events is not None:
            try:
                history = history_of(run_id, events)
                loaded = LoadedRun(run_id, head, STATUSES[status], wakes, now, history)
            except SerializationError:
                pass  # whoever drives the run will say so; its neighbours are claimed all the same
        leases.append(
            RunLease(run_id, epoch, wakes, head, now, task_id, attempts, loaded, previous)
        )
    return leases
