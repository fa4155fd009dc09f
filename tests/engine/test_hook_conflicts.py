"""A hook whose token is taken: the conflict is recorded and the workflow asked again, or the run is
blocked until the token is free."""

import asyncio
from typing import Any

import psycopg
import pytest

from flowpg.engine.flow_engine import FlowEngine
from flowpg.engine.observer import InMemoryFlowEventObserver
from flowpg.errors import HookConflict, HookTokenConflict, InvalidTransition, NonDeterministic
from flowpg.model import events, jsontext
from flowpg.model.commands import Decision
from flowpg.model.snapshot import HookStatus, RunStatus
from flowpg.replay.context import WorkflowContext
from tests.engine.support import (
    SPEC,
    EngineStore,
    LostOnce,
    Mortal,
    ProcessDied,
    Script,
    Workflow,
    echo,
    short,
    wrapping,
)
from tests.waiting import until_async

TOKEN = "the-secret-token"


def owner(ctx: WorkflowContext) -> Decision:
    """Holds the token until it is answered."""
    if ctx.hook_received("h"):
        return ctx.complete(ctx.hook_payload("h"))
    return ctx.create_hook("h", TOKEN)


def gives_way(ctx: WorkflowContext) -> Decision:
    """A step, then the token and another step at once; who holds the token is the result."""
    if not ctx.step_completed("s"):
        return ctx.schedule_step("s", "work", 1)
    taken = ctx.hook_conflict("mine")
    if taken is not None:
        if not ctx.step_completed("t"):
            return ctx.schedule_step("t", "work", 2)
        return ctx.complete([taken.run_id, taken.hook_id])
    if ctx.hook_received("mine"):
        return ctx.complete(ctx.hook_payload("mine"))
    hook = ctx.create_hook("mine", TOKEN, on_conflict="raise", acquire=True)
    if ctx.hook_active("mine") and not ctx.step_completed("t"):
        return hook, ctx.schedule_step("t", "work", 2)
    return hook


async def owned(engine_store: EngineStore) -> FlowEngine:
    """An engine of another process, whose run ``owner`` holds the token."""
    engine = await engine_store.engine(Script(owner))
    await engine.start_with_id("owner", SPEC)
    return engine


async def test_a_conflict_is_recorded_and_the_workflow_asked_again(
    engine_store: EngineStore,
) -> None:
    other = await owned(engine_store)
    runtime, told = Script(gives_way, {"work": echo}), InMemoryFlowEventObserver()
    engine = await engine_store.engine(runtime, observer=told)
    await engine.start_with_id("loser", SPEC)
    assert [event.type for event in told.events] == [
        event.type for event in await engine.history("loser")
    ]
    snapshot = await engine.snapshot("loser")
    assert snapshot.output == ["owner", "h"]
    hook = snapshot.hooks["mine"]
    assert (hook.status, hook.token, hook.metadata) == (HookStatus.CONFLICTED, "", None)
    assert (hook.owner_run_id, hook.owner_hook_id) == ("owner", "h")
    history = await engine.history("loser")
    assert short(history)[5:8] == ["hook.conflicted mine", "step.created t", "step.started t"]
    assert not any(TOKEN in event.payload for event in history)
    assert runtime.calls == [("s", 1), ("t", 1)]
    # The owner is untouched, and whoever answers the other hook is told.
    assert [hook.run_id for hook in await engine.list_active_hooks()] == ["owner"]
    for settle in (engine.resume_hook("loser", "mine", 1), engine.dispose_hook("loser", "mine")):
        with pytest.raises(HookConflict, match="its token belonged to another hook"):
            await settle
    await other.resume_hook("owner", "h", "done")
    await engine.start_with_id("next", SPEC)
    assert short(await engine.history("next"))[4:8] == [
        "step.completed s",
        "hook.created mine",
        "step.created t",
        "step.started t",
    ]
    assert (await engine.resume_hook("next", "mine", "yes")).output == "yes"


async def test_a_hook_that_gets_its_token_goes_on_with_it_open(engine_store: EngineStore) -> None:
    runtime = Script(gives_way, {"work": echo})
    engine = await engine_store.engine(runtime)
    await engine.start_with_id("r", SPEC)
    assert (await engine.snapshot("r")).status is RunStatus.SUSPENDED
    assert runtime.calls == [("s", 1), ("t", 1)]
    await engine.resume_hook_by_token(TOKEN, "mine")
    assert (await engine.snapshot("r")).output == "mine"
    created = next(e for e in await engine.history("r") if e.type == events.HOOK_CREATED)
    assert created.data["on_conflict"] == "raise"


def of_several(*asked: tuple[str, str, Any]) -> Workflow:
    """A workflow that asks for hooks (id, token, policy), and says what became of each."""

    def workflow(ctx: WorkflowContext) -> Decision:
        if ctx.spec.name == SPEC.name and not any(ctx.hook_conflict(name) for name, _, _ in asked):
            return tuple(
                ctx.create_hook(name, token, on_conflict=policy) for name, token, policy in asked
            )
        taken = {name: ctx.hook_conflict(name) for name, _, _ in asked}
        return ctx.complete({n: t and [t.run_id, t.hook_id] for n, t in taken.items()})

    return workflow


async def test_several_hooks_of_one_decision_are_refused_together(
    engine_store: EngineStore,
) -> None:
    await owned(engine_store)
    asked = [
        ("free", "another token", "raise"),
        ("taken", TOKEN, "raise"),
        ("same", "another token", "raise"),
        ("also taken", TOKEN, "raise"),
    ]
    engine = await engine_store.engine(Script(of_several(*asked)))
    await engine.start_with_id("r", SPEC)
    assert (await engine.snapshot("r")).output == {
        "free": None,
        "taken": ["owner", "h"],
        "same": ["r", "free"],
        "also taken": ["owner", "h"],
    }
    assert short(await engine.history("r"))[2:6] == [
        "hook.created free",
        "hook.conflicted taken",
        "hook.conflicted same",
        "hook.conflicted also taken",
    ]


async def test_one_that_waits_beside_one_that_gives_way_blocks_both_until_the_token_is_free(
    engine_store: EngineStore,
) -> None:
    other = await owned(engine_store)
    asked = [("polite", TOKEN, "raise"), ("patient", TOKEN, "wait")]
    engine = await engine_store.engine(Script(of_several(*asked)))
    with pytest.raises(HookTokenConflict) as caught:
        await engine.start_with_id("r", SPEC)
    assert (caught.value.run_id, caught.value.hook_id) == ("owner", "h")
    assert short(await engine.history("r")) == ["run.created"]
    await other.resume_hook("owner", "h", 1)
    # Now the first has it, and the second waits for that: nobody can end this but a client.
    with pytest.raises(HookTokenConflict) as caught:
        await engine.drive("r")
    assert (caught.value.run_id, caught.value.hook_id) == ("r", "polite")


async def test_the_policy_is_part_of_what_was_recorded_only_where_it_mattered(
    engine_store: EngineStore,
) -> None:
    await owned(engine_store)
    runtime = Script(lambda ctx: ctx.create_hook("mine", "free", on_conflict="raise"))
    engine = await engine_store.engine(runtime)
    await engine.start_with_id("open", SPEC)
    runtime.workflow = lambda ctx: ctx.create_hook("mine", "free")
    assert (await engine.drive("open")).status is RunStatus.SUSPENDED

    def refused(ctx: WorkflowContext) -> Decision:
        if ctx.hook_conflict("mine"):
            return ctx.create_hook("other", "another free one")
        return ctx.create_hook("mine", TOKEN, on_conflict="raise")

    runtime.workflow = refused
    await engine.start_with_id("refused", SPEC)
    runtime.workflow = lambda ctx: ctx.create_hook("mine", TOKEN)
    with pytest.raises(NonDeterministic, match="another on_conflict") as caught:
        await engine.drive("refused")
    assert TOKEN not in str(caught.value)
    runtime.workflow = lambda ctx: ctx.create_hook("mine", TOKEN, on_conflict="raise")
    with pytest.raises(InvalidTransition, match="no progress"):
        await engine.drive("refused")
    runtime.workflow = refused
    assert (await engine.drive("refused")).status is RunStatus.SUSPENDED


@pytest.mark.parametrize("stored", [False, True], ids=["refused", "answer lost"])
@pytest.mark.parametrize("event_type", [events.HOOK_CREATED, events.HOOK_CONFLICTED])
async def test_a_lost_append_of_either_is_made_good_in_the_same_drive(
    engine_store: EngineStore, event_type: str, stored: bool
) -> None:
    await owned(engine_store)
    runtime = Script(gives_way, {"work": echo})
    fault = LostOnce(event_type, stored=stored)
    engine = await engine_store.engine(runtime, wrap=fault.wrap)
    await engine.start_with_id("loser", SPEC)
    assert (await engine.snapshot("loser")).output == ["owner", "h"]
    assert fault.failed == 1
    history = short(await engine.history("loser"))
    assert history.count("hook.conflicted mine") == len(
        [line for line in history if line.startswith("hook")]
    )
    assert runtime.calls == [("s", 1), ("t", 1)]


async def test_a_lost_answer_to_a_claim_that_was_stored_is_no_conflict_with_itself(
    engine_store: EngineStore,
) -> None:
    fault = LostOnce(events.HOOK_CREATED, stored=True)
    engine = await engine_store.engine(Script(gives_way, {"work": echo}), wrap=fault.wrap)
    await engine.start_with_id("r", SPEC)
    assert fault.failed == 1
    assert (await engine.resume_hook("r", "mine", "mine")).output == "mine"


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
async def test_a_process_may_die_at_any_write_of_the_loser(
    engine_store: EngineStore, after: bool
) -> None:
    await owned(engine_store)
    deaths = 0
    for at in range(1, 30):
        mortal = Mortal(at, after=after)
        engine = await engine_store.engine(Script(gives_way, {"work": echo}), wrap=mortal.wrap)
        run_id = f"loser-{at}"
        try:
            await engine.start_with_id(run_id, SPEC)
        except ProcessDied:
            deaths += 1
        engine_store.leases_run_out()
        again = await engine_store.engine(Script(gives_way, {"work": echo}))
        await again.start_with_id(run_id, SPEC)
        assert (await again.snapshot(run_id)).output == ["owner", "h"]
        history = short(await again.history(run_id))
        assert history.count("hook.conflicted mine") == 1
        assert "hook.created mine" not in history
        if not mortal.dead:
            break
    assert deaths >= 5


async def test_a_token_that_became_free_between_refusal_and_record_stays_a_conflict(
    engine_store: EngineStore,
) -> None:
    other = await owned(engine_store)
    refused = 0

    async def free_it(name: str, args: tuple[Any, ...]) -> None:
        nonlocal refused
        if name == "append" and any(e.type == events.HOOK_CONFLICTED for e in args[0].events):
            refused += 1
            await other.resume_hook("owner", "h", "done")

    runtime = Script(gives_way, {"work": echo})
    engine = await engine_store.engine(runtime, wrap=wrapping(before=free_it))
    await engine.start_with_id("loser", SPEC)
    assert (await engine.snapshot("loser")).output == ["owner", "h"]
    assert refused == 1


# -- gates: the lock of a token -------------------------------------------------------------------


async def _waiters(watch: psycopg.AsyncConnection[Any]) -> int:
    cursor = await watch.execute(
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE datname = current_database() AND wait_event = 'advisory'"
    )
    row = await cursor.fetchone()
    return row[0] if row else 0


@pytest.mark.parametrize("disposed", [True, False], ids=["owner disposes", "owner holds"])
async def test_what_happens_while_the_loser_waits_for_the_lock_of_the_token_decides(
    postgres_only: EngineStore, disposed: bool
) -> None:
    """The loser's append stands at the lock of the token while the owner disposes its hook, or
    does not: what it finds behind the gate counts."""
    other = await owned(postgres_only)
    engine = await postgres_only.engine(Script(gives_way, {"work": echo}))
    assert postgres_only.dsn is not None
    async with (
        await psycopg.AsyncConnection.connect(postgres_only.dsn) as holder,
        await psycopg.AsyncConnection.connect(postgres_only.dsn, autocommit=True) as watch,
    ):
        await holder.execute("SELECT flowpg.flow_lock_tokens(ARRAY[%s])", [TOKEN])
        loser = asyncio.ensure_future(engine.start_with_id("loser", SPEC))
        await until_async(lambda: _waiters(watch), "the loser waits for the lock of the token")
        if disposed:
            await other.dispose_hook("owner", "h", drive=False)
        await holder.rollback()
        await loser
    history = short(await engine.history("loser"))
    if disposed:
        assert "hook.conflicted mine" not in history
        assert [hook.run_id for hook in await engine.list_active_hooks()] == ["loser"]
    else:
        assert (await engine.snapshot("loser")).output == ["owner", "h"]


async def test_an_owner_that_commits_while_the_loser_waits_at_its_lock_wins(
    postgres_only: EngineStore,
) -> None:
    engine = await postgres_only.engine(Script(gives_way, {"work": echo}))
    await engine.start_with_id("owner", SPEC, drive=False)
    assert postgres_only.dsn is not None
    created = jsontext.encode({"hook_id": "h", "token": TOKEN, "metadata": None})
    async with (
        await psycopg.AsyncConnection.connect(postgres_only.dsn) as holder,
        await psycopg.AsyncConnection.connect(postgres_only.dsn, autocommit=True) as watch,
    ):
        await holder.execute(
            "SELECT flowpg.flow_append('owner', 1, json_build_array("
            "json_build_object('type', 'run_started', 'payload', '{}'::json), json_build_object("
            "'type', 'hook_created', 'subject', 'h', 'payload', %s::json)))",
            [created],
        )
        loser = asyncio.ensure_future(engine.start_with_id("loser", SPEC))
        await until_async(lambda: _waiters(watch), "the loser waits for the lock of the token")
        await holder.commit()
        await loser
    assert (await engine.snapshot("loser")).output == ["owner", "h"]
