"""A real process, killed in the middle of a step, and another that ends its run."""

import asyncio
import sys
from typing import Any

from flowpg.model.snapshot import RunStatus, StepStatus
from flowpg.replay.runtime import StepInvocation
from tests.engine.support import EngineStore, Script, short
from tests.engine.victim import workflow
from tests.waiting import until_async


async def test_another_process_ends_the_run_of_one_that_was_killed_in_a_step(
    postgres_only: EngineStore, direct_dsn: str
) -> None:
    client = await postgres_only.engine(None)
    victim = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.engine.victim", direct_dsn, "r", stdout=asyncio.subprocess.PIPE
    )
    try:
        assert victim.stdout is not None
        assert await victim.stdout.readline() == b"stuck\n"

        async def fast_is_done() -> bool:
            return (await client.snapshot("r")).steps["fast"].status is StepStatus.COMPLETED

        await until_async(fast_is_done, "the other step of the batch is recorded")
    finally:
        victim.kill()
        await victim.wait()

    said: dict[str, Any] = {}

    def work(step: StepInvocation) -> Any:
        said[step.step_id] = step.heartbeat_details
        return step.input

    runtime = Script(workflow, {"work": work})
    heir = await postgres_only.engine(runtime)
    # Its lease has not run out yet, so nobody may go on.
    assert (await heir.drive("r")).status is RunStatus.RUNNING
    assert runtime.calls == []
    postgres_only.leases_run_out()
    assert (await heir.drive("r")).output == ["first", "fast", "stuck"]
    assert runtime.calls == [("stuck", 1)]
    # What the dead process said of its step is known to the one that begins it again.
    assert said == {"stuck": 7}
    history = short(await heir.history("r"))
    assert len(history) == len(set(history)) == 12
