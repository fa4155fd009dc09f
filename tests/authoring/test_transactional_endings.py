"""Transactional steps that end their transaction themselves, or whose result cannot be stored."""

from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from sqlalchemy import Connection, create_engine, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import Session

from flowpg.authoring.app import FlowApp
from flowpg.authoring.failures import failure_origin
from flowpg.errors import PayloadTooLarge
from flowpg.model.retry import RetryPolicy
from flowpg.model.snapshot import RunStatus
from flowpg.replay.runtime import StepInvocation, WorkflowInvocation
from tests.authoring.test_transactional_steps import application, ledger, rows, run
from tests.engine.support import SPEC, EngineStore, one_step

__all__ = ["ledger"]

INSERT = "INSERT INTO public.ledger VALUES ('work', 7)"


async def psycopg_async(connection: psycopg.AsyncConnection[Any], words: str) -> None:
    await connection.execute(words.encode())


def psycopg_sync(connection: psycopg.Connection[Any], words: str) -> None:
    connection.execute(words.encode())


async def alchemy_async(connection: AsyncConnection, words: str) -> None:
    await connection.execute(text(words))


def alchemy_sync(connection: Connection, words: str) -> None:
    connection.execute(text(words))


async def session_async(session: AsyncSession, words: str) -> None:
    await session.execute(text(words))


def session_sync(session: Session, words: str) -> None:
    session.execute(text(words))


KINDS: list[Any] = [
    *(psycopg_async, psycopg_sync, alchemy_async, alchemy_sync, session_async, session_sync)
]


def working(kind: Any, *statements: str, result: Any = None) -> Any:
    """A step of that kind which executes these statements, one by one."""
    hint = next(iter(kind.__annotations__.values()))

    async def asynchronous(connection: Any, value: int) -> Any:
        for words in statements:
            await kind(connection, words)
        return result

    def synchronous(connection: Any, value: int) -> Any:
        for words in statements:
            kind(connection, words)
        return result

    made: Any = asynchronous if kind.__name__.endswith("_async") else synchronous
    made.__annotations__["connection"] = hint
    return made


@pytest.mark.parametrize(
    ("ending", "left"),
    [
        (("COMMIT",), 1),
        (("ROLLBACK",), 0),
        (("commit; select 1",), 1),
        # Each of these leaves a transaction open in which the completion would be stored.
        (("COMMIT; BEGIN",), 1),
        (("COMMIT", "SELECT 1"), 1),
        (("ROLLBACK", "BEGIN", INSERT), 0),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
async def test_a_step_that_ends_its_transaction_by_a_text_fails_for_good(
    postgres_only: EngineStore,
    ledger: psycopg.Connection[Any],
    kind: Any,
    ending: tuple[str, ...],
    left: int,
) -> None:
    app = application(working(kind, INSERT, *ending))
    engine = await postgres_only.engine(app)
    ended = await run(engine, app)
    assert ended.status is RunStatus.FAILED
    assert "ended its transaction itself" in str(ended.error)
    history = [event.type for event in await engine.history("r")]
    assert history.count("step_started") == 1
    assert "step_completed" not in history
    assert rows(ledger) == left
    # What it has left behind troubles no other step.
    ledger.execute("TRUNCATE public.ledger")
    fine = application(working(kind, INSERT, result=9))
    app.steps["work"].function = fine.steps["work"].function
    [workflow] = app.workflows.values()
    for name in ("next", "last"):
        await engine.start_with_id(name, workflow.spec, workflow.input(1))
        assert (await engine.drive(name)).output == 9
        ledger.execute("TRUNCATE public.ledger")


async def _committed_async(connection: AsyncConnection, value: int) -> None:
    await alchemy_async(connection, INSERT)
    await connection.commit()
    await alchemy_async(connection, "SELECT 1")


def _committed(connection: Connection, value: int) -> None:
    alchemy_sync(connection, INSERT)
    connection.commit()


def _rolled_back(connection: Connection, value: int) -> None:
    alchemy_sync(connection, INSERT)
    connection.rollback()
    alchemy_sync(connection, INSERT)


@pytest.mark.parametrize(
    ("step", "left"), [(_committed_async, 1), (_committed, 1), (_rolled_back, 0)]
)
async def test_a_connection_of_sqlalchemy_that_is_committed_by_hand_fails_its_step(
    postgres_only: EngineStore, ledger: psycopg.Connection[Any], step: Any, left: int
) -> None:
    app = application(step)
    ended = await run(await postgres_only.engine(app), app)
    assert "ended its transaction itself" in str(ended.error)
    assert (ended.status, rows(ledger)) == (RunStatus.FAILED, left)


async def test_an_engine_of_the_application_that_commits_by_itself_will_not_do(
    postgres_only: EngineStore, ledger: psycopg.Connection[Any], database_dsn: str
) -> None:
    engine = create_engine(
        "postgresql+psycopg://",
        creator=lambda: psycopg.connect(database_dsn, prepare_threshold=None),
        isolation_level="AUTOCOMMIT",
    )
    app = application(working(alchemy_sync, INSERT))
    app.transactions = engine
    ended = await run(await postgres_only.engine(app), app)
    engine.dispose()
    assert "ended its transaction itself" in str(ended.error)
    assert not [e for e in await postgres_only.engines[0].history("r") if "completed" in e.type]


@pytest.mark.parametrize("kind", KINDS)
async def test_savepoints_are_no_end_of_the_transaction(
    postgres_only: EngineStore, ledger: psycopg.Connection[Any], kind: Any
) -> None:
    words = ("SAVEPOINT a", INSERT, "ROLLBACK TO SAVEPOINT a", INSERT, "RELEASE SAVEPOINT a")
    app = application(working(kind, *words, result=5))
    ended = await run(await postgres_only.engine(app), app)
    assert (ended.output, rows(ledger)) == (5, 1)


@pytest.mark.parametrize("kind", KINDS)
async def test_an_idle_connection_that_was_lost_costs_no_attempt(
    postgres_only: EngineStore, ledger: psycopg.Connection[Any], kind: Any
) -> None:
    app = application(working(kind, result=5), retry=RetryPolicy.none())
    engine = await postgres_only.engine(app)
    assert (await run(engine, app)).output == 5
    ledger.execute(
        # Waits until each has ended: the next use must find it dead, not dying.
        "SELECT pg_terminate_backend(pid, 9000) FROM pg_stat_activity"
        " WHERE datname = current_database()"
        " AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
    )
    [workflow] = app.workflows.values()
    await engine.start_with_id("next", workflow.spec, workflow.input(1))
    assert (await engine.drive("next")).output == 5


@pytest.mark.parametrize("kind", KINDS)
async def test_a_result_that_is_too_large_is_caught_by_its_name_and_leaves_nothing(
    postgres_only: EngineStore, ledger: psycopg.Connection[Any], kind: Any
) -> None:
    app = FlowApp("ledger")
    work: Any = app.step(transactional=True, name="work")(
        working(kind, INSERT, result="x" * 2_000_000)
    )
    call: Callable[..., Any] = getattr(work, "run", work)

    @app.workflow
    async def main() -> list[Any]:
        try:
            await call(1)
        except PayloadTooLarge as error:
            origin = failure_origin(error)
            assert origin is not None
            return [origin.step_name, str(error), error.limit]
        return []

    engine = await postgres_only.engine(app)
    await engine.start_with_id("r", main.spec, main.input())
    ended = await engine.drive("r")
    name, said, limit = main.result(ended)
    assert (name, limit, rows(ledger)) == ("work", 1_048_576, 0)
    assert said.startswith("run 'r': the payload of step_completed 'work#1' is 2000")
    history = [event.type for event in await engine.history("r")]
    assert history.count("step_started") == history.count("step_non_retryable") == 1


async def test_of_a_hand_written_runtime_too(
    postgres_only: EngineStore, ledger: psycopg.Connection[Any]
) -> None:
    class ByHand:
        def run_workflow(self, invocation: WorkflowInvocation) -> Any:
            return one_step()(invocation.context())

        async def run_step(self, step: StepInvocation) -> Any:
            async def work(connection: psycopg.AsyncConnection[Any]) -> str:
                await psycopg_async(connection, INSERT)
                return "x" * 2_000_000

            return await step.transact(work)

    engine = await postgres_only.engine(ByHand())
    await engine.start_with_id("r", SPEC, None)
    ended = await engine.snapshot("r")
    assert ended.status is RunStatus.FAILED
    assert str(ended.error).startswith("PayloadTooLarge: run 'r': the payload of step_completed")
    assert rows(ledger) == 0
