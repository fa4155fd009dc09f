"""What every test may ask for: the server of the run, and databases on it.

They are those of the plugin that users have too, under shorter names.
"""

import os
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from flowpg.postgres.binaries import (
    Binaries,
    BinariesNotFound,
    find_binaries,
    inspect_binaries,
)
from flowpg.testing.plugin import chosen_server
from flowpg.testing.servers import DEFAULT_DOCKER, PostgresServer, engine_answers
from tests.bouncer import PgBouncer, find_pgbouncer

pytest_plugins = ("flowpg.testing.plugin",)  # also where flowpg is not installed


def pytest_configure(config: pytest.Config) -> None:
    """Set what the commands read that tests run."""
    if _wants_pgbouncer():
        # For the commands and examples that tests run as a user would.
        os.environ["FLOWPG_PREPARE"] = "0"


def pytest_report_header(config: pytest.Config) -> str:
    """Say which server was chosen, before anything else is said."""
    through = ", through PgBouncer in transaction mode" if _wants_pgbouncer() else ""
    return f"PostgreSQL for the tests: {chosen_server(config).label}{through}"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip, saying so, what this machine or this run cannot do."""
    asked_for_storms = os.environ.get("FLOWPG_STORM") or "storm" in (config.option.markexpr or "")
    reasons = {
        "storm": None if asked_for_storms else "a long randomised run: `make storm` runs it",
        "pgbouncer": None if find_pgbouncer() else "no pgbouncer program on this machine",
        "containers": None if _engine_is_there() else "no Docker engine answers",
    }
    for item in items:
        for marker, reason in reasons.items():
            if reason and item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Keep what was logged fit to be sent: tests log texts that are no UTF-8, on purpose."""
    report = yield
    report.sections = [
        (title, text.encode("utf-8", "backslashreplace").decode())
        for title, text in report.sections
    ]
    return report


@pytest.fixture(scope="session")
def pg_server(flowpg_server: PostgresServer) -> PostgresServer:
    """The server of this run: ``admin_dsn``, ``version``, and databases to be made on it."""
    return flowpg_server


@pytest.fixture(scope="session")
def binaries() -> Binaries:
    """The server programs of this machine, for tests of the embedded server itself."""
    try:
        if named := os.environ.get("FLOWPG_TEST_PG_BIN"):
            return inspect_binaries(Path(named), "FLOWPG_TEST_PG_BIN")
        return find_binaries()
    except BinariesNotFound as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def template_database(flowpg_template: str) -> str:
    """The name of a migrated database that nobody connects to, to be copied."""
    return flowpg_template


@pytest.fixture(scope="session")
def pgbouncer(
    pg_server: PostgresServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[PgBouncer]:
    """A PgBouncer in transaction mode in front of the server. Mark the test ``pgbouncer``."""
    bouncer = PgBouncer(pg_server, tmp_path_factory.mktemp("bouncer"))
    yield bouncer
    bouncer.close()


@pytest.fixture
def through_pgbouncer() -> bool:
    """Whether ``database_dsn`` goes through a PgBouncer, so that nothing may be prepared."""
    return _wants_pgbouncer()


@pytest.fixture
def database(flowpg_database: str) -> str:
    """The name of a fresh, migrated database of this test's own."""
    return flowpg_database


@pytest.fixture
def direct_dsn(pg_server: PostgresServer, database: str) -> str:
    """URL of the test's migrated database, always past any pooler."""
    return pg_server.dsn_of(database)


@pytest.fixture
def database_dsn(request: pytest.FixtureRequest, pg_server: PostgresServer, database: str) -> str:
    """URL of the test's migrated database, through PgBouncer when the run asks for that."""
    if _wants_pgbouncer():
        bouncer: PgBouncer = request.getfixturevalue("pgbouncer")
        return bouncer.dsn_of(pg_server.admin_dsn, database)
    return pg_server.dsn_of(database)


@pytest.fixture
def empty_database_dsn(pg_server: PostgresServer) -> Iterator[str]:
    """URL of a fresh database without any schema of ours, past any pooler."""
    with pg_server.database() as name:
        yield pg_server.dsn_of(name)


def _wants_pgbouncer() -> bool:
    return os.environ.get("FLOWPG_TEST_PGBOUNCER", "") not in ("", "0")


def _engine_is_there() -> bool:
    return engine_answers(os.environ.get("DOCKER_HOST") or DEFAULT_DOCKER)
