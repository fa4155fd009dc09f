"""How many appends of three events a second, in calls that carry many runs, against bare inserts?

A call appends ``step_completed``, ``step_created`` and ``step_started`` to each of its runs, as a
sequential step does, with fence, expected head and all projections. The limit inserts the same rows
in calls of the same size into a table with the same key and nothing else.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any
from uuid import uuid4

import psycopg

from benchmarks.harness.bench import Bench
from benchmarks.harness.contestant import Contestant
from benchmarks.harness.lanes import run_lanes
from benchmarks.harness.result import Result, Sample, rounded
from benchmarks.harness.tables import SCHEMA, call, session, text_of
from benchmarks.ours.programs import SPECS
from flowpg.model import events
from flowpg.model.events import NewEvent
from flowpg.model.records import Append, StartRequest
from flowpg.model.retry import DEFAULT_RETRY
from flowpg.postgres import append_verbs, verbs
from flowpg.postgres.calls import psycopg_sql

EVENTS = 3

_GUESS = 15_000
"""Appends a second, roughly: it sizes the work that is made before the clock starts."""

_STUCK = "SELECT count(*) FROM flowpg.flow_runs WHERE head_sequence = 1"

_WARM = 3
"""Calls before the clock starts."""

_Lane = Callable[[psycopg.Connection[Any], str, int], list[str]]


def options(parser: argparse.ArgumentParser) -> None:
    """Its options."""
    parser.add_argument("--batch", type=_numbers, default=(50,), help="runs a call; comma list")
    parser.add_argument("--connections", type=_numbers, default=(1,), help="comma list")
    parser.add_argument("--seconds", type=float, default=1.5, help="length of a measurement")


def run(bench: Bench, chosen: argparse.Namespace) -> Result:
    """Measure each pair of batch size and connections; the first pair is the result."""
    cells = [(batch, count) for batch in chosen.batch for count in chosen.connections]

    def measure(contestant: Contestant, dsn: str) -> Sample:
        rates = [_appends(dsn, batch, count, chosen.seconds) for batch, count in cells]
        return _sample(cells, rates)

    def limit(dsn: str) -> Sample:
        with session(dsn) as connection:
            connection.execute(text_of("bare_table"))
        rates = [_inserts(dsn, batch, count, chosen.seconds) for batch, count in cells]
        return _sample(cells, rates)

    params = {"batch": cells[0][0], "connections": cells[0][1], "events_an_append": EVENTS}
    return bench.compare(
        measure, unit="appends/s", higher_is_better=True, params=params, limit=limit
    )


def _sample(cells: Sequence[tuple[int, int]], rates: Sequence[float]) -> Sample:
    more = {
        f"batch_{batch}_connections_{count}": rounded(rate)
        for (batch, count), rate in zip(cells, rates, strict=True)
    }
    return Sample(rates[0], {"events_s": rounded(rates[0] * EVENTS), **more})


def _appends(dsn: str, batch: int, connections: int, seconds: float) -> float:
    def prepare(connection: psycopg.Connection[Any], lane: str, calls: int) -> list[str]:
        ids = [f"{lane}-{number:04d}" for number in range(batch)]
        requests = [StartRequest(SPECS["steps"], {"steps": 1}, run_id) for run_id in ids]
        call(connection, verbs.start_many(requests))
        lease = timedelta(hours=1)
        epochs = [call(connection, verbs.acquire_run(run, lane, lease)).epoch for run in ids]
        arguments = []
        for number in range(calls):
            appends = [
                Append(run, _step(number), 1 + EVENTS * number, epoch)
                for run, epoch in zip(ids, epochs, strict=True)
            ]
            arguments.append(str(append_verbs.append_many(appends).values[0]))
        return arguments

    statement = psycopg_sql(append_verbs.append_many([]).function, SCHEMA)
    rate = _calls(dsn, connections, seconds, batch, statement, prepare)
    with session(dsn) as connection:
        row = connection.execute(_STUCK).fetchone()
    if row is None or row[0]:
        raise RuntimeError("appends were refused: the rate would be that of refusals")
    return rate


def _inserts(dsn: str, batch: int, connections: int, seconds: float) -> float:
    def prepare(connection: psycopg.Connection[Any], lane: str, calls: int) -> list[str]:
        ids = [f"{lane}-{number:04d}" for number in range(batch)]
        return [
            json.dumps([row for run in ids for row in _rows(run, number)])
            for number in range(calls)
        ]

    return _calls(dsn, connections, seconds, batch, text_of("bare_insert"), prepare)


def _rows(run_id: str, number: int) -> list[dict[str, Any]]:
    return [
        {
            "run_id": run_id,
            "sequence": 2 + EVENTS * number + place,
            "event_id": str(uuid4()),
            "event_type": event.type,
            "subject_id": event.subject,
            "payload": event.data,
        }
        for place, event in enumerate(_step(number))
    ]


def _step(number: int) -> list[NewEvent]:
    done, new = f"step-{number}", f"step-{number + 1}"
    return [
        events.step_completed(done, {"step": done}),
        events.step_created(new, "work", {"sleep_ms": 0}, DEFAULT_RETRY.wire()),
        events.step_started(new, 1),
    ]


def _calls(
    dsn: str, connections: int, seconds: float, batch: int, statement: str, prepare: _Lane
) -> float:
    """Appends a second, from ``connections`` threads that send what was made beforehand."""
    calls = max(10, int(seconds * _GUESS / batch / connections))

    def lane(number: int, ready: Callable[[], None]) -> int:
        with session(dsn) as connection:
            arguments = prepare(connection, f"batch{batch}-of{connections}-{number}", calls)
            for warm in range(_WARM):
                connection.execute(statement, (arguments[warm],))
            ready()
            end, done = time.perf_counter() + seconds, 0
            for argument in arguments[_WARM:]:
                connection.execute(statement, (argument,))
                done += 1
                if time.perf_counter() > end:
                    break
        return done

    took, done = run_lanes(connections, lane)
    return batch * sum(done) / took


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))
