"""What can be chosen about an engine, and the builder that chooses it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta

from flowpg.engine.observer import FlowEventObserver
from flowpg.errors import InvalidArgument, RuntimeBuildUnavailable
from flowpg.model.arguments import check_lease, check_queue
from flowpg.model.codecs import NO_CODECS, CodecChain
from flowpg.model.ids import check_id


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """The settings of one engine; the builder's methods say what each means."""

    observer: FlowEventObserver | None = None
    observer_timeout: timedelta = timedelta(seconds=5)
    max_replays: int = 1024
    queue: str = "default"
    lease: timedelta = timedelta(seconds=30)
    heartbeat: timedelta = timedelta(seconds=3)
    runtime_builds: tuple[str, ...] = ()
    accept_unpinned: bool = True
    step_threads: int = 32
    cancel_grace: timedelta = timedelta(seconds=5)
    parked_runs: int = 1000
    codecs: CodecChain = NO_CODECS

    def supports(self, build: str | None) -> bool:
        """Whether runs pinned to ``build`` (None: not pinned) may be replayed here."""
        return self.accept_unpinned if build is None else build in self.runtime_builds

    def admit(self, run_id: str, build: str | None) -> None:
        """RuntimeBuildUnavailable unless runs pinned to ``build`` may be replayed here."""
        if not self.supports(build):
            current = self.runtime_builds[0] if self.runtime_builds else None
            raise RuntimeBuildUnavailable(run_id, build, current)

    @property
    def beat(self) -> timedelta:
        """How often leases are extended: at least three times within their length."""
        return min(self.heartbeat, self.lease / 3)

    def with_lease(self, lease: timedelta, heartbeat: timedelta | None) -> EngineOptions:
        """The same options with another lease."""
        check_lease(lease)
        beat = check_lease(heartbeat) if heartbeat is not None else self.heartbeat
        return replace(self, lease=lease, heartbeat=beat)

    def with_runtime_build(self, build: str, accept_unpinned: bool) -> EngineOptions:
        """The same options with one admitted build more."""
        check_id(build, "runtime build", 128)
        return replace(
            self, runtime_builds=(*self.runtime_builds, build), accept_unpinned=accept_unpinned
        )

    def with_queue(self, queue: str) -> EngineOptions:
        """The same options with another queue."""
        return replace(self, queue=check_queue(queue))

    def with_max_replays(self, limit: int) -> EngineOptions:
        """The same options with another replay limit."""
        if limit < 1:
            raise InvalidArgument("the replay limit must be at least 1")
        return replace(self, max_replays=limit)
