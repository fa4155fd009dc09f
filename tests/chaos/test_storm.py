"""The storm: a short one for every run of the suite, and a long one with restarts."""

import os
from pathlib import Path

import pytest

from flowpg.testing.servers import PostgresServer
from tests.chaos.fleet import Journal
from tests.chaos.storm import Report, storm_on, storm_with_restarts
from tests.chaos.witness import Entry, repeats

SECONDS = "FLOWPG_STORM_SECONDS"
"""Environment variable: how long the weather lasts."""


@pytest.mark.timeout(240)
async def test_a_fleet_under_random_faults_loses_nothing_and_repeats_nothing(
    pg_server: PostgresServer, database: str, tmp_path: Path
) -> None:
    seconds = float(os.environ.get(SECONDS, "35"))
    _must_be_good(await storm_on(pg_server, database, tmp_path, seconds))


@pytest.mark.storm
@pytest.mark.timeout(0)
async def test_a_long_storm_with_restarts_of_the_server_loses_nothing_and_repeats_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    report = await storm_with_restarts(float(os.environ.get(SECONDS, "300")))
    with capsys.disabled():
        print(f"\n{report}")
    _must_be_good(report)


def _must_be_good(report: Report) -> None:
    assert report.started > 0
    assert report.good, str(report)


def _entry(worker: str, began: float, attempt: int = 1, result: str | None = "done") -> Entry:
    return Entry(worker, "run", "step", "work", attempt, began, began + 1, result)


@pytest.mark.parametrize(
    ("first", "second", "explained"),
    [
        (_entry("a", 10), _entry("b", 20), False),
        (_entry("a", 10, result="failed"), _entry("b", 20), False),
        (_entry("killed", 10), _entry("b", 50), True),
        (_entry("killed", 10), _entry("b", 20), False),
        (_entry("b", 10), _entry("killed", 20), False),
        (_entry("stalled", 31), _entry("b", 50), True),
        (_entry("a", 31), _entry("stalled", 50), True),
        (_entry("stalled", 10), _entry("b", 20), False),
        (_entry("briefly stalled", 31), _entry("b", 50), False),
    ],
)
def test_a_repetition_is_explained_by_a_crash_or_a_long_stall_of_its_workers_alone(
    first: Entry, second: Entry, explained: bool
) -> None:
    journal = Journal(
        killed={"killed": 40.0},
        stalls=[("stalled", 30.0, 37.0), ("briefly stalled", 30.0, 31.0)],
    )
    unexplained, count = repeats([first, second], journal.excuses)
    assert (unexplained, count) == (([], 1) if explained else ([(first, second)], 0))


def test_the_attempt_after_a_failure_on_purpose_is_no_repetition() -> None:
    pair = [_entry("a", 10, result="failed"), _entry("b", 20, attempt=2)]
    assert repeats(pair, Journal().excuses) == ([], 0)
