"""Many hooks of one decision whose tokens are taken: all of them are refused at once."""

import asyncio
from typing import Any

import pytest

from flowpg import FlowApp, HookTokenConflict, hook
from flowpg.errors import StoreUnavailable
from flowpg.model.records import Append, AppendResult
from flowpg.replay.projection import project
from flowpg.store.protocol import FlowEventStore
from tests.engine.support import EngineStore


def app_of_many() -> FlowApp:
    """A workflow that asks for tokens side by side, and says who has those that it does not get."""
    app = FlowApp("many")

    @app.workflow
    async def main(tokens: list[str], patient: int | None = None) -> list[str]:
        async def one(place: int) -> str:
            policy: Any = "wait" if place == patient else "raise"
            try:
                async with hook(f"h{place}", token=tokens[place], on_conflict=policy):
                    return await hook(f"go {place}", str)
            except HookTokenConflict as taken:
                return f"{taken.run_id} {taken.hook_id}"

        return list(await asyncio.gather(*map(one, range(len(tokens)))))

    return app


class Counting:
    """A store whose appends are kept; ``between`` is called after the first one that is refused."""

    def __init__(self, store: FlowEventStore) -> None:
        self._store = store
        self.appends: list[Append] = []
        self.between: Any = None
        self.loses_one = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def append(self, append: Append) -> AppendResult:
        self.appends.append(append)
        result = await self._store.append(append)
        if result.outcome == "hook_token_conflict" and self.between is not None:
            between, self.between = self.between, None
            await between()
        if self.loses_one and result.appended and any("hook" in e.type for e in append.events):
            self.loses_one = False
            raise StoreUnavailable("the answer was lost")
        return result


@pytest.mark.parametrize("same", [False, True], ids=["of another run", "of one hook of the run"])
async def test_a_thousand_refusals_cost_one_append_more(
    engine_store: EngineStore, same: bool
) -> None:
    app = app_of_many()
    main = app.workflows["main"]
    counting: list[Counting] = []

    def counted(store: FlowEventStore) -> Any:
        counting.append(Counting(store))
        return counting[-1]

    engine = await engine_store.engine(app, wrap=counted)
    tokens = ["t"] * 1000 if same else [f"t{n}" for n in range(1000)]
    if not same:
        await engine.start_with_id("owner", main.spec, main.input(tokens))
    before = len(counting[0].appends)
    counting[0].loses_one = True
    await engine.start_with_id("loser", main.spec, main.input([*tokens, "free"]))
    # The decision is refused, stored with the conflicts in it (and its answer lost); the next one
    # is that of those who were told.
    assert len(counting[0].appends) - before == 3
    if same:
        await engine.resume_hook("loser", "go 0", "mine")
    await engine.resume_hook("loser", "go 1000", "free")
    found = main.result(await engine.snapshot("loser"))
    first = "mine" if same else "owner h0"
    taken = ["loser h0" if same else f"owner h{n}" for n in range(1, 1000)]
    assert found == [first, *taken, "free"]
    history = await engine.history("loser")
    assert [event.type for event in history].count("hook_conflicted") == 999 + (not same)
    project("loser", history)


async def test_who_gave_way_to_a_hook_that_gives_way_itself_names_the_owner(
    engine_store: EngineStore,
) -> None:
    """Two hooks of a run want one token; between the two appends another run gets it."""
    app = app_of_many()
    main = app.workflows["main"]
    other = await engine_store.engine(app)
    stores: list[Counting] = []

    def counted(store: FlowEventStore) -> Any:
        stores.append(Counting(store))
        return stores[-1]

    engine = await engine_store.engine(app, wrap=counted)

    async def between() -> None:
        await other.start_with_id("other", main.spec, main.input(["t"]))

    stores[0].between = between
    await engine.start_with_id("r", main.spec, main.input(["t", "t"]))
    assert main.result(await engine.snapshot("r")) == ["other h0", "other h0"]
    assert project("r", await engine.history("r")).output == (await engine.snapshot("r")).output


async def test_one_that_waits_for_its_token_blocks_the_run_whatever_else_is_refused(
    engine_store: EngineStore,
) -> None:
    app = app_of_many()
    main = app.workflows["main"]
    engine = await engine_store.engine(app)
    await engine.start_with_id("owner", main.spec, main.input(["a", "b", "c"]))
    with pytest.raises(HookTokenConflict) as caught:
        await engine.start_with_id("r", main.spec, main.input(["a", "b", "c"], 1))
    assert (caught.value.run_id, caught.value.hook_id) == ("owner", "h1")
    assert [event.type for event in await engine.history("r")] == ["run_created"]
    assert "'h1'" in str((await engine.run_info("r")).blocked_reason)
    await engine.dispose_hook("owner", "h1")
    await engine.drive("r")
    await engine.resume_hook("r", "go 1", "mine")
    assert main.result(await engine.snapshot("r")) == ["owner h0", "mine", "owner h2"]
