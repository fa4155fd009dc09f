"""Who waits for the end of a run is told of it, and looks where nobody can tell."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg_pool import ConnectionPool

from flowpg.client import FlowClient
from flowpg.errors import RunNotFound
from flowpg.model.snapshot import RunStatus
from flowpg.postgres.end_notices import EndNotices
from flowpg.postgres.waits import Look, Pause, waiting
from tests.proxy import Proxy
from tests.store.support import SPEC
from tests.waiting import until


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Told:
    def __init__(self, healthy: bool = True) -> None:
        self.healthy = healthy


def pauses(news: Told | None, lasting: float, timeout: float | None = None) -> list[float]:
    """The pauses of a wait for a run that ends after ``lasting`` seconds."""
    clock, found = Clock(), []
    steps = waiting(news, clock, timeout)
    answer: bool | None = None
    while True:
        try:
            step = steps.send(answer)
        except StopIteration as end:
            ended = end.value
            break
        if isinstance(step, Pause):
            found.append(step.seconds)
            clock.now += step.seconds
        answer = isinstance(step, Look) and clock.now >= 100.0 + lasting
    assert ended is (timeout is None or lasting <= timeout)
    return found


@pytest.mark.parametrize("lasting", [0.01, 0.1, 1.0, 8.0, 100.0])
def test_without_news_a_wait_is_hardly_longer_than_it_has_to_be(lasting: float) -> None:
    found = pauses(None, lasting)
    assert sum(found) <= lasting * 1.15 + 0.003
    assert max(found) <= 1.25
    assert len(found) <= 90 + lasting * 2


def test_with_news_a_wait_looks_rarely() -> None:
    assert len(pauses(Told(), 60.0)) <= 25


def test_a_wait_ends_on_time_although_nothing_else_does() -> None:
    assert sum(pauses(None, 50.0, 3.0)) == pytest.approx(3.0)
    assert sum(pauses(Told(), 50.0, 3.0)) == pytest.approx(3.0)


def test_to_be_told_is_asked_for_when_news_begin_and_again_before_that_runs_out() -> None:
    clock, news = Clock(), Told(healthy=False)
    steps = waiting(news, clock, None)
    assert next(steps) == Look(ask=False)
    steps.send(False)
    news.healthy = True
    assert steps.send(None) == Look(ask=True)
    steps.send(False)
    assert steps.send(None) == Look(ask=False)
    clock.now += 31
    steps.send(False)
    assert steps.send(None) == Look(ask=True)
    news.healthy = False
    steps.send(False)
    assert steps.send(None) == Look(ask=False)
    news.healthy = True
    steps.send(False)
    assert steps.send(None) == Look(ask=True), "another connection knows nothing of the old one's"


# -- against a server ------------------------------------------------------------------------------


@pytest.fixture
def client(database_dsn: str, direct_dsn: str, through_pgbouncer: bool) -> Iterator[FlowClient]:
    options: dict[str, Any] = {"prepare": not through_pgbouncer, "direct_dsn": direct_dsn}
    with FlowClient(database_dsn, **options) as made:
        yield made


@pytest.fixture
def waiter() -> Iterator[Callable[..., Future[Any]]]:
    with ThreadPoolExecutor(8) as threads:
        yield threads.submit


def asked(dsn: str, *run_ids: str) -> Callable[[], bool]:
    """Whether somebody has asked to be told of these ends."""

    def look() -> bool:
        with psycopg.connect(dsn) as connection:
            rows = connection.execute("SELECT run_id FROM flowpg.flow_run_waiters").fetchall()
        return {row[0] for row in rows} >= set(run_ids)

    return look


def rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let those who are told look once an hour."""
    monkeypatch.setattr("flowpg.postgres.waits._TOLD_AT_FIRST", 3600.0)
    monkeypatch.setattr("flowpg.postgres.waits._TOLD_LONGEST", 3600.0)


def test_everybody_who_waits_is_told_of_the_end_and_of_no_other(
    client: FlowClient,
    direct_dsn: str,
    waiter: Callable[..., Future[Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rarely(monkeypatch)
    first, second = (client.start(SPEC).run_id for _ in range(2))
    with FlowClient(direct_dsn) as another:
        told = [waiter(client.wait, first), waiter(client.wait, first)]
        elsewhere = waiter(another.wait, first)
        other = waiter(client.wait, second)
        until(asked(direct_dsn, first, second), "both ends are asked for")
        # Who came to a connection that was being made is told to look when it is there.
        until(lambda: client._ends is not None and client._ends.healthy, "ends are told")
        until(lambda: another._ends is not None and another._ends.healthy, "ends are told")
        client.force_cancel(first)
        for waited in (*told, elsewhere):
            assert waited.result(30).status is RunStatus.CANCELLED
        assert not other.done()
        client.force_cancel(second)
        assert other.result(30).status is RunStatus.CANCELLED
    with psycopg.connect(direct_dsn) as connection:
        assert connection.execute("SELECT * FROM flowpg.flow_run_waiters").fetchall() == []


def test_nothing_is_notified_of_runs_that_nobody_waits_for(
    client: FlowClient, direct_dsn: str
) -> None:
    with psycopg.connect(direct_dsn, autocommit=True) as listener:
        row = listener.execute("SELECT flowpg.flow_ended_channel()").fetchone()
        assert row is not None
        listener.execute(f"LISTEN {row[0]}")
        client.force_cancel(client.start(SPEC).run_id)
        listener.execute("SELECT pg_notify(%s, 'end of the test')", (row[0],))
        assert [n.payload for n in listener.notifies(timeout=30, stop_after=1)] == [
            "end of the test"
        ]


def test_a_wait_begun_after_the_end_and_one_for_no_run_return_at_once(client: FlowClient) -> None:
    run_id = client.start(SPEC).run_id
    client.force_cancel(run_id)
    assert client.wait(run_id, timedelta(0)).terminal
    with pytest.raises(RunNotFound):
        client.wait("none")
    assert client._ends is None or client._ends._thread is None


def test_a_wait_gives_up_in_time(client: FlowClient) -> None:
    run_id = client.start(SPEC).run_id
    with pytest.raises(TimeoutError, match=r"has not ended within 0\.05 s"):
        client.wait(run_id, timedelta(seconds=0.05))


@pytest.mark.parametrize("source", ["pool", "connection"])
def test_a_client_that_was_given_connections_looks_for_the_end(
    source: str, direct_dsn: str, waiter: Callable[..., Future[Any]]
) -> None:
    with (
        FlowClient(direct_dsn) as other,
        ConnectionPool(direct_dsn, min_size=0, max_size=2, kwargs={"autocommit": True}) as pool,
        psycopg.connect(direct_dsn, autocommit=True) as connection,
    ):
        mine = FlowClient(pool if source == "pool" else connection)
        run_id = other.start(SPEC).run_id
        waited = waiter(mine.wait, run_id)
        other.force_cancel(run_id)
        assert waited.result(30).terminal
        assert mine._ends is None


def test_where_notifications_do_not_come_through_the_end_is_looked_for(
    direct_dsn: str, waiter: Callable[..., Future[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(EndNotices, "_probe", _never_comes)
    with FlowClient(direct_dsn) as client:
        run_id = client.start(SPEC).run_id
        waited = waiter(client.wait, run_id)
        client.force_cancel(run_id)
        assert waited.result(30).terminal
        assert client._ends is not None
        assert not client._ends.healthy


def _never_comes(*_: object) -> None:
    raise TimeoutError


def test_a_listener_whose_connection_broke_is_replaced_and_told_of_the_end_again(
    direct_dsn: str, waiter: Callable[..., Future[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flowpg.postgres.end_notices._TRY_AGAIN", 0.05)
    with Proxy(direct_dsn) as proxy, FlowClient(direct_dsn, direct_dsn=proxy.dsn) as client:
        run_id = client.start(SPEC).run_id
        waited = waiter(client.wait, run_id)
        until(lambda: client._ends is not None and client._ends.healthy, "ends are told")
        ends = client._ends
        assert ends is not None
        before = ends._connection
        proxy.cut_all()
        until(lambda: ends.healthy and ends._connection is not before, "another connection")
        client.force_cancel(run_id)
        assert waited.result(30).terminal


def test_the_thread_ends_when_nobody_waits_and_another_begins_when_somebody_does(
    direct_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flowpg.postgres.end_notices._UNUSED", 0.05)
    notices = EndNotices(direct_dsn, "flowpg")
    for _ in range(2):
        came = threading.Event()
        with notices.watch("some-run", came.set):
            assert came.wait(30), "told when ends begin to be told"
        until(lambda: notices._thread is None, "the thread ends")
    notices.close()
