"""The types of steps and workflows, as mypy and pyright see them."""

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CASES = ROOT / "tests" / "authoring" / "typing_cases.py"


def check(source: Path) -> str:
    """What mypy says about a file, under the settings of the project."""
    command = [sys.executable, "-m", "mypy", "--no-error-summary", str(source)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout


def test_what_must_type_check_does_and_what_must_not_does_not() -> None:
    # The cases that must not carry an ignore, and an ignore that is not needed is an error.
    assert check(CASES) == ""


def test_every_ignore_among_the_cases_is_needed(tmp_path: Path) -> None:
    source = CASES.read_text()
    bare = tmp_path / "bare_cases.py"
    bare.write_text("\n".join(line.split("  # type: ignore")[0] for line in source.splitlines()))
    errors = [line for line in check(bare).splitlines() if ": error:" in line]
    lines = {line.split(":")[1] for line in errors}
    assert len(lines) == source.count("# type: ignore[")


def test_pyright_agrees_with_mypy(tmp_path: Path) -> None:
    if importlib.util.find_spec("basedpyright") is None:
        pytest.skip("basedpyright is not installed: pip install basedpyright")
    settings = {
        "include": [str(CASES)],
        "extraPaths": [str(ROOT)],
        "typeCheckingMode": "standard",  # that of pyright itself
        "pythonVersion": "3.11",
        "enableTypeIgnoreComments": False,
    }
    config = tmp_path / "pyrightconfig.json"
    config.write_text(json.dumps(settings))
    command = [sys.executable, "-m", "basedpyright", "--outputjson", "-p", str(config)]
    command += ["--pythonpath", sys.executable]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    found = json.loads(done.stdout)["generalDiagnostics"]
    errors = {one["range"]["start"]["line"] + 1 for one in found if one["severity"] == "error"}
    lines = CASES.read_text().splitlines()
    ignored = {number for number, line in enumerate(lines, 1) if re.search(r"# type: ignore", line)}
    assert errors == ignored
