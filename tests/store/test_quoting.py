"""What a server or a driver quotes of what it was sent reaches nobody: through every kind of
connection, in the error, its representation, its causes, its traceback and the logs."""

import asyncio
import logging
import traceback
from collections.abc import Iterator
from contextlib import AsyncExitStack

import psycopg
import pytest

from flowpg.client import FlowClient
from flowpg.errors import FlowError, StoreError, StoreUnavailable
from flowpg.model.records import StartRequest
from flowpg.postgres.calls import Call, Function
from flowpg.postgres.enlist import run_enlisted
from flowpg.postgres.errors import connection_refused
from flowpg.postgres.step_sessions import StepSessions
from flowpg.store.postgres import PostgresEventStore
from flowpg.testing.servers import PostgresServer
from tests.store.support import SPEC
from tests.store.transactions import KINDS, Opener

SECRET = "s3cr3t"
RESUME = Function("flow_resume_hook_by_token", ("text", "json"), ("applied",))
START = Function("flow_start", ("json", "json"), ("run_id",))
WHOLE = '{"name":"w","version":"1"}'
SENT = {
    "no JSON": Call(START, (WHOLE, f'{{"a": {SECRET}}}'), lambda rows: rows),
    "JSON that ends early": Call(START, (WHOLE, f'{{"a": "{SECRET}"'), lambda rows: rows),
    "NUL in a text": Call(RESUME, (f"{SECRET}\0", "1"), lambda rows: rows),
    "half a character": Call(RESUME, (f"{SECRET}\ud800", "1"), lambda rows: rows),
    "nested too deep": Call(
        START, (WHOLE, "[" * 20_000 + f'"{SECRET}"' + "]" * 20_000), lambda rows: rows
    ),
    "a constraint of the application": Call(START, (WHOLE, f'"{SECRET}"'), lambda rows: rows),
    "a trigger of the application": Call(START, (WHOLE, f'["{SECRET}"]'), lambda rows: rows),
}
"""Calls that our encoders never make, and rows that the rules of an application refuse."""

RULES = """
ALTER TABLE flowpg.flow_event_log ADD CONSTRAINT no_texts
    CHECK (payload ->> 'input' IS NULL OR payload -> 'input' IS NULL
           OR json_typeof(payload -> 'input') <> 'string');
CREATE FUNCTION public.complain() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'not this: %', NEW.payload USING DETAIL = NEW.payload, HINT = NEW.payload;
END $$;
CREATE TRIGGER complain BEFORE INSERT ON flowpg.flow_event_log FOR EACH ROW
    WHEN (json_typeof(NEW.payload -> 'input') = 'array') EXECUTE FUNCTION public.complain();
"""


@pytest.fixture
def ruled(pg_server: PostgresServer, template_database: str) -> Iterator[str]:
    """A database of the test's own, with rules of an application that quote."""
    with pg_server.database(template_database) as name:
        dsn = pg_server.dsn_of(name)
        with psycopg.connect(dsn, autocommit=True) as owner:
            owner.execute(RULES)
        yield dsn


def shown(error: BaseException, logs: pytest.LogCaptureFixture) -> str:
    """All that anybody can see of an error."""
    texts = ["".join(traceback.format_exception(error)), str(error), repr(error), logs.text]
    return " ".join([*texts, str(error.__cause__), *getattr(error, "__notes__", ())])


@pytest.mark.parametrize("opener", KINDS, ids=lambda opener: opener.__name__)
async def test_what_is_quoted_of_a_call_reaches_nobody(
    ruled: str, caplog: pytest.LogCaptureFixture, opener: Opener
) -> None:
    caplog.set_level(logging.DEBUG)
    for what, call in SENT.items():
        async with AsyncExitStack() as stack:
            transaction = await opener(ruled, stack)
            with pytest.raises((FlowError, UnicodeError)) as caught:
                await run_enlisted(transaction.connection, call, "flowpg")
            if isinstance(caught.value, FlowError):
                assert SECRET not in shown(caught.value, caplog), what
            await transaction.rollback()


async def test_neither_does_what_the_rules_of_an_application_say_to_store_and_client(
    ruled: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    store = await PostgresEventStore.connect(ruled)
    with FlowClient(ruled) as client:
        for value in (SECRET, [SECRET]):
            with pytest.raises(StoreError) as caught:
                await asyncio.to_thread(client.start, SPEC, value)
            assert SECRET not in shown(caught.value, caplog)
            with pytest.raises(StoreError) as caught:
                await store.start(StartRequest(SPEC, value))
            assert SECRET not in shown(caught.value, caplog)
    await store.close()


@pytest.mark.parametrize("dsn", [f"postgres//u:{SECRET}@h/db", f"postgresql://u:{SECRET}@[::1/db"])
async def test_a_dsn_that_cannot_be_read_is_not_quoted(dsn: str) -> None:
    with pytest.raises(psycopg.Error) as quoting:
        psycopg.connect(dsn)
    assert SECRET in str(quoting.value)
    assert SECRET not in str(connection_refused(quoting.value))
    for kind in ("psycopg", "connection"):
        with pytest.raises(StoreUnavailable) as caught:
            async with StepSessions(dsn).open(kind):
                pass
        assert SECRET not in "".join(traceback.format_exception(caught.value))
