"""Where a throwaway server lives."""

from pathlib import Path

import pytest

from flowpg.postgres import throwaway


@pytest.fixture(autouse=True)
def nowhere_in_particular(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Nobody said where temporary files go, and the memory is a directory of the test's own."""
    for name in ("TMPDIR", "TEMP", "TMP"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(throwaway, "MEMORY", tmp_path)
    return tmp_path


def test_it_lives_in_memory_where_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(throwaway, "room_in", lambda memory: throwaway.ROOM)
    made = throwaway.make_directory()
    assert made.parent == tmp_path
    assert made.stat().st_mode & 0o077 == 0


def test_it_lives_elsewhere_where_there_is_too_little(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(throwaway, "room_in", lambda memory: throwaway.ROOM - 1)
    made = throwaway.make_directory()
    assert made.parent != tmp_path
    made.rmdir()


def test_it_lives_where_temporary_files_are_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(throwaway, "room_in", lambda memory: throwaway.ROOM)
    wanted = tmp_path / "wanted"
    wanted.mkdir()
    monkeypatch.setenv("TMPDIR", str(wanted))
    monkeypatch.setattr("tempfile.tempdir", None)
    assert throwaway.make_directory().parent == wanted


def test_a_system_without_such_a_file_system_has_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(throwaway, "MEMORY", tmp_path / "missing")
    made = throwaway.make_directory()
    assert made.is_dir()
    made.rmdir()


def test_the_room_is_no_more_than_what_is_free(tmp_path: Path) -> None:
    assert throwaway.room_in(tmp_path) > 0
