"""An answer is checked against the schema of the hook that takes it, in as few calls as can be."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from flowpg import (
    AnswerRejected,
    FlowApp,
    HookConflict,
)
from flowpg.model.records import VerbResult
from flowpg.store.protocol import FlowEventStore
from tests.engine.answering import TOKEN, Order, Yes, shop, started
from tests.engine.support import EngineStore

pytestmark = pytest.mark.usefixtures("nothing_known")


class Watched:
    """A store that counts the answers that are sent to it, and lets others act before one."""

    def __init__(self, inner: FlowEventStore) -> None:
        self._inner = inner
        self.calls = 0
        self.before: dict[int, Callable[[], Awaitable[Any]]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def resume_hook(self, *args: Any, **kwargs: Any) -> VerbResult:
        await self._count()
        return await self._inner.resume_hook(*args, **kwargs)

    async def resume_hook_by_token(self, *args: Any, **kwargs: Any) -> VerbResult:
        await self._count()
        return await self._inner.resume_hook_by_token(*args, **kwargs)

    async def _count(self) -> None:
        self.calls += 1
        act = self.before.pop(self.calls, None)
        if act is not None:
            await act()


async def watching(store: EngineStore, app: FlowApp | None) -> tuple[Any, Watched]:
    """An engine whose answers are counted."""
    seen: list[Watched] = []

    def wrap(inner: FlowEventStore) -> FlowEventStore:
        seen.append(Watched(inner))
        return cast("FlowEventStore", seen[-1])

    engine = await store.engine(app, wrap=wrap)
    return engine, seen[-1]


async def test_one_call_is_enough_where_nothing_is_declared_or_the_like_was_answered_before(
    engine_store: EngineStore,
) -> None:
    await started(engine_store, shop(Any, "anything"), "untyped")
    sender, store = await watching(engine_store, None)
    await sender.resume_hook("untyped", "anything", 1, drive=False)
    assert store.calls == 1
    app = shop()
    for number in range(4):
        await started(engine_store, app, f"r{number}")
        by_token = number % 2
        if by_token:
            await sender.resume_hook_by_token(TOKEN, {"amount": number}, drive=False)
        else:
            await sender.resume_hook(f"r{number}", "order", {"amount": number}, drive=False)
        # The first one has to ask.
        assert store.calls == 3 + number


async def test_a_guess_that_is_wrong_is_corrected_and_refuses_nothing(
    engine_store: EngineStore,
) -> None:
    sender, _ = await watching(engine_store, None)
    engine = await started(engine_store, shop(Order), "r1")
    await sender.resume_hook("r1", "order", {"amount": 1}, drive=False)
    # The same name, and another type by now.
    engine = await started(engine_store, shop(Yes), "r2")
    with pytest.raises(AnswerRejected, match="yes is missing"):
        await sender.resume_hook("r2", "order", {"amount": 1}, drive=False)
    await sender.resume_hook("r2", "order", {"yes": True}, drive=False)
    assert (await engine.drive("r2")).output == "Yes(yes=True)"


async def test_a_token_that_moves_on_between_two_calls_is_checked_against_the_new_hook(
    engine_store: EngineStore,
) -> None:
    engine = await started(engine_store, shop(Order), "r1")
    sender, store = await watching(engine_store, None)

    async def moves() -> None:
        await engine.force_cancel("r1")
        await started(engine_store, shop(Yes), "r2")

    store.before[2] = moves
    with pytest.raises(AnswerRejected) as refused:
        await sender.resume_hook_by_token(TOKEN, {"amount": 1}, drive=False)
    assert (refused.value.run_id, store.calls) == ("r2", 2)
    assert (await engine.snapshot("r2")).open.hooks


async def test_of_many_answers_at_once_one_that_fits_is_taken_and_none_that_does_not(
    engine_store: EngineStore,
) -> None:
    engine = await started(engine_store, shop())

    async def send(number: int) -> str:
        amount = f"no number {number}" if number % 2 else number
        try:
            await engine.resume_hook("r", "order", {"amount": amount}, drive=False)
        except (AnswerRejected, HookConflict) as error:
            return type(error).__name__
        return str(amount)

    said = await asyncio.gather(*map(send, range(30)))
    [taken] = set(said) - {"AnswerRejected", "HookConflict"}
    assert said.count(taken) == 1
    assert (await engine.drive("r")).output == {"amount": int(taken), "note": ""}


async def test_a_hook_that_is_answered_between_two_calls_says_so(
    engine_store: EngineStore,
) -> None:
    engine = await started(engine_store, shop())
    sender, store = await watching(engine_store, None)
    store.before[2] = lambda: engine.resume_hook("r", "order", {"amount": 2}, drive=False)
    with pytest.raises(HookConflict):
        await sender.resume_hook("r", "order", {"amount": 1}, drive=False)
    assert (await engine.drive("r")).output == {"amount": 2, "note": ""}
