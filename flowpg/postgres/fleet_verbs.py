"""The calls of workers about themselves: that they live, and that they wait for work."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from flowpg.model.arguments import check_queue
from flowpg.model.ids import check_id
from flowpg.model.records import RunLease
from flowpg.postgres.calls import (
    Call,
    Function,
    Row,
    array_text,
    bool_text,
    interval_text,
    nothing,
    utc,
)
from flowpg.postgres.task_verbs import fences_text

_BEAT = Function(
    "flow_worker_beat",
    (
        "text",
        "text",
        "text",
        "integer",
        "text[]",
        "text[]",
        "text[]",
        "integer",
        "integer",
        "interval",
        "text[]",
        "boolean",
    ),
)
_GONE = Function("flow_worker_gone", ("text",))
_LIVE = Function(
    "flow_live_workers",
    (),
    (
        "worker_id",
        "host",
        "pid",
        "queues",
        "runtime_build",
        "builds",
        "accepts_unpinned",
        "workflows",
        "steps",
        "slots",
        "running",
        "started_at",
        "last_beat",
    ),
)
_HEALTH = Function("flow_health", (), ("kind", "name", "count", "age", "detail:text"))
_HINT = Function("flow_listen_hint", ("text[]", "interval"))
_CHANNEL = Function("flow_channel", ())
_STRAYS = Function("flow_release_strays", ("text[]", "text", "json"), ("released", "busy"))


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """What a worker says about itself. ``builds``, ``workflows`` and ``steps`` are what it can
    drive, None for whatever there is; the times are the database's."""

    worker_id: str
    host: str
    pid: int
    queues: tuple[str, ...]
    runtime_build: str | None
    builds: tuple[str, ...] | None
    accepts_unpinned: bool
    workflows: tuple[str, ...] | None
    steps: tuple[str, ...] | None
    slots: int
    running: int
    started_at: datetime | None = None
    last_beat: datetime | None = None


def worker_beat(row: WorkerRow, every: timedelta) -> Call[None]:
    """Say that a worker is alive, and what it can do; its times are left to the database."""
    values = (
        check_id(row.worker_id, "worker id"),
        row.runtime_build,
        row.host,
        str(row.pid),
        array_text(row.queues),
        array_text(row.workflows),
        array_text(row.steps),
        str(row.slots),
        str(row.running),
        interval_text(every),
        array_text(row.builds),
        bool_text(row.accepts_unpinned),
    )
    return Call(_BEAT, values, nothing)


def worker_gone(worker_id: str) -> Call[None]:
    """Say that a worker ends in good order."""
    return Call(_GONE, (worker_id,), nothing)


def live_workers() -> Call[list[WorkerRow]]:
    """The workers that did not miss three beats."""

    def read(rows: Sequence[Row]) -> list[WorkerRow]:
        return [WorkerRow(**_members(row)) for row in rows]

    return Call(_LIVE, (), read)


@dataclass(frozen=True, slots=True)
class HealthFact:
    """A row of ``flow_health``, which says what each kind counts."""

    kind: str
    name: str
    count: int
    age: timedelta | None
    detail: dict[str, Any]


def fleet_health() -> Call[list[HealthFact]]:
    """What an operator looks at first."""

    def read(rows: Sequence[Row]) -> list[HealthFact]:
        return [
            HealthFact(kind, name, count, age, json.loads(detail) if detail else {})
            for kind, name, count, age, detail in rows
        ]

    return Call(_HEALTH, (), read)


def listen_hint(queues: Sequence[str], idle: timedelta) -> Call[timedelta | None]:
    """Say that somebody listens to these queues and has nothing to do, for at most ``idle``.

    Answers after how long that is to be said again, because notifications came a moment ago; zero
    if it was taken down; None if one of the queues does not notify.
    """

    def read(rows: Sequence[Row]) -> timedelta | None:
        rest: timedelta | None = rows[0][0]
        return rest

    return Call(_HINT, (array_text(list(map(check_queue, queues))), interval_text(idle)), read)


def channel() -> Call[str]:
    """The name of the channel to listen on."""
    return Call(_CHANNEL, (), lambda rows: str(rows[0][0]))


def release_strays(
    queues: Sequence[str], owner: str, held: Sequence[RunLease]
) -> Call[tuple[int, int]]:
    """Give back the leases of runs that ``owner`` has in these queues, but those that are ``held``:
    how many were given back, and how many could not be because their run is busy."""

    def read(rows: Sequence[Row]) -> tuple[int, int]:
        return rows[0][0], rows[0][1]

    values = (array_text(queues), check_id(owner, "lease owner"), fences_text(held))
    return Call(_STRAYS, values, read)


def _members(row: Row) -> dict[str, Any]:
    members: dict[str, Any] = dict(zip(_LIVE.columns, row, strict=True))
    for name in ("queues", "builds", "workflows", "steps"):
        if members[name] is not None:
            members[name] = tuple(members[name])
    for name in ("started_at", "last_beat"):
        members[name] = utc(members[name])
    return members
