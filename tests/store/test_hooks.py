"""Hooks: answered or withdrawn once, by id or by token, and tokens are never shown."""

from typing import Any

import pytest

from flowpg.errors import (
    FlowError,
    HookConflict,
    HookTokenNotFound,
    InvalidArgument,
    InvalidTransition,
    RunNotFound,
    RunTerminal,
)
from flowpg.model import events
from flowpg.model.inspection import ScheduledWakeup, WakeupKind
from flowpg.model.records import Append
from flowpg.model.snapshot import RunStatus
from flowpg.store.protocol import FlowEventStore
from tests.store.conftest import Rig
from tests.store.support import (
    MINUTE,
    SECOND,
    drop_task,
    ended,
    history,
    hooked,
    open_task,
    running,
    types,
)

TOKEN = "secret-token"


async def test_answering_a_hook_records_the_payload_and_wakes_the_run(
    store: FlowEventStore,
) -> None:
    await hooked(store)
    await drop_task(store)
    result = await store.resume_hook("r", "h", {"approved": True})
    assert (result.run_id, result.subject_id, result.applied) == ("r", "h", True)
    event = (await history(store))[-1]
    assert (event.type, event.subject) == ("hook_received", "h")
    assert event.data == {"hook_id": "h", "payload": {"approved": True}}
    assert (await store.run_info("r")).status is RunStatus.RUNNING
    assert await open_task(store, "r")


async def test_answering_by_token_names_the_run_and_the_hook(store: FlowEventStore) -> None:
    await hooked(store)
    result = await store.resume_hook_by_token(TOKEN, 7)
    assert (result.run_id, result.subject_id, result.applied) == ("r", "h", True)


@pytest.mark.parametrize("payload", [None, 0, False, "", [], {"a": [1, {"b": None}]}])
async def test_the_same_answer_again_changes_nothing(store: FlowEventStore, payload: Any) -> None:
    await hooked(store)
    await store.resume_hook("r", "h", payload)
    again = await store.resume_hook("r", "h", payload)
    assert (again.applied, again.head_sequence) == (False, 4)
    await store.append(Append("r", [events.run_completed(1)]))
    assert not (await store.resume_hook("r", "h", payload)).applied


async def test_another_answer_conflicts_and_shows_neither(store: FlowEventStore) -> None:
    await hooked(store)
    await store.resume_hook("r", "h", {"answer": "first"})
    with pytest.raises(HookConflict) as caught:
        await store.resume_hook("r", "h", {"answer": "second"})
    assert (caught.value.run_id, caught.value.hook_id) == ("r", "h")
    assert "first" not in str(caught.value)
    assert "second" not in str(caught.value)


async def test_a_withdrawn_hook_takes_no_answer(store: FlowEventStore) -> None:
    await hooked(store)
    result = await store.dispose_hook("r", "h")
    assert (result.subject_id, result.applied) == ("h", True)
    assert (await types(store))[-1] == "hook_disposed"
    assert not (await store.dispose_hook("r", "h")).applied
    with pytest.raises(HookConflict):
        await store.resume_hook("r", "h", 1)


async def test_an_answered_hook_cannot_be_withdrawn(store: FlowEventStore) -> None:
    await hooked(store)
    await store.resume_hook("r", "h", 1)
    with pytest.raises(HookConflict) as caught:
        await store.dispose_hook("r", "h")
    assert (caught.value.run_id, caught.value.hook_id) == ("r", "h")


async def test_a_hook_is_withdrawn_by_token(store: FlowEventStore) -> None:
    await hooked(store)
    result = await store.dispose_hook_by_token(TOKEN)
    assert (result.run_id, result.subject_id, result.applied) == ("r", "h", True)


async def test_a_token_without_an_active_hook_is_not_found_whatever_it_once_was(
    store: FlowEventStore,
) -> None:
    await hooked(store)
    await store.resume_hook_by_token(TOKEN, 1)
    for token in (TOKEN, "never-created"):
        for call in (store.resume_hook_by_token(token, 1), store.dispose_hook_by_token(token)):
            with pytest.raises(HookTokenNotFound) as caught:
                await call
            assert caught.value.token == token
            assert token not in f"{caught.value} {caught.value!r}"


@pytest.mark.parametrize("verb", ["resume", "dispose"])
async def test_a_hook_cancelled_with_its_run_conflicts(store: FlowEventStore, verb: str) -> None:
    await hooked(store)
    await store.request_cancellation("r")
    with pytest.raises(HookConflict) as caught:
        await _settle(store, verb)
    assert "cancelled" in caught.value.reason


@pytest.mark.parametrize("verb", ["resume", "dispose"])
async def test_a_hook_open_when_its_run_ended_says_that_it_ended(
    store: FlowEventStore, verb: str
) -> None:
    await hooked(store)
    await store.force_cancel("r")
    with pytest.raises(RunTerminal) as caught:
        await _settle(store, verb)
    assert (caught.value.run_id, caught.value.status) == ("r", "cancelled")


@pytest.mark.parametrize("verb", ["resume", "dispose"])
async def test_an_unknown_hook_is_an_invalid_transition_or_the_end(
    store: FlowEventStore, verb: str
) -> None:
    await running(store, run_id="live")
    await ended(store, run_id="over")
    with pytest.raises(InvalidTransition):
        await _settle(store, verb, "live", "nope")
    with pytest.raises(RunTerminal):
        await _settle(store, verb, "over", "nope")
    with pytest.raises(RunNotFound):
        await _settle(store, verb, "nope", "nope")


@pytest.mark.parametrize("hook_id", ["", "\t", "\x00", "x" * 513, "\ud800"])
async def test_a_malformed_hook_id_is_refused(store: FlowEventStore, hook_id: str) -> None:
    for verb in ("resume", "dispose"):
        with pytest.raises(InvalidArgument):
            await _settle(store, verb, "r", hook_id)


@pytest.mark.parametrize("token", ["", "  ", "bad\x00token", "y" * 16385, "\ud800"])
async def test_a_malformed_token_is_refused_and_not_shown(
    store: FlowEventStore, token: str
) -> None:
    for call in (store.resume_hook_by_token(token, 1), store.dispose_hook_by_token(token)):
        with pytest.raises(InvalidArgument) as caught:
            await call
        assert not token.strip() or token not in str(caught.value)


async def test_the_longest_token_works(store: FlowEventStore) -> None:
    token = "k" * 16384
    await hooked(store, token=token)
    assert (await store.list_active_hooks())[0].token == token
    assert (await store.resume_hook_by_token(token, 1)).applied


async def test_an_expired_hook_is_disposed_and_its_run_woken(rig: Rig) -> None:
    store = rig.store
    await hooked(store, expires_in=MINUTE)
    await drop_task(store)
    hook = (await store.list_active_hooks())[0]
    rig.advance(MINUTE - SECOND)
    assert await store.dispose_expired_hooks() == []
    rig.advance(SECOND)
    assert hook.expires_at is not None
    assert await store.dispose_expired_hooks() == [
        ScheduledWakeup("r", WakeupKind.HOOK_EXPIRY, "h", hook.expires_at)
    ]
    assert await store.dispose_expired_hooks() == []
    assert (await types(store))[-1] == "hook_disposed"
    assert await open_task(store, "r")


async def test_expired_hooks_of_one_run_only_or_as_of_a_moment(store: FlowEventStore) -> None:
    await hooked(store, "a", token="ta", expires_in=MINUTE)
    await hooked(store, "b", token="tb", expires_in=MINUTE)
    later = await store.now() + 2 * MINUTE
    done = await store.dispose_expired_hooks(run_id="b", as_of=later)
    assert [item.run_id for item in done] == ["b"]
    assert [hook.run_id for hook in await store.list_active_hooks()] == ["a"]


async def test_an_expired_hook_can_be_answered_until_it_is_disposed(rig: Rig) -> None:
    await hooked(rig.store, expires_in=SECOND)
    rig.advance(MINUTE)
    assert (await rig.store.resume_hook("r", "h", "late")).applied
    assert await rig.store.dispose_expired_hooks() == []


async def test_no_error_of_a_hook_shows_its_token(store: FlowEventStore) -> None:
    await hooked(store)
    await hooked(store, "other", token="other-token")
    await store.request_cancellation("other")
    errors: list[FlowError] = []
    for call in (
        store.resume_hook("other", "h", 1),
        store.resume_hook("r", "nope", 1),
        store.resume_hook_by_token("other-token", 1),
    ):
        with pytest.raises(FlowError) as caught:
            await call
        errors.append(caught.value)
    shown = " ".join(f"{error} {error!r} {error.__cause__!r}" for error in errors)
    assert "other-token" not in shown
    assert TOKEN not in shown


async def _settle(store: FlowEventStore, verb: str, run_id: str = "r", hook_id: str = "h") -> None:
    if verb == "resume":
        await store.resume_hook(run_id, hook_id, {"x": 1})
    else:
        await store.dispose_hook(run_id, hook_id)
