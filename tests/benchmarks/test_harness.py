"""Medians, ratios, tables and charts; peers that are not there; processes that fail."""

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks import cli, whole_set
from benchmarks.catalog import QUESTIONS
from benchmarks.contestants import PEERS, contestant
from benchmarks.harness.bench import Bench
from benchmarks.harness.contestant import Worker, WorkerOptions
from benchmarks.harness.lanes import run_lanes
from benchmarks.harness.ledger import Ledger, read
from benchmarks.harness.result import Sample, percentile, ratio
from benchmarks.harness.server import Server
from benchmarks.recovery import ran_twice
from flowpg.testing.servers import PostgresServer


def without_packages(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """As if these were not installed."""
    find: Callable[[str], Any] = importlib.util.find_spec

    def hide(name: str, package: str | None = None) -> Any:
        return None if name in names else find(name)

    monkeypatch.setattr(importlib.util, "find_spec", hide)


def test_the_list_names_every_question(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--list"]) == 0

    listed = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert listed == [*QUESTIONS, "set"]


def test_an_unknown_question_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["why"])

    assert "no question 'why'" in capsys.readouterr().err


def test_a_ratio_above_one_is_better_whatever_the_unit() -> None:
    assert ratio(200.0, 100.0, higher_is_better=True) == 2
    assert ratio(5.0, 10.0, higher_is_better=False) == 2
    assert ratio(5.0, 0.0, higher_is_better=False) is None


def test_a_percentile_is_one_of_the_values() -> None:
    assert percentile([3.0, 1.0, 2.0], 0.5) == 2
    assert percentile([3.0, 1.0, 2.0], 0.99) == 3


def test_ratios_are_medians_of_the_ratios_within_the_rounds(
    monkeypatch: pytest.MonkeyPatch, pg_server: PostgresServer
) -> None:
    # The machine gets ten times slower in the last round: for both, so the ratio stays.
    values = {"flowpg": iter([100.0, 100.0, 10.0]), "absurd": iter([50.0, 50.0, 5.0])}
    peer = contestant("absurd")
    monkeypatch.setattr(peer, "missing", lambda: None)
    monkeypatch.setattr(peer, "install", lambda dsn: None)
    monkeypatch.setattr(contestant("flowpg"), "install", lambda dsn: None)
    with Server(pg_server.admin_dsn) as server:
        bench = Bench("x", server, contestant("flowpg"), [peer])

        result = bench.compare(
            lambda who, dsn: Sample(next(values[who.name])),
            unit="steps/s",
            higher_is_better=True,
            params={},
        )

    assert result.value == 100
    assert result.spread == (10, 100)
    assert result.peers["absurd"]["ratio"] == 2


def test_a_peer_that_is_not_installed_is_reported_as_such(
    monkeypatch: pytest.MonkeyPatch, pg_server: PostgresServer
) -> None:
    without_packages(monkeypatch, "dbos", "absurd_sdk")
    monkeypatch.setattr(contestant("flowpg"), "install", lambda dsn: None)
    with Server(pg_server.admin_dsn) as server:
        bench = Bench("x", server, contestant("flowpg"), [contestant(peer) for peer in PEERS])

        result = bench.compare(
            lambda who, dsn: Sample(1.0), unit="s", higher_is_better=False, params={}
        )

    for peer in PEERS:
        assert result.peers[peer]["value"] is None
        assert "pip install" in result.peers[peer]["missing"]


def test_a_worker_that_cannot_start_is_an_error(pg_server: PostgresServer) -> None:
    nowhere = pg_server.dsn_of("no_such_database")

    with pytest.raises(RuntimeError, match="did not get ready"):
        Worker(contestant("flowpg"), WorkerOptions(nowhere))


def test_an_error_in_one_lane_ends_all_of_them() -> None:
    def lane(number: int, ready: Callable[[], None]) -> None:
        if number == 1:
            raise ValueError("no")
        ready()

    with pytest.raises(ValueError, match="no"):
        run_lanes(3, lane)


def test_steps_that_had_completed_are_told_from_interrupted_ones(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    ledger = Ledger(str(path))
    for run, step in (
        *(("a", "step-0"), ("a", "step-1"), ("a", "step-1"), ("a", "step-2")),
        *(("b", "step-0"), ("b", "step-1"), ("b", "step-0")),
    ):
        ledger.note(run, step)

    again, interrupted = ran_twice(read(path))

    assert (again, interrupted) == (1, 1)


def test_the_set_asks_only_questions_that_exist_and_options_they_have() -> None:
    for _, command, peers in whole_set.SET:
        name, *options = command.split()
        assert name in QUESTIONS
        assert {peer for peer in peers.split(",") if peer} <= set(PEERS)
        cli.parser_of(name).parse_args([*options, "--peers", peers])


def test_results_become_lines_a_table_and_a_chart(tmp_path: Path) -> None:
    result: dict[str, Any] = {
        "name": "workflows",
        "unit": "steps/s",
        "value": 1234.0,
        "repeats": 3,
        "spread": [1200.0, 1300.0],
        "params": {},
        "peers": {
            "absurd": {"value": 100.0, "ratio": 12.34},
            "dbos": {"value": None, "ratio": None, "missing": "not installed"},
        },
        "limit": {"value": 2468.0, "share": 0.5},
        "more": {},
        "versions": {"flowpg": "0.1.0"},
        "server": {"version": "18", "kind": "embedded", "fsync": "on", "shared_buffers": "128MB"},
        "machine": {
            "cpu": "a <fast> one",
            "cores": 2,
            "memory_gib": 4.0,
            "system": "Linux",
            "python": "3.11",
        },
        "date": "2030-01-01T00:00Z",
    }

    whole_set.write([("ten steps", result)], tmp_path)

    assert json.loads((tmp_path / "results.jsonl").read_text())["label"] == "ten steps"
    assert "| ten steps | 1,234 steps/s |" in (tmp_path / "README.md").read_text()
    chart = (tmp_path / "chart.svg").read_text()
    assert chart.startswith("<svg")
    assert "times absurd" in chart
    assert "times dbos" not in chart


def test_a_worker_of_a_peer_does_not_carry_flowpg_in_its_memory() -> None:
    source = Path("benchmarks/peers")

    for module in source.glob("*.py"):
        assert "flowpg" not in module.read_text()


def test_the_results_that_are_kept_are_of_this_set_and_told_as_they_are(tmp_path: Path) -> None:
    kept = whole_set.RESULTS
    lines = (kept / "results.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [(found.pop("label"), found) for found in map(json.loads, lines)]

    whole_set.write(rows, tmp_path)

    assert [label for label, _ in rows] == [label for label, _, _ in whole_set.SET]
    for name in ("README.md", "chart.svg"):
        assert (tmp_path / name).read_text() == (kept / name).read_text()
