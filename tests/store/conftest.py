"""Both stores behind one fixture, each with a clock that the test turns."""

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import timedelta

import pytest

from flowpg.store.memory import InMemoryEventStore
from flowpg.store.postgres import PostgresEventStore
from flowpg.store.protocol import FlowEventStore
from tests.clock import DatabaseClock


@dataclass(frozen=True)
class Rig:
    """A store, and the way to let time pass in it."""

    store: FlowEventStore
    advance: Callable[[timedelta], None]


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


@pytest.fixture
def store(rig: Rig) -> FlowEventStore:
    """Each store in turn, for tests in which no time passes."""
    return rig.store
