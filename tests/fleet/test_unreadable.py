"""A run whose history no driver can read: it is blocked and says why, everything else goes on, and
the owner of the tables can mend it as docs/production.md says."""

import asyncio
import re
from pathlib import Path

import psycopg
import pytest

from flowpg.fleet.worker import FlowWorker
from flowpg.model.snapshot import RunStatus
from tests.engine.support import MINUTE, SPEC, EngineStore, Script, echo, in_order

BUNDLE = (
    "INSERT INTO flowpg.flow_event_log (run_id, sequence, event_count, payload)"
    " VALUES (%(run)s, 4, 2, '{}');"
)
PAST_GUARDS = (
    "ALTER TABLE flowpg.flow_event_log DISABLE TRIGGER USER;"
    f" {BUNDLE} UPDATE flowpg.flow_runs SET head_sequence = 4 WHERE run_id = %(run)s;"
    " ALTER TABLE flowpg.flow_event_log ENABLE TRIGGER USER"
)
APPEND = (
    "SELECT * FROM flowpg.flow_append_many(('[{{\"run_id\":\"' || %(run)s || '\",{}}}]')::json)"
)
STARTED = '"events":[{"type":"run_started"}]'
DEEP = "[" * 300 + "]" * 300
SPOILED = {
    "items of no letter": BUNDLE.format('[["x",{"step_id":"a"}],["y",{}]]'),
    "items that are none": BUNDLE.format("[1,null]"),
    "members left out": APPEND.format('"steps":[["c",{"step_id":"a"}],["S",{"step_id":"a"}]]'),
    "a huge attempt": APPEND.format('"steps":[["s",{"step_id":"a","attempt":99999999999999999}]]'),
    "a negative attempt": APPEND.format('"steps":[["s",{"step_id":"a","attempt":-1}]]'),
    "too deep": APPEND.format(f'"steps":[["d",{{"step_id":"a","output":{DEEP}}}]]'),
    "too many digits": APPEND.format(f'"steps":[["d",{{"step_id":"a","output":{"9" * 5000}}}]]'),
    "no array": PAST_GUARDS.format("7"),
    "NUL in a bundle": PAST_GUARDS.format('[["c",{"step_id":"\\u0000"}],1]'),
    "fewer items than events": PAST_GUARDS.format("[]"),
    "more items than events": PAST_GUARDS.format('[["x",{}],["x",{}],["x",{}]]'),
    "a head without its events": "UPDATE flowpg.flow_runs SET head_sequence = 9"
    " WHERE run_id = %(run)s",
}
ROOT = Path(__file__).resolve().parents[2]


def mending(run_id: str, last: int) -> str:
    """What docs/production.md tells the owner of the tables to run."""
    text = (ROOT / "docs/production.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```sql\n(BEGIN;.*?)```", text, re.DOTALL)
    return str(block).replace("RUN", run_id).replace("LAST", str(last))


@pytest.mark.parametrize("spoil", SPOILED.values(), ids=SPOILED)
async def test_a_run_that_cannot_be_read_harms_no_other_and_can_be_mended(
    postgres_only: EngineStore, direct_dsn: str, spoil: str
) -> None:
    engine = await postgres_only.engine(Script(in_order("a", "b"), {"work": echo}))
    runs = [await engine.start(SPEC, drive=False) for _ in range(3)]
    broken, *sound = runs
    with psycopg.ClientCursor(psycopg.connect(direct_dsn, autocommit=True)) as owner:
        owner.execute(APPEND.format(STARTED), {"run": broken})
        owner.execute(spoil, {"run": broken})
        async with asyncio.timeout(60):
            assert await FlowWorker(engine).run_once() == 3
        for run_id in sound:
            assert (await engine.run_info(run_id)).status is RunStatus.COMPLETED
        reason = (await engine.run_info(broken)).blocked_reason
        assert reason
        assert broken in reason
        assert [row.run_id for row in await engine.list_runs(blocked=True)] == [broken]
        assert set(sound) <= {snapshot.run_id for snapshot in await engine.list_snapshots()}
        assert await engine.history(broken)
        owner.execute(mending(broken, 2))
        postgres_only.advance(MINUTE)
        await FlowWorker(engine).run_once()
        assert (await engine.run_info(broken)).status is RunStatus.COMPLETED
        owner.connection.close()
