"""Builds: how they are named, what is admitted, and which way tasks of pinned runs go."""

from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from flowpg.engine.flow_engine import FlowEngine
from flowpg.errors import InvalidArgument, RunNotFound, RuntimeBuildRouteNotFound
from flowpg.fleet.builds import (
    RuntimeBuildCompatibility,
    RuntimeBuildId,
    RuntimeBuildTaskRouter,
    runtime_build_usage,
)
from flowpg.fleet.tasks import AnyTask, DriveRun, ResumeDueWaits, ResumeHookByToken
from flowpg.fleet.worker import FlowWorker
from flowpg.store.protocol import FlowEventStore
from tests.engine.support import SPEC, EngineStore, Script, one_step

OLD, NEW = SPEC.with_runtime_build("v1"), SPEC.with_runtime_build("v2")


@dataclass
class Sent:
    """A dispatcher that only keeps what it is given."""

    tasks: list[AnyTask] = field(default_factory=list)

    async def dispatch(self, task: AnyTask) -> None:
        """Keep it."""
        self.tasks.append(task)


class Asked:
    """A store that keeps the names of the methods that are called."""

    def __init__(self, inner: FlowEventStore) -> None:
        self._inner = inner
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        self.calls.append(name)
        return getattr(self._inner, name)


@pytest.mark.parametrize("name", ["1", "a", "a" * 128, "2026.1+g0fc/x@y:z_w-v", "aZ9"])
def test_a_build_is_named_by_letters_digits_and_a_few_signs(name: str) -> None:
    assert RuntimeBuildId(name) == name


@pytest.mark.parametrize(
    "name", ["", " ", "a ", "-a", "a-", "a" * 129, "é", "a\n", "a\x00b", "a b", "٣", ".", 7, None]
)
def test_no_other_name_is_a_build(name: str) -> None:
    with pytest.raises(InvalidArgument, match="1 to 128 characters"):
        RuntimeBuildId(name)


@pytest.mark.parametrize("unpinned", [True, False])
def test_a_process_admits_its_own_build_the_compatible_ones_and_unpinned_runs_if_told(
    unpinned: bool,
) -> None:
    admits = RuntimeBuildCompatibility("v2", ("v1", "v2"), unpinned)
    assert admits.builds == ("v2", "v1")
    assert [admits.supports(build) for build in ("v1", "v2", "v3", None)] == [
        *(True, True, False),
        unpinned,
    ]
    engine = admits.apply(FlowEngine.builder()).build()
    assert engine.options.runtime_builds == ("v2", "v1")
    assert engine.options.supports(None) is unpinned


def test_a_compatibility_with_a_name_that_is_none_is_refused() -> None:
    with pytest.raises(InvalidArgument):
        RuntimeBuildCompatibility("v2", ("-",))


def test_a_second_route_of_a_build_or_of_unpinned_runs_is_refused() -> None:
    router = RuntimeBuildTaskRouter().with_route("v1", Sent()).with_unpinned_route(Sent())
    with pytest.raises(InvalidArgument, match="'v1' has a route already"):
        router.with_route("v1", Sent())
    with pytest.raises(InvalidArgument, match="without a build have a route already"):
        router.with_unpinned_route(Sent())


async def test_each_task_goes_the_way_of_its_runs_build(engine_store: EngineStore) -> None:
    client = await engine_store.engine(None)
    old, new, free = [await client.start(spec) for spec in (OLD, NEW, SPEC)]
    v1, v2, unpinned = Sent(), Sent(), Sent()
    router = RuntimeBuildTaskRouter().with_route("v1", v1).with_route("v2", v2)
    router.with_unpinned_route(unpinned)
    tasks = [DriveRun(run_id=run_id) for run_id in (free, new, old)]

    assert await router.dispatch_all(client.store, [*tasks, ResumeDueWaits()]) == 4
    await router.dispatch_for_run(client.store, new, ResumeHookByToken(token="t"))
    await router.dispatch(ResumeDueWaits())
    assert (v1.tasks, v2.tasks[:1]) == ([tasks[2]], [tasks[1]])
    assert v2.tasks[1:] == [ResumeHookByToken(token="t")]
    assert unpinned.tasks == [tasks[0], ResumeDueWaits(), ResumeDueWaits()]


async def test_the_builds_of_all_runs_are_asked_for_at_once(engine_store: EngineStore) -> None:
    client = await engine_store.engine(None)
    runs = [await client.start(spec) for spec in (OLD, NEW, SPEC)]
    asked = Asked(client.store)
    router = RuntimeBuildTaskRouter().with_unpinned_route(Sent())
    for build in ("v1", "v2"):
        router.with_route(build, Sent())
    tasks = [DriveRun(run_id=run_id) for run_id in (*runs, *runs)]
    assert await router.dispatch_all(cast("FlowEventStore", asked), tasks) == 6
    assert asked.calls == ["run_builds"]
    assert await client.store.run_builds([*runs, "none"]) == dict(
        zip(runs, ("v1", "v2", None), strict=True)
    )


async def test_one_missing_route_dispatches_nothing_and_says_which(
    engine_store: EngineStore,
) -> None:
    client = await engine_store.engine(None)
    old, new, free = [await client.start(spec) for spec in (OLD, NEW, SPEC)]
    v1 = Sent()
    router = RuntimeBuildTaskRouter().with_route("v1", v1)
    first = DriveRun(run_id=old)
    with pytest.raises(RuntimeBuildRouteNotFound, match="build 'v2'; nothing was") as refused:
        await router.dispatch_all(client.store, [first, DriveRun(run_id=new)])
    assert refused.value.required == "v2"
    with pytest.raises(RuntimeBuildRouteNotFound, match="runs without a build"):
        await router.dispatch_all(client.store, [first, DriveRun(run_id=free)])
    with pytest.raises(RunNotFound):
        await router.dispatch_all(client.store, [first, DriveRun(run_id="none")])
    assert v1.tasks == []


async def test_a_task_is_not_sent_for_a_run_that_it_is_not_about(
    engine_store: EngineStore,
) -> None:
    client = await engine_store.engine(None)
    run_id = await client.start(SPEC)
    router = RuntimeBuildTaskRouter().with_unpinned_route(Sent())
    for task in (DriveRun(run_id="other"), ResumeDueWaits()):
        with pytest.raises(InvalidArgument):
            await router.dispatch_for_run(client.store, run_id, task)


async def test_a_build_may_be_retired_when_no_open_run_needs_it(
    postgres_only: EngineStore,
) -> None:
    client = await postgres_only.engine(None)
    await client.start(OLD)
    (usage,) = await runtime_build_usage(client.store, "v1")
    assert (usage.open_runs, usage.live_workers, usage.may_be_retired) == (1, 0, False)
    assert usage.oldest_created_at is not None

    # A worker of another build cannot see the run; one of its own ends it.
    wrong = await postgres_only.engine(Script(one_step()), builds=["v2"])
    assert await FlowWorker(wrong).run_until_idle() == 0
    right = await postgres_only.engine(
        Script(one_step(), {"work": lambda step: None}), builds=["v1"]
    )
    assert await FlowWorker(right).run_until_idle() == 1
    assert [row.may_be_retired for row in await runtime_build_usage(client.store, "v1")] == [True]
