"""Histories that one Python writes for another to replay.

``python -m tests.behaviours.exchange write DIR SEED COUNT`` plays random programs and leaves each
in ``DIR`` beside its history; ``... replay DIR`` replays every history that is there over its
program, in whatever Python that runs in, and says how many there were.
"""

import asyncio
import json
import logging
import random
import sys
from pathlib import Path
from typing import Any

from flowpg import FlowApp, dump_history
from flowpg.testing import Fault, Faults, replay
from flowpg.testing.faults import Interference
from flowpg.testing.programs import LEAVES, OF_ONE, OF_SEVERAL, Program, declare, played

KINDS = (*LEAVES, *OF_SEVERAL, *OF_ONE)


def made(dice: random.Random, depth: int = 0) -> Program:
    """A program of at least two and at most five floors."""
    choices = (OF_SEVERAL, OF_SEVERAL, KINDS, KINDS, LEAVES)[depth]
    kind = dice.choice(choices)
    parts = dice.randint(1, 3) if kind in OF_SEVERAL else int(kind in OF_ONE)
    inner = tuple(made(dice, depth + 1) for _ in range(parts))
    return Program(kind, dice.randint(0, 4), inner)


def described(program: Program) -> list[Any]:
    """The program as JSON."""
    return [program.kind, program.number, [described(part) for part in program.parts]]


def of(description: list[Any]) -> Program:
    """The program that was described."""
    kind, number, parts = description
    return Program(kind, number, tuple(map(of, parts)))


async def write(directory: Path, seed: int, count: int) -> None:
    """Play ``count`` programs, half of them disturbed by other writers or by a death."""
    for number in range(count):
        dice = random.Random(f"{seed}/{number}")
        program = made(dice)
        happening = [dice.choice(("time", "answer", "evict")) for _ in range(dice.randint(0, 6))]
        mishap = dice.choice(
            (None, None, Interference(number), Faults(1 + number % 12, Fault.DIES_AFTER))
        )
        history = await played(program, happening, mishap, dice.random() < 0.5)
        name = directory / f"{seed}-{number}"
        name.with_suffix(".json").write_text(json.dumps(described(program)))
        name.with_suffix(".jsonl").write_text(dump_history(history))


async def replay_all(directory: Path) -> int:
    """Replay what is in the directory. NonDeterministic or AssertionError, with the program."""
    found = 0
    for path in sorted(directory.glob("*.json")):  # noqa: ASYNC240  nothing else runs here
        program = of(json.loads(path.read_text()))
        app = FlowApp("programs")
        declare(app, program)
        try:
            await replay(app, path.with_suffix(".jsonl"))
        except Exception as error:
            error.add_note(f"{path.name}: {program}")
            raise
        found += 1
    return found


def main() -> None:
    """Write or replay, as the command line says."""
    what, directory, *numbers = sys.argv[1:]
    logging.disable()  # programs fail on purpose
    if what == "write":
        seed, count = map(int, numbers)
        asyncio.run(write(Path(directory), seed, count))
    else:
        sys.stdout.write(f"{asyncio.run(replay_all(Path(directory)))} replayed\n")


if __name__ == "__main__":
    main()
