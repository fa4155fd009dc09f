"""The set that ``make bench`` runs: every question, small enough for about ten minutes in all."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.contestants import PEERS, contestant
from benchmarks.harness.chart import draw
from benchmarks.harness.report import table

RESULTS = Path(__file__).resolve().parent / "results"

_BOTH = "absurd,dbos"
SET: tuple[tuple[str, str, str], ...] = (
    ("append, 50 runs a call", "append --batch 50,1,200 --connections 1,4 --seconds 0.7", ""),
    ("due scan of 500 among 10,000", "due-scan --rows 10000 --churn 0", ""),
    ("due scan of 500 among 1 million", "due-scan --rows 1000000 --repeats 1", ""),
    ("the same, old snapshot", "due-scan --rows 1000000 --repeats 1 --old-snapshot", ""),
    ("claim of 500 among 10,000", "claim --rows 10000", ""),
    ("claim of 500 among 1 million", "claim --rows 1000000 --repeats 1", ""),
    ("the same, old snapshot", "claim --rows 1000000 --repeats 1 --old-snapshot", ""),
    ("token among 1 million", "token-lookup --repeats 1", ""),
    ("claim and release", "claim-complete --repeats 2", ""),
    ("start many", "start-many", _BOTH),
    ("workflows, 0 steps", "workflows --steps 0", _BOTH),
    ("workflows, 1 step", "workflows --steps 1", _BOTH),
    ("workflows, 5 steps", "workflows --steps 5 --repeats 2", _BOTH),
    ("workflows, 10 steps", "workflows --steps 10", _BOTH),
    ("the same, 2 workers", "workflows --steps 10 --workers 2", _BOTH),
    (
        "10 steps of 0 to 20 ms, 500 in flight",
        "workflows --steps 10 --sleep-ms 20 --in-flight 500 --repeats 2",
        "absurd",
    ),
    ("latency of one step", "latency --runs 30 --repeats 2", _BOTH),
    ("hook to the step after it", "hook-latency --runs 40 --repeats 2", _BOTH),
    ("10,000 timers at once", "timers --runs 10000 --repeats 1", "absurd"),
    ("100 steps at once", "fan-out --steps 100 --repeats 2", _BOTH),
    ("1,000 steps at once", "fan-out --steps 1000 --repeats 2", ""),
    ("10,000 steps in one run, last/first tenth", "long-run --steps 10000 --repeats 1", ""),
    ("durable asyncio by a hand-written runtime", "front-end", ""),
    ("worker killed with 100 runs", "recovery --repeats 1", _BOTH),
    ("idle worker", "idle --repeats 1 --seconds 20", _BOTH),
    ("bytes kept a workflow", "storage --repeats 1", _BOTH),
)
"""Label, command, and the peers it is measured beside."""


def main(arguments: Sequence[str], answer: Callable[[str, Sequence[str]], str]) -> int:
    """Run the set and write results, table and chart into ``--into``. ``answer`` runs one question
    with its options and returns its line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks set", description=__doc__)
    parser.add_argument("--into", type=Path, default=RESULTS, help="directory of the results")
    parser.add_argument("--peers", default=_BOTH, help="comma list; empty for none")
    parser.add_argument("--only", default="", help="questions to run, comma list")
    chosen = parser.parse_args(arguments)
    wanted = {name for name in chosen.peers.split(",") if name}
    only = {name for name in chosen.only.split(",") if name}
    for name in (peer for peer in PEERS if peer in wanted):
        if reason := contestant(name).missing():
            print(f"{name} is left out: {reason}", file=sys.stderr)
    rows: list[tuple[str, dict[str, Any]]] = []
    began = time.monotonic()
    failed = 0
    for label, command, peers in SET:
        question, *options = command.split()
        if only and question not in only:
            continue
        beside = ",".join(peer for peer in peers.split(",") if peer in wanted)
        print(f"{time.monotonic() - began:5.0f} s  {label}", file=sys.stderr)
        try:
            line = answer(question, [*options, "--peers", beside])
        except (RuntimeError, SystemExit) as error:
            # One that fails must not take the others' answers with it.
            print(f"        failed: {error}", file=sys.stderr)
            failed += 1
            continue
        print(line)
        rows.append((label, json.loads(line)))
    write(rows, chosen.into)
    return 1 if failed else 0


def write(rows: Sequence[tuple[str, dict[str, Any]]], into: Path) -> None:
    """Write the results, the table and the chart."""
    into.mkdir(parents=True, exist_ok=True)
    lines = (json.dumps({"label": label, **result}) + "\n" for label, result in rows)
    (into / "results.jsonl").write_text("".join(lines), encoding="utf-8")
    (into / "README.md").write_text(table(rows), encoding="utf-8")
    chart = draw(rows, "flowpg beside its peers: times better")
    (into / "chart.svg").write_text(chart, encoding="utf-8")
