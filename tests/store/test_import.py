"""Histories from elsewhere are stored as they are, or not at all."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest

from flowpg.errors import InvalidTransition, RunConflict, RunNotFound
from flowpg.model.events import FlowEventEnvelope
from flowpg.model.snapshot import RunStatus
from flowpg.store.protocol import FlowEventStore
from tests.store.support import (
    MINUTE,
    SPEC,
    ended,
    history,
    hooked,
    open_task,
    request,
)

LONG_AGO = datetime(2020, 1, 2, 3, 4, 5, 123456, tzinfo=UTC)


def imported(*events: tuple[str, dict[str, Any]], run_id: str = "r") -> list[FlowEventEnvelope]:
    """A history of these events, recorded long ago, one a second."""
    created = ("run_created", {"spec": SPEC.wire(), "input": {"a": 1}})
    return [
        FlowEventEnvelope(
            run_id,
            sequence,
            str(uuid4()),
            LONG_AGO + timedelta(seconds=sequence),
            event_type,
            data=data,
        )
        for sequence, (event_type, data) in enumerate([created, *events], 1)
    ]


async def test_a_history_keeps_its_ids_times_and_payloads(store: FlowEventStore) -> None:
    given = imported(("run_started", {}), ("run_completed", {"output": "ü\x00"}))
    await store.import_history(given)
    found = await history(store)
    assert found == given
    assert [event.event_id for event in found] == [event.event_id for event in given]
    row = await store.run_info("r")
    assert (row.status, row.head_sequence) == (RunStatus.COMPLETED, 3)
    assert (row.created_at, row.ended_at) == (given[0].recorded_at, given[2].recorded_at)


async def test_an_imported_run_goes_on_where_it_was(store: FlowEventStore) -> None:
    resume_at = "2020-01-02T03:05:00Z"
    await store.import_history(
        imported(
            ("run_started", {}),
            ("hook_created", {"hook_id": "h", "token": "t", "metadata": None}),
            ("wait_created", {"wait_id": "w", "resume_at": resume_at}),
        ),
        queue="slow",
    )
    row = await store.run_info("r")
    assert (row.status, row.queue) == (RunStatus.SUSPENDED, "slow")
    assert len(await store.claim_runs("slow", 10, "me", MINUTE)) == 1
    assert (await store.resume_wait("r", "w")).applied
    assert (await store.resume_hook_by_token("t", 1)).head_sequence == 6


async def test_an_ended_history_needs_no_driving(store: FlowEventStore) -> None:
    await store.import_history(imported(("run_failed", {"error": "no"})))
    assert not await open_task(store, "r")


async def test_an_existing_run_is_not_overwritten(store: FlowEventStore) -> None:
    await store.start(request())
    with pytest.raises(RunConflict) as caught:
        await store.import_history(imported())
    assert caught.value.run_id == "r"
    assert len(await history(store)) == 1


@pytest.mark.parametrize(
    "given",
    [
        [],
        imported()[:0],
        imported(("run_started", {}))[1:],
        [imported()[0], imported(("run_started", {}), ("run_started", {}))[2]],
        imported(("run_started", {}), ("run_started", {})),
        imported(("run_completed", {"output": 1}), ("run_started", {})),
        imported(("wait_completed", {"wait_id": "w"})),
        imported(("no_such_event", {})),
    ],
    ids=["empty", "none", "no start", "gap", "twice", "after the end", "unknown", "unsupported"],
)
async def test_an_illegal_history_is_refused_as_a_whole(
    store: FlowEventStore, given: list[FlowEventEnvelope]
) -> None:
    with pytest.raises(InvalidTransition):
        await store.import_history(given)
    with pytest.raises(RunNotFound):
        await store.run_info("r")


async def test_an_event_id_that_is_no_uuid_is_refused(store: FlowEventStore) -> None:
    given = imported()
    given[0].event_id = "seven"
    with pytest.raises(InvalidTransition, match="UUID"):
        await store.import_history(given)


async def test_what_one_store_exports_another_imports(store: FlowEventStore) -> None:
    await hooked(store, "from")
    await ended(store, "over")
    for run_id in ("from", "over"):
        exported = [
            FlowEventEnvelope(
                f"copy-{run_id}",
                event.sequence,
                event.event_id,
                event.recorded_at,
                event.type,
                payload=event.payload.replace("secret-token", "other-token"),
            )
            for event in await history(store, run_id)
        ]
        await store.import_history(exported)
        assert await history(store, f"copy-{run_id}") == exported


async def test_a_driver_reads_the_schema_version_that_the_wire_named(store: FlowEventStore) -> None:
    given = imported(("run_started", {}))
    given[0].schema_version = 1
    await store.import_history(given)
    loaded = (await store.load_runs(["r"]))["r"]
    assert [event.schema_version for event in loaded.history] == [1, None]
