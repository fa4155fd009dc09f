"""Every question answers with one line of JSON. Sizes are tiny and no time is looked at."""

import argparse
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.catalog import QUESTIONS, question
from benchmarks.contestants import PEERS, contestant
from benchmarks.harness.bench import Bench
from benchmarks.harness.server import Server
from flowpg.testing.servers import PostgresServer

FIELDS = {
    *("name", "unit", "value", "repeats", "spread", "params", "peers", "limit", "more"),
    *("versions", "server", "machine", "date"),
}

TINY = {
    "append": "--batch 3,1 --connections 2 --seconds 0.05",
    "due-scan": "--rows 60 --limit 5 --churn 10 --old-snapshot",
    "claim": "--rows 60 --limit 5 --churn 10 --old-snapshot",
    "token-lookup": "--rows 50 --lookups 5",
    "claim-complete": "--rows 40 --batch 5 --connections 2 --seconds 5",
    "workflows": "--steps 2 --runs 5",
    "start-many": "--runs 50",
    "latency": "--runs 2 --rest-ms 1",
    "hook-latency": "--runs 2 --rest-ms 1",
    "timers": "--runs 5",
    "fan-out": "--steps 4 --runs 2",
    "long-run": "--steps 20",
    "recovery": "--runs 3 --lease 1",
    "idle": "--seconds 0.2 --rest 0",
    "storage": "--steps 2 --runs 10",
    "front-end": "--steps 2 --runs 2 --rounds 1",
}
"""Options that make a question small. ``profile`` needs a server of its own and is tested apart."""


Ask = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def ask(pg_server: PostgresServer) -> Iterator[Ask]:
    """The decoded answer of a question, asked once: on one server, so one schema is installed."""
    answers: dict[tuple[str, ...], dict[str, Any]] = {}
    with Server(pg_server.admin_dsn) as server:

        def answer(name: str, *peers: str) -> dict[str, Any]:
            if (name, *peers) not in answers:
                known = question(name)
                parser = argparse.ArgumentParser()
                known.module.options(parser)
                beside = [contestant(peer) for peer in peers]
                bench = Bench(name, server, contestant("flowpg"), beside, repeats=1)
                line = known.module.run(bench, parser.parse_args(TINY[name].split())).line()
                assert "\n" not in line
                answers[(name, *peers)] = json.loads(line)
            return answers[(name, *peers)]

        yield answer


def test_there_is_a_tiny_form_of_every_question() -> None:
    assert set(TINY) == set(QUESTIONS) - {"profile"}


@pytest.mark.parametrize("name", TINY)
def test_a_question_answers_with_one_line(name: str, ask: Ask) -> None:
    answer = ask(name)

    assert set(answer) == FIELDS
    assert answer["name"] == name
    assert answer["value"] > 0 or name == "idle"
    assert answer["repeats"] == 1
    assert answer["machine"]["python"]
    assert answer["server"]["version"]


def test_the_limit_is_measured_beside_the_appends(ask: Ask) -> None:
    answer = ask("append")

    assert answer["limit"]["value"] > 0
    assert answer["limit"]["share"] > 0


def test_no_step_of_a_recovered_run_that_had_completed_runs_again(ask: Ask) -> None:
    answer = ask("recovery")

    assert answer["more"]["completed"] == 3
    assert answer["more"]["ran_again"] == 0


@pytest.mark.parametrize("name", ["workflows", "hook-latency", "fan-out"])
@pytest.mark.parametrize("peer", PEERS)
def test_a_peer_does_the_same_work(peer: str, name: str, ask: Ask) -> None:
    if reason := contestant(peer).missing():
        pytest.skip(f"{peer}: {reason}")

    found = ask(name, peer)["peers"][peer]

    assert found["value"] > 0
    assert found["ratio"] > 0
    assert found["settings"]


def test_the_profile_tells_both_sides_apart(tmp_path: Path) -> None:
    # It needs settings that only a server of its own has.
    known = question("profile")
    parser = argparse.ArgumentParser()
    known.module.options(parser)
    chosen = parser.parse_args(["--steps", "2", "--runs", "10", "--into", str(tmp_path)])
    with Server(settings=known.settings) as server:
        bench = Bench("profile", server, contestant("flowpg"), repeats=1)

        known.module.run(bench, chosen)

    told = (tmp_path / "profile.txt").read_text()
    assert "flow_append_many" in told
    assert "garbage collection" in told
