"""``python -m tests.behaviours.recording`` records the programs that have no history yet.

One that is there is never written again: a change that it does not fit breaks the runs that users
have open.
"""

import asyncio
import sys
from pathlib import Path

from flowpg import dump_history
from flowpg.testing import WorkflowEnvironment
from tests.behaviours.programs import PROGRAMS, app

HISTORIES = Path(__file__).parent / "histories"
_ROOT = str(Path(__file__).parents[2])


async def record(name: str) -> str:
    """The history of a program, as JSON lines."""
    workflow, arguments, scenario = PROGRAMS[name]
    async with WorkflowEnvironment(app) as env:
        run = await env.start_with_id(name, workflow, *arguments)
        await scenario(env, run)
        await run.finish()
        # Tracebacks tell where the code was; that is nobody's concern.
        return dump_history(await run.history()).replace(_ROOT, "/app")


def main() -> None:
    """Record what is missing."""
    HISTORIES.mkdir(exist_ok=True)
    for name in PROGRAMS:
        path = HISTORIES / f"{name}.jsonl"
        if not path.exists():
            path.write_text(asyncio.run(record(name)))
            sys.stdout.write(f"recorded {path}\n")


if __name__ == "__main__":
    main()
