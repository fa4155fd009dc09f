"""The synchronous client: the same verbs, for code that does not await."""

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from threading import Event
from typing import Any

import psycopg
import pytest
from psycopg_pool import ConnectionPool
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from flowpg.client import FlowClient
from flowpg.errors import (
    HookConflict,
    HookTokenNotFound,
    InvalidArgument,
    RunConflict,
    RunNotFound,
    StoreError,
    StoreUnavailable,
)
from flowpg.model import events
from flowpg.model.events import NewEvent
from flowpg.model.operations import ChildOperationReference, WorkflowProgress
from flowpg.model.records import Append, StartOutcome
from flowpg.model.snapshot import RunStatus
from flowpg.postgres import append_verbs
from flowpg.postgres.enlist import run_enlisted_sync
from tests.store.support import MINUTE, SPEC, request
from tests.waiting import until


@pytest.fixture
def client(database_dsn: str, through_pgbouncer: bool) -> Iterator[FlowClient]:
    with FlowClient(database_dsn, prepare=not through_pgbouncer) as client:
        yield client


@pytest.fixture
def connection(direct_dsn: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(direct_dsn, autocommit=True) as connection:
        yield connection


def append(connection: psycopg.Connection[Any], *new: NewEvent, run_id: str = "r") -> None:
    """What a worker would do."""
    call = append_verbs.append_many([Append(run_id, list(new))])
    (result,) = run_enlisted_sync(connection, call, "flowpg")
    assert result.appended


def test_a_run_is_started_once(client: FlowClient) -> None:
    assert client.start(SPEC, {"a": 1}, run_id="r", queue="q").applied
    assert not client.start(SPEC, {"a": 1}, run_id="r").applied
    with pytest.raises(RunConflict):
        client.start(SPEC, {"a": 2}, run_id="r")
    assert client.start(SPEC).run_id != client.start(SPEC).run_id
    assert client.run_info("r").queue == "q"
    assert client.summary().pending == 3


def test_many_runs_are_started_in_one_call(client: FlowClient) -> None:
    results = client.start_many([request("a"), request("b"), request("a", 7)])
    assert [item.outcome for item in results] == [
        StartOutcome.CREATED,
        StartOutcome.CREATED,
        StartOutcome.RUN_CONFLICT,
    ]
    assert client.start_many([]) == []


def test_hooks_are_answered_and_withdrawn(
    client: FlowClient, connection: psycopg.Connection[Any]
) -> None:
    client.start(SPEC, run_id="r")
    names = ("a", "b", "c", "d")
    append(
        connection,
        events.run_started(),
        *(events.hook_created(name, f"token-{name}", {"of": name}) for name in names),
    )
    assert [hook.token for hook in client.list_active_hooks("r")] == [
        f"token-{name}" for name in names
    ]
    assert client.resume_hook("r", "a", 1).applied
    assert client.resume_hook_by_token("token-b", 2).subject_id == "b"
    assert client.dispose_hook("r", "c").applied
    assert client.dispose_hook_by_token("token-d").applied
    with pytest.raises(HookConflict):
        client.resume_hook("r", "a", 2)
    with pytest.raises(HookTokenNotFound):
        client.resume_hook_by_token("token-b", 2)
    assert client.list_active_hooks() == []
    assert client.snapshot("r").hooks["b"].payload == 2


def test_runs_are_cancelled_and_ended(client: FlowClient) -> None:
    for run_id in ("a", "b", "c", "d"):
        client.start(SPEC, run_id=run_id)
    assert client.request_cancellation("a", "why").applied
    assert client.force_cancel("b").applied
    assert client.terminate_for_timeout("c", datetime(2030, 1, 1, tzinfo=UTC), "slow").applied
    assert client.terminate_for_host_shutdown("d").applied
    statuses = {row.run_id: row.status.value for row in client.list_runs()}
    assert statuses == {"a": "cancelling", "b": "cancelled", "c": "failed", "d": "failed"}
    assert [row.run_id for row in client.list_runs(status=RunStatus.CANCELLED)] == ["b"]


def test_progress_links_and_timers_are_recorded(
    client: FlowClient, connection: psycopg.Connection[Any]
) -> None:
    client.start(SPEC, run_id="r")
    append(connection, events.run_started(), events.wait_created("w", delay=0 * MINUTE))
    assert client.list_open_suspensions("r")[0].subject_id == "w"
    assert client.resume_wait("r", "w").applied
    assert client.record_progress("r", WorkflowProgress(progress_id="p", completed=1)).applied
    child = ChildOperationReference(
        reference_id="c", kind="k", operation_id="1", flow_run_id="missing"
    )
    with pytest.raises(RunNotFound, match="missing"):
        client.link_child_operation("r", child)
    assert client.link_child_operation("r", child.model_copy(update={"flow_run_id": "r"})).applied
    snapshot = client.snapshot("r")
    assert [item.progress_id for item in snapshot.progress] == ["p"]
    assert list(snapshot.child_operations) == ["c"]


def test_a_history_of_any_length_is_read(
    client: FlowClient, connection: psycopg.Connection[Any]
) -> None:
    client.start(SPEC, run_id="r")
    many = [events.wait_created(f"w{number}", delay=MINUTE) for number in range(2500)]
    append(connection, events.run_started(), *many)
    assert [event.sequence for event in client.history("r")] == list(range(1, 2503))
    assert [event.sequence for event in client.history_page("r", 2500)] == [2501, 2502]
    assert len(client.list_open_suspensions("r")) == 2500


def test_an_unknown_run_is_not_found(client: FlowClient) -> None:
    for look in (client.snapshot, client.history, client.run_info, client.force_cancel):
        with pytest.raises(RunNotFound):
            look("nope")
    with pytest.raises(RunNotFound):
        client.wait("nope", timeout=timedelta(seconds=5))


def test_waiting_returns_the_snapshot_of_the_ended_run(
    client: FlowClient, connection: psycopg.Connection[Any], direct_dsn: str
) -> None:
    client.start(SPEC, run_id="r")
    append(connection, events.run_started())
    looked = Event()

    class Watched(FlowClient):
        def run_info(self, run_id: str) -> Any:
            row = super().run_info(run_id)
            looked.set()
            return row

    with ThreadPoolExecutor(1) as threads, Watched(direct_dsn) as watched:
        result = threads.submit(watched.wait, "r", timedelta(seconds=30))
        assert looked.wait(20)
        assert not result.done()
        append(connection, events.run_completed({"answer": 42}))
        snapshot = result.result(30)
    assert (snapshot.status, snapshot.output) == (RunStatus.COMPLETED, {"answer": 42})


def test_waiting_gives_up_after_its_timeout(client: FlowClient) -> None:
    client.start(SPEC, run_id="r")
    with pytest.raises(TimeoutError, match="has not ended within 0"):
        client.wait("r", timeout=timedelta(0))
    with pytest.raises(InvalidArgument, match="timedelta, not int"):
        client.wait("r", timeout=5)  # type: ignore[arg-type]


def test_a_call_is_part_of_the_callers_transaction(client: FlowClient, direct_dsn: str) -> None:
    engine = create_engine(direct_dsn.replace("postgresql:", "postgresql+psycopg:", 1))
    with psycopg.connect(direct_dsn) as mine:
        client.start(SPEC, run_id="a", connection=mine)
        client.request_cancellation("a", connection=mine)
        with pytest.raises(RunNotFound):
            client.run_info("a")
        mine.commit()
        client.start(SPEC, run_id="b", connection=mine)
        mine.rollback()
    with engine.begin() as mine_too:
        client.start(SPEC, run_id="c", connection=mine_too)
    with Session(engine) as session:
        client.start(SPEC, run_id="d", connection=session)
        session.rollback()
        client.start(SPEC, run_id="e", connection=session)
        session.commit()
    engine.dispose()
    assert {row.run_id for row in client.list_runs()} == {"a", "c", "e"}
    assert client.run_info("a").status is RunStatus.CANCELLING


async def test_an_asynchronous_connection_is_refused(client: FlowClient, direct_dsn: str) -> None:
    async with await psycopg.AsyncConnection.connect(direct_dsn) as mine:
        with pytest.raises(InvalidArgument, match="synchronous"):
            client.start(SPEC, connection=mine)
    url = direct_dsn.replace("postgresql:", "postgresql+psycopg:", 1)
    async with create_async_engine(url, poolclass=NullPool).connect() as mine_too:
        with pytest.raises(InvalidArgument, match="synchronous"):
            client.start(SPEC, connection=mine_too)


def test_a_client_on_one_connection_works_in_its_transaction(direct_dsn: str) -> None:
    with psycopg.connect(direct_dsn) as mine:
        with FlowClient(mine) as client:
            client.start(SPEC, run_id="r")
            assert client.run_info("r").status is RunStatus.PENDING
        assert not mine.closed
        mine.rollback()
        with FlowClient(mine) as client, pytest.raises(RunNotFound):
            client.run_info("r")


def test_a_client_on_a_pool_of_the_application_leaves_it_open(direct_dsn: str) -> None:
    with ConnectionPool(direct_dsn, min_size=1, max_size=2, open=True) as pool:
        with FlowClient(pool) as client:
            client.start(SPEC, run_id="r")
        assert not pool.closed
        with FlowClient(pool) as client:
            assert client.run_info("r").run_id == "r"


def test_a_client_is_used_by_many_threads(client: FlowClient) -> None:
    with ThreadPoolExecutor(16) as threads:
        results = list(
            threads.map(lambda n: client.start(SPEC, n % 4, run_id=f"r{n % 4}"), range(64))
        )
    assert sum(item.applied for item in results) == 4


def test_a_closed_client_says_so(client: FlowClient) -> None:
    client.summary()
    client.close()
    with pytest.raises(StoreError, match="closed"):
        client.summary()


def test_a_call_that_waits_too_long_for_a_connection_names_the_reason(
    direct_dsn: str, connection: psycopg.Connection[Any]
) -> None:
    with (
        FlowClient(direct_dsn, max_size=1, timeout=0.3) as client,
        ThreadPoolExecutor(1) as threads,
        psycopg.connect(direct_dsn) as holder,
    ):
        client.start(SPEC, run_id="r")
        client.force_cancel("r", connection=holder)
        blocked = threads.submit(client.request_cancellation, "r")
        query = (
            "SELECT 1 FROM pg_stat_activity"
            " WHERE datname = current_database() AND wait_event_type = 'Lock'"
        )
        until(lambda: connection.execute(query).fetchone(), "a call waits for a lock")
        with pytest.raises(StoreUnavailable, match="became free"):
            client.summary()
        holder.rollback()
        assert blocked.result(20).applied


def test_a_program_that_never_closes_its_client_still_ends(direct_dsn: str) -> None:
    program = (
        "import sys; from flowpg.client import FlowClient;"
        "client = FlowClient(sys.argv[1]); print(client.summary().total)"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program, direct_dsn],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert (done.stdout, done.stderr) == ("0\n", "")
