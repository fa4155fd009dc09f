"""Every module can be the first one a process imports."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "flowpg"
FIRST = sorted(
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
    for path in PACKAGE.glob("*/__init__.py")
) + ["flowpg", "flowpg.console.main", "flowpg.client"]


@pytest.mark.parametrize("module", [name.removesuffix(".__init__") for name in FIRST])
def test_the_module_can_be_imported_before_any_other(module: str) -> None:
    # A process of its own, without the modules that pytest has loaded already.
    done = subprocess.run(
        [sys.executable, "-c", f"import {module}"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_command_starts_from_nothing() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "flowpg", "--version"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("flowpg ")
