"""The wheel holds everything an installation needs, and finds it."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from flowpg import resources

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel of this tree, built offline."""
    target = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(target)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    return next(target.glob("*.whl"))


def files_below(directory: Path) -> set[str]:
    """The names of all files that belong to a directory of the tree."""
    return {
        path.relative_to(ROOT).as_posix()
        for path in directory.rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }


def test_the_wheel_holds_the_sql_and_the_migrations(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    wanted = {f"flowpg/{name}" for top in ("sql", "migrations") for name in files_below(ROOT / top)}
    assert wanted
    assert wanted - names == set()


def test_the_wheel_holds_the_package_and_its_type_marker_and_nothing_else(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    assert files_below(ROOT / "flowpg") - names == set()
    assert "flowpg/py.typed" in names
    assert {name.split("/")[0] for name in names} == {"flowpg", "flowpg-0.1.0.dist-info"}


def test_the_wheel_has_the_command_and_the_licence(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    assert "flowpg = flowpg.console.main:app" in archive.read(
        "flowpg-0.1.0.dist-info/entry_points.txt"
    ).decode().replace("'", "")
    assert "flowpg-0.1.0.dist-info/licenses/LICENSE" in archive.namelist()


def test_an_unpacked_wheel_finds_its_own_sql_and_migrations(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path)
    script = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from flowpg.resources import migrations_root, sql_root\n"
        "print(sql_root(), migrations_root(), sep='\\n')"
    )
    said = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)],
        cwd=tmp_path,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    assert said.splitlines() == [
        str(tmp_path / "flowpg" / "sql"),
        str(tmp_path / "flowpg" / "migrations"),
    ]


def test_a_clone_finds_the_directories_at_its_top() -> None:
    assert resources.sql_root() == ROOT / "sql"
    assert resources.migrations_root() == ROOT / "migrations"


def test_an_incomplete_installation_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A directory of somebody else's beside the package is not taken for ours.
    (tmp_path / "sql").mkdir()
    monkeypatch.setattr(resources, "_PACKAGE", tmp_path / "flowpg")
    with pytest.raises(FileNotFoundError, match="install flowpg again"):
        resources.sql_root()


def test_the_sdist_builds_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-d", str(tmp_path)]
    subprocess.run([*build, "-t", "sdist"], cwd=ROOT, check=True, capture_output=True)
    shutil.unpack_archive(next(tmp_path.glob("*.tar.gz")), tmp_path)
    unpacked = tmp_path / "flowpg-0.1.0"
    subprocess.run([*build, "-t", "wheel"], cwd=unpacked, check=True, capture_output=True)
    again = zipfile.ZipFile(next(tmp_path.glob("*.whl"))).namelist()
    assert set(again) == set(zipfile.ZipFile(wheel).namelist())
