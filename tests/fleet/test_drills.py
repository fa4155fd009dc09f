"""Drills with real processes: what a deploy, a crash and a scheduler's repetition leave behind."""

import asyncio
import signal
from pathlib import Path

import psycopg

from flowpg.fleet.worker import FlowWorker
from flowpg.model.commands import Decision
from flowpg.model.retry import RetryPolicy
from flowpg.model.snapshot import RunStatus
from flowpg.replay.context import WorkflowContext
from tests.engine.support import LEASE, MINUTE, SPEC, EngineStore, Script, echo, one_step, short
from tests.fleet.commands import exit_code, line, worker_process
from tests.fleet.test_heartbeat import until_extended
from tests.fleet.watching import until_ended

FOREVER = ("--lease", "1000")
"""A lease that no test waits for: whatever goes on elsewhere was given back."""
NO_RETRIES = RetryPolicy.none()


async def test_a_running_worker_takes_over_from_one_that_was_killed_and_charges_no_attempt(
    postgres_only: EngineStore, direct_dsn: str
) -> None:
    client = await postgres_only.engine(None)
    run_id = await client.start(SPEC, "forever")
    async with worker_process(direct_dsn, "--lease", "1", "--poll", "0.2") as victim:
        await line(victim.stdout, b"entered forever")
        runtime = Script(one_step(retry=NO_RETRIES), {"work": echo, "forever": lambda step: "done"})
        runtime.workflow = forever_once
        heir = FlowWorker(await postgres_only.engine(runtime))
        working = asyncio.ensure_future(heir.run())
        victim.kill()
        await until_ended(client, run_id)
        heir.stop()
        await working
    assert (await client.snapshot(run_id)).output == "done"
    assert short(await client.history(run_id)).count("step.started s") == 1


def forever_once(ctx: WorkflowContext) -> Decision:
    """What ``Marked`` decides."""
    if not ctx.step_completed("s"):
        return ctx.schedule_step("s", ctx.input)
    return ctx.complete(ctx.step_output("s"))


async def test_a_stopped_worker_beats_on_through_its_grace_and_takes_nothing_new(
    postgres_only: EngineStore, direct_dsn: str, tmp_path: Path
) -> None:
    client = await postgres_only.engine(None)
    gate = tmp_path / "gate"
    short_one = await client.start(SPEC, "patient")
    async with worker_process(
        *(direct_dsn, "--lease", "2", "--grace", "1000", "--poll", "0.05"),
        environ={"FLOWPG_TEST_GATE": str(gate)},
    ) as process:
        await line(process.stdout, b"entered patient")
        process.send_signal(signal.SIGTERM)
        # Well beyond one lease it still holds the run, and leaves what comes alone.
        later = await client.start(SPEC, "quick", queue="other")
        await until_extended(direct_dsn, 2 * LEASE / 15)
        fresh = await client.start(SPEC, "quick")
        long_one = await client.store.claim_runs("other", 1, "me", LEASE)
        assert [lease.run_id for lease in long_one] == [later]
        gate.touch()
        assert await exit_code(process) == 0
    assert short(await client.history(short_one))[-1] == "step.completed s"
    assert (await client.run_info(fresh)).status is RunStatus.PENDING
    leases = await client.store.claim_runs("default", 10, "other", LEASE)
    assert {lease.run_id for lease in leases} == {short_one, fresh}


async def test_what_a_stopped_worker_gives_back_is_claimed_by_one_that_runs(
    postgres_only: EngineStore, direct_dsn: str
) -> None:
    client = await postgres_only.engine(None)
    runs = [await client.start(SPEC, "forever") for _ in range(5)]
    # Printing from one thread: a line is a line.
    options, app = (*FOREVER, "--grace", "0"), "tests.fleet.apps:InLoop"
    async with worker_process(direct_dsn, *options, app=app) as first:
        for _ in runs:
            await line(first.stdout, b"entered forever")
        async with worker_process(direct_dsn, *options, app=app) as second:
            first.send_signal(signal.SIGTERM)
            for _ in runs:
                await line(second.stdout, b"entered forever")
            assert await exit_code(first) == 0
            second.send_signal(signal.SIGTERM)
            assert await exit_code(second) == 0
    for run_id in runs:
        assert short(await client.history(run_id)).count("step.started s") == 1


async def test_a_second_signal_ends_a_process_whose_event_loop_is_blocked_and_gives_its_runs_back(
    postgres_only: EngineStore, direct_dsn: str, tmp_path: Path
) -> None:
    client = await postgres_only.engine(None)
    run_id = await client.start(SPEC, "blocking")
    async with worker_process(
        *(direct_dsn, *FOREVER, "--grace", "1000"),
        app="tests.fleet.apps:InLoop",
        environ={"FLOWPG_TEST_GATE": str(tmp_path / "never")},
    ) as process:
        await line(process.stdout, b"entered blocking")
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGINT)
        await line(process.stderr, b"did not end in time; 1 leases were given back")
        assert await exit_code(process) == 0
    leases = await client.store.claim_runs("default", 10, "other", LEASE)
    assert [lease.run_id for lease in leases] == [run_id]


async def test_a_timer_that_is_dispatched_more_than_once_completes_once(
    postgres_only: EngineStore, direct_dsn: str
) -> None:
    def workflow(ctx: WorkflowContext) -> Decision:
        if not ctx.wait_completed("w"):
            return ctx.sleep("w", MINUTE)
        if not ctx.step_completed("s"):
            return ctx.schedule_step("s", "work", 1)
        return ctx.complete(ctx.step_output("s"))

    runtime = Script(workflow, {"work": echo})
    engine = await postgres_only.engine(runtime)
    worker = FlowWorker(engine)
    run_id = await engine.start(SPEC, drive=False)
    await worker.run_until_idle()
    postgres_only.advance(MINUTE)
    for _ in range(3):
        await engine.store.enqueue_due()
        with psycopg.connect(direct_dsn, autocommit=True) as connection:
            connection.execute("UPDATE flowpg.scheduled_wakeups SET dispatched_at = NULL")
        await engine.store.enqueue_due()
        await engine.store.wake_run(run_id)
    await worker.run_until_idle()
    history = short(await engine.history(run_id))
    assert history.count("wait.completed w") == 1
    assert runtime.calls == [("s", 1)]
    assert (await engine.snapshot(run_id)).status is RunStatus.COMPLETED
