"""The garbage collector's pace in a worker, each in a process of its own."""

import subprocess
import sys

import pytest

CALMED = """
import gc
{before}
from flowpg.fleet.collector import calm_collector
pace, frozen = gc.get_threshold(), gc.get_freeze_count()
calm_collector()
slower = "as it was" if gc.get_threshold() == pace else gc.get_threshold()[0]
print(gc.isenabled(), slower, gc.get_freeze_count() > frozen)
"""


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", "True 50000 True"),
        ("gc.set_threshold(7_000)", "True as it was False"),
        ("gc.disable()", "False as it was False"),
    ],
    ids=["python's own pace", "a pace of the owner's", "switched off"],
)
def test_the_pace_becomes_slower_unless_the_owner_of_the_process_chose_one(
    before: str, after: str
) -> None:
    found = subprocess.run(
        [sys.executable, "-c", CALMED.format(before=before)],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert found.stdout.strip() == after
