"""Which questions there are."""

from __future__ import annotations

import argparse
import importlib
from dataclasses import dataclass
from typing import Protocol, cast

from benchmarks.harness.bench import Bench
from benchmarks.harness.result import Result

QUESTIONS = {
    "append": "append",
    "due-scan": "due_scan",
    "claim": "claim",
    "token-lookup": "token_lookup",
    "claim-complete": "claim_complete",
    "workflows": "workflows",
    "start-many": "start_many",
    "latency": "latency",
    "hook-latency": "hook_latency",
    "timers": "timers",
    "fan-out": "fan_out",
    "long-run": "long_run",
    "recovery": "recovery",
    "idle": "idle",
    "storage": "storage",
    "front-end": "front_end",
    "profile": "profile",
}
"""Names of the questions, and the modules that answer them."""


class Question(Protocol):
    """A module that answers one question; the first line of its docstring is the question."""

    def options(self, parser: argparse.ArgumentParser) -> None:
        """Declare its own options."""
        ...

    def run(self, bench: Bench, chosen: argparse.Namespace) -> Result:
        """Measure."""
        ...


@dataclass(frozen=True)
class Known:
    """A question and what it asks."""

    module: Question
    asks: str
    settings: dict[str, str]
    """Settings of the server that it needs."""


def question(name: str) -> Known:
    """The module that answers ``name``. Raises KeyError."""
    module = importlib.import_module(f"benchmarks.{QUESTIONS[name]}")
    asks = (module.__doc__ or name).strip().splitlines()[0]
    return Known(cast("Question", module), asks, getattr(module, "SERVER_SETTINGS", {}))
