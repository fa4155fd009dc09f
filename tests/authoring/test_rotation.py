"""A start or an answer that is repeated after a rotation of keys: engine and client know it."""

import psycopg
import pytest

from flowpg.client import FlowClient
from flowpg.errors import HookConflict, RunConflict, UnknownKey
from flowpg.model.records import StartRequest
from tests.authoring.test_sealed_runs import CANARY, NEW, OLD, RESULT, codecs, secret_app
from tests.engine.support import EngineStore


async def test_a_repeated_start_or_answer_is_recognised_after_a_rotation(
    engine_store: EngineStore,
) -> None:
    apps = [secret_app(codecs(a=OLD)), secret_app(codecs(a=OLD, b=NEW))]
    engines = [await engine_store.engine(app) for app in apps]
    for app, engine in zip(apps, engines, strict=True):
        main = app.workflows["main"]
        for _ in range(2):
            assert await main.start_with_id(engine, "the-run", CANARY) == "the-run"
            found = await engine.start_with_id("the-run", main.spec, main.input(CANARY))
            assert found == "the-run"
        with pytest.raises(RunConflict):
            await main.start_with_id(engine, "the-run", "another")
    for engine in engines:
        for _ in range(2):
            await engine.resume_hook("the-run", "go", CANARY)
        with pytest.raises(HookConflict):
            await engine.resume_hook("the-run", "go", "another")
    assert apps[1].workflows["main"].result(await engines[1].snapshot("the-run")) == RESULT


async def test_many_starts_are_recognised_after_a_rotation(engine_store: EngineStore) -> None:
    apps = [secret_app(codecs(a=OLD)), secret_app(codecs(a=OLD, b=NEW))]
    engines = [await engine_store.engine(app) for app in apps]
    outcomes: list[list[str]] = []
    for app, engine in zip(apps, engines, strict=True):
        main = app.workflows["main"]
        requests = [
            main.options(run_id="x").request(CANARY),
            main.options(run_id="y").request("another" if engine is engines[1] else CANARY),
            main.options(run_id=f"z{len(outcomes)}").request(CANARY),
        ]
        outcomes.append([found.outcome.value for found in await engine.start_many(requests)])
    assert outcomes == [["created"] * 3, ["exists", "run_conflict", "created"]]


async def test_the_client_recognises_a_repeated_start_or_answer_after_a_rotation(
    postgres_only: EngineStore,
) -> None:
    app = secret_app(codecs(a=OLD))
    main = app.workflows["main"]
    engine = await postgres_only.engine(app)
    assert postgres_only.dsn is not None
    with (
        FlowClient(postgres_only.dsn, codecs=app.codecs) as old,
        FlowClient(postgres_only.dsn, codecs=codecs(a=OLD, b=NEW)) as new,
        FlowClient(postgres_only.dsn, codecs=codecs(b=NEW)) as without,
    ):
        given = main.input(CANARY)
        assert old.start(main.spec, given, run_id="r").applied
        await engine.drive("r")
        again = new.start(main.spec, given, run_id="r")
        assert (again.run_id, again.applied) == ("r", False)
        with pytest.raises(RunConflict):
            new.start(main.spec, main.input("another"), run_id="r")
        with pytest.raises(RunConflict):
            new.start(app.workflows["failing"].spec, given, run_id="r")
        with pytest.raises(UnknownKey):
            without.start(main.spec, given, run_id="r")
        found = new.start_many(
            [StartRequest(main.spec, main.input(words), "r") for words in (CANARY, "another")]
        )
        assert [one.outcome.value for one in found] == ["exists", "run_conflict"]

        assert old.resume_hook("r", "go", CANARY).applied
        answer = new.resume_hook("r", "go", CANARY)
        assert (answer.run_id, answer.subject_id, answer.applied) == ("r", "go", False)
        with pytest.raises(HookConflict):
            new.resume_hook("r", "go", "another")
        await engine.drive("r")
        # And when it has ended.
        assert not new.resume_hook("r", "go", CANARY).applied
        assert main.result(new.snapshot("r")) == RESULT


@pytest.mark.parametrize("autocommit", [True, False])
async def test_a_transaction_that_a_conflict_has_failed_is_asked_nothing_more(
    postgres_only: EngineStore, autocommit: bool
) -> None:
    app = secret_app(codecs(a=OLD))
    main = app.workflows["main"]
    engine = await postgres_only.engine(app)
    await main.start_with_id(engine, "r", CANARY)
    assert postgres_only.dsn is not None
    with psycopg.connect(
        postgres_only.dsn, autocommit=autocommit, prepare_threshold=None
    ) as connection:
        client = FlowClient(connection, codecs=codecs(a=OLD, b=NEW))
        if autocommit:
            assert not client.start(main.spec, main.input(CANARY), run_id="r").applied
        else:
            with pytest.raises(RunConflict):
                client.start(main.spec, main.input(CANARY), run_id="r")
            connection.rollback()
