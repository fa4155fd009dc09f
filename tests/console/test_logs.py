"""What the commands that go on for long log, each in a process of its own."""

import subprocess
import sys

import pytest

PROGRAM = """
import logging, sys
from flowpg.console.logs import log_to_stderr
log_to_stderr(sys.argv[1])
for name in ("alembic.runtime.plugins", "flowpg", "shop"):
    logging.getLogger(name).info("setting up")
    logging.getLogger(name).warning("look here")
"""


@pytest.mark.parametrize(
    ("level", "infos", "warnings"),
    [
        ("DEBUG", ["alembic.runtime.plugins", "flowpg", "shop"], 3),
        ("INFO", ["flowpg", "shop"], 3),
        ("ERROR", [], 0),
    ],
)
def test_what_alembic_sets_up_is_told_to_those_only_who_ask_for_everything(
    level: str, infos: list[str], warnings: int
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, level], capture_output=True, text=True, check=True
    )
    lines = [line.split(maxsplit=4)[2:] for line in done.stderr.splitlines()]
    assert [name for _, name, said in lines if said == "setting up"] == infos
    assert [said for _, _, said in lines].count("look here") == warnings
