"""Several workers under one process: they share the queue, and none is left behind."""

import asyncio
import contextlib
import os
import re
import signal
import sys
from pathlib import Path

import pytest

from flowpg.fleet.processes import WorkerProcesses
from tests.engine.support import LEASE, SPEC, EngineStore
from tests.fleet.commands import EXIT_SECONDS, exit_code, line, worker_process
from tests.fleet.watching import until_ended
from tests.waiting import turns, until

TWO = ("--processes", "2", "--poll", "0.1")


def children_of(pid: int) -> list[int]:
    """The process ids of a process's children."""
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            found += [int(word) for word in (task / "children").read_text().split()]
    return found


def gone(pid: int) -> bool:
    """Whether a process has ended, its parent's interest in that aside."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True
    return state == "Z"


linux = pytest.mark.skipif(sys.platform != "linux", reason="looks at processes in /proc")


@linux
async def test_processes_share_the_work_and_end_with_zero_together(
    postgres_only: EngineStore, direct_dsn: str
) -> None:
    client = await postgres_only.engine(None)
    runs = [await client.start(SPEC, "quick") for _ in range(20)]
    async with worker_process(direct_dsn, *TWO) as process:
        await line(process.stderr, b"worker on queue")
        pids = children_of(process.pid)
        assert len(pids) == 2
        await until_ended(client, *runs)
        process.send_signal(signal.SIGTERM)
        assert await exit_code(process) == 0
        assert all(map(gone, pids))


@linux
@pytest.mark.parametrize("how", ["signal to the parent alone", "parent killed"])
async def test_no_child_outlives_its_parent_and_their_runs_go_on_elsewhere_at_once(
    postgres_only: EngineStore, direct_dsn: str, how: str
) -> None:
    client = await postgres_only.engine(None)
    run_id = await client.start(SPEC, "forever")
    async with worker_process(direct_dsn, *TWO, "--grace", "0") as process:
        await line(process.stderr, b"worker on queue")
        await line(process.stdout, b"entered forever")
        pids = children_of(process.pid)
        assert len(pids) == 2
        if how == "parent killed":
            process.kill()
        else:
            process.send_signal(signal.SIGTERM)
        await process.wait()
        for pid in pids:
            until(lambda pid=pid: gone(pid), "the child ends")  # type: ignore[misc]
    # No lease has to run out: the children gave it back.
    leases = await client.store.claim_runs("default", 10, "other", LEASE)
    assert [lease.run_id for lease in leases] == [run_id]


@linux
async def test_a_child_that_is_killed_is_started_again(
    postgres_only: EngineStore, direct_dsn: str
) -> None:
    client = await postgres_only.engine(None)
    async with worker_process(direct_dsn, *TWO, "--lease", "1") as process:
        await line(process.stderr, b"worker on queue")
        [victim, other] = children_of(process.pid)
        os.kill(victim, signal.SIGKILL)
        await line(process.stderr, b"ended (SIGKILL); another is started")
        await line(process.stderr, b"worker on queue")
        again = children_of(process.pid)
        assert other in again
        assert len(again) == 2
        run_id = await client.start(SPEC, "quick")

        await until_ended(client, run_id)
        process.send_signal(signal.SIGTERM)
        assert await exit_code(process) == 0


async def test_a_second_signal_reaches_every_child(
    postgres_only: EngineStore, direct_dsn: str
) -> None:
    client = await postgres_only.engine(None)
    await client.start(SPEC, "forever")
    async with worker_process(direct_dsn, *TWO, "--grace", "1000") as process:
        await line(process.stdout, b"entered forever")
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGINT)  # the same one twice might be delivered once
        assert await exit_code(process) == 0


async def test_children_that_cannot_begin_are_not_tried_for_ever(direct_dsn: str) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "flowpg", "worker", "--app", "no.such:module", *TWO),
        env={**os.environ, "FLOWPG_DSN": direct_dsn},
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(EXIT_SECONDS):
        _, said = await process.communicate()
    assert process.returncode == 1
    assert b"cannot import 'no.such'" in said
    assert re.search(rb"worker \d could not begin", said)


async def test_a_signal_that_comes_while_children_are_being_started_is_not_lost() -> None:
    wait = "import signal; signal.sigwait([signal.SIGTERM])"
    block = "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM]); "
    processes = WorkerProcesses([sys.executable, "-c", block + wait], 2, os.environ)
    running = asyncio.ensure_future(processes.run())
    await turns(1)  # the first is being started
    processes.signal(signal.SIGTERM)
    async with asyncio.timeout(EXIT_SECONDS):
        assert await running == 0
