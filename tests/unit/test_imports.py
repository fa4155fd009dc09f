"""The package can be the first thing a process imports, before any module that pytest loads."""

from __future__ import annotations

import subprocess
import sys


def test_the_command_starts_from_nothing() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "flowpg", "--version"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("flowpg ")
