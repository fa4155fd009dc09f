"""Connections that break: before the work, and between the commit and its reply."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import pytest

from flowpg.client import FlowClient
from flowpg.errors import StoreUnavailable
from flowpg.model import events
from flowpg.model.operations import WorkflowProgress
from flowpg.model.records import Append, VerbResult
from flowpg.store.postgres import PostgresEventStore
from flowpg.store.protocol import FlowEventStore
from tests.proxy import Proxy
from tests.store.support import (
    MINUTE,
    SPEC,
    history,
    hooked,
    leased,
    request,
    running,
    step,
    types,
)
from tests.waiting import until_async


@pytest.fixture
def proxy(direct_dsn: str) -> Iterator[Proxy]:
    with Proxy(direct_dsn) as proxy:
        yield proxy


@pytest.fixture
async def store(proxy: Proxy) -> AsyncIterator[PostgresEventStore]:
    """A store whose every connection goes through the proxy."""
    async with await PostgresEventStore.connect(proxy.dsn, prepare=False, timeout=20) as store:
        yield store


Verb = Callable[[FlowEventStore], Awaitable[VerbResult]]

VERBS: dict[str, tuple[Verb, str]] = {
    "flow_start": (lambda store: store.start(request("new", {"a": 1})), "run_created"),
    "flow_resume_hook": (lambda store: store.resume_hook("r", "h", 1), "hook_received"),
    "flow_dispose_hook": (lambda store: store.dispose_hook("r", "h"), "hook_disposed"),
    "flow_request_cancellation": (
        lambda store: store.request_cancellation("r", "why"),
        "run_cancellation_requested",
    ),
    "flow_force_cancel": (lambda store: store.force_cancel("r"), "run_cancelled"),
    "flow_record_progress": (
        lambda store: store.record_progress("r", WorkflowProgress(progress_id="p", completed=1)),
        "run_progress_recorded",
    ),
}


@pytest.mark.parametrize("name", VERBS)
async def test_a_verb_whose_reply_was_lost_is_repeated_without_a_second_event(
    store: PostgresEventStore, proxy: Proxy, name: str
) -> None:
    verb, event_type = VERBS[name]
    await hooked(store)
    proxy.cut_after(f"{name}(")
    with pytest.raises(StoreUnavailable, match="unknown"):
        await verb(store)
    assert proxy.cuts == 1
    again = await verb(store)
    assert not again.applied
    assert (await types(store, again.run_id)).count(event_type) == 1


@pytest.mark.parametrize("name", VERBS)
async def test_a_verb_that_never_arrived_is_repeated_with_effect(
    store: PostgresEventStore, proxy: Proxy, name: str
) -> None:
    verb, event_type = VERBS[name]
    await hooked(store)
    proxy.cut_before(f"{name}(")
    with pytest.raises(StoreUnavailable):
        await verb(store)
    again = await verb(store)
    assert again.applied
    assert (await types(store, again.run_id)).count(event_type) == 1


async def test_an_append_whose_reply_was_lost_is_a_conflict_when_repeated(
    store: PostgresEventStore, proxy: Proxy
) -> None:
    await running(store)
    proxy.cut_after("flow_append_batch(")
    append = Append("r", step("s"), expected=2)
    with pytest.raises(StoreUnavailable):
        await store.append(append)
    again = await store.append(append)
    assert (again.outcome, again.detail) == ("event_conflict", {"expected": 2, "actual": 4})
    assert (await types(store))[2:] == ["step_created", "step_started"]


async def test_an_append_that_never_arrived_is_stored_when_repeated(
    store: PostgresEventStore, proxy: Proxy
) -> None:
    await running(store)
    proxy.cut_before("flow_append_batch(")
    append = Append("r", step("s"), expected=2)
    with pytest.raises(StoreUnavailable):
        await store.append(append)
    assert (await store.append(append)).head_sequence == 4


async def test_a_release_whose_reply_was_lost_succeeds_when_repeated(
    store: PostgresEventStore, proxy: Proxy
) -> None:
    await running(store)
    lease = await leased(store)
    proxy.cut_after("flow_append_batch(")
    release = Append("r", [], epoch=lease.epoch, release=lease.wakes)
    with pytest.raises(StoreUnavailable):
        await store.append(release)
    assert (await store.append(release)).released


async def test_a_broken_connection_is_replaced_by_itself(
    store: PostgresEventStore, proxy: Proxy
) -> None:
    await running(store)
    proxy.cut_all()

    async def works() -> bool:
        try:
            return len(await history(store)) == 2
        except StoreUnavailable:
            return False

    await until_async(works, "the store works again")
    stats = store.pool_stats()
    assert stats["requests_waiting"] == 0


async def test_a_server_that_was_away_is_used_again_once_it_is_back(
    store: PostgresEventStore, proxy: Proxy
) -> None:
    await running(store)
    with proxy.away(), pytest.raises(StoreUnavailable):
        await store.start(request("new"))

    async def started() -> bool:
        try:
            await store.start(request("new"))
        except StoreUnavailable:
            return False
        return True

    await until_async(started, "the store reaches the server again", timeout=60)
    assert await types(store, "new") == ["run_created"]


async def test_events_that_were_stored_survive_whatever_the_connection_does(
    store: PostgresEventStore, proxy: Proxy
) -> None:
    await running(store)
    for number in range(5):
        cut = proxy.cut_after if number % 2 else proxy.cut_before
        cut("flow_append_batch(")
        head = (await store.load_runs(["r"]))["r"].head_sequence
        append = Append("r", [events.wait_created(f"w{number}", delay=MINUTE)], expected=head)
        while True:
            try:
                result = await store.append(append)
            except StoreUnavailable:
                continue
            break
        assert result.outcome in ("appended", "event_conflict")
    found = [event.subject for event in await history(store)]
    assert found[2:] == [f"w{number}" for number in range(5)]


def test_the_client_is_told_of_a_lost_reply_and_may_repeat(proxy: Proxy) -> None:
    with FlowClient(proxy.dsn, prepare=False) as client:
        client.summary()
        proxy.cut_after("flow_start(")
        with pytest.raises(StoreUnavailable):
            client.start(SPEC, 1, run_id="r")
        assert not client.start(SPEC, 1, run_id="r").applied
        assert len(client.history("r")) == 1
