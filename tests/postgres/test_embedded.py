"""The embedded server: how it starts, serves and stops."""

import os
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from flowpg.postgres.binaries import Binaries
from flowpg.postgres.embedded import (
    EmbeddedPostgres,
    EmbeddedServerError,
    default_directory,
    running_dsn,
)
from tests.postgres.owners import execute, until_gone, value


@pytest.fixture(scope="module")
def throwaway(binaries: Binaries) -> Iterator[EmbeddedPostgres]:
    """One throwaway server for the tests that only ask it something."""
    with EmbeddedPostgres(throwaway=True, binaries=binaries) as server:
        yield server


def test_a_throwaway_server_answers_and_leaves_nothing_behind(binaries: Binaries) -> None:
    with EmbeddedPostgres(throwaway=True, binaries=binaries) as server:
        assert value(server.dsn, "SELECT 1") == 1
        directory, pid = server.directory, server.pid
    until_gone(pid)
    assert not directory.exists()


def test_its_version_is_the_servers_own(throwaway: EmbeddedPostgres, binaries: Binaries) -> None:
    assert str(throwaway.version) == value(throwaway.dsn, "SHOW server_version_num")
    assert throwaway.release == binaries.version


def test_text_is_utf8_and_sorts_by_code_point(throwaway: EmbeddedPostgres) -> None:
    assert value(throwaway.dsn, "SHOW server_encoding") == "UTF8"
    assert value(throwaway.dsn, "SELECT 'Z' < 'a' AND 'z' < 'ä'") is True


def test_only_a_throwaway_server_goes_without_fsync(
    throwaway: EmbeddedPostgres, binaries: Binaries, tmp_path: Path
) -> None:
    assert value(throwaway.dsn, "SHOW fsync") == "off"
    with EmbeddedPostgres(tmp_path / "durable", binaries=binaries) as durable:
        for name in ("fsync", "synchronous_commit", "full_page_writes"):
            assert value(durable.dsn, f"SHOW {name}") == "on"


def test_it_listens_on_no_port_unless_asked(throwaway: EmbeddedPostgres) -> None:
    assert value(throwaway.dsn, "SHOW listen_addresses") == ""
    with pytest.raises(EmbeddedServerError, match="no TCP port"):
        _ = throwaway.tcp_dsn


def test_its_port_asks_for_a_password(binaries: Binaries) -> None:
    with EmbeddedPostgres(throwaway=True, binaries=binaries, tcp_port=0) as server:
        assert value(server.tcp_dsn, "SELECT inet_server_addr()::text") == "127.0.0.1/32"
        before, _, after = server.tcp_dsn.partition("@")
        stranger = before.rpartition(":")[0] + ":guess@" + after
        with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
            psycopg.connect(stranger)


def test_its_socket_is_closed_to_others(throwaway: EmbeddedPostgres) -> None:
    directory = Path(str(psycopg.conninfo.conninfo_to_dict(throwaway.dsn)["host"]))
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700


def test_a_durable_server_keeps_its_data(binaries: Binaries, tmp_path: Path) -> None:
    with EmbeddedPostgres(tmp_path / "pg", binaries=binaries) as server:
        execute(server.dsn, "CREATE TABLE kept AS SELECT 7 AS n")
    with EmbeddedPostgres(tmp_path / "pg", binaries=binaries) as server:
        assert value(server.dsn, "SELECT n FROM kept") == 7


def test_it_can_be_started_again_after_a_stop(binaries: Binaries, tmp_path: Path) -> None:
    server = EmbeddedPostgres(tmp_path / "pg", binaries=binaries)
    for _ in range(2):
        server.start()
        assert value(server.dsn, "SELECT 1") == 1
        with pytest.raises(EmbeddedServerError, match="started already"):
            server.start()
        server.stop()
        server.stop()
    with pytest.raises(EmbeddedServerError, match="not started"):
        _ = server.dsn


def test_no_permission_outside_its_directory_changes(binaries: Binaries, tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    around = [path for path in (closed, *closed.parents) if path.exists()]
    before = [(path.stat().st_mode, path.stat().st_uid, path.stat().st_gid) for path in around]
    with EmbeddedPostgres(closed / "pg", binaries=binaries) as server:
        assert value(server.dsn, "SELECT 1") == 1
    assert before == [
        (path.stat().st_mode, path.stat().st_uid, path.stat().st_gid) for path in around
    ]


def test_its_files_belong_to_whoever_started_it(binaries: Binaries, tmp_path: Path) -> None:
    with EmbeddedPostgres(tmp_path / "pg", binaries=binaries) as server:
        owners = {path.lstat().st_uid for path in server.directory.rglob("*")}
    assert owners == {os.geteuid()}


def test_a_directory_with_a_long_name_works(binaries: Binaries, tmp_path: Path) -> None:
    deep = tmp_path / ('long, and "odd" ' * 8) / ("x" * 90)
    with EmbeddedPostgres(deep, binaries=binaries) as server:
        assert value(server.dsn, "SELECT 1") == 1
        socket = Path(str(psycopg.conninfo.conninfo_to_dict(server.dsn)["host"]))
        assert socket.exists()
    assert not socket.exists()
    # A server that was killed leaves it behind, and its process id may be somebody else's by now.
    socket.mkdir(mode=0o700)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as somebody:
        (socket / ".s.PGSQL.5432.lock").write_text(f"{somebody.pid}\n{deep / 'data'}\n1\n5432\n")
        with EmbeddedPostgres(deep, binaries=binaries) as server:
            assert value(server.dsn, "SELECT 1") == 1
    assert not socket.exists()


def test_a_database_is_a_copy_of_its_template(throwaway: EmbeddedPostgres) -> None:
    first = throwaway.create_database("pattern")
    execute(first, "CREATE TABLE here AS SELECT 5 AS n")
    copy = throwaway.create_database("copy, with a 'name'", template="pattern")
    assert value(copy, "SELECT n FROM here") == 5


def test_a_database_that_exists_is_not_made_twice(throwaway: EmbeddedPostgres) -> None:
    throwaway.create_database("twice")
    with pytest.raises(EmbeddedServerError, match="'twice' was not made"):
        throwaway.create_database("twice")


def test_settings_reach_the_server(binaries: Binaries) -> None:
    settings = {"wal_level": "logical", "application_name": "with 'quotes' and blanks"}
    with EmbeddedPostgres(throwaway=True, binaries=binaries, settings=settings) as server:
        assert value(server.dsn, "SHOW wal_level") == "logical"


def test_a_setting_the_server_refuses_is_told_and_the_directory_is_free_again(
    binaries: Binaries, tmp_path: Path
) -> None:
    wrong = EmbeddedPostgres(tmp_path / "pg", binaries=binaries, settings={"wal_level": "loud"})
    with pytest.raises(EmbeddedServerError, match='invalid value for parameter "wal_level"'):
        wrong.start()
    with EmbeddedPostgres(tmp_path / "pg", binaries=binaries) as server:
        assert value(server.dsn, "SELECT 1") == 1


def test_it_outlives_the_thread_that_started_it(binaries: Binaries) -> None:
    server = EmbeddedPostgres(throwaway=True, binaries=binaries)
    thread = threading.Thread(target=server.start)
    thread.start()
    thread.join()
    try:
        assert value(server.dsn, "SELECT 1") == 1
    finally:
        server.stop()


def test_its_environment_does_not_steer_it(
    binaries: Binaries, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in {"PGPORT": "1", "PGDATA": "/nowhere", "PGHOST": "x", "LANG": "no"}.items():
        monkeypatch.setenv(name, text)
    with EmbeddedPostgres(throwaway=True, binaries=binaries) as server:
        assert value(server.dsn, "SELECT 1") == 1


def test_a_running_server_is_found_by_its_directory(binaries: Binaries, tmp_path: Path) -> None:
    assert running_dsn(tmp_path / "pg") is None
    with EmbeddedPostgres(tmp_path / "pg", binaries=binaries) as server:
        assert running_dsn(tmp_path / "pg") == server.dsn
    assert running_dsn(tmp_path / "pg") is None


def test_the_default_directory_is_below_the_current_one_or_named() -> None:
    assert default_directory({}) == Path(".flowpg/postgres")
    assert default_directory({"FLOWPG_DATA": "/elsewhere"}) == Path("/elsewhere")


def test_a_throwaway_server_takes_no_directory(tmp_path: Path) -> None:
    with pytest.raises(EmbeddedServerError, match="chooses its own directory"):
        EmbeddedPostgres(tmp_path, throwaway=True)
