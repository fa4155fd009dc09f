"""Both stores behind one fixture; whoever adds an engine to it may forget to close it."""

from collections.abc import AsyncIterator

import pytest

from flowpg.model import answers
from flowpg.store.memory import InMemoryEventStore
from flowpg.store.postgres import PostgresEventStore
from flowpg.store.protocol import FlowEventStore
from tests.clock import DatabaseClock
from tests.engine.support import EngineStore


async def open_engine_store(request: pytest.FixtureRequest, name: str) -> EngineStore:
    """The runs of one test, in memory or in a database of its own."""
    if name == "memory":
        memory = InMemoryEventStore()

        async def same() -> FlowEventStore:
            return memory

        return EngineStore(name, same, memory.advance)
    clock = DatabaseClock(request.getfixturevalue("direct_dsn"))
    dsn = request.getfixturevalue("database_dsn")
    prepare = not request.getfixturevalue("through_pgbouncer")

    async def connect() -> FlowEventStore:
        return await PostgresEventStore.connect(dsn, prepare=prepare)

    return EngineStore(name, connect, clock.advance, dsn)


@pytest.fixture(params=["memory", "postgres"])
async def engine_store(request: pytest.FixtureRequest) -> AsyncIterator[EngineStore]:
    """Each store in turn, with a clock that the test turns."""
    found = await open_engine_store(request, request.param)
    yield found
    for engine in found.engines:
        await engine.close()


@pytest.fixture
async def postgres_only(request: pytest.FixtureRequest) -> AsyncIterator[EngineStore]:
    """A database, for what a store in memory cannot show."""
    found = await open_engine_store(request, "postgres")
    yield found
    for engine in found.engines:
        await engine.close()


@pytest.fixture
def nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """No schema of a test before is tried first."""
    monkeypatch.setattr(answers, "_latest", {})
