"""What is published stays as it was published."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import psycopg
import pytest

from flowpg.errors import MigrationFailed
from flowpg.postgres.manifest import statements
from flowpg.postgres.migrate import upgrade
from flowpg.postgres.revisions import FIRST, load_release
from flowpg.postgres.schema_check import read_catalog
from flowpg.resources import migrations_root
from migrations.freeze import freeze, pin

# Every revision that a release has carried, with its digest. Lines are added at a release and never
# changed: databases hold these digests in flow_migrations.
PUBLISHED: dict[str, str] = {}

FROZEN = (
    "CREATE TABLE flow_migrations (version text, sha256 text); CREATE TABLE flow_more (a int);\n"
)


def test_what_every_revision_runs_matches_its_pin() -> None:
    release = load_release()
    assert release.revisions
    assert release.damage() is None
    modules = {path.stem for path in (release.root / "versions").glob("[0-9]*.py")}
    assert modules == {revision.name for revision in release.revisions}


def test_the_first_revision_is_all_of_sql_until_it_is_published() -> None:
    [first] = [r for r in load_release().revisions if r.version == "0001"]
    if not first.published:
        assert not first.path.exists()
        for path, text in statements():
            assert text.strip() in first.frozen_sql(), path


def test_published_revisions_are_the_ones_recorded_here() -> None:
    assert {r.name: r.sha256 for r in load_release().revisions if r.published} == PUBLISHED


def test_versions_are_numbered_without_gaps() -> None:
    versions = load_release().versions
    assert versions == tuple(f"{number:04}" for number in range(1, len(versions) + 1))


def test_frozen_sql_names_no_schema() -> None:
    for revision in load_release().revisions:
        code = re.sub(r"--.*|'[^']*'", "", revision.frozen_sql())
        assert not re.search(r"\bflowpg\.", code), revision.name


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    root = tmp_path / "migrations"
    shutil.copytree(migrations_root(), root)
    return root


def _file(root: Path) -> Path:
    return root / "versions" / "0001_core.sql"


def _publish(root: Path) -> None:
    pins = root / "revisions.txt"
    pins.write_text(pins.read_text().replace("  open  ", "  published  "))


def test_freezing_pins_an_open_revision_again(clone: Path) -> None:
    _file(clone).write_text("SELECT 1;\n")
    pin(clone)
    revision = load_release(clone).revision(FIRST)
    assert revision.frozen_sql() == "SELECT 1;\n"
    assert not revision.published


def test_freezing_writes_down_what_was_published_and_never_again(clone: Path) -> None:
    text = load_release(clone).revision(FIRST).frozen_sql()
    _publish(clone)
    pin(clone)
    assert _file(clone).read_text() == text
    assert load_release(clone).revision(FIRST).published
    assert load_release(clone).revision(FIRST).frozen_sql() == text


def test_freezing_refuses_when_a_published_file_was_changed(clone: Path) -> None:
    _publish(clone)
    pin(clone)
    pins = (clone / "revisions.txt").read_text()
    with _file(clone).open("a") as file:
        file.write("\n")
    with pytest.raises(ValueError, match="published and must not change"):
        pin(clone)
    assert (clone / "revisions.txt").read_text() == pins


def test_freezing_refuses_when_a_published_revision_is_gone(clone: Path) -> None:
    _publish(clone)
    (clone / "versions" / "0001_core.py").unlink()
    with pytest.raises(ValueError, match="are gone"):
        pin(clone)


def test_the_pinned_catalog_is_what_the_revisions_make(empty_database_dsn: str) -> None:
    upgrade(empty_database_dsn)
    with psycopg.connect(empty_database_dsn) as connection:
        made = read_catalog(connection, "flowpg", load_release())
    assert made == load_release().catalog, "run `python -m migrations.freeze`"


def test_freezing_sql_that_does_not_run_changes_nothing(
    clone: Path, empty_database_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def contents() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in sorted(clone.rglob("*.[ts]*"))}

    monkeypatch.setenv("FLOWPG_FREEZE_DSN", empty_database_dsn)
    _file(clone).write_text("SELECT 1 / 0;\n")
    before = contents()
    with pytest.raises(MigrationFailed):
        freeze(clone)
    assert contents() == before
    _file(clone).write_text(FROZEN)
    freeze(clone)
    assert load_release(clone).revision(FIRST).frozen_sql() == FROZEN
    assert ("column", "flow_more.a") in load_release(clone).catalog
