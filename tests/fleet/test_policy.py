"""The policy of tasks: what is refused, and what of it reaches the queue."""

from datetime import timedelta
from typing import Any

import pytest

from flowpg.errors import InvalidArgument
from flowpg.fleet.policy import DEFAULT_POLICY, TaskDeduplication, TaskPolicy

SECOND = timedelta(seconds=1)


@pytest.mark.parametrize(
    "choice",
    [
        {"attempts": 0},
        {"retry_delay": -SECOND},
        {"timeout": timedelta(0)},
        {"max_stalled_count": -1},
        {"deduplication": TaskDeduplication.UNTIL_TERMINAL_OR_TTL},
        {
            "deduplication": TaskDeduplication.UNTIL_TERMINAL_OR_TTL,
            "deduplication_ttl": timedelta(0),
        },
        {"deduplication_ttl": SECOND},
    ],
)
def test_a_policy_that_makes_no_sense_is_refused(choice: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        TaskPolicy(**choice)


def test_without_a_choice_a_task_is_tried_once_and_may_stall_once() -> None:
    options = DEFAULT_POLICY.options("resume_wait")
    assert (options["max_attempts"], options["max_stalled"]) == ("1", "1")
    assert (options["dedupe_mode"], options["keep"]) == ("off", "false")


@pytest.mark.parametrize(
    ("kind", "mode"),
    [
        ("resume_hook", "until_terminal"),
        ("resume_wait", "until_terminal"),
        ("resume_scheduled_run", "keep_latest"),
        ("resume_due_waits", "keep_latest"),
        ("resume_due_retries", "keep_latest"),
        ("drive_run", "off"),
    ],
)
def test_a_scan_that_is_asked_for_again_while_it_is_at_work_is_made_once_more(
    kind: str, mode: str
) -> None:
    policy = TaskPolicy(deduplication=TaskDeduplication.UNTIL_TERMINAL)
    assert policy.options(kind)["dedupe_mode"] == mode
