"""A store hands out what an answer is to be checked against, in place of taking one unchecked."""

from typing import Any

import pytest

from flowpg.errors import HookConflict, HookTokenNotFound, RunTerminal
from flowpg.model import events
from flowpg.model.records import Append
from flowpg.store.protocol import FlowEventStore
from tests.store.conftest import Rig
from tests.store.support import SECOND, history, hooked, running, types

TOKEN = "secret-token"
SCHEMA = {"type": "object", "properties": {"né": {"type": "integer"}}, "required": ["né"]}


async def typed_hook(store: FlowEventStore, run_id: str = "r", schema: Any = SCHEMA) -> None:
    """A run with an active hook ``h`` that has a schema."""
    hook = events.hook_created("h", f"{TOKEN}", None, payload_schema=schema)
    await running(store, hook, run_id=run_id)


@pytest.mark.parametrize("checked", ["", '{"type":"object"}'])
async def test_what_was_not_checked_is_not_taken_and_what_to_check_is_said(
    store: FlowEventStore, checked: str
) -> None:
    await typed_hook(store)
    before = await types(store)
    by_id = await store.resume_hook("r", "h", {}, checked=checked)
    by_token = await store.resume_hook_by_token(TOKEN, {}, checked=checked)
    assert by_id == by_token
    assert (by_id.run_id, by_id.subject_id, by_id.applied, by_id.head_sequence) == (
        *("r", "h", False),
        len(before),
    )
    assert by_id.payload_schema is not None
    assert await types(store) == before
    done = await store.resume_hook("r", "h", {}, checked=by_id.payload_schema)
    assert (done.applied, done.payload_schema) == (True, None)


async def test_by_token_it_is_taken_once_it_was_checked(store: FlowEventStore) -> None:
    await typed_hook(store)
    asked = await store.resume_hook_by_token(TOKEN, {}, checked="")
    done = await store.resume_hook_by_token(TOKEN, {}, checked=asked.payload_schema)
    assert (done.applied, done.payload_schema) == (True, None)


async def test_who_does_not_ask_is_not_held_to_anything(store: FlowEventStore) -> None:
    await typed_hook(store)
    assert (await store.resume_hook("r", "h", "no object")).applied


async def test_a_hook_without_a_schema_takes_anything_at_once(store: FlowEventStore) -> None:
    await hooked(store)
    done = await store.resume_hook_by_token(TOKEN, 1, checked="")
    assert (done.applied, done.payload_schema) == (True, None)


async def test_a_hook_that_was_settled_tells_no_schema(store: FlowEventStore) -> None:
    await typed_hook(store)
    await store.resume_hook("r", "h", "taken unchecked")
    again = await store.resume_hook("r", "h", "taken unchecked", checked="")
    assert (again.applied, again.payload_schema) == (False, None)
    with pytest.raises(HookConflict):
        await store.resume_hook("r", "h", "another", checked="")
    with pytest.raises(HookTokenNotFound):
        await store.resume_hook_by_token(TOKEN, "taken unchecked", checked="")
    await store.append(Append("r", [events.run_completed(None)]))
    assert not (await store.resume_hook("r", "h", "taken unchecked", checked="")).applied


async def test_a_hook_of_a_run_that_has_ended_tells_no_schema(store: FlowEventStore) -> None:
    await typed_hook(store)
    await store.force_cancel("r")
    with pytest.raises(RunTerminal):
        await store.resume_hook("r", "h", {}, checked="")
    with pytest.raises(HookTokenNotFound):
        await store.resume_hook_by_token(TOKEN, {}, checked="")


async def test_a_hook_that_expired_tells_none_once_it_is_disposed(rig: Rig) -> None:
    hook = events.hook_created("h", TOKEN, None, expires_in=SECOND, payload_schema=SCHEMA)
    await running(rig.store, hook)
    rig.advance(2 * SECOND)
    assert (await rig.store.resume_hook_by_token(TOKEN, {}, checked="")).payload_schema
    await rig.store.dispose_expired_hooks()
    with pytest.raises(HookTokenNotFound):
        await rig.store.resume_hook_by_token(TOKEN, {}, checked="")


async def test_active_hooks_show_their_schema_and_histories_keep_it(store: FlowEventStore) -> None:
    await typed_hook(store)
    [hook] = await store.list_active_hooks()
    assert hook.payload_schema == SCHEMA
    assert "né" not in repr(hook)
    recorded = (await history(store))[-1].data
    assert recorded["payload_schema"] == SCHEMA


@pytest.mark.parametrize("schema", ["no schema", 5, [], {"type": "\u0000"}, True])
async def test_what_another_program_wrote_as_a_schema_is_handed_out_as_it_is(
    store: FlowEventStore, schema: Any
) -> None:
    await typed_hook(store, schema=schema)
    asked = await store.resume_hook("r", "h", 1, checked="")
    assert (await store.resume_hook("r", "h", 1, checked=asked.payload_schema)).applied
