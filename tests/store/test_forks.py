"""A process that is forked off shares no connection with its parent."""

import asyncio
import os
import sys
import traceback
from collections.abc import Callable

import pytest

from flowpg.client import FlowClient
from flowpg.model import events
from flowpg.model.records import Append, StartRequest
from flowpg.model.spec import WorkflowSpec
from flowpg.store.postgres import PostgresEventStore
from tests.store.support import step

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")

SPEC = WorkflowSpec.python("order")
CALLS = 200


def in_a_fork(work: Callable[[], None]) -> int:
    """Begin ``work`` in a child process; returns its process id."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        work()
        code = 0
    except BaseException:  # noqa: BLE001  told by the exit code
        traceback.print_exc(file=sys.stderr)
    finally:
        os._exit(code)


def ended_well(child: int) -> bool:
    """Wait for a child process; whether it found all as it should be."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_an_asynchronous_store_that_was_forked_answers_each_process_its_own_questions(
    database_dsn: str, through_pgbouncer: bool
) -> None:
    async def ask(store: PostgresEventStore, run_id: str) -> None:
        for _ in range(CALLS):
            assert (await store.run_info(run_id)).run_id == run_id
        result = await store.append(Append(run_id, [events.run_started(), *step("s")]))
        assert result.appended

    async def make() -> PostgresEventStore:
        made = await PostgresEventStore.connect(database_dsn, prepare=not through_pgbouncer)
        await made.start_many([StartRequest(SPEC, None, run_id) for run_id in ("a", "b")])
        return made

    with asyncio.Runner() as runner:
        store = runner.run(make())
        child = in_a_fork(lambda: asyncio.run(ask(store, "a")))
        runner.run(ask(store, "b"))
        assert ended_well(child)
        runner.run(store.close())


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_synchronous_client_that_was_forked_answers_each_process_its_own_questions(
    database_dsn: str, through_pgbouncer: bool
) -> None:
    with FlowClient(database_dsn, prepare=not through_pgbouncer) as client:
        client.start_many([StartRequest(SPEC, None, run_id) for run_id in ("a", "b")])

        def ask(run_id: str) -> None:
            for _ in range(CALLS):
                assert client.run_info(run_id).run_id == run_id

        child = in_a_fork(lambda: ask("a"))
        ask("b")
        assert ended_well(child)
