"""What is said about a DSN that is none, and never is: its password."""

import pytest

from flowpg.client import FlowClient
from flowpg.errors import StoreUnavailable
from flowpg.model.spec import WorkflowSpec
from flowpg.postgres.dsn import parsed_dsn
from flowpg.postgres.schema_check import verify
from flowpg.store.postgres import PostgresEventStore

MALFORMED = {
    "postgresql+psycopg://ada:s3cret@localhost/x": "without +psycopg",
    "postgres+asyncpg://ada:s3cret@localhost/x": "without +asyncpg",
    "mysql://ada:s3cret@localhost/x": "use postgresql://",
    "postgresql://ada:s3@cret@localhost/x": "%40",
    "postgresql://ada:s3/cret@localhost/x": "%2F",
    "postgresql://ada:s%3cret%zz@localhost/x": "use postgresql://",
    "s3cret": "use postgresql://",
}


@pytest.mark.parametrize(("dsn", "hint"), MALFORMED.items())
async def test_a_malformed_dsn_is_refused_with_a_hint_and_not_quoted(dsn: str, hint: str) -> None:
    with pytest.raises(StoreUnavailable, match="malformed") as here:
        parsed_dsn(dsn)
    with pytest.raises(StoreUnavailable) as verifying:
        verify(dsn, "flowpg")
    with pytest.raises(StoreUnavailable) as store:
        await PostgresEventStore.connect(dsn)
    with FlowClient(dsn) as client, pytest.raises(StoreUnavailable) as calling:
        client.start(WorkflowSpec.python("w"), None)
    for found in (here, verifying, store, calling):
        assert hint in str(found.value)
        assert "s3" not in str(found.value)
        assert "cret" not in str(found.value)
        assert found.value.__cause__ is None


@pytest.mark.parametrize(
    "dsn",
    [
        "postgresql://ada:s3cret%40@localhost:5432,other:5433/x?sslmode=require",
        "postgresql://[::1]:5432/x",
        "host=@/run/abstract port=5432",
        "host=/run/postgresql",
        "",
    ],
)
def test_what_libpq_accepts_is_accepted(dsn: str) -> None:
    assert isinstance(parsed_dsn(dsn), dict)
