"""Verbs inside a transaction of the caller: all of it happens, or none."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import psycopg
import pytest

from flowpg.errors import (
    HookTokenNotFound,
    InvalidArgument,
    RunConflict,
    RunNotFound,
    StoreError,
)
from flowpg.model import events
from flowpg.model.operations import ChildOperationReference, WorkflowProgress
from flowpg.model.records import Append
from flowpg.store.memory import InMemoryEventStore
from flowpg.store.postgres import PostgresEventStore
from tests.store.support import (
    MINUTE,
    hooked,
    open_task,
    request,
    running,
    types,
    waiting,
)
from tests.store.transactions import (
    KINDS,
    Opener,
    Transaction,
    psycopg_async,
    psycopg_sync,
    sqlalchemy_session,
)
from tests.waiting import turns


@asynccontextmanager
async def _opened(opener: Opener, dsn: str) -> AsyncIterator[Transaction]:
    async with AsyncExitStack() as stack:
        yield await opener(dsn, stack)


@pytest.fixture(params=KINDS, ids=lambda opener: opener.__name__)
async def transaction(
    request: pytest.FixtureRequest, direct_dsn: str
) -> AsyncIterator[Transaction]:
    """A transaction on a connection of each kind in turn."""
    async with _opened(request.param, direct_dsn) as opened:
        yield opened


async def test_a_run_started_in_a_transaction_exists_after_the_commit_and_not_before(
    postgres_store: PostgresEventStore, transaction: Transaction
) -> None:
    store = postgres_store
    await transaction.execute("CREATE TEMP TABLE orders (id int)")
    result = await store.start(request("r", {"a\x00": "ü"}), connection=transaction.connection)
    assert (result.run_id, result.applied, result.head_sequence) == ("r", True, 1)
    with pytest.raises(RunNotFound):
        await store.run_info("r")
    assert not await open_task(store, "r")
    await transaction.commit()
    assert await types(store) == ["run_created"]
    assert await open_task(store, "r")


async def test_a_run_started_in_a_transaction_is_gone_after_a_rollback(
    postgres_store: PostgresEventStore, transaction: Transaction
) -> None:
    store = postgres_store
    await store.start(request("r"), connection=transaction.connection)
    await transaction.rollback()
    assert await store.list_run_ids() == []
    assert (await store.start(request("r"))).applied


async def test_every_verb_runs_in_the_transaction_of_the_caller(
    postgres_store: PostgresEventStore, transaction: Transaction
) -> None:
    store, within = postgres_store, {"connection": transaction.connection}
    await running(
        store,
        events.hook_created("h1", "t1", None),
        events.hook_created("h2", "t2", None),
        events.hook_created("h3", "t3", None),
        events.hook_created("h4", "t4", None),
        events.wait_created("w", delay=MINUTE * 0),
    )
    for run_id in ("a", "b", "c"):
        await running(store, run_id=run_id)
    deadline = await store.now()
    child = ChildOperationReference(reference_id="c", kind="k", operation_id="1")
    applied = [
        await store.resume_wait("r", "w", **within),
        await store.resume_hook("r", "h1", {"x": ":y %s"}, **within),
        await store.resume_hook_by_token("t2", None, **within),
        await store.dispose_hook("r", "h3", **within),
        await store.dispose_hook_by_token("t4", **within),
        await store.record_progress("r", WorkflowProgress(progress_id="p", completed=1), **within),
        await store.link_child_operation("r", child, **within),
        await store.request_cancellation("r", "50% :done", **within),
        await store.force_cancel("a", None, **within),
        await store.terminate_for_timeout("b", deadline, "late", **within),
        await store.terminate_for_host_shutdown("c", "gone", **within),
    ]
    assert [result.applied for result in applied] == [True] * 11
    started = await store.start_many([request("x"), request(None)], **within)
    assert [item.outcome for item in started] == ["created", "created"]
    await store.wake_run("r", **within)
    assert (await store.run_info("r")).head_sequence == 7
    await transaction.commit()
    assert (await types(store))[7:] == [
        "wait_completed",
        "hook_received",
        "hook_received",
        "hook_disposed",
        "hook_disposed",
        "run_progress_recorded",
        "child_operation_linked",
        "run_cancellation_requested",
    ]
    assert (await store.run_summary()).terminal == 3


async def test_an_error_in_a_transaction_is_typed_and_fails_the_transaction(
    postgres_store: PostgresEventStore, transaction: Transaction
) -> None:
    store = postgres_store
    await store.start(request("r", "secret-input"))
    await transaction.execute("CREATE TEMP TABLE orders (id int)")
    with pytest.raises(RunConflict) as caught:
        await store.start(request("r", "other"), connection=transaction.connection)
    assert caught.value.reason == "workflow input differs"
    assert "secret-input" not in repr(caught.value.__cause__)
    with pytest.raises(StoreError, match="savepoint"):
        await store.start(request("new"), connection=transaction.connection)
    await transaction.rollback()
    await store.start(request("new"), connection=transaction.connection)
    await transaction.commit()
    assert await store.list_run_ids() == ["new", "r"]


async def test_a_savepoint_lets_the_transaction_go_on_after_an_error(
    postgres_store: PostgresEventStore, transaction: Transaction
) -> None:
    store = postgres_store
    await store.start(request("r", 1))
    await store.start(request("before"), connection=transaction.connection)
    await transaction.execute("SAVEPOINT mine")
    with pytest.raises(HookTokenNotFound) as caught:
        await store.resume_hook_by_token("sesame", 1, connection=transaction.connection)
    assert caught.value.token == "sesame"
    assert "sesame" not in str(caught.value)
    await transaction.execute("ROLLBACK TO SAVEPOINT mine")
    await store.start(request("after"), connection=transaction.connection)
    await transaction.commit()
    assert await store.list_run_ids() == ["after", "before", "r"]


async def test_a_cancelled_verb_has_let_go_of_a_synchronous_connection(
    postgres_store: PostgresEventStore, direct_dsn: str
) -> None:
    store = postgres_store
    await running(store)
    async with (
        _opened(psycopg_async, direct_dsn) as holder,
        _opened(sqlalchemy_session, direct_dsn) as mine,
    ):
        await store.request_cancellation("r", connection=holder.connection)
        task = asyncio.create_task(store.force_cancel("r", connection=mine.connection))
        await blocked(direct_dsn)
        for _ in range(3):  # a timeout and then whoever ends the program, for example
            task.cancel()
            await turns(5)  # more than a cancelled task needs to end
            assert not task.done()  # its thread still uses the connection
        await holder.rollback()
        with pytest.raises(asyncio.CancelledError):
            await task
        await mine.rollback()
        assert (await store.run_info("r")).status == "running"


async def test_waiting_for_a_lock_on_a_synchronous_connection_does_not_stop_the_loop(
    postgres_store: PostgresEventStore, direct_dsn: str
) -> None:
    store = postgres_store
    await running(store)
    async with (
        _opened(psycopg_async, direct_dsn) as holder,
        _opened(psycopg_sync, direct_dsn) as mine,
    ):
        await store.request_cancellation("r", "first", connection=holder.connection)
        task = asyncio.create_task(store.force_cancel("r", connection=mine.connection))
        await blocked(direct_dsn)
        await holder.commit()
        assert (await task).applied
        await mine.commit()
        assert (await types(store))[-2:] == ["run_cancellation_requested", "run_cancelled"]


async def test_a_connection_in_autocommit_mode_commits_at_once(
    postgres_store: PostgresEventStore, direct_dsn: str
) -> None:
    async with await psycopg.AsyncConnection.connect(direct_dsn, autocommit=True) as connection:
        await postgres_store.start(request("r"), connection=connection)
        assert await types(postgres_store) == ["run_created"]
        async with connection.transaction(force_rollback=True):
            await postgres_store.start(request("s"), connection=connection)
    assert await postgres_store.list_run_ids() == ["r"]


@pytest.mark.parametrize("given", [7, "postgresql:///db", object()])
async def test_what_is_no_connection_is_refused_by_name(
    postgres_store: PostgresEventStore, given: object
) -> None:
    with pytest.raises(InvalidArgument, match="connection= takes") as caught:
        await postgres_store.start(request("r"), connection=given)
    assert "postgresql:///db" not in str(caught.value)


async def test_the_store_in_memory_has_no_transactions() -> None:
    store = InMemoryEventStore()
    await hooked(store)
    await waiting(store, "w")
    with pytest.raises(InvalidArgument, match="transaction"):
        await store.resume_hook("r", "h", 1, connection=object())
    with pytest.raises(InvalidArgument, match="transaction"):
        await store.start(request("s"), connection=object())
    assert (await store.append(Append("r", [events.hook_disposed("h")]))).appended


async def blocked(dsn: str) -> None:
    """Wait until a session of this database waits for a lock."""
    from tests.waiting import until_async

    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as watch:

        async def waits() -> bool:
            cursor = await watch.execute(
                "SELECT 1 FROM pg_stat_activity"
                " WHERE datname = current_database() AND wait_event_type = 'Lock'"
            )
            return await cursor.fetchone() is not None

        await until_async(waits, "a session waits for a lock")
