"""Code that changes under open runs: new runs take the new branch, old ones keep theirs."""

import asyncio
from typing import Any

import pytest

from flowpg.authoring.app import FlowApp
from flowpg.authoring.context import patched, set_attributes
from flowpg.errors import InvalidArgument, NonDeterministic
from flowpg.model.commands import Complete
from flowpg.model.snapshot import RunStatus
from tests.authoring.support import Build, Stage, both, play, replay, stage
from tests.authoring.test_cancellation import steps


def before(app: FlowApp) -> None:
    """The first build."""
    work = steps(app)

    @app.workflow
    async def main() -> list[Any]:
        seen = [await work("start")]
        seen.append(await work("old"))
        await asyncio.sleep(5)
        return seen


def between(app: FlowApp) -> None:
    """The second: both branches."""
    work = steps(app)

    @app.workflow
    async def main() -> list[Any]:
        seen = [await work("start")]
        if patched("better"):
            seen += await asyncio.gather(work("new"), work("newer"))
        else:
            seen.append(await work("old"))
        await asyncio.sleep(5)
        return seen if patched("better") == (len(seen) == 3) else ["another answer"]


def after(app: FlowApp) -> None:
    """The third: the old branch and the call are gone."""
    work = steps(app)

    @app.workflow
    async def main() -> list[Any]:
        seen = [await work("start")]
        seen += await asyncio.gather(work("new"), work("newer"))
        await asyncio.sleep(5)
        return seen


NEW, OLD = ["start", "new", "newer"], ["start", "old"]


async def started(build: Build) -> Stage:
    """A run that waits on its timer."""
    on = stage(build)
    await on.start()
    assert (await on.snapshot()).status is RunStatus.SUSPENDED
    return on


async def finished(on: Stage, build: Build) -> Any:
    """The result of a run that another build takes over."""
    other = stage(build, store=on.store)
    await other.pass_time()
    snapshot = await other.snapshot()
    assert snapshot.status is RunStatus.COMPLETED, snapshot.status
    return other.workflow.result(snapshot)


async def test_a_new_run_takes_the_new_branch_and_is_marked_once() -> None:
    played = await both(between)
    assert played.result == NEW
    types = played.types()
    assert types.count("patch_recorded better") == 1
    # In the append of the decision that follows from the answer.
    place = types.index("patch_recorded better")
    assert types[place + 1] == "step_created work#2"
    assert played.history[place].recorded_at == played.history[place + 1].recorded_at


async def test_each_history_goes_on_under_each_build_that_knows_its_branch() -> None:
    assert await finished(await started(before), before) == OLD
    assert await finished(await started(before), between) == OLD
    assert await finished(await started(between), between) == NEW
    assert await finished(await started(between), after) == NEW
    assert await finished(await started(after), after) == NEW


@pytest.mark.parametrize(("build", "taken_over_by"), [(before, after), (between, before)])
async def test_a_build_without_the_branch_blocks_the_run(
    build: Build, taken_over_by: Build
) -> None:
    on = await started(build)
    other = stage(taken_over_by, store=on.store)
    on.store.advance((await on.store.next_wakeup()).due_at - await on.store.now())  # type: ignore[union-attr]
    with pytest.raises(NonDeterministic):
        await other.engine.drive(on.run_id)
    row = await on.engine.run_info(on.run_id)
    assert row.ended_at is None
    assert row.blocked_reason


async def test_a_run_that_had_not_come_so_far_takes_the_new_branch() -> None:
    def old(app: FlowApp) -> None:
        work = steps(app)

        @app.workflow
        async def main() -> list[Any]:
            await asyncio.sleep(5)
            return [await work("start"), await work("old")]

    def new(app: FlowApp) -> None:
        work = steps(app)

        @app.workflow
        async def main() -> list[Any]:
            await asyncio.sleep(5)
            return [await work("start"), await work("new" if patched("p") else "old")]

    assert await finished(await started(old), new) == ["start", "new"]


async def test_asked_in_a_loop_and_at_the_same_time_the_answer_is_one() -> None:
    def build(app: FlowApp) -> None:
        work = steps(app)

        @app.workflow
        async def main() -> list[Any]:
            async def branch(number: int) -> bool:
                await work(number)
                return patched("p")

            found = await asyncio.gather(*map(branch, range(20)))
            for number in range(3):
                await work(number)
                found.append(patched("p"))
            return found

    played = await both(build)
    assert played.result == [True] * 23
    assert played.types().count("patch_recorded p") == 1


async def test_the_mark_of_a_run_that_ends_with_it_is_kept() -> None:
    def build(app: FlowApp) -> None:
        @app.workflow
        async def main() -> bool:
            return patched("last")

    played = await both(build)
    assert played.types()[-2:] == ["patch_recorded last", "run_completed"]
    app = FlowApp("fresh")
    build(app)
    end = replay(app, played.history[:-1])[-1]
    assert isinstance(end, Complete)
    assert end.output is True


async def test_attributes_are_seen_in_the_row_and_survive_replays() -> None:
    def build(app: FlowApp) -> None:
        work = steps(app)

        @app.workflow
        async def main() -> str:
            set_attributes(customer="acme", cents=500, rush=True)
            await work(1)
            set_attributes({"customer": "acme"})  # nothing new: nothing is recorded
            await work(2)
            set_attributes({"two words": 2.5}, rush=None)
            return "done"

    played = await both(build)
    assert played.types().count("run_attributes_set") == 2
    assert played.snapshot.attributes == {"customer": "acme", "cents": 500, "two words": 2.5}
    on = stage(build)
    await play(on)
    row = await on.engine.run_info(on.run_id)
    assert row.attributes == played.snapshot.attributes
    assert (await on.store.list_runs())[0].attributes == row.attributes


async def test_a_wrong_attribute_is_refused_where_it_is_set() -> None:
    def build(app: FlowApp) -> None:
        @app.workflow
        async def main() -> str:
            with pytest.raises(InvalidArgument, match="'a' must be a text"):
                set_attributes(a=[1])
            return "caught"

    assert (await both(build)).result == "caught"


async def test_attributes_that_differ_at_replay_block_the_run() -> None:
    def build(customer: str) -> Build:
        def declare(app: FlowApp) -> None:
            @app.workflow
            async def main() -> None:
                set_attributes(customer=customer)
                await asyncio.sleep(5)

        return declare

    on = await started(build("acme"))
    app = FlowApp("other")
    build("another")(app)
    with pytest.raises(NonDeterministic, match="expected attributes, which has other values") as it:
        replay(app, await on.history())
    assert "acme" not in str(it.value)
