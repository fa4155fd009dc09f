"""Runs whose values are compressed and encrypted: on both stores, through crash and replay."""

import asyncio
import contextlib
import json
import logging
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from flowpg.authoring.app import FlowApp
from flowpg.authoring.context import hook
from flowpg.authoring.errors import WorkflowFailed
from flowpg.client import FlowClient
from flowpg.engine.flow_engine import FlowEngine
from flowpg.errors import UndecodablePayload, UnknownKey
from flowpg.model.codecs import Compression, is_sealed
from flowpg.model.encryption import Encryption
from flowpg.model.events import FlowEventEnvelope
from flowpg.model.jsonl import dump_history
from flowpg.model.snapshot import RunStatus
from flowpg.store.memory import InMemoryEventStore
from tests.engine.support import EngineStore, Mortal

OLD, NEW = bytes(32), bytes(range(32))
CANARY = "canary-4711"


def codecs(**keys: bytes) -> list[Any]:
    """The chain of these tests; the last key encrypts."""
    return [Compression(least=64), Encryption(keys)]


def secret_app(chain: list[Any], *, always_replay: bool = False) -> FlowApp:
    """A workflow that has its canary everywhere: input, steps, errors, hook, result."""
    app = FlowApp("secret", codecs=chain, always_replay=always_replay)

    @app.step
    async def double(text: str) -> str:
        return text * 2

    @app.step
    def refuse(text: str) -> None:
        raise ValueError(text) from KeyError(text)

    @app.workflow
    async def main(text: str) -> dict[str, Any]:
        doubled = await double(text)
        try:
            await refuse.run(text)
        except ValueError as error:
            caught = (type(error).__name__, str(error), repr(error.__cause__))
        async with hook("go", str) as go:
            answer = await go
        return {"doubled": doubled, "caught": caught, "answer": answer}

    @app.workflow
    async def failing(text: str) -> None:
        raise LookupError(text)

    return app


RESULT = {
    "doubled": CANARY * 2,
    "caught": ("ValueError", CANARY, f"KeyError({CANARY!r})"),
    "answer": CANARY,
}


@pytest.mark.parametrize("always_replay", [False, True])
async def test_no_value_is_stored_as_plain_text(
    engine_store: EngineStore, always_replay: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    app = secret_app(codecs(a=OLD), always_replay=always_replay)
    main, failing = app.workflows["main"], app.workflows["failing"]
    engine = await engine_store.engine(app)
    run_id = await main.start(engine, CANARY)
    await engine.resume_hook(run_id, "go", CANARY)
    snapshot = await engine.snapshot(run_id)
    assert main.result(snapshot) == RESULT
    failed_id = await failing.start(engine, CANARY)
    failed = await engine.snapshot(failed_id)
    assert failed.status is RunStatus.FAILED
    assert (failed.error or "").startswith("LookupError: (sealed)")
    with pytest.raises(WorkflowFailed, match=f"LookupError: {CANARY}") as caught:
        failing.result(failed)
    assert isinstance(caught.value.__cause__, LookupError)
    stored = "".join([dump_history(await engine.history(one)) for one in (run_id, failed_id)])
    assert CANARY not in stored
    assert all(is_sealed(step.input) for step in snapshot.steps.values())
    assert "LookupError" in caplog.text
    # It replays where nothing of it was seen before.
    fresh = await engine_store.engine(secret_app(codecs(a=OLD), always_replay=True))
    assert (await fresh.drive(run_id)).output == snapshot.output


async def drive_to_the_end(store: EngineStore, new_app: Callable[[], FlowApp], run_id: str) -> Any:
    """Drive a run that exists, with a new process for every move."""
    for _ in range(20):
        app = new_app()
        engine = await store.engine(app)
        snapshot = await engine.drive(run_id)
        if snapshot.terminal:
            return app.workflows["main"].result(snapshot)
        await engine.resume_hook(run_id, "go", CANARY)
    raise AssertionError("the run does not end")


async def test_a_process_may_die_at_every_write(engine_store: EngineStore) -> None:
    at, died = 0, True
    main = secret_app(codecs(a=OLD)).workflows["main"]
    while died:
        at += 1
        mortal = Mortal(at, after=False)
        run_id = f"run-{at}"
        starter = await engine_store.engine(secret_app(codecs(a=OLD)))
        await starter.start_with_id(run_id, main.spec, main.input(CANARY), drive=False)
        doomed = await engine_store.engine(secret_app(codecs(a=OLD)), wrap=mortal.wrap)
        with contextlib.suppress(Exception):
            await doomed.drive(run_id)
            await doomed.resume_hook(run_id, "go", CANARY)
        died = mortal.dead
        engine_store.leases_run_out()
        # Whoever takes over encrypts with another key.
        result = await drive_to_the_end(
            engine_store, lambda: secret_app(codecs(a=OLD, b=NEW)), run_id
        )
        assert result == RESULT
    assert at > 4


async def test_a_run_that_meets_an_unknown_key_is_blocked_until_it_is_there(
    engine_store: EngineStore,
) -> None:
    newest = secret_app(codecs(a=OLD, b=NEW))
    main = newest.workflows["main"]
    engine = await engine_store.engine(newest)
    run_id = await main.start(engine, CANARY)
    assert (await engine.snapshot(run_id)).status is RunStatus.SUSPENDED
    before = len(await engine.history(run_id))

    keys = {"a": OLD}
    late = secret_app([Compression(), Encryption(keys)])
    behind = await engine_store.engine(late)
    with pytest.raises(UnknownKey, match=r"run\.input.*key 'b', which this process does not have"):
        await behind.resume_hook(run_id, "go", CANARY)
    row = await behind.run_info(run_id)
    assert "UnknownKey" in (row.blocked_reason or "")
    assert CANARY not in (row.blocked_reason or "")
    snapshot = await behind.snapshot(run_id)
    assert not snapshot.terminal
    assert len(await engine.history(run_id)) == before + 1  # the answer alone
    keys["b"] = NEW
    assert main.result(await behind.drive(run_id)) == RESULT


async def test_a_step_whose_input_cannot_be_opened_burns_no_attempt(
    engine_store: EngineStore,
) -> None:
    ran: list[str] = []

    def build(chain: list[Any]) -> FlowApp:
        app = FlowApp("late", codecs=chain)

        @app.step
        async def work(text: str) -> str:
            ran.append(text)
            if len(ran) == 1:
                raise asyncio.CancelledError  # the process ends here
            return text

        @app.workflow
        async def main() -> str:
            return await work(CANARY)

        return app

    keys = {"a": OLD}
    first = build([Encryption({"a": OLD, "b": NEW})])
    engine = await engine_store.engine(first)
    run_id = await engine.start(first.workflows["main"].spec, {}, drive=False)
    assert is_sealed((await engine.snapshot(run_id)).input)
    late = build([Encryption(keys)])
    behind = await engine_store.engine(late)
    with pytest.raises(UnknownKey):
        await behind.drive(run_id)
    assert ran == []
    keys["b"] = NEW
    snapshot = await behind.drive(run_id)
    assert late.workflows["main"].result(snapshot) == CANARY


async def test_text_that_was_changed_or_moved_blocks_the_run() -> None:
    app = secret_app(codecs(a=OLD))
    main = app.workflows["main"]
    engine = FlowEngine.in_memory(app)
    for run_id in ("one", "two"):
        await main.start_with_id(engine, run_id, CANARY)
    history = await engine.history("one")
    other = await engine.history("two")

    async def with_event(index: int, text: str) -> None:
        store = InMemoryEventStore()
        events = list(history)
        old = events[index]
        events[index] = FlowEventEnvelope(
            old.run_id, old.sequence, old.event_id, old.recorded_at, old.type, payload=text
        )
        await store.import_history(events)
        broken = FlowEngine(store, secret_app(codecs(a=OLD)))
        with pytest.raises(UndecodablePayload) as caught:
            await broken.resume_hook("one", "go", CANARY)
        assert not isinstance(caught.value, UnknownKey)
        assert "UndecodablePayload" in ((await broken.run_info("one")).blocked_reason or "")

    at = next(i for i, event in enumerate(history) if event.type == "step_completed")
    moved = {**history[at].data, "output": other[at].data["output"]}
    await with_event(at, json.dumps(moved))
    changed = {**history[at].data["output"]}
    changed["v"] = ("A" if changed["v"][20] != "A" else "B").join(
        (changed["v"][:20], changed["v"][21:])
    )
    await with_event(at, json.dumps({**history[at].data, "output": changed}))


async def test_an_answer_by_token_is_sealed_too(engine_store: EngineStore) -> None:
    app = secret_app(codecs(a=OLD))
    main = app.workflows["main"]
    engine = await engine_store.engine(app)
    run_id = await main.start(engine, CANARY)
    [active] = await engine.list_active_hooks(run_id=run_id)
    assert await engine.resume_hook_by_token(active.token, CANARY) == (run_id, "go")
    assert main.result(await engine.snapshot(run_id)) == RESULT
    assert CANARY not in dump_history(await engine.history(run_id))


async def test_codecs_can_be_given_to_an_application_that_has_runs(
    engine_store: EngineStore,
) -> None:
    before, after = secret_app([]), secret_app(codecs(a=OLD))
    engine = await engine_store.engine(before)
    run_id = await before.workflows["main"].start(engine, CANARY)
    newer = await engine_store.engine(after)
    assert after.workflows["main"].result(await newer.resume_hook(run_id, "go", CANARY)) == RESULT
    # The way back is blocked, not failed.
    run_id = await after.workflows["main"].start(newer, CANARY)
    with pytest.raises(UndecodablePayload, match="codec"):
        await engine.resume_hook(run_id, "go", CANARY)
    assert not (await engine.snapshot(run_id)).terminal


async def test_a_client_seals_and_opens(postgres_only: EngineStore, direct_dsn: str) -> None:
    app = secret_app(codecs(a=OLD))
    main = app.workflows["main"]
    engine = await postgres_only.engine(app)
    with FlowClient(direct_dsn, codecs=codecs(a=OLD)) as client, FlowClient(direct_dsn) as plain:

        def start() -> list[str]:
            first = client.start(main.spec, main.input(CANARY)).run_id
            found = [first]
            found += [r.run_id for r in client.start_many([main.request(CANARY)])]
            found += [r.run_id for r in plain.start_many([main.request(CANARY)])]
            return found

        started = await asyncio.to_thread(start)
        for run_id in started:
            assert is_sealed((await asyncio.to_thread(plain.snapshot, run_id)).input)
            await engine.drive(run_id)
        first, *others = started

        def answer() -> None:
            client.resume_hook(first, "go", CANARY)

        await asyncio.to_thread(answer)
        await engine.drive(first)
        opened = await asyncio.to_thread(client.wait, first, timedelta(seconds=5))
        assert opened.input == {"text": CANARY}
        assert opened.hooks["go"].payload == CANARY
        assert main.result(opened) == RESULT
        assert opened.terminal_outcome is not None
        sealed = await asyncio.to_thread(plain.snapshot, first)
        assert is_sealed(sealed.output)
        assert main.result(sealed) == RESULT
        assert CANARY not in "".join(
            event.payload for event in await asyncio.to_thread(plain.history, first)
        )
        for run_id in others:
            await engine.force_cancel(run_id)


async def test_an_engine_that_only_starts_is_given_the_codecs() -> None:
    store = InMemoryEventStore()
    app = secret_app(codecs(a=OLD))
    main = app.workflows["main"]
    starter = FlowEngine.builder().with_store(store).with_codecs(codecs(a=OLD)).build()
    run_id = await starter.start(main.spec, main.input(CANARY))
    assert is_sealed((await starter.snapshot(run_id)).input)
    engine = FlowEngine(store, app)
    await engine.drive(run_id)
    await starter.resume_hook(run_id, "go", CANARY)
    store.advance(timedelta(seconds=1))
    assert main.result(await engine.drive(run_id)) == RESULT


async def test_what_a_transactional_step_returns_is_sealed(postgres_only: EngineStore) -> None:
    app = FlowApp("transactional", codecs=codecs(a=OLD))

    @app.step(transactional=True)
    async def work(connection: Any, text: str) -> str:
        await connection.execute("SELECT 1")
        if text != CANARY:
            raise ValueError(CANARY)
        return text

    @app.workflow
    async def main(text: str) -> str:
        return await work(text)

    engine = await postgres_only.engine(app)
    run_id = await main.start(engine, CANARY)
    assert main.result(await engine.snapshot(run_id)) == CANARY
    failed = await main.start(engine, "another")
    assert "(sealed)" in ((await engine.snapshot(failed)).error or "")
    for one in (run_id, failed):
        assert CANARY not in dump_history(await engine.history(one))
