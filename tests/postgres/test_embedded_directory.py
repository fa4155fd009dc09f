"""The embedded server's directory: what is refused, and what is mended."""

import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from flowpg.postgres.binaries import Binaries
from flowpg.postgres.embedded import (
    DirectoryInUse,
    EmbeddedPostgres,
    EmbeddedServerError,
    WrongMajorVersion,
)
from flowpg.postgres.identity import choose_identity
from tests.postgres.owners import start_owner, until_gone, value
from tests.waiting import until


@pytest.fixture
def used(binaries: Binaries, tmp_path: Path) -> Path:
    """The directory of a server that was started and stopped once."""
    with EmbeddedPostgres(tmp_path / "pg", binaries=binaries):
        pass
    return tmp_path / "pg"


@pytest.fixture
def intruder(binaries: Binaries, used: Path) -> Iterator[int]:
    """A server that somebody started by hand in the same data directory; its process id."""
    (used / "elsewhere").mkdir()
    place = f"unix_socket_directories={used / 'elsewhere'}"
    options = ("-c", "listen_addresses=", "-c", place)
    with subprocess.Popen(
        choose_identity(used).command(binaries.postgres, "-D", used / "data", *options),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:
        marks = used / "data" / "postmaster.pid"
        until(lambda: marks.exists() and "ready" in marks.read_text(), "the other server is ready")
        yield process.pid
        process.terminate()


def snapshot(directory: Path) -> dict[str, tuple[int, bytes]]:
    """Modes and contents of all files below a directory."""
    return {
        str(path): (path.lstat().st_mode, path.read_bytes() if path.is_file() else b"")
        for path in directory.rglob("*")
    }


def test_a_directory_with_other_things_in_it_is_refused_untouched(
    binaries: Binaries, tmp_path: Path
) -> None:
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "to-mum.txt").write_text("dear mum")
    before = snapshot(tmp_path)
    with pytest.raises(EmbeddedServerError, match="not empty and was not made for"):
        EmbeddedPostgres(tmp_path / "letters", binaries=binaries).start()
    assert snapshot(tmp_path) == before


def test_an_empty_directory_is_taken_as_it_is(binaries: Binaries, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir(mode=0o755)
    with EmbeddedPostgres(tmp_path / "empty", binaries=binaries) as server:
        assert value(server.dsn, "SELECT 1") == 1


def test_a_place_that_is_a_file_is_refused_with_a_sentence(
    binaries: Binaries, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(EmbeddedServerError, match="cannot hold the embedded server"):
        EmbeddedPostgres(tmp_path / "file", binaries=binaries).start()


def test_a_second_owner_in_the_same_process_is_refused(binaries: Binaries, tmp_path: Path) -> None:
    with EmbeddedPostgres(tmp_path / "pg", binaries=binaries) as first:
        with pytest.raises(DirectoryInUse, match=f"belongs to process {os.getpid()}"):
            EmbeddedPostgres(tmp_path / "pg", binaries=binaries).start()
        assert value(first.dsn, "SELECT 1") == 1


def test_a_second_process_is_refused_and_told_the_first_one(
    binaries: Binaries, tmp_path: Path
) -> None:
    owner = start_owner(tmp_path / "pg", binaries.directory)
    try:
        pid, dsn = owner.read()["owner"], owner.read()["dsn"]
        with pytest.raises(DirectoryInUse, match=f"belongs to process {pid}; stop that one"):
            EmbeddedPostgres(tmp_path / "pg", binaries=binaries).start()
        assert value(dsn, "SELECT 1") == 1
    finally:
        owner.close()


def test_of_owners_that_start_together_one_wins(binaries: Binaries, tmp_path: Path) -> None:
    servers = [EmbeddedPostgres(tmp_path / "pg", binaries=binaries) for _ in range(4)]
    gate = threading.Barrier(len(servers))
    refused: list[EmbeddedPostgres] = []

    def start(server: EmbeddedPostgres) -> None:
        gate.wait()
        try:
            server.start()
        except DirectoryInUse:
            refused.append(server)

    threads = [threading.Thread(target=start, args=(server,)) for server in servers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for server in servers:
        server.stop()
    assert len(refused) == len(servers) - 1


def test_a_directory_of_another_major_version_is_refused_before_it_is_touched(
    binaries: Binaries, used: Path
) -> None:
    (used / "data" / "PG_VERSION").write_text("14\n")
    before = snapshot(used / "data")
    with pytest.raises(WrongMajorVersion, match=r"made by PostgreSQL 14.*FLOWPG_PG_BIN"):
        EmbeddedPostgres(used, binaries=binaries).start()
    assert snapshot(used / "data") == before


def test_a_data_directory_without_a_version_is_called_damaged(
    binaries: Binaries, used: Path
) -> None:
    (used / "data" / "PG_VERSION").unlink()
    with pytest.raises(EmbeddedServerError, match="is damaged: its PG_VERSION cannot be read"):
        EmbeddedPostgres(used, binaries=binaries).start()


def test_an_initdb_that_was_cut_off_is_done_again(binaries: Binaries, tmp_path: Path) -> None:
    owner = start_owner(tmp_path / "pg", binaries.directory)
    owner.read()
    unfinished = tmp_path / "pg" / "data.unfinished" / "postgresql.conf"
    until(unfinished.exists, "initdb is at work")
    owner.kill()
    assert not (tmp_path / "pg" / "data").exists()
    with EmbeddedPostgres(tmp_path / "pg", binaries=binaries) as server:
        assert value(server.dsn, "SELECT 1") == 1
    assert not unfinished.parent.exists()


def test_a_stale_pid_file_is_seen_through_even_when_the_number_lives_again(
    binaries: Binaries, used: Path
) -> None:
    left_behind = used / "data" / "postmaster.pid"
    left_behind.write_text(f"{os.getpid()}\n{used / 'data'}\n1\n5432\n/tmp\n\n  1  2\nready\n")
    with EmbeddedPostgres(used, binaries=binaries) as server:
        assert value(server.dsn, "SELECT 1") == 1


def test_a_stale_pid_file_that_was_cut_off_is_seen_through(binaries: Binaries, used: Path) -> None:
    (used / "data" / "postmaster.pid").write_text("999999999\n")
    with EmbeddedPostgres(used, binaries=binaries) as server:
        assert value(server.dsn, "SELECT 1") == 1


def test_a_server_that_somebody_else_started_there_is_left_alone(
    binaries: Binaries, used: Path, intruder: int
) -> None:
    with pytest.raises(DirectoryInUse, match=rf"flowpg did not start.*process {intruder}"):
        EmbeddedPostgres(used, binaries=binaries).start()
    assert (used / "data" / "postmaster.pid").read_text().startswith(f"{intruder}\n")


def test_the_log_of_the_run_before_is_kept(binaries: Binaries, used: Path) -> None:
    said = (used / "server.log").read_text()
    with EmbeddedPostgres(used, binaries=binaries):
        assert (used / "server.log.1").read_text() == said
        assert (used / "server.log").stat().st_mode & 0o077 == 0


def test_a_server_that_ends_by_itself_is_noticed(binaries: Binaries, tmp_path: Path) -> None:
    with EmbeddedPostgres(tmp_path / "pg", binaries=binaries) as server:
        assert not server.wait(0)
        os.kill(server.pid, 15)
        assert server.wait(20)
        until_gone(server.pid)
