"""A worker process of one contestant: ``python -m benchmarks.harness.child NAME OPTIONS``."""

from __future__ import annotations

import json
import sys

from benchmarks.contestants import contestant
from benchmarks.harness.contestant import AT_READY, WorkerOptions
from benchmarks.harness.sampler import Sampler


def main() -> None:
    """Serve until SIGTERM."""
    options = WorkerOptions(**json.loads(sys.argv[2]))
    if options.profile is not None:
        AT_READY.append(Sampler(options.profile).start)
    contestant(sys.argv[1]).serve(options)


if __name__ == "__main__":
    main()
