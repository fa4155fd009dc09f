"""Several runs that want each other's tokens, made at random: kept in memory, replayed at every
turn, put aside between appends, with others writing in between, with a database that fails, and in
processes that die. No token has two owners, and whatever happened is replayed to the same end."""

import asyncio
import os

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flowpg.authoring.app import FlowApp
from flowpg.model.events import FlowEventEnvelope
from flowpg.testing import Fault, Faults, replay
from flowpg.testing.faults import Interference, Mishap, every_fault
from flowpg.testing.programs import Program
from tests.authoring.contenders import contests, declare, happenings
from tests.authoring.contest import check_owners, lines, played

STORM = bool(os.environ.get("FLOWPG_STORM"))


@settings(
    max_examples=1000 if STORM else 20,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(contests(), happenings(), st.integers(0, 1000))
def test_a_contest_ends_the_same_however_its_runs_were_kept(
    contest: list[Program], happening: list[tuple[str, int]], seed: int
) -> None:
    asyncio.run(_check(contest, happening, seed))


@settings(
    max_examples=50 if STORM else 2,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(contests(), happenings())
def test_a_contest_is_replayed_whenever_its_process_died(
    contest: list[Program], happening: list[tuple[str, int]]
) -> None:
    asyncio.run(_die_everywhere(contest, happening))


async def _check(contest: list[Program], happening: list[tuple[str, int]], seed: int) -> None:
    kept = await played(contest, happening)
    check_owners(kept)
    replayed = await played(contest, happening, always_replay=True)
    assert lines(kept) == lines(replayed)
    evicted = await played(contest, happening, evictions=seed)
    assert lines(kept) == lines(evicted)
    await _replay(contest, kept)
    mishaps: list[tuple[Mishap, bool]] = [(Interference(seed), False), (Interference(seed), True)]
    mishaps += [(Faults(1 + seed % 30, fault), False) for fault in Fault]
    for mishap, always_replay in mishaps:
        found = await played(contest, happening, faults=mishap, always_replay=always_replay)
        check_owners(found)
        await _replay(contest, found)


async def _die_everywhere(contest: list[Program], happening: list[tuple[str, int]]) -> None:
    async for faults in every_fault(Fault.DIES_BEFORE, Fault.DIES_AFTER):
        found = await played(contest, happening, faults=faults)
        check_owners(found)
        await _replay(contest, found)


async def _replay(contest: list[Program], histories: list[list[FlowEventEnvelope]]) -> None:
    for history in histories:
        fresh = FlowApp("contest")
        declare(fresh, contest)
        await replay(fresh, history)
