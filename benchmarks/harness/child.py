"""A worker process of one contestant: ``python -m benchmarks.harness.child NAME OPTIONS``."""

from __future__ import annotations

import json
import sys

from benchmarks.catalog import contestant
from benchmarks.harness.contestant import WorkerOptions


def main() -> None:
    """Serve until SIGTERM."""
    contestant(sys.argv[1]).serve(WorkerOptions(**json.loads(sys.argv[2])))


if __name__ == "__main__":
    main()
