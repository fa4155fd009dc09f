"""Transactional steps: the rows of a step and its completion are there together, or neither is."""

import asyncio
import inspect
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from sqlalchemy import Connection, create_engine, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import Session

from flowpg.authoring.app import FlowApp
from flowpg.engine.flow_engine import FlowEngine
from flowpg.errors import InvalidArgument, LeaseLost, StartToCloseTimeout, TransactionsUnavailable
from flowpg.model.commands import Decision
from flowpg.model.retry import RetryPolicy
from flowpg.model.snapshot import RunStatus, WorkflowRunSnapshot
from flowpg.model.timeouts import StepTimeouts
from flowpg.replay.runtime import StepInvocation, WorkflowInvocation
from flowpg.store.memory import InMemoryEventStore
from tests.engine.support import SPEC, EngineStore, one_step, short

ONCE = RetryPolicy.none()


@pytest.fixture
def ledger(database_dsn: str) -> Iterator[psycopg.Connection[Any]]:
    """A connection of the application, which has a table in the same database."""
    with psycopg.connect(database_dsn, autocommit=True, prepare_threshold=None) as connection:
        connection.execute(
            "CREATE TABLE public.ledger (step text, value int UNIQUE DEFERRABLE INITIALLY DEFERRED)"
        )
        yield connection


def rows(ledger: psycopg.Connection[Any]) -> int:
    """How many rows the steps have written."""
    found = ledger.execute("SELECT count(*) FROM public.ledger").fetchone()
    assert found is not None
    return int(found[0])


def application(step: Any, **options: Any) -> FlowApp:
    """An app whose one workflow awaits one transactional step."""
    app = FlowApp("ledger")
    made = app.step(transactional=True, name="work", **options)(step)

    @app.workflow
    async def main(value: int) -> Any:
        found: Any = await (made.run(value) if hasattr(made, "run") else made(value))
        return found

    return app


async def run(engine: FlowEngine, app: FlowApp, value: int = 7) -> WorkflowRunSnapshot:
    """Start the workflow and drive it."""
    [workflow] = app.workflows.values()
    await engine.start_with_id("r", workflow.spec, workflow.input(value))
    return await engine.drive("r")


async def psycopg_async(connection: psycopg.AsyncConnection[Any], value: int) -> int:
    await connection.execute("INSERT INTO public.ledger VALUES ('work', %s)", (value,))
    return value + 1


def psycopg_sync(connection: psycopg.Connection[Any], value: int) -> int:
    connection.execute("INSERT INTO public.ledger VALUES ('work', %s)", (value,))
    return value + 1


async def alchemy_async(connection: AsyncConnection, value: int) -> int:
    await connection.execute(text("INSERT INTO public.ledger VALUES ('work', :v)"), {"v": value})
    return value + 1


def alchemy_sync(connection: Connection, value: int) -> int:
    connection.execute(text("INSERT INTO public.ledger VALUES ('work', :v)"), {"v": value})
    return value + 1


async def session_async(session: AsyncSession, value: int) -> int:
    await session.execute(text("INSERT INTO public.ledger VALUES ('work', :v)"), {"v": value})
    await session.commit()  # means no more than a flush: the transaction is flowpg's
    return value + 1


def session_sync(session: Session, value: int) -> int:
    session.execute(text("INSERT INTO public.ledger VALUES ('work', :v)"), {"v": value})
    session.commit()
    return value + 1


def untold(connection, value):  # type: ignore[no-untyped-def]
    assert isinstance(connection, psycopg.Connection)
    return psycopg_sync(connection, value)


KINDS = [
    *(psycopg_async, psycopg_sync, alchemy_async, alchemy_sync, session_async, session_sync),
    untold,
]


@pytest.mark.parametrize("step", KINDS)
async def test_rows_and_completion_commit_together(
    postgres_only: EngineStore, ledger: psycopg.Connection[Any], step: Any
) -> None:
    app = application(step)
    engine = await postgres_only.engine(app)
    found = await run(engine, app)
    assert (found.status, found.output, rows(ledger)) == (RunStatus.COMPLETED, 8, 1)
    assert short(await engine.history("r")) == [
        *("run.created", "run.started", "step.created work#1", "step.started work#1"),
        *("step.completed work#1", "run.completed"),
    ]
    # One transaction wrote both.
    xmins = "SELECT DISTINCT xmin::text FROM public.ledger UNION SELECT xmin::text FROM {} WHERE {}"
    where = "event_type = 'step_completed'"
    assert len(ledger.execute(xmins.format("flowpg.flow_event_log", where)).fetchall()) == 1


@pytest.mark.parametrize("step", [psycopg_async, psycopg_sync, session_async, session_sync])
async def test_an_exception_rolls_back_and_the_attempt_has_failed(
    postgres_only: EngineStore, ledger: psycopg.Connection[Any], step: Any
) -> None:
    attempts: list[int] = []
    if inspect.iscoroutinefunction(step):

        async def fails_async(connection: Any, value: int) -> int:
            result: int = await step(connection, len(attempts))
            attempts.append(result)
            if len(attempts) == 1:
                raise ValueError("no")
            return result

        failing: Any = fails_async
    else:

        def fails(connection: Any, value: int) -> int:
            result: int = step(connection, len(attempts))
            attempts.append(result)
            if len(attempts) == 1:
                raise ValueError("no")
            return result

        failing = fails
    failing.__annotations__["connection"] = next(iter(step.__annotations__.values()))
    app = application(failing)
    found = await run(await postgres_only.engine(app), app)
    assert (found.output, found.steps["work#1"].attempt, rows(ledger)) == (2, 2, 1)


@pytest.mark.parametrize("step", [psycopg_async, psycopg_sync, session_sync])
async def test_a_constraint_that_fails_at_the_commit_fails_the_attempt(
    postgres_only: EngineStore, ledger: psycopg.Connection[Any], step: Any
) -> None:
    ledger.execute("INSERT INTO public.ledger VALUES ('other', 7)")
    app = application(step, retry=ONCE)
    found = await run(await postgres_only.engine(app), app)
    assert (found.status, rows(ledger)) == (RunStatus.FAILED, 1)
    error = str(found.error)
    assert "UniqueViolation" in error or "IntegrityError" in error


async def test_a_step_whose_lease_was_lost_rolls_back(
    postgres_only: EngineStore, ledger: psycopg.Connection[Any]
) -> None:
    goes_on, began = asyncio.Event(), asyncio.Event()
    calls: list[int] = []

    async def slow(connection: psycopg.AsyncConnection[Any], value: int) -> int:
        calls.append(value)
        await psycopg_async(connection, value)
        if len(calls) == 1:
            began.set()
            await goes_on.wait()
        return value

    app = application(slow)
    zombie, other = await postgres_only.engine(app), await postgres_only.engine(app)
    driving = asyncio.ensure_future(run(zombie, app))
    await began.wait()
    postgres_only.leases_run_out()
    found = await other.drive("r")
    goes_on.set()
    with pytest.raises(LeaseLost):
        await driving
    assert (found.status, rows(ledger), len(calls)) == (RunStatus.COMPLETED, 1, 2)
    completed = [e for e in await other.history("r") if e.type == "step_completed"]
    assert len(completed) == 1


async def test_what_takes_too_long_is_rolled_back(
    postgres_only: EngineStore, ledger: psycopg.Connection[Any]
) -> None:
    async def slow(connection: psycopg.AsyncConnection[Any], value: int) -> None:
        await psycopg_async(connection, value)
        await connection.execute("SELECT pg_sleep(60)")

    limits = StepTimeouts(start_to_close=timedelta(milliseconds=200))
    app = application(slow, retry=ONCE, timeouts=limits)
    found = await run(await postgres_only.engine(app), app)
    assert (found.status, rows(ledger)) == (RunStatus.FAILED, 0)
    assert StartToCloseTimeout.__name__ in str(found.error)


async def test_a_cancellation_request_meanwhile_rolls_the_step_back(
    postgres_only: EngineStore, ledger: psycopg.Connection[Any]
) -> None:
    goes_on, began = asyncio.Event(), asyncio.Event()

    async def slow(connection: psycopg.AsyncConnection[Any], value: int) -> int:
        await psycopg_async(connection, value)
        began.set()
        await goes_on.wait()
        return value

    app = application(slow)
    engine, client = await postgres_only.engine(app), await postgres_only.engine(None)
    driving = asyncio.ensure_future(run(engine, app))
    await began.wait()
    await client.request_cancellation("r", "enough")
    goes_on.set()
    found = await driving
    assert (found.status, rows(ledger)) == (RunStatus.CANCELLED, 0)


async def test_an_engine_of_the_application_is_used_if_it_brings_one(
    postgres_only: EngineStore, ledger: psycopg.Connection[Any], database_dsn: str
) -> None:
    engine = create_engine(
        "postgresql+psycopg://",
        creator=lambda: psycopg.connect(
            database_dsn, application_name="theirs", prepare_threshold=None
        ),
    )
    names: list[str] = []

    def named(connection: Connection, value: int) -> int:
        found = connection.execute(text("SELECT current_setting('application_name')"))
        names.append(found.scalar_one())
        return alchemy_sync(connection, value)

    app = application(named)
    app.transactions = engine
    found = await run(await postgres_only.engine(app), app)
    engine.dispose()
    assert (found.output, names, rows(ledger)) == (8, ["theirs"], 1)


async def test_a_hand_written_runtime_has_the_same(
    postgres_only: EngineStore, ledger: psycopg.Connection[Any]
) -> None:
    class ByHand:
        def run_workflow(self, invocation: WorkflowInvocation) -> Decision:
            return one_step()(invocation.context())

        async def run_step(self, step: StepInvocation) -> Any:
            return await step.transact(lambda connection: psycopg_async(connection, 1))

    class InThreads(ByHand):
        def run_step(self, step: StepInvocation) -> Any:
            return step.transact_sync(lambda session: session_sync(session, 2), kind="session")

    for number, runtime in enumerate((ByHand(), InThreads())):
        engine = await postgres_only.engine(runtime)
        await engine.start_with_id(f"r{number}", SPEC, None)
        assert (await engine.snapshot(f"r{number}")).output == 2 + number
    assert rows(ledger) == 2


async def test_many_in_one_run_at_once_are_all_there_once(
    postgres_only: EngineStore, ledger: psycopg.Connection[Any]
) -> None:
    app = FlowApp("ledger")

    @app.step(transactional=True)
    async def insert(connection: psycopg.AsyncConnection[Any], value: int) -> int:
        return await psycopg_async(connection, value)

    @app.workflow
    async def main() -> int:
        return sum(await asyncio.gather(*(insert(value) for value in range(30))))

    engine = await postgres_only.engine(app)
    await engine.start_with_id("r", main.spec, main.input())
    found = await engine.drive("r")
    assert (found.output, rows(ledger)) == (sum(range(1, 31)), 30)


async def test_without_postgres_the_run_is_blocked_and_says_what_to_use() -> None:
    app = application(psycopg_async)
    engine = FlowEngine.builder(app).with_store(InMemoryEventStore()).build()
    with pytest.raises(TransactionsUnavailable, match="PostgresEventStore"):
        await run(engine, app)
    await engine.close()


@pytest.mark.parametrize(
    ("step", "says"),
    [
        (lambda: None, "first parameter must take the connection"),
        (lambda *connections: None, "first parameter must take the connection"),
    ],
)
def test_a_step_without_a_place_for_the_connection_is_refused(step: Any, says: str) -> None:
    with pytest.raises(InvalidArgument, match=says):
        FlowApp("ledger").step(transactional=True, name="work")(step)


def test_a_coroutine_cannot_have_a_synchronous_session() -> None:
    async def wrong(session: Session) -> None: ...

    with pytest.raises(InvalidArgument, match="AsyncSession of SQLAlchemy"):
        FlowApp("ledger").step(transactional=True)(wrong)


async def test_outside_a_workflow_the_function_takes_a_connection_of_the_caller() -> None:
    app = FlowApp("ledger")
    made: Any = app.step(transactional=True)(psycopg_async)
    with pytest.raises(InvalidArgument, match=r"psycopg_async\.function\(connection"):
        made(1)
    assert made.function is psycopg_async
