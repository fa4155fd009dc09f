"""Hooks: opened when awaited or for a block, answered once, read by their declared type."""

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from pydantic import BaseModel

from flowpg.authoring.app import FlowApp
from flowpg.authoring.context import hook
from flowpg.authoring.errors import HookClosed
from flowpg.errors import FlowError, InvalidArgument, SerializationError
from flowpg.model.hooks import HookCallbackRoute, HookMetadata
from flowpg.model.snapshot import RunStatus
from tests.authoring.support import RUN_ID, Stage, answer, answer_unchecked, both, play, stage


class Approval(BaseModel):
    ok: bool
    by: str = "nobody"


@dataclass
class Reply:
    amount: int


async def test_an_answer_is_read_as_the_declared_type() -> None:
    def build(app: FlowApp) -> None:
        @app.workflow
        async def main() -> list[Any]:
            approval = await hook("approval", Approval, token="a")
            reply = await hook("reply", Reply, token="b")
            raw = await hook("raw", token="c")
            assert isinstance(approval, Approval)
            assert isinstance(reply, Reply)
            return [approval.ok, approval.by, reply.amount, raw]

    played = await both(
        build,
        acts=(
            answer("approval", {"ok": True, "by": "me"}),
            answer("reply", {"amount": 5}),
            answer("raw", {"$": "datetime", "v": "2026-01-31"}),
        ),
    )
    # What comes from outside is never taken for a tagged value.
    assert played.result == [True, "me", 5, {"$": "datetime", "v": "2026-01-31"}]


@pytest.mark.parametrize("falsy", [None, 0, "", False, [], {}])
async def test_a_falsy_answer_is_an_answer(falsy: Any) -> None:
    def build(app: FlowApp) -> None:
        @app.workflow
        async def main() -> Any:
            return await hook("go", token="t")

    assert (await both(build, acts=(answer("go", falsy),))).result == falsy


async def test_an_answer_that_nobody_checked_is_an_error_where_it_is_awaited() -> None:
    def build(app: FlowApp) -> None:
        @app.workflow
        async def main() -> str:
            try:
                await hook("approval", Approval, token="a")
            except SerializationError as error:
                return str(error)
            return ""

    played = await both(build, acts=(answer_unchecked("approval", {"ok": "secret"}),))
    assert played.result == "the answer to hook 'approval' does not fit Approval: check ok"


async def test_a_token_is_made_up_at_random_and_kept() -> None:
    sent: list[str] = []

    def build(app: FlowApp) -> None:
        @app.step
        async def send(token: str) -> None:
            sent.append(token)

        @app.workflow
        async def main() -> str:
            async with hook("go", str) as go:
                await send(go.token)
                await asyncio.sleep(1)
                await send(go.token)
                return await go

    async def answer_by_token(on: Stage) -> None:
        on.app.parked.clear()
        await on.engine.resume_hook_by_token(sent[-1], "yes")

    for always_replay in (False, True):
        sent.clear()
        later = Stage.pass_time
        on = stage(build, always_replay=always_replay)
        played = await play(on, acts=(later, answer_by_token))  # type: ignore[arg-type]
        assert played.result == "yes"
        assert len(set(sent)) == 1
        assert len(sent[0]) >= 32
    one, two = stage(build), stage(build)
    await one.start()
    await two.start()
    assert len(set(sent)) == 3


async def test_the_first_use_of_a_name_is_the_id_and_later_ones_say_where() -> None:
    def build(app: FlowApp) -> None:
        @app.workflow
        async def main() -> list[str]:
            seen = []
            for number in range(3):
                async with hook("go", token=f"t{number}") as go:
                    seen.append(go.id)
                    await go
            return seen

    played = await both(build, acts=tuple(answer(i, 0) for i in ("go", "go#1", "go#2")))
    assert played.result == ["go", "go#1", "go#2"]


async def test_a_wait_that_is_given_up_leaves_the_hook_of_a_block_open() -> None:
    def build(app: FlowApp) -> None:
        @app.step
        async def remind() -> None: ...

        @app.workflow
        async def main() -> str:
            async with hook("go", str, token="t") as go:
                for _ in range(3):
                    try:
                        async with asyncio.timeout(60):
                            return await go
                    except TimeoutError:
                        await remind()
            return "nobody answered"

    later = Stage.pass_time
    played = await both(build, acts=(later, later, answer("go", "late")))  # type: ignore[arg-type]
    assert played.result == "late"
    assert (await both(build)).result == "nobody answered"


async def test_two_tasks_may_await_one_hook() -> None:
    def build(app: FlowApp) -> None:
        @app.workflow
        async def main() -> list[str]:
            async with hook("go", str, token="t") as go:

                async def wait() -> str:
                    return await go

                return [*await asyncio.gather(wait(), wait()), await go]

    assert (await both(build, acts=(answer("go", "x"),))).result == ["x", "x", "x"]


async def test_a_hook_that_expires_or_is_withdrawn_says_so() -> None:
    def build(app: FlowApp) -> None:
        @app.workflow
        async def main() -> list[str]:
            seen = []
            for name, expires in (("a", timedelta(days=3)), ("b", None)):
                try:
                    await hook(name, token=name, expires=expires)
                except HookClosed as error:
                    seen.append(error.hook_id)
            async with hook("unanswered", token="c", expires=timedelta(days=1)):
                await asyncio.sleep(86400 * 2)
            return seen

    async def withdraw(on: Stage) -> None:
        await on.engine.dispose_hook(RUN_ID, "b")

    played = await both(build, acts=(Stage.pass_time, withdraw))  # type: ignore[arg-type]
    assert played.result == ["a", "b"]


async def test_metadata_is_for_operators_and_holds_no_token() -> None:
    def build(app: FlowApp) -> None:
        @app.workflow
        async def main() -> None:
            route = HookCallbackRoute.post("/hooks/{token}")
            await hook(
                "go",
                token="secret token",
                metadata=HookMetadata.human_approval("invoice 7").with_callback_route(route),
            )

    on = stage(build)
    await on.start()
    [active] = await on.engine.list_active_hooks(run_id=RUN_ID)
    assert active.metadata["label"] == "invoice 7"
    await play_out(on, answer("go", None))


async def play_out(on: Stage, act: Any) -> None:
    """Let the last thing happen that a run waits for."""
    await act(on)
    assert (await on.snapshot()).status is RunStatus.COMPLETED
    await on.engine.close()


async def test_an_answer_after_the_end_is_refused() -> None:
    def build(app: FlowApp) -> None:
        @app.workflow
        async def main() -> str:
            async with hook("go", token="t"):
                return "never mind"

    on = stage(build)
    played = await play(on)
    assert played.result == "never mind"
    # A token that was asked for by name is claimed before the block is entered, and freed after it.
    assert played.types()[2:4] == ["hook_created go", "hook_disposed go"]
    with pytest.raises(FlowError):
        await on.engine.resume_hook(RUN_ID, "go", 1)


async def test_what_a_hook_cannot_do_is_said() -> None:
    def build(app: FlowApp) -> None:
        @app.workflow
        async def main() -> list[str]:
            seen = []
            closed = hook("go", token="t")
            for wrong in (lambda: closed.token, lambda: hook(""), lambda: hook("x", token="")):
                try:
                    wrong()
                except InvalidArgument as error:
                    seen.append(str(error).split(";")[0])
            assert repr(closed) == "<hook 'go'>"
            return seen

    assert (await both(build)).result == [
        "hook 'go' is not open yet",
        "hook name must not be blank",
        "hook token must not be blank",
    ]
