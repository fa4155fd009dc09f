"""Payloads come back as they went in, or are refused before anything is stored."""

import json
from typing import Any

import pytest

from flowpg.errors import PayloadTooLarge, SerializationError
from flowpg.model import events
from flowpg.model.events import MAX_PAYLOAD_BYTES, NewEvent
from flowpg.model.operations import WorkflowProgress
from flowpg.model.records import Append
from flowpg.store.protocol import FlowEventStore
from tests.store.support import history, hooked, request, running, step, types

ODD_VALUES: list[Any] = [
    None,
    True,
    0,
    -0.0,
    0.1,
    1e-300,
    2**53 + 1,
    10**400,
    "",
    "ünï 🐘 \u2028",
    "a\x00b",
    "\ud800",
    "\udfff tail",
    "\\u0000 literal",
    "\x7f1 \x7f3u0000 \x1f",
    "\\",
    '"quoted"',
    [],
    {},
    {"b": 1, "a": 2},
    {"\x00": {"\ud800": ["\x00", "\ud83d"]}},
    {"": [[[]]]},
]


@pytest.mark.parametrize("value", ODD_VALUES, ids=ascii)
async def test_every_value_json_can_say_comes_back(store: FlowEventStore, value: Any) -> None:
    await store.start(request("r", value))
    await store.append(
        Append(
            "r",
            [
                events.run_started(),
                *step("s"),
                events.step_completed("s", value),
                events.hook_created("h", "token", value),
            ],
        )
    )
    (hook,) = await store.list_active_hooks()
    await store.resume_hook("r", "h", value)
    progress = WorkflowProgress(progress_id="p", completed=1, details=value)
    await store.record_progress("r", progress)
    for found in (await history(store), (await store.load_runs(["r"]))["r"].history):
        back = [
            found[0].data["input"],
            found[4].data["output"],
            found[5].data["metadata"],
            found[6].data["payload"],
            found[7].data["progress"]["details"],
        ]
        assert [_exact(item) for item in back] == [_exact(value)] * 5
    assert _exact(hook.metadata) == _exact(value)
    assert not (await store.start(request("r", value))).applied
    assert not (await store.resume_hook("r", "h", value)).applied
    assert not (await store.record_progress("r", progress)).applied


def _exact(value: Any) -> str:
    # Distinguishes 1 from 1.0 and from true, and -0.0 from 0.0, which == does not.
    return json.dumps(value)


async def test_the_text_of_a_payload_is_kept_verbatim(store: FlowEventStore) -> None:
    await running(store)
    text = '{"step_id": "s",\n "output":1.10, "z":1, "a":1e2, "a":2}'
    await store.append(Append("r", step("s")))
    event = NewEvent(events.STEP_COMPLETED, {"step_id": "s", "output": 1.1}, text=text)
    await store.append(Append("r", [event]))
    assert (await history(store))[-1].payload == text


@pytest.mark.parametrize(
    "value",
    [float("nan"), float("inf"), {1: 2}, {"a": {None: 1}}, b"bytes", {1, 2}, object()],
    ids=["NaN", "infinity", "number key", "null key", "bytes", "set", "object"],
)
async def test_what_json_cannot_say_is_refused_and_nothing_is_stored(
    store: FlowEventStore, value: Any
) -> None:
    await hooked(store)
    await store.append(Append("r", step("s")))
    for call in (
        store.start(request("new", value)),
        store.start_many([request("new", value)]),
        store.resume_hook("r", "h", value),
        store.resume_hook_by_token("secret-token", value),
        store.record_progress("r", WorkflowProgress(progress_id="p", completed=1, details=value)),
        store.append(Append("r", [events.step_completed("s", value)])),
    ):
        with pytest.raises(SerializationError):
            await call
    assert await store.list_run_ids() == ["r"]
    assert len(await types(store)) == 5


async def test_a_payload_of_twenty_megabytes_is_refused(store: FlowEventStore) -> None:
    await hooked(store)
    huge = "x" * 20_000_000
    await store.append(Append("r", step("s")))
    for run_id, event_type, call in (
        ("new", "run_created", store.start(request("new", huge))),
        ("r", "hook_received", store.resume_hook("r", "h", huge)),
        (
            "r",
            "run_progress_recorded",
            store.record_progress(
                "r", WorkflowProgress(progress_id="p", completed=1, details=huge)
            ),
        ),
        (
            "r",
            "step_completed",
            store.append(Append("r", [events.step_completed("s", huge)])),
        ),
    ):
        with pytest.raises(PayloadTooLarge) as caught:
            await call
        error = caught.value
        assert (error.run_id, error.event_type) == (run_id, event_type)
        assert error.size > 20_000_000
        assert error.limit == MAX_PAYLOAD_BYTES
        assert "xxx" not in str(error)
    with pytest.raises(PayloadTooLarge):
        await store.resume_hook_by_token("secret-token", huge)
    assert await store.list_run_ids() == ["r"]
    assert len(await types(store)) == 5


async def test_a_payload_of_exactly_the_limit_is_stored(store: FlowEventStore) -> None:
    await running(store, *step("s"), *step("t"))
    room = MAX_PAYLOAD_BYTES - len('{"step_id":"s","output":""}')
    fits = events.step_completed("s", "x" * room)
    assert (await store.append(Append("r", [fits]))).appended
    with pytest.raises(PayloadTooLarge):
        await store.append(Append("r", [events.step_completed("t", "x" * (room + 1))]))


async def test_the_limit_counts_bytes_and_not_characters(store: FlowEventStore) -> None:
    await running(store, *step("s"))
    with pytest.raises(PayloadTooLarge):
        await store.append(Append("r", [events.step_completed("s", "ü" * 600_000)]))
