"""An engine with a server, in one line: for examples, notebooks and small tools.

A service builds its engine from ``PostgresEventStore.connect`` instead, which verifies the schema
and never changes it.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from flowpg.engine.flow_engine import FlowEngine
from flowpg.postgres.target import open_target
from flowpg.replay.runtime import FlowRuntime
from flowpg.store.postgres import PostgresEventStore

logger = logging.getLogger(__name__)


@asynccontextmanager
async def open_engine(
    runtime: FlowRuntime, dsn: str | None = None, *, schema: str = "flowpg", queue: str = "default"
) -> AsyncIterator[FlowEngine]:
    """An engine on ``dsn``, else on FLOWPG_DSN, else on the embedded server.

    The embedded server (data in ``.flowpg/postgres``, or FLOWPG_DATA) is the one that another
    process runs there, or one that is started here and stopped at the end; its schema is brought
    up to date. A server that was named is only verified: SchemaMissing and SchemaBehind say to run
    ``flowpg migrate``. FLOWPG_PREPARE=0 is for PgBouncer in transaction mode before 1.21.
    """
    named = os.environ.get("FLOWPG_DSN") if dsn is None else dsn
    target = open_target(named, schema=schema, say=logger.info)
    # Starting a server takes a moment, and other tasks of this loop have better things to do.
    server = await asyncio.to_thread(target.__enter__)
    try:
        store = await PostgresEventStore.connect(
            server.dsn, schema=schema, prepare=_may_prepare(os.environ.get("FLOWPG_PREPARE"))
        )
        async with (
            FlowEngine.builder(runtime).with_store(store).with_queue(queue).build() as engine
        ):
            yield engine
    finally:
        await asyncio.to_thread(target.__exit__, None, None, None)


def _may_prepare(wanted: str | None) -> bool:
    return (wanted or "1").lower() not in ("0", "false", "f", "no", "n", "off")
