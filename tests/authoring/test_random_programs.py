"""Programs made at random: kept in memory, replayed at every turn, put aside at random, with others
writing in between, and in processes that die. Whatever happened, a process that never saw the run
replays its history to the same end."""

import asyncio
import os

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from flowpg.testing.programs import Program, check_program, happenings, programs

MARK = Program("gather", 0, (Program("patch"),))


def claims(last: str) -> Program:
    """A token is asked for within its own block, beside a mark that a replay makes no call for."""
    inner = Program("claim", 0, (Program(last),))
    return Program("gather", 0, (MARK, Program("claim", 0, (inner,))))


@settings(
    max_examples=2000 if os.environ.get("FLOWPG_STORM") else 60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(programs(), happenings(), st.integers(0, 1000))
@example(claims("sleep"), [], 0)
@example(claims("step"), [], 0)
def test_a_program_ends_the_same_however_it_was_interrupted(
    program: Program, happening: list[str], seed: int
) -> None:
    asyncio.run(check_program(program, happening, seed))
