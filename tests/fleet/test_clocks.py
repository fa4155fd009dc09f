"""A worker whose own clock is wrong: nothing it does depends on that clock."""

import asyncio
import time
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from flowpg.model.commands import Decision
from flowpg.model.events import STEP_RETRYING, STEP_STARTED, WAIT_COMPLETED, WAIT_CREATED
from flowpg.model.retry import RetryPolicy
from flowpg.replay.runtime import StepInvocation, WorkflowInvocation
from tests.engine.support import SPEC, EngineStore
from tests.fleet.commands import worker_process
from tests.fleet.watching import until_ended
from tests.waiting import until

TEN_MINUTES = 600.0
SOON = timedelta(seconds=0.3)
PROMPT = 30.0


class Timed:
    """A timer, then a step that is tried again after a while and tells the time."""

    def run_workflow(self, invocation: WorkflowInvocation) -> Decision:
        """Decide."""
        ctx = invocation.context()
        if not ctx.wait_completed("w"):
            return ctx.sleep("w", SOON)
        if not ctx.step_completed("s"):
            return ctx.schedule_step("s", "tell", retry=RetryPolicy.fixed(2, SOON))
        return ctx.complete(ctx.step_output("s"))

    def run_step(self, step: StepInvocation) -> Any:
        """Fail, then say what time it is here."""
        if step.attempt == 1:
            raise ConnectionError
        return [time.time(), datetime.now().astimezone().timestamp()]


class Waiting(Timed):
    """A step that never ends."""

    def run_workflow(self, invocation: WorkflowInvocation) -> Decision:
        """Decide."""
        return invocation.context().schedule_step("s", "stay")

    async def run_step(self, step: StepInvocation) -> Any:
        """Stay."""
        await asyncio.Event().wait()


def skewed(seconds: float) -> dict[str, str]:
    """The environment of a process whose clock is off by so much."""
    where = str(Path(__file__).parent / "skewed")
    return {"PYTHONPATH": where, "FLOWPG_TEST_SKEW": str(seconds)}


@pytest.mark.parametrize("skew", [-TEN_MINUTES, TEN_MINUTES], ids=["behind", "ahead"])
async def test_timers_and_retries_keep_the_databases_time_whatever_the_worker_thinks_it_is(
    postgres_only: EngineStore, direct_dsn: str, skew: float
) -> None:
    client = await postgres_only.engine(None)
    run_id = await client.start(SPEC)
    app = "tests.fleet.test_clocks:Timed"
    async with worker_process(direct_dsn, app=app, environ=skewed(skew)):
        await until_ended(client, run_id)
    told = (await client.snapshot(run_id)).output
    for clock in told:
        assert clock - time.time() == pytest.approx(skew, abs=60), "its clock was off indeed"
    history = await client.history(run_id)
    at = {(event.type, event.sequence): event.recorded_at for event in history}
    times = {kind: [at[key] for key in sorted(at) if key[0] == kind] for kind, _ in at}
    waited = times[WAIT_COMPLETED][0] - times[WAIT_CREATED][0]
    rested = times[STEP_STARTED][1] - times[STEP_RETRYING][0]
    for pause in (waited, rested):
        assert SOON <= pause < timedelta(seconds=PROMPT)


@pytest.mark.parametrize("skew", [-TEN_MINUTES, TEN_MINUTES], ids=["behind", "ahead"])
async def test_leases_keep_the_databases_time_too(
    postgres_only: EngineStore, direct_dsn: str, skew: float
) -> None:
    client = await postgres_only.engine(None)
    await client.start(SPEC)

    def left() -> list[float]:
        """Seconds that each lease has left, by the database."""
        with psycopg.connect(direct_dsn) as connection:
            rows = connection.execute(
                "SELECT extract(epoch FROM lease_expires_at - flowpg.flow_now())"
                " FROM flowpg.flow_tasks WHERE lease_owner IS NOT NULL"
            ).fetchall()
        return [float(row[0]) for row in rows]

    app = "tests.fleet.test_clocks:Waiting"
    options = ("--lease", "9")
    async with worker_process(direct_dsn, *options, app=app, environ=skewed(skew)):
        [first] = until(left, "the worker has a lease")
        assert 0 < first <= 9
        # A heartbeat extends it to the same length from then, by the database's clock.
        until(lambda: left()[0] < 8, "the lease gets shorter")
        until(lambda: left()[0] > 8, "a heartbeat extends it")
        assert left()[0] <= 9
        assert await client.store.claim_runs("default", 1, "other", SOON) == []
