"""Calls inside the caller's own transaction: they commit or roll back with it and drive nothing."""

from typing import Any

import psycopg
import pytest

from flowpg.errors import InvalidArgument, RunNotFound
from flowpg.model.commands import Decision
from flowpg.model.operations import ChildOperationReference, WorkflowProgress
from flowpg.model.records import VerbResult
from flowpg.model.snapshot import RunStatus
from flowpg.replay.context import WorkflowContext
from tests.engine.support import SPEC, EngineStore, Script

Connection = psycopg.AsyncConnection[Any]


def ask(ctx: WorkflowContext) -> Decision:
    if ctx.hook_received("h"):
        return ctx.complete(ctx.hook_payload("h"))
    return ctx.create_hook("h", f"token of {ctx.run_id}")


async def test_a_start_in_a_transaction_is_seen_after_its_commit_and_gone_after_a_rollback(
    postgres_only: EngineStore, direct_dsn: str
) -> None:
    runtime = Script(ask)
    engine = await postgres_only.engine(runtime)
    async with await Connection.connect(direct_dsn) as connection:
        assert await engine.start_with_id("r", SPEC, 1, connection=connection) == "r"
        with pytest.raises(RunNotFound):
            await engine.snapshot("r")
        await connection.rollback()
        with pytest.raises(RunNotFound):
            await engine.drive("r")
        await engine.start_with_id("r", SPEC, 1, connection=connection)
        await connection.commit()
    assert (await engine.snapshot("r")).status is RunStatus.PENDING
    assert runtime.replays == 0
    assert (await engine.drive("r")).status is RunStatus.SUSPENDED


async def test_an_answer_in_a_transaction_is_seen_after_its_commit(
    postgres_only: EngineStore, direct_dsn: str
) -> None:
    engine = await postgres_only.engine(Script(ask))
    await engine.start_with_id("r", SPEC)
    async with await Connection.connect(direct_dsn) as connection:
        done = await engine.resume_hook("r", "h", "yes", connection=connection)
        assert isinstance(done, VerbResult)
        assert done.applied
        assert (await engine.snapshot("r")).status is RunStatus.SUSPENDED
        await connection.commit()
    assert (await engine.drive("r")).output == "yes"


async def test_every_call_that_changes_a_run_can_share_a_transaction(
    postgres_only: EngineStore, direct_dsn: str
) -> None:
    engine = await postgres_only.engine(Script(ask))
    for run_id in ("a", "b", "c", "d"):
        await engine.start_with_id(run_id, SPEC)
    now = await engine.store.now()
    progress = WorkflowProgress(progress_id="p", completed=1)
    child = ChildOperationReference(reference_id="c", kind="task", operation_id="1")
    async with await Connection.connect(direct_dsn) as connection:
        results = [
            await engine.record_progress("a", progress, connection=connection),
            await engine.link_child_operation("a", child, connection=connection),
            await engine.dispose_hook("b", "h", connection=connection),
            await engine.request_cancellation("a", "why", connection=connection),
            await engine.force_cancel("b", connection=connection),
            await engine.terminate_for_timeout("c", now, connection=connection),
            await engine.terminate_for_host_shutdown("a", connection=connection),
        ]
        by_token = await engine.resume_hook_by_token("token of d", 1, connection=connection)
        await connection.rollback()
    assert all(result.applied for result in results)
    assert by_token == ("d", "h")
    assert {(await engine.snapshot(run_id)).status for run_id in "abcd"} == {RunStatus.SUSPENDED}


async def test_a_store_in_memory_has_no_transactions_to_share() -> None:
    from flowpg.engine.flow_engine import FlowEngine

    async with FlowEngine.in_memory(Script(ask)) as engine:
        with pytest.raises(InvalidArgument, match="no transactions"):
            await engine.start(SPEC, connection=object())
