"""An engine with a server, in one line: for examples, notebooks and small tools.

A service builds its engine from ``PostgresEventStore.connect`` instead, which verifies the schema
and never changes it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from flowpg.engine.flow_engine import FlowEngine
from flowpg.postgres.migrate import upgrade
from flowpg.postgres.target import resolve_server
from flowpg.replay.runtime import FlowRuntime
from flowpg.store.postgres import PostgresEventStore


@asynccontextmanager
async def open_engine(
    runtime: FlowRuntime, dsn: str | None = None, *, schema: str = "flowpg", queue: str = "default"
) -> AsyncIterator[FlowEngine]:
    """An engine on ``dsn``, else on FLOWPG_DSN, else on the embedded server.

    The embedded server is started (data in ``.flowpg/postgres``, or FLOWPG_DATA), migrated, and
    stopped at the end. A server that was named is only verified: SchemaMissing or SchemaBehind
    say to run ``flowpg migrate``.
    """
    with resolve_server(dsn) as server:
        if server.embedded:
            await asyncio.to_thread(upgrade, server.dsn, schema)
        store = await PostgresEventStore.connect(server.dsn, schema=schema)
        engine = FlowEngine.builder(runtime).with_store(store).with_queue(queue).build()
        async with engine:
            yield engine
