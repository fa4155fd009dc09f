"""Both stores behind one fixture, each with a clock that the test turns."""

from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta

import psycopg
import pytest

from flowpg.store.memory import InMemoryEventStore
from flowpg.store.postgres import PostgresEventStore
from flowpg.store.protocol import FlowEventStore
from flowpg.testing.servers import PostgresServer
from tests.clock import DatabaseClock


@dataclass(frozen=True)
class Rig:
    """A store, and the way to let time pass in it."""

    store: FlowEventStore
    advance: Callable[[timedelta], None]


@pytest.fixture(scope="session")
def shared_database(pg_server: PostgresServer, template_database: str) -> Iterator[str]:
    """The name of a migrated database that the tests of the stores use one after the other."""
    with pg_server.database(template_database) as name:
        yield name


@pytest.fixture
def database(pg_server: PostgresServer, shared_database: str) -> str:
    """That database, empty again: there are hundreds of tests, and emptying takes a tenth of the
    time that a copy of the template takes. A test that changes more than rows needs its own."""
    with psycopg.connect(pg_server.dsn_of(shared_database), autocommit=True) as connection:
        connection.execute(EMPTY)
    return shared_database


# The guard against TRUNCATE is a trigger.
EMPTY = """
    BEGIN;
    ALTER TABLE flowpg.flow_event_log DISABLE TRIGGER USER;
    TRUNCATE flowpg.flow_event_log, flowpg.flow_runs, flowpg.flow_active_hooks,
             flowpg.scheduled_wakeups, flowpg.flow_tasks, flowpg.flow_lanes, flowpg.flow_marks,
             flowpg.flow_dead_letters, flowpg.flow_workers, flowpg.flow_queues,
             flowpg.flow_idle_queues, flowpg.flow_run_waiters, flowpg.flow_finished_tasks;
    ALTER TABLE flowpg.flow_event_log ENABLE TRIGGER USER;
    COMMIT;
"""


@pytest.fixture
async def postgres_store(
    database_dsn: str, through_pgbouncer: bool
) -> AsyncIterator[PostgresEventStore]:
    """A store in a database of this test's own."""
    async with await PostgresEventStore.connect(
        database_dsn, prepare=not through_pgbouncer
    ) as store:
        yield store


@pytest.fixture(params=["memory", "postgres"])
async def rig(request: pytest.FixtureRequest) -> AsyncIterator[Rig]:
    """Each store in turn."""
    if request.param == "memory":
        memory = InMemoryEventStore()
        yield Rig(memory, memory.advance)
        return
    dsn = request.getfixturevalue("direct_dsn")
    target = request.getfixturevalue("database_dsn")
    prepare = not request.getfixturevalue("through_pgbouncer")
    clock = DatabaseClock(dsn)
    async with await PostgresEventStore.connect(target, prepare=prepare) as store:
        yield Rig(store, clock.advance)
    DatabaseClock(dsn)  # set right again


@pytest.fixture
def store(rig: Rig) -> FlowEventStore:
    """Each store in turn, for tests in which no time passes."""
    return rig.store
