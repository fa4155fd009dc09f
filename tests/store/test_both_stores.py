"""Any sequence of operations does the same in the store in memory and in PostgreSQL.

Hypothesis chooses the operations, legal ones and others, and both stores carry them out at the same
stopped clock. Results, errors with their fields, histories with ids, times and payloads, and
everything that can be read must be equal after each.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from datetime import timedelta
from functools import partial
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from flowpg.errors import FlowError
from flowpg.model import events
from flowpg.model.events import FlowEventEnvelope, NewEvent
from flowpg.model.operations import ChildOperationReference, WorkflowProgress
from flowpg.model.records import (
    Append,
    AppendOutcome,
    AppendResult,
    RunLease,
    StartRequest,
)
from flowpg.model.snapshot import WorkflowRunSnapshot
from flowpg.model.spec import WorkflowSpec
from flowpg.replay.projection import fold_new, project
from flowpg.store.memory import InMemoryEventStore
from flowpg.store.postgres import PostgresEventStore
from flowpg.store.protocol import FlowEventStore
from flowpg.testing.servers import PostgresServer
from tests.clock import DatabaseClock
from tests.store.conftest import EMPTY
from tests.store.moves import START, SUBJECTS, TOKENS, durations, next_event, values

LEASE = timedelta(seconds=30)

runs = st.sampled_from(["run-a", "run-b", "run:c", "never"])
subjects = st.sampled_from(SUBJECTS)
tokens = st.sampled_from(TOKENS)
reasons = st.sampled_from([None, "why", "other"])
owners = st.sampled_from(["w1", "w2"])
SPECS = [WorkflowSpec.python("order"), WorkflowSpec.python("order", "2").with_runtime_build("b")]
QUEUES = ["default", "slow"]

Verb = Callable[[FlowEventStore], Awaitable[Any]]


class BothStores(RuleBasedStateMachine):
    """The machine. The test sets the server's part, which all examples share."""

    dsn: str
    loop: asyncio.AbstractEventLoop
    postgres: PostgresEventStore

    def __init__(self) -> None:
        super().__init__()
        self.now = START
        self.memory = InMemoryEventStore(clock=lambda: self.now)
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute(EMPTY)
        self.clock = DatabaseClock(self.dsn)
        self.clock.stop(START)
        self.leases: dict[str, list[RunLease]] = {}

    def both(self, verb: Verb) -> Any:
        """Do it in both stores; returns what they both returned, or None if both raised."""
        mine = self.loop.run_until_complete(_outcome(verb, self.memory))
        theirs = self.loop.run_until_complete(_outcome(verb, self.postgres))
        assert _comparable(theirs) == _comparable(mine)
        return None if isinstance(mine, FlowError) else mine

    def snapshot(self, run_id: str) -> WorkflowRunSnapshot | None:
        loaded = self.loop.run_until_complete(self.memory.load_runs([run_id]))
        return project(run_id, loaded[run_id].history) if run_id in loaded else None

    @initialize(value=values)
    def begin(self, value: Any) -> None:
        """Two runs to begin with: most of what can happen needs one."""
        for run_id in ("run-a", "run-b"):
            self.both(partial(_start, run_id, value))
        self.both(lambda store: store.append(Append("run-a", [events.run_started()])))

    # -- starting -------------------------------------------------------------------------------
    @rule(run_id=runs, value=values, spec=st.sampled_from(SPECS), queue=st.sampled_from(QUEUES))
    def start(self, run_id: str, value: Any, spec: WorkflowSpec, queue: str) -> None:
        if run_id != "never":
            self.both(lambda store: store.start(StartRequest(spec, value, run_id, queue)))

    @rule(chosen=st.lists(st.tuples(runs, st.sampled_from([0, 1])), max_size=4))
    def start_many(self, chosen: list[tuple[str, int]]) -> None:
        requests = [
            StartRequest(SPECS[0], value, run_id) for run_id, value in chosen if run_id != "never"
        ]
        self.both(lambda store: store.start_many(requests))

    # -- appending ------------------------------------------------------------------------------
    @rule(data=st.data(), run_id=runs)
    def append_what_may_follow(self, data: st.DataObject, run_id: str) -> None:
        snapshot = self.snapshot(run_id)
        if snapshot is None:
            return
        head, new = snapshot.last_sequence, list[NewEvent]()
        for _ in range(data.draw(st.integers(1, 3))):
            if not snapshot.terminal:
                new.append(data.draw(next_event(snapshot)))
                fold_new(snapshot, [new[-1]], self.now)
        self.append(data, run_id, new or [events.run_started()], head)

    @rule(data=st.data(), run_id=runs)
    def append_only_to_release(self, data: st.DataObject, run_id: str) -> None:
        self.append(data, run_id, [], None)

    def append(
        self, data: st.DataObject, run_id: str, new: list[NewEvent], head: int | None
    ) -> None:
        expected = data.draw(st.sampled_from([None, head, head, 1]))
        lease = data.draw(st.sampled_from([None, *self.leases.get(run_id, [])]))
        epoch = None if lease is None else lease.epoch
        release = None
        if lease is not None:
            release = data.draw(st.sampled_from([None, lease.wakes, lease.wakes + 1]))
        # A store keeps texts in the events it was given.
        (result,) = self.both(
            lambda store: store.append_many(
                [Append(run_id, [_fresh(event) for event in new], expected, epoch, release)]
            )
        )
        if lease is not None and result.wakes:
            lease.wakes = result.wakes

    @rule(data=st.data())
    def append_to_several_runs(self, data: st.DataObject) -> None:
        new: list[tuple[str, NewEvent]] = []
        for run_id in data.draw(st.lists(runs, min_size=1, max_size=4)):
            snapshot = self.snapshot(run_id)
            event = events.run_failed("no")
            if snapshot is not None and not snapshot.terminal:
                event = data.draw(next_event(snapshot))
            new.append((run_id, event))
        self.both(
            lambda store: store.append_many(
                [Append(run_id, [_fresh(event)]) for run_id, event in new]
            )
        )

    # -- telling a run something ----------------------------------------------------------------
    @rule(run_id=runs, subject=subjects)
    def resume_wait(self, run_id: str, subject: str) -> None:
        self.both(lambda store: store.resume_wait(run_id, subject))

    @rule(run_id=runs, subject=subjects, value=values)
    def resume_hook(self, run_id: str, subject: str, value: Any) -> None:
        self.both(lambda store: store.resume_hook(run_id, subject, value))

    @rule(token=tokens, value=values)
    def resume_hook_by_token(self, token: str, value: Any) -> None:
        self.both(lambda store: store.resume_hook_by_token(token, value))

    @rule(run_id=runs, subject=subjects)
    def dispose_hook(self, run_id: str, subject: str) -> None:
        self.both(lambda store: store.dispose_hook(run_id, subject))

    @rule(token=tokens)
    def dispose_hook_by_token(self, token: str) -> None:
        self.both(lambda store: store.dispose_hook_by_token(token))

    @rule(run_id=runs, reason=reasons)
    def request_cancellation(self, run_id: str, reason: str | None) -> None:
        self.both(lambda store: store.request_cancellation(run_id, reason))

    @rule(run_id=runs, reason=reasons, how=st.integers(0, 8))
    def end(self, run_id: str, reason: str | None, how: int) -> None:
        if how == 0:
            self.both(lambda store: store.force_cancel(run_id, reason))
        elif how == 1:
            self.both(lambda store: store.terminate_for_host_shutdown(run_id, reason))
        elif how == 2:
            self.both(lambda store: store.terminate_for_timeout(run_id, START, reason))

    @rule(run_id=runs, subject=subjects, completed=st.integers(0, 2), value=values)
    def record_progress(self, run_id: str, subject: str, completed: int, value: Any) -> None:
        progress = WorkflowProgress(
            progress_id=subject, completed=completed, total=2, details=value
        )
        self.both(lambda store: store.record_progress(run_id, progress))

    @rule(run_id=runs, subject=subjects, linked=st.none() | runs)
    def link_child_operation(self, run_id: str, subject: str, linked: str | None) -> None:
        child = ChildOperationReference(
            reference_id=subject, kind="k", operation_id="1", flow_run_id=linked
        )
        self.both(lambda store: store.link_child_operation(run_id, child))

    # -- time and leases ------------------------------------------------------------------------
    @rule(by=st.sampled_from([timedelta(seconds=1), timedelta(seconds=20), timedelta(minutes=3)]))
    def let_time_pass(self, by: timedelta) -> None:
        self.now += by
        self.clock.advance(by)

    @rule(run_id=st.none() | runs, limit=st.sampled_from([1, 1000]), ahead=st.none() | durations)
    def sweep(self, run_id: str | None, limit: int, ahead: timedelta | None) -> None:
        as_of = None if ahead is None else self.now + ahead
        self.both(lambda store: store.resume_due_waits(as_of=as_of, run_id=run_id, limit=limit))
        self.both(
            lambda store: store.dispose_expired_hooks(as_of=as_of, run_id=run_id, limit=limit)
        )

    @rule(limit=st.sampled_from([1, 2, 1000]), ahead=st.none() | durations)
    def enqueue_due(self, limit: int, ahead: timedelta | None) -> None:
        as_of = None if ahead is None else self.now + ahead
        self.both(lambda store: store.enqueue_due(as_of=as_of, limit=limit))

    @rule(run_id=runs)
    def wake(self, run_id: str) -> None:
        self.both(lambda store: store.wake_run(run_id))

    @rule(run_id=runs, owner=owners)
    def acquire(self, run_id: str, owner: str) -> None:
        lease = self.both(lambda store: store.acquire_run(run_id, owner, LEASE))
        if lease is not None:
            self.leases.setdefault(run_id, []).append(lease)

    @rule(queue=st.sampled_from(QUEUES), limit=st.sampled_from([1, 10]), owner=owners)
    def claim(self, queue: str, limit: int, owner: str) -> None:
        for lease in self.both(lambda store: store.claim_runs(queue, limit, owner, LEASE)):
            self.leases.setdefault(lease.run_id, []).append(lease)

    @rule(data=st.data())
    def heartbeat(self, data: st.DataObject) -> None:
        held = [lease for leases in self.leases.values() for lease in leases[-2:]]
        beats = self.both(lambda store: store.heartbeat(held, LEASE))
        if data.draw(st.booleans()):
            for lease, beat in zip(held, beats, strict=True):
                lease.wakes = beat.wakes

    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        held = [lease for leases in self.leases.values() for lease in leases[-2:]]
        if held:
            lease = data.draw(st.sampled_from(held))
            self.both(lambda store: store.release_run(lease))

    @rule(data=st.data(), delay=durations, reason=reasons)
    def give_back(self, data: st.DataObject, delay: timedelta, reason: str | None) -> None:
        held = [lease for leases in self.leases.values() for lease in leases[-2:]]
        if held:
            lease = data.draw(st.sampled_from(held))
            self.both(lambda store: store.give_back(lease, delay=delay, blocked_reason=reason))

    # -- looking --------------------------------------------------------------------------------
    @invariant()
    def everything_that_can_be_read_is_the_same(self) -> None:
        ids = self.both(lambda store: store.list_run_ids())
        self.both(lambda store: store.load_runs(ids))
        for run_id in ids:
            history = self.both(partial(_history, run_id))
            assert project(run_id, history).last_sequence == len(history)
        self.both(lambda store: store.list_runs())
        self.both(lambda store: store.run_summary())
        self.both(lambda store: store.list_open_suspensions())
        self.both(lambda store: store.list_active_hooks())
        self.both(lambda store: store.list_due_wakeups())
        self.both(lambda store: store.next_wakeup())


async def _outcome(verb: Verb, store: FlowEventStore) -> Any:
    try:
        return await verb(store)
    except FlowError as error:
        return error


async def _start(run_id: str, value: Any, store: FlowEventStore) -> Any:
    return await store.start(StartRequest(SPECS[0], value, run_id))


async def _history(run_id: str, store: FlowEventStore) -> list[FlowEventEnvelope]:
    return await store.history_page(run_id)


def _comparable(value: Any) -> Any:
    """What must be equal of a result: everything but a counter, and reasons worded by a fold."""
    if isinstance(value, FlowError):
        return type(value), vars(value), str(value)
    if isinstance(value, list):
        return [_comparable(item) for item in value]
    if isinstance(value, FlowEventEnvelope):
        where = (value.run_id, value.sequence, value.event_id, value.recorded_at)
        return (*where, value.type, value.subject, repr(value.data), value.schema_version or 1)
    if isinstance(value, RunLease):
        return (
            value.run_id,
            value.epoch,
            value.wakes,
            value.head_sequence,
            value.now,
            value.attempts,
        )
    if isinstance(value, AppendResult) and value.outcome is AppendOutcome.INVALID:
        return value.run_id, value.outcome, value.head_sequence
    if isinstance(value, dict):
        return {key: _comparable(loaded.history) for key, loaded in value.items()} | {
            f"{key} at": (loaded.head_sequence, loaded.status, loaded.wakes, loaded.now)
            for key, loaded in value.items()
        }
    return value


def _fresh(event: NewEvent) -> NewEvent:
    return NewEvent(event.type, event.data, event.due_at, event.due_in)


@pytest.fixture(scope="module")
def machine_database(pg_server: PostgresServer, template_database: str) -> Iterator[str]:
    with pg_server.database(template_database) as name:
        yield pg_server.dsn_of(name)


def explore(dsn: str, examples: int, steps: int) -> None:
    with asyncio.Runner() as runner:
        store = runner.run(PostgresEventStore.connect(dsn))
        shared = {"dsn": dsn, "loop": runner.get_loop(), "postgres": store}
        run_state_machine_as_test(
            type("BothStores", (BothStores,), shared),
            settings=settings(
                max_examples=examples,
                stateful_step_count=steps,
                deadline=None,
                suppress_health_check=list(HealthCheck),
            ),
        )
        runner.run(store.close())


@pytest.mark.timeout(600)  # a failure is made small before it is shown
def test_both_stores_do_the_same_whatever_is_asked_of_them(machine_database: str) -> None:
    explore(machine_database, examples=15, steps=25)


@pytest.mark.storm
@pytest.mark.timeout(3600)
def test_both_stores_do_the_same_for_a_long_time(machine_database: str) -> None:
    explore(machine_database, examples=1000, steps=60)
