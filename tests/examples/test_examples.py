"""Every example runs against a real server and does what its first line says."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

EXPECTED: dict[str, Any] = {
    "sequential_steps": {"name": "Ada", "receipt": "charged 4200 cents"},
    "batch_steps": {"users": 5, "orders": 6, "stock": 5},
    "compensation": {"booked": False, "released": "12A"},
    "retry_backoff": {"after_start": "suspended", "attempts": 3},
    "recoverable_step_failure": {"source": "cached", "report": "yesterday's numbers"},
    "hook_approval": {
        "kind": "human_approval",
        "wrong": "approved should be true or false",
        "late": "refused",
        "status": "approved",
    },
    "hook_disposal": {"late": "refused", "status": "withdrawn"},
    "polling_loop": {"rounds": 3},
    "cancellation": {
        "status": ["cancelled", "cancelled"],
        "reason": ["the customer left", "the building burns"],
        "cleaned_up": [True, False],
    },
    "run_inspection": {
        "status": ["suspended", "suspended", "cancelled"],
        "waits_for": [["wait"], ["hook"], []],
        "listed": True,
        "at_least_two_open": True,
        "a_wakeup_is_planned": True,
        "history": ["flow.run.created", "flow.run.started", "flow.hook.created"],
    },
    "durable_asyncio": "bought from Oak for 306 cents",
    "plain_workflow": (
        ["piano: 500 g", "book: 400 g", "tea: 300 g"],
        {"parcels": 3, "grams": 1200},
    ),
    "transactional_step": {"left": 200, "second": "ada does not have 800 cents"},
    "step_timeouts": {"attempt": 2, "began_at": 3, "oracle": "no answer"},
    "durability": {"between": "suspended", "end": "completed"},
}
NOT_ALONE = {"__init__", "demo", "invoice_approval", "invoice_workflow"}  # see test_demo


@pytest.mark.parametrize("name", sorted(EXPECTED))
async def test_the_example_runs_and_ends_as_it_says(
    name: str, database_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLOWPG_DSN", database_dsn)
    module = importlib.import_module(f"examples.{name}")
    assert await module.main() == EXPECTED[name]


def test_every_example_file_is_run_by_a_test() -> None:
    files = {path.stem for path in Path("examples").glob("*.py")}
    assert files - NOT_ALONE == set(EXPECTED)
