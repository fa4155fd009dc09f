"""The pytest plugin: a PostgreSQL for the run, and a migrated database for each test.

It loads with pytest wherever flowpg is installed, and does nothing until a test asks for one of its
fixtures. Each process of pytest-xdist has databases of its own.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    # Whoever does not ask for anything should not wait for imports either.
    from flowpg.engine.flow_engine import FlowEngine
    from flowpg.testing.environment import WorkflowEnvironment
    from flowpg.testing.servers import Choice, PostgresServer

_CHOICE = pytest.StashKey["Choice"]()


def chosen_server(config: pytest.Config) -> Choice:
    """The server of this run, before it is started: its ``label`` says which."""
    if _CHOICE not in config.stash:
        from flowpg.testing.servers import choose

        config.stash[_CHOICE] = choose()
    return config.stash[_CHOICE]


@pytest.fixture(scope="session")
def flowpg_server(request: pytest.FixtureRequest) -> Iterator[PostgresServer]:
    """A PostgreSQL for this run: the one that FLOWPG_TEST_DSN names; a container, where a Docker
    engine answers; or a throwaway server, from FLOWPG_TEST_PG_BIN, the extra ``embedded``, or the
    system. Nothing else is ever connected to."""
    server = chosen_server(request.config).start()
    yield server
    server.close()


@pytest.fixture(scope="session")
def flowpg_template(flowpg_server: PostgresServer) -> Iterator[str]:
    """The name of a migrated database that nobody connects to, to be copied."""
    from flowpg.postgres.migrate import upgrade

    with flowpg_server.database() as name:
        upgrade(flowpg_server.dsn_of(name))
        yield name


@pytest.fixture
def flowpg_database(flowpg_server: PostgresServer, flowpg_template: str) -> Iterator[str]:
    """The name of a fresh, migrated database of this test's own, dropped afterwards."""
    with flowpg_server.database(flowpg_template) as name:
        yield name


@pytest.fixture
def flowpg_dsn(flowpg_server: PostgresServer, flowpg_database: str) -> str:
    """URL of a fresh, migrated database of this test's own."""
    return flowpg_server.dsn_of(flowpg_database)


@pytest.fixture
def flowpg_engine(flowpg_dsn: str) -> Callable[[Any], AbstractAsyncContextManager[FlowEngine]]:
    """``async with flowpg_engine(app) as engine``: an engine on this test's database."""

    @asynccontextmanager
    async def engine(runtime: Any) -> AsyncIterator[FlowEngine]:
        from flowpg.engine.flow_engine import FlowEngine
        from flowpg.store.postgres import PostgresEventStore

        store = await PostgresEventStore.connect(flowpg_dsn)
        async with FlowEngine(store, runtime) as made:
            yield made

    return engine


@pytest.fixture
def flowpg_environment() -> Callable[..., WorkflowEnvironment]:
    """``async with flowpg_environment(app) as env``: runs in memory, under a clock that jumps. See
    ``flowpg.testing.WorkflowEnvironment``."""
    from flowpg.testing.environment import WorkflowEnvironment

    return WorkflowEnvironment
