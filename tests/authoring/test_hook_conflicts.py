"""A token that is taken: an error where the hook is awaited, or where its block is entered."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from flowpg import (
    FlowApp,
    HookTokenConflict,
    InvalidArgument,
    NonDeterministic,
    PayloadTooLarge,
    hook,
    progress,
    sync,
)
from flowpg.authoring.context import now
from flowpg.model.events import MAX_PAYLOAD_BYTES, hook_created
from flowpg.model.snapshot import HookStatus, RunStatus
from flowpg.testing import TestedRun, WorkflowEnvironment, replay
from tests.authoring.support import RUN_ID, both, play, stage
from tests.durable import forever
from tests.engine.support import EngineStore

SECRET = "a token that nobody may see"


async def two_runs(app: FlowApp, *, always_replay: bool) -> tuple[list[Any], list[str]]:
    """The results of an owner and of a loser of the only workflow of ``app``, and the events of the
    loser. The owner is answered last."""
    [workflow] = app.workflows.values()
    async with WorkflowEnvironment(app, always_replay=always_replay) as env:
        owner: TestedRun[Any] = await env.start_with_id("owner", workflow)
        await env.settle()
        loser: TestedRun[Any] = await env.start_with_id("loser", workflow)
        second = await loser.result()
        history = await loser.history()
        assert not any(SECRET in event.payload for event in history)
        await owner.answer("lock", "mine")
        return [await owner.result(), second], [event.type for event in history]


@pytest.mark.parametrize("always_replay", [False, True])
async def test_it_is_raised_where_the_hook_is_awaited_with_the_owner_and_without_the_token(
    always_replay: bool,
) -> None:
    app = FlowApp("plain await")

    @app.workflow
    async def main() -> Any:
        try:
            return await hook("lock", str, token=SECRET)
        except HookTokenConflict as taken:
            shown = f"{taken} {taken!r} {vars(taken)}"
            return [taken.run_id, taken.hook_id, SECRET in shown]

    results, types = await two_runs(app, always_replay=always_replay)
    assert results == ["mine", ["owner", "lock", False]]
    assert types == ["run_created", "run_started", "hook_conflicted", "run_completed"]


@pytest.mark.parametrize("always_replay", [False, True])
async def test_a_block_is_not_entered_without_the_token(always_replay: bool) -> None:
    app = FlowApp("block")
    entered: list[int] = []

    @app.step
    async def work() -> None:
        entered.append(1)

    @app.workflow
    async def main() -> str:
        try:
            async with hook("lock", str, token=SECRET) as lock:
                await work()
                return await lock
        except HookTokenConflict as taken:
            return f"taken by {taken.run_id}"

    results, types = await two_runs(app, always_replay=always_replay)
    assert results == ["mine", "taken by owner"]
    assert entered == [1]
    assert "step_created" not in types


@pytest.mark.parametrize("always_replay", [False, True])
async def test_workflows_that_are_plain_functions_catch_it_too(always_replay: bool) -> None:
    app = FlowApp("plain functions")

    @app.workflow
    def main() -> str:
        try:
            with sync.hook("lock", str, token=SECRET) as lock:
                return lock.result()
        except HookTokenConflict as taken:
            return f"taken by {taken.run_id}"

    results, _ = await two_runs(app, always_replay=always_replay)
    assert results == ["mine", "taken by owner"]


async def test_two_hooks_of_one_run_with_one_token_are_no_exception() -> None:
    def build(app: FlowApp) -> None:
        @app.workflow
        async def main() -> list[Any]:
            seen: list[Any] = []
            async with hook("first", token="t") as first:
                found = await asyncio.gather(
                    hook("second", token="t"), hook("third", token="t"), return_exceptions=True
                )
                seen += [(error.run_id, error.hook_id) for error in found]  # type: ignore[union-attr]
                try:
                    async with hook("fourth", token="t"):
                        seen.append("never")
                except HookTokenConflict as taken:
                    seen.append(taken.hook_id)
            async with hook("fifth", token="t") as fifth:
                seen += [first.id, fifth.id]
            return seen

    played = await both(build)
    owner = (RUN_ID, "first")
    assert played.result == [owner, owner, "first", "first", "fifth"]
    assert played.snapshot.hooks["third"].status is HookStatus.CONFLICTED


async def test_several_hooks_of_one_turn_may_be_refused_beside_steps_that_go_on() -> None:
    def build(app: FlowApp) -> None:
        @app.step
        async def work(x: int) -> int:
            return x

        @app.workflow
        async def main() -> list[Any]:
            async with hook("a", token="a"), hook("b", token="b"):

                async def claim(name: str) -> str:
                    try:
                        async with hook(f"again {name}", token=name):
                            return "entered"
                    except HookTokenConflict as taken:
                        return taken.hook_id

                return [*await asyncio.gather(claim("b"), work(1), claim("c"), claim("a"), work(2))]

    played = await both(build)
    assert played.result == ["b", 1, "entered", "a", 2]
    turn = [line for line in played.types() if "again" in line or "step_created" in line]
    # Each in its place in the decision.
    assert turn == [
        "hook_conflicted again b",
        "step_created work#1",
        "hook_created again c",
        "hook_conflicted again a",
        "step_created work#2",
        "hook_disposed again c",
    ]


async def test_a_block_that_is_given_up_while_it_is_entered_leaves_nothing_open() -> None:
    def build(app: FlowApp) -> None:
        @app.step
        async def work() -> None: ...

        @app.workflow
        async def main() -> list[str]:
            seen: list[str] = []

            async def enter() -> None:
                try:
                    async with hook("lock", token="t"):
                        seen.append("entered")
                        await asyncio.sleep(100)
                except asyncio.CancelledError:
                    seen.append("cancelled")
                    raise

            task = asyncio.create_task(enter())
            await asyncio.sleep(0)
            task.cancel()  # in the turn in which it asks for the token
            await asyncio.wait([task])
            task = asyncio.create_task(enter())
            await work()
            task.cancel()
            await asyncio.wait([task])
            async with hook("lock", token="t"):
                seen.append("free")
            return seen

    played = await both(build)
    assert played.result == ["cancelled", "entered", "cancelled", "free"]
    assert [line for line in played.types() if "hook" in line] == [
        *("hook_created lock#2/1", "hook_disposed lock#2/1"),
        *("hook_created lock#2", "hook_disposed lock#2"),
    ]


async def test_a_request_to_cancel_ends_a_wait_for_entry() -> None:
    app = FlowApp("cancelled at the door")

    @app.workflow
    async def main() -> str:
        try:
            async with hook("lock", token="t"):
                await forever()
        except asyncio.CancelledError:
            async with hook("cleanup", token="t"):
                return "cleaned up"
        return "never"

    for always_replay in (False, True):
        async with WorkflowEnvironment(app, always_replay=always_replay) as env:
            run = await env.start(main)
            await run.cancel()
            assert await run.result() == "cleaned up"
            await replay(app, await run.history())


async def test_what_nobody_catches_fails_the_run_and_is_rebuilt_without_the_token() -> None:
    app = FlowApp("uncaught")

    @app.workflow
    async def main() -> str:
        return await hook("lock", str, token=SECRET)

    async with WorkflowEnvironment(app) as env:
        await env.start_with_id("owner", main)
        await env.settle()
        run = await env.start_with_id("loser", main)
        snapshot = await run.finish()
        assert snapshot.status is RunStatus.FAILED
        with pytest.raises(Exception, match="held by active hook 'lock' of run 'owner'") as failed:
            await run.result()
        cause = failed.value.__cause__
        assert isinstance(cause, HookTokenConflict)
        assert (cause.run_id, cause.hook_id, cause.token) == ("owner", "lock", "")
        assert SECRET not in str(snapshot.wire()["hooks"])
        assert SECRET not in str(snapshot.error)


async def test_a_step_whose_error_knows_a_token_does_not_tell_it() -> None:
    def build(app: FlowApp) -> None:
        @app.step
        async def start() -> None:
            raise HookTokenConflict(SECRET, "other", "lock")

        @app.workflow
        async def main() -> list[str]:
            try:
                await start()
            except HookTokenConflict as taken:
                return [taken.run_id, taken.hook_id, taken.token]
            return []

    played = await both(build)
    assert played.result == ["other", "lock", ""]
    assert not any(SECRET in line for line in played.lines())


async def test_without_a_token_of_its_own_a_block_is_entered_at_once() -> None:
    def build(app: FlowApp) -> None:
        @app.workflow
        async def main() -> list[Any]:
            before = now()
            async with hook("go") as go:
                progress(1, message=go.id)
                return [now() == before]

    played = await both(build)
    assert played.result == [True]
    assert "hook_created go" not in played.types()


@pytest.mark.parametrize("always_replay", [False, True])
async def test_blocked_until_the_token_is_free_where_the_workflow_says_so(
    always_replay: bool,
) -> None:
    def build(app: FlowApp) -> None:
        @app.workflow
        async def main(patient: bool) -> str:
            on_conflict: Any = "wait" if patient else "raise"
            async with hook("lock", str, token="t", on_conflict=on_conflict) as lock:
                return await lock

    owner = stage(build, always_replay=always_replay)
    await owner.start(False)
    waiting = stage(build, always_replay=always_replay, store=owner.store)
    waiting.run_id = "patient"
    with pytest.raises(HookTokenConflict):
        await waiting.start(True)
    assert "HookTokenConflict" in str((await waiting.engine.run_info("patient")).blocked_reason)
    await owner.engine.resume_hook(RUN_ID, "lock", "first")
    assert (await owner.snapshot()).output == "first"
    waiting.store.advance(timedelta(hours=1))
    await waiting.engine.drive("patient")
    await waiting.engine.resume_hook("patient", "lock", "second")
    assert (await waiting.snapshot()).output == "second"


async def test_there_are_two_policies() -> None:
    def build(app: FlowApp) -> None:
        @app.workflow
        async def main() -> str:
            wrong: Any = "ignore"
            try:
                hook("lock", token="t", on_conflict=wrong)
            except InvalidArgument as error:
                return str(error)
            return ""

    assert "on_conflict of hook 'lock'" in (await play(stage(build))).result


CHANGES: dict[str, tuple[dict[str, Any], str]] = {
    "another name": ({"name": "other"}, "found hook 'other'"),
    "no token": ({"token": None}, "was to give way to another hook"),
    "another policy": ({"on_conflict": "wait"}, "was to give way to another hook"),
}


@pytest.mark.parametrize("change", CHANGES)
async def test_a_changed_hook_does_not_replay_over_a_conflict(change: str) -> None:
    changed, said = CHANGES[change]

    def build(**options: Any) -> FlowApp:
        app = FlowApp("changed")
        given: dict[str, Any] = {"token": SECRET, **options}
        name = given.pop("name", "lock")

        @app.workflow
        async def main() -> str:
            try:
                return str(await hook(name, str, **given))
            except HookTokenConflict:
                await asyncio.sleep(60)
                return "gave way"

        return app

    app = build()
    async with WorkflowEnvironment(app) as env:
        await env.start_with_id("owner", app.workflows["main"])
        await env.settle()
        run = await env.start_with_id("loser", app.workflows["main"])
        await run.finish()
        history = await run.history()
    await replay(build(), history)
    with pytest.raises(NonDeterministic, match="hook_conflicted") as caught:
        await replay(build(**changed), history)
    assert said in str(caught.value)
    assert SECRET not in str(caught.value)


async def test_metadata_that_leaves_no_room_for_the_policy_raises_where_the_hook_is_opened(
    engine_store: EngineStore,
) -> None:
    app = FlowApp("full")
    room = MAX_PAYLOAD_BYTES - len(hook_created("go", "t", "").payload())

    @app.workflow
    async def main() -> str:
        try:
            await hook("go", token="t", metadata="x" * room)
        except PayloadTooLarge as error:
            return str(error.event_type)
        return "opened"

    engine = await engine_store.engine(app)
    run = await engine.snapshot(await main.start(engine))
    assert (run.status, run.output) == (RunStatus.COMPLETED, "hook_created")
