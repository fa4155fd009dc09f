"""Who is measured. Nothing is imported before it is asked for: a worker process of one engine must
not carry the others in its memory."""

from __future__ import annotations

import importlib
from typing import cast

from benchmarks.harness.contestant import Contestant

MODULES = {
    "flowpg": "benchmarks.ours.contestant",
    "absurd": "benchmarks.peers.absurd",
    "dbos": "benchmarks.peers.dbos",
}
PEERS = ("absurd", "dbos")


def contestant(name: str) -> Contestant:
    """A contestant by name. Raises KeyError. Its package is imported once it is used."""
    return cast("Contestant", importlib.import_module(MODULES[name]).CONTESTANT)
