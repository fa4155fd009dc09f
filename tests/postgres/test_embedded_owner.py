"""The embedded server ends with its owner, however the owner ends."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from flowpg.postgres import _launch
from flowpg.postgres.binaries import Binaries
from flowpg.postgres.embedded import EmbeddedPostgres
from flowpg.postgres.throwaway import remove_leftovers
from tests.postgres.owners import Owner, execute, gone, start_owner, until_gone, value
from tests.waiting import until

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="only Linux tells a process that its parent died"
)


@pytest.fixture
def owner(binaries: Binaries, tmp_path: Path) -> Iterator[Owner]:
    """An owner of a durable server that has not said anything yet."""
    owner = start_owner(tmp_path / "pg", binaries.directory)
    yield owner
    owner.close()


def test_the_server_of_a_killed_owner_is_gone(owner: Owner) -> None:
    owner.read()
    server = owner.read()["server"]
    assert not gone(server)
    owner.kill()
    until_gone(server)


def test_a_client_in_a_transaction_does_not_keep_the_server_of_a_killed_owner(
    owner: Owner,
) -> None:
    owner.read()
    started = owner.read()
    with psycopg.connect(started["dsn"]) as connection:
        connection.execute("SELECT 1")
        owner.kill()
        until_gone(started["server"])
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")
        connection.close()


def test_what_was_committed_before_the_owner_was_killed_is_there_afterwards(
    owner: Owner, binaries: Binaries, tmp_path: Path
) -> None:
    owner.read()
    dsn = owner.read()["dsn"]
    execute(dsn, "CREATE TABLE kept AS SELECT 7 AS n")
    owner.kill()
    # At once: the new owner waits for the old server to be gone by itself.
    with EmbeddedPostgres(tmp_path / "pg", binaries=binaries) as server:
        assert value(server.dsn, "SELECT n FROM kept") == 7


def test_a_server_that_was_killed_itself_recovers(
    owner: Owner, binaries: Binaries, tmp_path: Path
) -> None:
    owner.read()
    started = owner.read()
    execute(started["dsn"], "CREATE TABLE kept AS SELECT 7 AS n")
    os.kill(started["server"], 9)
    owner.kill()
    with EmbeddedPostgres(tmp_path / "pg", binaries=binaries) as server:
        assert value(server.dsn, "SELECT n FROM kept") == 7


def test_an_owner_that_just_ends_stops_its_server(owner: Owner) -> None:
    owner.read()
    server = owner.read()["server"]
    assert owner.process.stdin is not None
    owner.process.stdin.close()
    owner.process.wait()
    until_gone(server)


def test_a_throwaway_server_of_an_owner_that_just_ends_is_removed(binaries: Binaries) -> None:
    owner = start_owner(Path("unused"), binaries.directory, throwaway=True)
    owner.read()
    started = owner.read()
    assert owner.process.stdin is not None
    owner.process.stdin.close()
    owner.process.wait()
    until_gone(started["server"])
    assert not Path(started["directory"]).exists()
    owner.close()


def test_what_a_killed_owner_left_of_a_throwaway_server_is_removed_by_the_next(
    binaries: Binaries,
) -> None:
    owners = [start_owner(Path("unused"), binaries.directory, throwaway=True) for _ in range(2)]
    for owner in owners:
        owner.read()
    killed, living = [owner.read() for owner in owners]
    left, kept = Path(killed["directory"]), Path(living["directory"])
    owners[0].kill()
    until_gone(killed["server"])
    assert left.exists()
    unrelated = Path(tempfile.mkdtemp(prefix="flowpg-", dir=left.parent))

    def removed() -> bool:
        remove_leftovers(left.parent)  # its last children may hold the lock a moment longer
        return not left.exists()

    until(removed, "the directory is removed")
    assert kept.exists()
    assert value(living["dsn"], "SELECT 1") == 1
    unrelated.rmdir()
    for owner in owners:
        owner.close()


def test_a_forked_child_of_the_owner_does_not_stop_the_server(owner: Owner) -> None:
    owner.read()
    started = owner.read()
    owner.tell("child = os.fork() or sys.exit(0)")
    owner.tell("os.waitpid(child, 0); print(json.dumps({'child': child}), flush=True)")
    owner.read()
    assert value(started["dsn"], "SELECT 1") == 1


def test_the_server_is_gone_when_only_its_owners_thread_was_short_lived(owner: Owner) -> None:
    owner.read()
    first = owner.read()["server"]
    restart = "server.stop(); t = __import__('threading').Thread(target=server.start)"
    owner.tell(f"{restart}; t.start(); t.join(); print(json.dumps({{'new': server.pid}}))")
    owner.tell("sys.stdout.flush()")
    second = owner.read()["new"]
    assert gone(first)
    assert not gone(second)
    owner.kill()
    until_gone(second)


def test_a_server_whose_owner_died_before_it_could_ask_is_not_started() -> None:
    # The owner named is not the parent, as when the parent died and another process took over.
    command = [
        sys.executable,
        "-I",
        "-S",
        _launch.__file__,
        "1",
        "same",
        "0",
        "0",
        "/bin/echo",
        "x",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == _launch.CANNOT_LAUNCH
    assert done.stdout == ""
    assert done.stderr == "the owner of this server was gone before the server started\n"
