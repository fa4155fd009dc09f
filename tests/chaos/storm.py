"""A fleet on one database under random faults: ``python -m tests.chaos.storm --seconds 600``.

Workers are killed, stalled, cut off, deployed anew, and the server is restarted, while clients
start and answer runs. Then it is quiet, and everything must have ended as it had to.
"""

import argparse
import asyncio
import contextlib
import random
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import psycopg

from flowpg.engine.flow_engine import FlowEngine
from flowpg.errors import FlowError
from flowpg.model.events import STEP_COMPLETED, STEP_STARTED, TERMINAL_TYPES
from flowpg.replay.projection import project
from flowpg.store.postgres import PostgresEventStore
from flowpg.testing.servers import PostgresServer, choose
from tests.chaos import witness
from tests.chaos.fleet import LEASE, LOSING_STALL, Journal, Place
from tests.chaos.load import Load, wrong_end
from tests.weather import pause

_APP = "tests.chaos.workload:app"
_STARTS_EVERY = 0.15
_FAULT_EVERY = (0.6, 2.0)
_RESTART_EVERY = 25.0
_QUIET_SECONDS = 60.0
_DEADLOCKS = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"

Restart = Callable[[], Awaitable[None]]


@dataclass
class Report:
    """What a storm found. Everything from ``lost`` on must be empty or 0."""

    seed: int
    seconds: float
    started: int = 0
    finished: int = 0
    executions: int = 0
    repeats_explained: dict[str, int] = field(default_factory=dict)
    faults: dict[str, int] = field(default_factory=dict)
    lost: list[str] = field(default_factory=list)
    repeats_unexplained: list[str] = field(default_factory=list)
    deadlocks: int = 0
    after_terminal: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    attempts_charged: list[str] = field(default_factory=list)
    unwitnessed: list[str] = field(default_factory=list)
    workers_died: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        """Whether the storm found nothing."""
        found = (
            *(self.lost, self.repeats_unexplained, self.deadlocks, self.after_terminal),
            *(self.wrong, self.attempts_charged, self.unwitnessed, self.workers_died),
        )
        return not any(found)

    def __str__(self) -> str:
        return "\n".join(f"{name:20} {value}" for name, value in vars(self).items())


class Storm:
    """One storm on the migrated database of ``dsn``; ``restart`` restarts its server."""

    def __init__(
        self, dsn: str, logs: Path, *, seed: int, workers: int = 3, restart: Restart | None = None
    ) -> None:
        self.random = random.Random(seed)
        self.seed = seed
        self.journal = Journal()
        self._dsn = dsn
        self._restart = restart
        self._places = [Place(n, dsn, self.journal, logs, _APP) for n in range(workers)]
        self._background: set[asyncio.Task[None]] = set()

    async def run(self, seconds: float) -> Report:
        """Work under faults for ``seconds``, then wait until it is quiet, and look."""
        began = time.monotonic()
        witness.create(self._dsn)
        store = await PostgresEventStore.connect(self._dsn, timeout=60)
        engine = FlowEngine(store)
        load = Load(engine, self.random)
        deadlocks = self._deadlocks()
        try:
            await asyncio.gather(*(place.start() for place in self._places))
            await asyncio.gather(*(place.until_ready() for place in self._places))
            await self._rage(load, seconds)
            lost = await load.finish(_QUIET_SECONDS)
            await asyncio.gather(*(place.end() for place in self._places))
            report = Report(self.seed, round(time.monotonic() - began, 1), lost=lost)
            await self._look(report, engine, load)
            report.deadlocks = self._deadlocks() - deadlocks
            return report
        finally:
            await load.close()
            for task in self._background:
                task.cancel()
            await asyncio.gather(*self._background, return_exceptions=True)
            await asyncio.gather(*(place.close() for place in self._places))
            await engine.close()

    # -- weather --------------------------------------------------------------------------------

    async def _rage(self, load: Load, seconds: float) -> None:
        end = time.monotonic() + seconds
        faults = asyncio.ensure_future(self._faults(end))
        restarts = asyncio.ensure_future(self._restarts(end))
        try:
            while time.monotonic() < end:
                await load.start()
                await pause(self.random.uniform(0, 2 * _STARTS_EVERY))
            await asyncio.gather(faults, restarts)
        finally:
            faults.cancel()
            restarts.cancel()
        # Calm: what is stalled goes on, and every place is taken again.
        await asyncio.gather(*self._background)
        for place in self._places:
            await place.start()
            await place.until_ready()

    async def _faults(self, end: float) -> None:
        while time.monotonic() < end:
            await pause(self.random.uniform(*_FAULT_EVERY))
            for place in self._places:
                if place.empty:
                    self._later(place.start())
            ready = [place for place in self._places if place.ready]
            if not ready:
                continue
            place = self.random.choice(ready)
            match self.random.choices(
                ("kill", "stall", "long stall", "cut", "reply", "deploy"), (6, 2, 1, 3, 3, 2)
            )[0]:
                case "kill":
                    place.kill()
                    self._later(self._again(place))
                case "stall":
                    self._later(place.stall(self.random.uniform(0.1, LOSING_STALL * 0.6)))
                case "long stall":
                    self._later(place.stall(LEASE + self.random.uniform(0.5, 2)))
                case "cut":
                    place.cut()
                case "reply":
                    place.cut(self.random.choice(("flow_append_batch", "flow_claim_runs")))
                case _:
                    self._later(place.deploy())

    async def _restarts(self, end: float) -> None:
        while self._restart is not None and time.monotonic() + _RESTART_EVERY < end:
            await pause(_RESTART_EVERY)
            began = time.monotonic()
            await self._restart()
            self.journal.faults["server restarted"] += 1
            if time.monotonic() - began > LOSING_STALL:
                self.journal.outages.append((began, time.monotonic()))

    async def _again(self, place: Place) -> None:
        await pause(self.random.uniform(0, 1))
        await place.start()

    def _later(self, work: Awaitable[None]) -> None:
        self._background.add(asyncio.ensure_future(work))

    # -- looking --------------------------------------------------------------------------------

    async def _look(self, report: Report, engine: FlowEngine, load: Load) -> None:
        entries = witness.entries(self._dsn)
        unexplained, _ = witness.repeats(entries, self.journal.excuses)
        report.repeats_explained = dict(self.journal.excused)
        report.repeats_unexplained = [f"{first} then {second}" for first, second in unexplained]
        report.executions = len(entries)
        report.faults = dict(self.journal.faults)
        report.workers_died = self.journal.died
        report.started = len(load.started)
        report.finished = report.started - len(report.lost)
        done = {(e.run_id, e.step_id) for e in entries if e.result == "done"}
        for run_id, (kind, number) in load.started.items():
            history = await engine.history(run_id)
            ended = [n for n, e in enumerate(history) if e.type in TERMINAL_TYPES]
            if ended and ended != [len(history) - 1]:
                report.after_terminal.append(run_id)
                continue
            try:
                snapshot = project(run_id, history)
            except FlowError as error:
                report.wrong.append(f"{run_id}: its history breaks a rule: {error}")
                continue
            if ended and (wrong := wrong_end(kind, number, snapshot, history)):
                report.wrong.append(f"{run_id}: {wrong}")
            for event in history:
                if event.type == STEP_STARTED:
                    step, attempt = event.data["step_id"], event.data["attempt"]
                    if attempt > (2 if snapshot.steps[step].step_name == "flaky" else 1):
                        report.attempts_charged.append(f"{run_id} {step} {attempt}")
                elif event.type == STEP_COMPLETED and (run_id, event.data["step_id"]) not in done:
                    report.unwitnessed.append(f"{run_id} {event.data['step_id']}")

    def _deadlocks(self) -> int:
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            row = connection.execute(_DEADLOCKS).fetchone()
        return int(row[0]) if row else 0


async def storm_on(
    server: PostgresServer, database: str, logs: Path, seconds: float, seed: int | None = None
) -> Report:
    """A storm on a migrated database of a server that is not restarted."""
    seed = random.randrange(1 << 32) if seed is None else seed
    return await Storm(server.dsn_of(database), logs, seed=seed).run(seconds)


async def storm_with_restarts(seconds: float, seed: int | None = None) -> Report:
    """A storm on a durable server of its own, which is restarted now and then."""
    from flowpg.postgres.embedded import EmbeddedPostgres
    from flowpg.postgres.migrate import upgrade

    seed = random.randrange(1 << 32) if seed is None else seed
    choice = choose({})
    with tempfile.TemporaryDirectory(prefix="flowpg-storm-") as directory:
        server = EmbeddedPostgres(Path(directory) / "data", binaries=choice.binaries)
        await asyncio.to_thread(server.start)

        async def restart() -> None:
            before = server.dsn
            await asyncio.to_thread(server.stop)
            await asyncio.to_thread(server.start)
            assert server.dsn == before

        try:
            await asyncio.to_thread(upgrade, server.dsn)
            logs = Path(directory) / "logs"
            logs.mkdir()
            storm = Storm(server.dsn, logs, seed=seed, workers=4, restart=restart)
            return await storm.run(seconds)
        finally:
            await asyncio.to_thread(server.stop)


def main() -> int:
    """Print the report; 0 if it found nothing."""
    parser = argparse.ArgumentParser(description="A fleet under random faults.")
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--seed", type=int)
    asked = parser.parse_args()
    with contextlib.suppress(KeyboardInterrupt):
        report = asyncio.run(storm_with_restarts(asked.seconds, asked.seed))
        print(report)
        return 0 if report.good else 1
    return 130


if __name__ == "__main__":
    sys.exit(main())
