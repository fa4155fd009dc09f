"""A run goes on under another release of Python: what one wrote, every other replays.

The others are those that ``FLOWPG_TEST_PYTHONS`` names (paths, separated as in PATH), or each
``python3.N`` on the PATH that has what flowpg depends on.
"""

import asyncio
import functools
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.behaviours import exchange
from tests.behaviours.programs import PROGRAMS
from tests.behaviours.recording import record

ROOT = Path(__file__).parents[2]
COUNT = 400 if os.environ.get("FLOWPG_STORM") else 30


def run_by(python: str, *arguments: str) -> str:
    """What this code prints under another Python; a failed assertion if it fails there."""
    done = subprocess.run(
        [python, *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=110,
    )
    assert done.returncode == 0, f"{python}: {done.stderr[-3000:]}"
    return done.stdout


@functools.cache
def others() -> list[str]:
    """Pythons of other releases that can run flowpg."""
    named = os.environ.get("FLOWPG_TEST_PYTHONS")
    if named:
        return named.split(os.pathsep)
    found = [shutil.which(f"python3.{n}") for n in range(11, 20) if n != sys.version_info.minor]
    return [python for python in found if python is not None and _able(python)]


def _able(python: str) -> bool:
    done = subprocess.run(
        [python, "-c", "import flowpg.testing.programs"],
        cwd=ROOT,
        capture_output=True,
        check=False,
        timeout=60,
    )
    return done.returncode == 0


@pytest.fixture(name="others")
def _others() -> list[str]:
    if not others():
        pytest.skip("no other Python here has what flowpg needs; FLOWPG_TEST_PYTHONS names some")
    return others()


def test_a_program_has_one_history_under_every_python(others: list[str]) -> None:
    async def ours() -> str:
        return "".join([await record(name) for name in PROGRAMS])

    program = (
        "import asyncio; from tests.behaviours.recording import record, PROGRAMS\n"
        "async def all(): return ''.join([await record(name) for name in PROGRAMS])\n"
        "print(asyncio.run(all()), end='')"
    )
    kept = asyncio.run(ours())
    for other in others:
        assert run_by(other, "-c", program) == kept, other


def test_random_programs_are_replayed_by_whoever_did_not_write_them(
    others: list[str], tmp_path: Path
) -> None:
    seed = os.environ.get("FLOWPG_STORM_SEED", "1")
    module = "tests.behaviours.exchange"
    here = tmp_path / "here"
    here.mkdir()
    run_by(sys.executable, "-m", module, "write", str(here), seed, str(COUNT))
    for number, other in enumerate(others):
        there = tmp_path / str(number)
        there.mkdir()
        run_by(other, "-m", module, "write", str(there), seed, str(COUNT))
        assert asyncio.run(exchange.replay_all(there)) == COUNT
        assert run_by(other, "-m", module, "replay", str(here)) == f"{COUNT} replayed\n"
