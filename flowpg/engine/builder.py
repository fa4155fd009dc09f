"""Building an engine one choice at a time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta

from flowpg.engine.flow_engine import FlowEngine
from flowpg.engine.observer import FlowEventObserver
from flowpg.engine.options import EngineOptions
from flowpg.errors import InvalidArgument
from flowpg.model.codecs import CodecChain, PayloadCodec
from flowpg.replay.runtime import FlowRuntime
from flowpg.store.protocol import FlowEventStore


class FlowEngineBuilder:
    """``FlowEngine.builder(runtime).with_store(store)....build()``. Every method returns it."""

    def __init__(self, runtime: FlowRuntime | None = None) -> None:
        self._runtime = runtime
        self._store: FlowEventStore | None = None
        self._options = EngineOptions()

    def with_store(self, store: FlowEventStore) -> FlowEngineBuilder:
        """Where histories are kept (default: in memory, gone with the process). The engine closes
        the store when it is closed itself."""
        self._store = store
        return self

    def with_observer(
        self, observer: FlowEventObserver, timeout: timedelta = timedelta(seconds=5)
    ) -> FlowEngineBuilder:
        """Who is told of committed events; ``timeout`` bounds the wait for one (zero: no bound)."""
        if timeout < timedelta(0):
            raise InvalidArgument("the observer timeout must not be negative")
        self._options = replace(self._options, observer=observer, observer_timeout=timeout)
        return self

    def with_max_replays(self, limit: int) -> FlowEngineBuilder:
        """How many replays a drive makes without a step outcome or news from outside."""
        self._options = self._options.with_max_replays(limit)
        return self

    def with_queue(self, queue: str) -> FlowEngineBuilder:
        """The queue of the runs this engine starts, and that its worker serves by default."""
        self._options = self._options.with_queue(queue)
        return self

    def with_lease(self, lease: timedelta, heartbeat: timedelta | None = None) -> FlowEngineBuilder:
        """How long a run stays with this process after its last sign of life (default 30 s), and
        how often it gives one (default 3 s, at most a third of the lease). The heartbeat also
        tells a drive that its run was woken."""
        self._options = self._options.with_lease(lease, heartbeat)
        return self

    def with_runtime_build(self, build: str, *, accept_unpinned: bool = False) -> FlowEngineBuilder:
        """Admit runs pinned to ``build``; call again for further builds. Without any, only runs
        that are not pinned are admitted."""
        self._options = self._options.with_runtime_build(build, accept_unpinned)
        return self

    def with_step_threads(self, threads: int) -> FlowEngineBuilder:
        """How many steps that are plain functions run at once (default 32)."""
        if threads < 1:
            raise InvalidArgument("steps need at least one thread")
        self._options = replace(self._options, step_threads=threads)
        return self

    def with_cancel_grace(self, grace: timedelta) -> FlowEngineBuilder:
        """How long a cancelled step handler may clean up before its run is given back (5 s)."""
        self._options = replace(self._options, cancel_grace=grace)
        return self

    def with_parked_runs(self, runs: int) -> FlowEngineBuilder:
        """How many runs that wait a worker keeps in memory, so that only their news are read when
        they go on (default 1000; 0: none)."""
        if runs < 0:
            raise InvalidArgument("the number of parked runs must not be negative")
        self._options = replace(self._options, parked_runs=runs)
        return self

    def with_codecs(self, codecs: Iterable[PayloadCodec]) -> FlowEngineBuilder:
        """What seals the inputs and answers that this engine hands to the store (default: the
        codecs of its FlowApp). For an engine without a runtime, which only starts and answers."""
        self._options = replace(self._options, codecs=CodecChain(codecs))
        return self

    def build(self) -> FlowEngine:
        """The engine."""
        store = self._store
        if store is None:
            from flowpg.store.memory import InMemoryEventStore

            store = InMemoryEventStore()
        return FlowEngine(store, self._runtime, self._options)
