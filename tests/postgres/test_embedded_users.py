"""As whom the embedded server runs: an ordinary user, root with and without user namespaces."""

import os
import pwd
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from flowpg.postgres import identity
from flowpg.postgres.binaries import Binaries
from flowpg.postgres.embedded import EmbeddedPostgres, EmbeddedServerError
from flowpg.postgres.identity import choose_identity
from tests.postgres.owners import execute, python_for, start_owner, until_gone, value

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0, reason="only root can become another user; this user is tested all along"
)


def ordinary_user() -> pwd.struct_passwd:
    """Some user who is neither root nor the one PostgreSQL's package made."""
    return pwd.getpwnam("nobody")


@pytest.fixture
def open_path() -> Iterator[Path]:
    """A new directory that every user can enter."""
    path = Path(tempfile.mkdtemp(prefix="flowpg-test-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def no_namespaces(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container that may not make user namespaces."""
    monkeypatch.setattr(identity, "has_user_namespaces", lambda: False)


def owners_below(path: Path) -> set[int]:
    """The ids of all users who own something below a directory."""
    return {entry.lstat().st_uid for entry in path.rglob("*")}


def test_an_ordinary_user_runs_it_as_itself(open_path: Path, binaries: Binaries) -> None:
    user = ordinary_user()
    python = python_for(user, binaries.directory)
    if python is None:
        pytest.skip("an ordinary user can run no interpreter with flowpg in reach on this machine")
    os.chown(open_path, user.pw_uid, user.pw_gid)
    owner = start_owner(open_path / "pg", binaries.directory, python=python, user=user)
    try:
        owner.read()
        started = owner.read()
        assert started["uid"] == user.pw_uid
        assert Path(f"/proc/{started['server']}").stat().st_uid == user.pw_uid
        assert owners_below(open_path / "pg") == {user.pw_uid}
        execute(started["dsn"], "CREATE TABLE kept AS SELECT 7 AS n")
        owner.kill()
        until_gone(started["server"])
    finally:
        owner.close()
    # Root takes it over without taking it away.
    with EmbeddedPostgres(open_path / "pg", binaries=binaries) as server:
        assert value(server.dsn, "SELECT n FROM kept") == 7
    assert owners_below(open_path / "pg" / "data") == {user.pw_uid}


def test_an_ordinary_user_is_told_that_a_directory_is_not_its_own(
    open_path: Path, binaries: Binaries
) -> None:
    user = ordinary_user()
    python = python_for(user, binaries.directory)
    if python is None:
        pytest.skip("an ordinary user can run no interpreter with flowpg in reach on this machine")
    owner = start_owner(open_path / "pg", binaries.directory, python=python, user=user)
    owner.read()
    with pytest.raises(AssertionError, match="cannot hold the embedded server: Permission denied"):
        owner.read()
    owner.close()


def test_root_in_a_user_namespace_keeps_its_files(tmp_path: Path, binaries: Binaries) -> None:
    if not identity.has_user_namespaces():
        pytest.skip("this system gives no user namespaces")
    with EmbeddedPostgres(tmp_path / "pg", binaries=binaries) as server:
        assert choose_identity(server.directory).mode == "namespace"
        assert owners_below(server.directory) == {0}


@pytest.mark.usefixtures("no_namespaces")
def test_root_without_user_namespaces_becomes_another_user(
    open_path: Path, binaries: Binaries
) -> None:
    chosen = choose_identity(open_path / "pg")
    assert (chosen.mode, pwd.getpwuid(chosen.uid).pw_name in ("postgres", "nobody")) == (
        "setuid",
        True,
    )
    with EmbeddedPostgres(open_path / "pg", binaries=binaries) as server:
        assert Path(f"/proc/{server.pid}").stat().st_uid == chosen.uid
        execute(server.dsn, "CREATE TABLE kept AS SELECT 7 AS n")
    with EmbeddedPostgres(open_path / "pg", binaries=binaries, tcp_port=0) as server:
        assert value(server.tcp_dsn, "SELECT n FROM kept") == 7


@pytest.mark.usefixtures("no_namespaces")
def test_a_throwaway_server_works_without_user_namespaces(binaries: Binaries) -> None:
    with EmbeddedPostgres(throwaway=True, binaries=binaries) as server:
        assert value(server.dsn, "SELECT 1") == 1
        directory = server.directory
    assert not directory.exists()


def test_a_directory_made_with_user_namespaces_works_without_and_back(
    open_path: Path, binaries: Binaries, monkeypatch: pytest.MonkeyPatch
) -> None:
    with EmbeddedPostgres(open_path / "pg", binaries=binaries) as server:
        execute(server.dsn, "CREATE TABLE kept AS SELECT 7 AS n")
    with monkeypatch.context() as patch:
        patch.setattr(identity, "has_user_namespaces", lambda: False)
        with EmbeddedPostgres(open_path / "pg", binaries=binaries) as server:
            assert value(server.dsn, "SELECT n FROM kept") == 7
    with EmbeddedPostgres(open_path / "pg", binaries=binaries) as server:
        assert value(server.dsn, "SELECT n FROM kept") == 7


@pytest.mark.usefixtures("no_namespaces")
def test_a_place_the_other_user_cannot_reach_is_refused_with_a_sentence(
    tmp_path: Path, binaries: Binaries
) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    with pytest.raises(EmbeddedServerError, match="cannot reach"):
        EmbeddedPostgres(closed / "pg", binaries=binaries).start()
    assert closed.stat().st_mode & 0o777 == 0o700


def test_a_user_without_a_name_gets_one_in_a_namespace(
    open_path: Path, binaries: Binaries, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 54321)
    chosen = choose_identity(open_path)
    assert (chosen.mode, chosen.uid) != ("same", 54321)
    assert pwd.getpwuid(chosen.uid).pw_uid == chosen.uid


def test_a_server_that_runs_as_another_user_ends_with_its_killed_owner_too(
    open_path: Path, binaries: Binaries
) -> None:
    user = ordinary_user()
    (open_path / "pg").mkdir()
    os.chown(open_path / "pg", user.pw_uid, user.pw_gid)
    owner = start_owner(open_path / "pg", binaries.directory)
    try:
        assert owner.read()["owner"] == owner.process.pid
        started = owner.read()
        assert started["uid"] == 0
        assert Path(f"/proc/{started['server']}").stat().st_uid == user.pw_uid
        owner.kill()
        until_gone(started["server"])
    finally:
        owner.close()
