"""How much processor time does a step cost in durable asyncio, against a hand-written runtime?

The same sequential steps on the same engine and store, in this process: a hand-written runtime, a
workflow whose coroutine stays in memory, and the same workflow replayed from the beginning at every
turn. On PostgreSQL and on a store that answers at once, where only engine and program are left. The
value is the first ratio on PostgreSQL. The rounds of a measurement are interleaved and the best of
each counts.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from benchmarks.harness.bench import Bench
from benchmarks.harness.contestant import Contestant
from benchmarks.harness.ledger import Ledger
from benchmarks.harness.result import Result, Sample, rounded
from benchmarks.harness.tables import SCHEMA
from benchmarks.ours.instant import InstantStore
from benchmarks.ours.programs import SPECS, Programs
from flowpg import FlowApp
from flowpg.engine.flow_engine import FlowEngine
from flowpg.model.records import StartRequest
from flowpg.model.spec import WorkflowSpec
from flowpg.replay.runtime import FlowRuntime
from flowpg.store.postgres import PostgresEventStore
from flowpg.store.protocol import FlowEventStore

STYLES = ("hand_written", "asyncio_cached", "asyncio_replayed")

Start = Callable[[str, int], StartRequest]
"""Makes a run of an id and a number of steps."""


def options(parser: argparse.ArgumentParser) -> None:
    """Its options."""
    parser.add_argument("--steps", type=int, default=10, help="steps of a run")
    parser.add_argument("--runs", type=int, default=50, help="runs of a round, all at once")
    parser.add_argument("--rounds", type=int, default=12, help="rounds of which the best counts")


def run(bench: Bench, chosen: argparse.Namespace) -> Result:
    """Measure; ``more`` has the microseconds a step of each style on each store."""
    given = {"steps": chosen.steps, "runs": chosen.runs, "rounds": chosen.rounds}

    def measure(contestant: Contestant, dsn: str) -> Sample:
        more: dict[str, Any] = {}
        for name, took in asyncio.run(_measure(dsn, chosen.steps, chosen.runs, chosen.rounds)):
            hand, cached, replayed = (took[style] for style in STYLES)
            more |= {f"{name}_{style}_us": rounded(took[style]) for style in STYLES}
            more[f"{name}_cached_to_hand_written"] = rounded(cached / hand)
            more[f"{name}_replayed_to_cached"] = rounded(replayed / cached)
        return Sample(more["postgres_cached_to_hand_written"], more)

    return bench.compare(measure, unit="ratio", higher_is_better=False, params=given)


async def _measure(
    dsn: str, steps: int, runs: int, rounds: int
) -> list[tuple[str, dict[str, float]]]:
    answers = []
    programs = {style: _written(style) for style in STYLES}
    for name in ("postgres", "instant"):
        store: FlowEventStore = InstantStore.make()
        if name == "postgres":
            store = await PostgresEventStore.connect(dsn, schema=SCHEMA)
        try:
            best = dict.fromkeys(STYLES, float("inf"))
            for turn in range(rounds):
                for style in STYLES:
                    mark = f"{style}-{turn}"
                    took = await _round(store, programs[style], mark, steps, runs)
                    best[style] = min(best[style], took)
            answers.append((name, best))
        finally:
            await store.close()
    return answers


async def _round(
    store: FlowEventStore, program: tuple[FlowRuntime, Start], mark: str, steps: int, runs: int
) -> float:
    runtime, start = program
    engine = FlowEngine.builder(runtime).with_store(store).build()
    await store.start_many([start(f"{mark}-{number}", steps) for number in range(runs)])
    leases = await store.claim_runs("default", runs, mark, timedelta(minutes=5))
    loaded = await engine.load_claimed(leases)
    gc.collect()
    gc.disable()
    try:
        began = time.process_time()
        await asyncio.gather(
            *(engine.drive_claimed(lease, *loaded[lease.run_id]) for lease in leases)
        )
        return (time.process_time() - began) / (runs * steps) * 1e6
    finally:
        gc.enable()


def _written(style: str) -> tuple[FlowRuntime, Start]:
    if style == "hand_written":

        def by_hand(run_id: str, steps: int) -> StartRequest:
            return StartRequest(SPECS["steps"], {"steps": steps, "sleep_ms": 0}, run_id)

        return Programs(Ledger(None)), by_hand
    app = FlowApp("bench", always_replay=style == "asyncio_replayed")

    @app.step
    async def work(sleep_ms: int) -> dict[str, int]:
        return {"slept": sleep_ms}

    @app.workflow
    async def in_turn(steps: int) -> dict[str, int]:
        for _ in range(steps):
            await work(0)
        return {"done": steps}

    spec: WorkflowSpec = in_turn.spec

    def as_asyncio(run_id: str, steps: int) -> StartRequest:
        return StartRequest(spec, in_turn.input(steps), run_id)

    return app, as_asyncio
