"""The pytest plugin, in a project of a user's own."""

import os
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from flowpg.testing.servers import PostgresServer

ROOT = Path(__file__).parents[2]

CONFTEST = 'pytest_plugins = ("flowpg.testing.plugin",)\n'
TESTS = """
import asyncio
import psycopg
import pytest
from flowpg import FlowApp

app = FlowApp("shop")

@app.step
async def double(x: int) -> int:
    return 2 * x

@app.workflow
async def twice(x: int) -> int:
    await asyncio.sleep(3600 if x < 0 else 0)
    return await double(await double(x))

@pytest.mark.parametrize("number", range(6))
def test_each_test_has_a_database_of_its_own(flowpg_dsn, flowpg_engine, number):
    async def main():
        async with flowpg_engine(app) as engine:
            run_id = await twice.start_with_id(engine, "the-run", number)
            assert twice.result(await engine.snapshot(run_id)) == 4 * number
    asyncio.run(main())
    with psycopg.connect(flowpg_dsn) as connection:
        assert connection.execute("SELECT count(*) FROM flowpg.flow_runs").fetchone() == (1,)

def test_memory_needs_no_server(flowpg_environment):
    async def main():
        async with flowpg_environment(app) as env:
            assert await (await env.start(twice, -1)).result() == -4
    asyncio.run(main())
"""


def run_pytest(where: Path, dsn: str | None, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    if dsn is not None:
        environment["FLOWPG_TEST_DSN"] = dsn
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments],
        cwd=where,
        env=environment,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A directory with a test file and nothing else."""
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_shop.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    return tmp_path


def leftovers(server: PostgresServer) -> set[str]:
    with psycopg.connect(server.admin_dsn) as connection:
        rows = connection.execute(
            "SELECT datname FROM pg_database WHERE datname LIKE 'flowpg_test_%'"
        )
        return {name for (name,) in rows}


def test_processes_of_xdist_do_not_disturb_each_other_and_leave_nothing_behind(
    project: Path, pg_server: PostgresServer
) -> None:
    before = leftovers(pg_server)
    found = run_pytest(project, pg_server.admin_dsn, "-n", "3")
    assert found.returncode == 0, found.stdout + found.stderr
    assert "7 passed" in found.stdout
    assert leftovers(pg_server) == before


def test_tests_in_memory_start_no_server(project: Path) -> None:
    # Whoever asked for it would fail: nothing answers there.
    found = run_pytest(project, "postgresql://127.0.0.1:1/nowhere", "-k", "memory")
    assert found.returncode == 0, found.stdout + found.stderr
    assert "1 passed" in found.stdout


def test_a_fresh_database_is_one_copy_of_the_migrated_one(
    pg_server: PostgresServer, template_database: str
) -> None:
    with psycopg.connect(pg_server.admin_dsn) as connection:
        size = connection.execute("SELECT pg_database_size(%s)", (template_database,)).fetchone()
    # What has to be copied is what a reset costs: some 20 ms for each 10 MB.
    assert size is not None
    assert size[0] < 20_000_000
