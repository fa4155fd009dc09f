"""The command line: ``python -m benchmarks --list`` and ``python -m benchmarks NAME``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from benchmarks import whole_set
from benchmarks.catalog import QUESTIONS, question
from benchmarks.contestants import PEERS, contestant
from benchmarks.harness.bench import Bench
from benchmarks.harness.server import Server

_SET = "set"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one question and print its line; or list them; or run the whole set."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--list", action="store_true", help="name the questions and leave")
    parser.add_argument("name", nargs="?", help=f"a question, or `{_SET}` for the ten-minute set")
    first, rest = parser.parse_known_args(arguments)
    if first.list or first.name is None:
        print(_listing())
        return 0
    if first.name == _SET:
        return whole_set.main(rest, answer)
    if first.name not in QUESTIONS:
        parser.error(f"there is no question {first.name!r}; --list names them")
    print(answer(first.name, rest))
    return 0


def answer(name: str, arguments: Sequence[str]) -> str:
    """Run one question with its own options; returns its JSON line."""
    known = question(name)
    chosen = parser_of(name).parse_args(arguments)
    with Server(settings=known.settings) as server:
        bench = Bench(
            name=name,
            server=server,
            ours=contestant("flowpg"),
            peers=[contestant(peer) for peer in chosen.peers],
            repeats=chosen.repeats,
            verbose=chosen.verbose,
        )
        return known.module.run(bench, chosen).line()


def parser_of(name: str) -> argparse.ArgumentParser:
    """The options of one question, those of all questions included."""
    known = question(name)
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks {name}", description=known.asks)
    parser.add_argument("--repeats", type=int, default=3, help="rounds; medians are reported")
    parser.add_argument("--peers", type=_peers, default=(), help="comma list of: absurd, dbos")
    parser.add_argument("--verbose", action="store_true", help="each measurement on stderr")
    known.module.options(parser)
    return parser


def _peers(text: str) -> tuple[str, ...]:
    names = tuple(name for name in text.split(",") if name)
    for name in names:
        if name not in PEERS:
            raise argparse.ArgumentTypeError(f"no peer {name!r}: {', '.join(PEERS)}")
    return names


def _listing() -> str:
    width = max(map(len, QUESTIONS))
    lines = [f"{name:{width}}  {question(name).asks}" for name in QUESTIONS]
    return "\n".join([*lines, f"{_SET:{width}}  The ten-minute set: results, table and chart."])
