"""Builds: which runs a process may replay, and which way tasks of pinned runs go.

A build is a condition of the claim too, so a worker of another build never sees the runs of this
one. A router is for hosts that send the tasks of each build to a queue of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, Self

from flowpg.engine.builder import FlowEngineBuilder
from flowpg.errors import InvalidArgument, RunNotFound, RuntimeBuildRouteNotFound
from flowpg.fleet.tasks import AnyTask
from flowpg.postgres.task_verbs import RuntimeBuildUsage, build_usage
from flowpg.store.postgres import PostgresEventStore
from flowpg.store.protocol import FlowEventStore

_BUILD = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.:+/@-]{0,126}[A-Za-z0-9])?")


class RuntimeBuildId(str):
    """The name of a build: 1 to 128 of ``A-Z a-z 0-9 - _ . : + / @``, the first and the last a
    letter or a digit; else InvalidArgument."""

    __slots__ = ()

    def __new__(cls, build: str) -> Self:
        if not isinstance(build, str) or _BUILD.fullmatch(build) is None:
            raise InvalidArgument(
                "a runtime build is named by 1 to 128 characters of A-Z a-z 0-9 - _ . : + / @, "
                "the first and the last a letter or a digit"
            )
        return super().__new__(cls, build)


@dataclass(frozen=True, slots=True)
class RuntimeBuildCompatibility:
    """What a process may replay: runs of its own ``build``, of the older ones that its code is
    ``compatible`` with, and, if ``accept_unpinned``, those that are not pinned."""

    build: str
    compatible: Sequence[str] = ()
    accept_unpinned: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "build", RuntimeBuildId(self.build))
        others = tuple(map(RuntimeBuildId, self.compatible))
        object.__setattr__(self, "compatible", others)

    @property
    def builds(self) -> tuple[str, ...]:
        """Every build that is admitted, its own first."""
        return tuple(dict.fromkeys((self.build, *self.compatible)))

    def supports(self, build: str | None) -> bool:
        """Whether runs pinned to ``build`` (None: not pinned) may be replayed."""
        return self.accept_unpinned if build is None else build in self.builds

    def apply(self, builder: FlowEngineBuilder) -> FlowEngineBuilder:
        """Let the engine that is built admit these builds, and its worker claim only their runs."""
        for build in self.builds:
            builder.with_runtime_build(build, accept_unpinned=self.accept_unpinned)
        return builder


class TaskDispatcher(Protocol):
    """Where a route leads: a ``FlowTaskQueue``, or a queue of the host."""

    async def dispatch(self, task: AnyTask, /) -> object:
        """Take the task. It may be given more than once."""
        ...


class RuntimeBuildTaskRouter:
    """Sends each task to the one dispatcher of the build that its run is pinned to.

    There is no fallback: a pinned run needs a route of exactly its build, one that is not pinned
    the unpinned route.
    """

    def __init__(self) -> None:
        self._routes: dict[str | None, TaskDispatcher] = {}

    def with_route(self, build: str, dispatcher: TaskDispatcher) -> RuntimeBuildTaskRouter:
        """Add the route of a build. InvalidArgument if it has one."""
        return self._add(RuntimeBuildId(build), dispatcher, f"build {build!r} has")

    def with_unpinned_route(self, dispatcher: TaskDispatcher) -> RuntimeBuildTaskRouter:
        """Add the route of runs that are not pinned. InvalidArgument if there is one."""
        return self._add(None, dispatcher, "runs without a build have")

    async def dispatch(self, task: AnyTask) -> None:
        """Send a task by the unpinned route. RuntimeBuildRouteNotFound without one."""
        await self._route(None).dispatch(task)

    async def dispatch_for_run(self, store: FlowEventStore, run_id: str, task: AnyTask) -> None:
        """Send a task by the route of this run, which it must be about or, if it is by token,
        belong to. RunNotFound; RuntimeBuildRouteNotFound."""
        if task.target_run_id is None and not task.token_inside:
            raise InvalidArgument(f"a task {task.type} is about all runs: none can be its target")
        if task.target_run_id not in (None, run_id):
            raise InvalidArgument(f"the task {task.type} is about another run than {run_id!r}")
        builds = await _builds(store, [run_id])
        await self._route(builds[run_id]).dispatch(task)

    async def dispatch_all(self, store: FlowEventStore, tasks: Iterable[AnyTask]) -> int:
        """Send each task by the route of the run it is about; returns how many.

        The route of every one is looked up before the first is sent: one that is missing raises
        RuntimeBuildRouteNotFound, which names the build, and nothing was dispatched. Tasks that
        name no run go by the unpinned route. RunNotFound.
        """
        targets = [(task, task.target_run_id) for task in tasks]
        builds = await _builds(store, [run_id for _, run_id in targets if run_id is not None])
        planned = [
            (self._route(None if run_id is None else builds[run_id]), task)
            for task, run_id in targets
        ]
        for dispatcher, task in planned:
            await dispatcher.dispatch(task)
        return len(planned)

    def _add(
        self, build: str | None, dispatcher: TaskDispatcher, whose: str
    ) -> RuntimeBuildTaskRouter:
        if build in self._routes:
            raise InvalidArgument(f"{whose} a route already")
        self._routes[build] = dispatcher
        return self

    def _route(self, build: str | None) -> TaskDispatcher:
        try:
            return self._routes[build]
        except KeyError:
            raise RuntimeBuildRouteNotFound(build) from None


async def _builds(store: FlowEventStore, run_ids: Sequence[str]) -> dict[str, str | None]:
    builds = await store.run_builds(run_ids)
    for run_id in run_ids:
        if run_id not in builds:
            raise RunNotFound(run_id)
    return builds


async def runtime_build_usage(
    store: FlowEventStore, build: str | None = None
) -> list[RuntimeBuildUsage]:
    """Who needs which build: one row a build with open runs or live workers, or the one row of
    ``build``. Retire a build whose row says ``may_be_retired``."""
    if not isinstance(store, PostgresEventStore):
        raise InvalidArgument("the usage of builds is kept on PostgreSQL alone")
    rows = await store.call(build_usage())
    if build is None:
        return rows
    found = [row for row in rows if row.runtime_build == build]
    return found or [RuntimeBuildUsage(RuntimeBuildId(build), 0, None, 0)]
