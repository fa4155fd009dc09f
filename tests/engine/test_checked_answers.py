"""Who sends an answer that the workflow cannot read is told, and the run waits on."""

import json
from collections.abc import Awaitable, Callable
from typing import Any

import psycopg
import pytest

from flowpg import (
    AnswerRejected,
    Encryption,
    FlowApp,
    FlowClient,
    FlowError,
    FlowWorker,
    HookConflict,
    HookTokenNotFound,
    InvalidArgument,
    RunStatus,
    WorkflowContext,
    dump_history,
    hook,
    load_history,
)
from flowpg.fleet import tasks
from flowpg.model.commands import Decision
from flowpg.model.events import HOOK_CREATED
from flowpg.testing import replay
from tests.engine.answering import SECRET, TOKEN, Order, shop, started
from tests.engine.support import SPEC, EngineStore, Script

pytestmark = pytest.mark.usefixtures("nothing_known")


@pytest.mark.parametrize("plain", [False, True])
async def test_the_sender_is_told_what_does_not_fit_and_a_right_answer_is_taken(
    engine_store: EngineStore, plain: bool
) -> None:
    engine = await started(engine_store, shop(plain=plain))
    before = len(await engine.history("r"))
    wrong = {"amount": SECRET, "note": 5}
    sends: list[Callable[[], Awaitable[Any]]] = [
        lambda: engine.resume_hook("r", "order", wrong),
        lambda: engine.resume_hook_by_token(TOKEN, wrong),
    ]
    for send in sends * 2:
        with pytest.raises(AnswerRejected) as refused:
            await send()
        assert refused.value.failures == (
            ("amount", "should be an integer"),
            ("note", "should be a string"),
        )
        assert (refused.value.run_id, refused.value.hook_id) == ("r", "order")
        assert isinstance(refused.value, InvalidArgument)
        said = f"{refused.value} {refused.value!r}"
        assert "amount should be an integer" in said
        assert SECRET not in said
        assert TOKEN not in said
    assert len(await engine.history("r")) == before
    assert (await engine.snapshot("r")).status is RunStatus.SUSPENDED
    done = await engine.resume_hook("r", "order", {"amount": "7"})
    assert done.output == {"amount": 7, "note": ""}


async def test_a_worker_in_another_process_resumes_the_run_after_a_right_answer(
    engine_store: EngineStore,
) -> None:
    app = shop()
    engine, sender = await engine_store.engine(app), await engine_store.engine(None)
    worker = FlowWorker(engine)
    [workflow] = app.workflows.values()
    await sender.start_with_id("r", workflow.spec, workflow.input(), drive=False)
    await worker.run_until_idle()
    with pytest.raises(AnswerRejected):
        await sender.resume_hook_by_token(TOKEN, [], drive=False)
    await worker.run_until_idle()
    assert (await sender.snapshot("r")).status is RunStatus.SUSPENDED
    assert await sender.resume_hook_by_token(TOKEN, {"amount": 1}, drive=False) == ("r", "order")
    await worker.run_until_idle()
    assert (await sender.snapshot("r")).output == {"amount": 1, "note": ""}


async def test_what_was_taken_may_be_delivered_again_whatever_it_is(
    engine_store: EngineStore,
) -> None:
    engine = await started(engine_store, shop())
    await engine.resume_hook("r", "order", {"amount": "7"}, drive=False)
    assert not (await engine.resume_hook("r", "order", {"amount": "7"}, drive=False)).terminal
    await engine.drive("r")
    assert (await engine.resume_hook("r", "order", {"amount": "7"})).terminal
    with pytest.raises(HookConflict):
        await engine.resume_hook("r", "order", "something that does not fit")


async def test_an_answer_that_nobody_checked_may_be_delivered_again_too(
    engine_store: EngineStore,
) -> None:
    engine = await started(engine_store, shop())
    await engine.store.resume_hook("r", "order", SECRET)
    assert not (await engine.resume_hook("r", "order", SECRET, drive=False)).terminal
    failed = await engine.drive("r")
    assert failed.status is RunStatus.FAILED
    assert "hook 'order'" in str(failed.error)
    assert SECRET not in str(failed.error)
    assert (await engine.resume_hook("r", "order", SECRET)).terminal


async def test_tokens_that_are_unknown_or_used_are_refused_alike_whatever_is_sent(
    engine_store: EngineStore,
) -> None:
    engine = await started(engine_store, shop())
    said = set()
    for payload in ({"amount": 1}, "no order"):
        with pytest.raises(HookTokenNotFound) as unknown:
            await engine.resume_hook_by_token("another", payload)
        said.add(str(unknown.value))
    await engine.resume_hook_by_token(TOKEN, {"amount": 1})
    for payload in ({"amount": 1}, "no order"):
        with pytest.raises(HookTokenNotFound) as used:
            await engine.resume_hook_by_token(TOKEN, payload)
        said.add(str(used.value))
    assert len(said) == 1


async def test_a_hand_written_runtime_declares_what_it_waits_for(
    engine_store: EngineStore,
) -> None:
    def decide(ctx: WorkflowContext) -> Decision:
        if ctx.hook_received("h"):
            return ctx.complete(ctx.hook_payload_as("h", int))
        return ctx.create_hook("h", TOKEN, kind=int)

    engine = await engine_store.engine(Script(decide))
    await engine.start_with_id("r", SPEC)
    with pytest.raises(AnswerRejected, match="it should be an integer"):
        await engine.resume_hook("r", "h", "five")
    assert (await engine.resume_hook("r", "h", "5")).output == 5


async def test_a_task_with_an_answer_that_does_not_fit_fails_for_good(
    engine_store: EngineStore,
) -> None:
    engine = await started(engine_store, shop())
    for task in (
        tasks.ResumeHook(run_id="r", hook_id="order", payload=SECRET),
        tasks.ResumeHookByToken(token=TOKEN, payload=SECRET),
    ):
        with pytest.raises(AnswerRejected) as refused:
            await tasks.carry_out(engine.store, task)
        assert not tasks.retryable(refused.value)
    right = tasks.ResumeHookByToken(token=TOKEN, payload={"amount": 1})
    assert (await tasks.carry_out(engine.store, right)).resumed_hook == ("r", "order")


async def test_a_run_that_says_another_schema_or_none_goes_on_with_the_code_of_today(
    engine_store: EngineStore,
) -> None:
    app = shop()
    engine = await started(engine_store, app, "made")
    recorded = load_history(dump_history(await engine.history("made")))
    await engine.force_cancel("made")
    for run_id, schema in (("none", None), ("other", {"type": "object", "title": "Older"})):
        lines = []
        for event in recorded:
            line = json.loads(dump_history([event]))
            line["run_id"] = run_id
            line["event_id"] = line["event_id"][:-4] + ("aaaa" if schema else "bbbb")
            if event.type == HOOK_CREATED:
                # What a release of yesterday wrote, of flowpg or of pydantic.
                line["event"].pop("payload_schema")
                if schema is not None:
                    line["event"]["payload_schema"] = schema
            lines.append(json.dumps(line))
        history = load_history("\n".join(lines) + "\n")
        await replay(app, history)
        await engine.store.import_history(history)
        assert (await engine.drive(run_id)).status is RunStatus.SUSPENDED
        if schema is not None:
            with pytest.raises(AnswerRejected):
                await engine.resume_hook(run_id, "order", "no object")
        done = await engine.resume_hook(run_id, "order", {"amount": 1})
        assert done.output == {"amount": 1, "note": ""}
        await replay(app, await engine.history(run_id))


async def test_a_refusal_leaves_the_transaction_of_the_sender_alone(
    postgres_only: EngineStore, direct_dsn: str
) -> None:
    engine = await started(postgres_only, shop())
    async with await psycopg.AsyncConnection.connect(direct_dsn) as connection:
        with pytest.raises(AnswerRejected):
            await engine.resume_hook("r", "order", SECRET, connection=connection)
        with pytest.raises(AnswerRejected):
            await engine.resume_hook_by_token(TOKEN, SECRET, connection=connection)
        await engine.resume_hook("r", "order", {"amount": 3}, connection=connection)
        await connection.commit()
    assert (await engine.drive("r")).output == {"amount": 3, "note": ""}


async def test_the_client_checks_before_it_seals_and_leaves_what_others_sealed(
    postgres_only: EngineStore, direct_dsn: str
) -> None:
    key = Encryption({"k": b"0" * 32})
    app = FlowApp("sealed", codecs=[key])

    @app.workflow
    async def main() -> int:
        return (await hook("order", Order, token=TOKEN)).amount

    engine = await postgres_only.engine(app)
    for run_id, by_token in (("r1", False), ("r2", True), ("r3", False)):
        await engine.start_with_id(run_id, main.spec, main.input())
        # Operators see what is waited for; nobody sees the answer.
        assert (await engine.list_active_hooks(run_id=run_id))[0].payload_schema["title"] == "Order"
        with FlowClient(direct_dsn, codecs=app.codecs) as client:
            with pytest.raises(AnswerRejected, match="amount is missing"):
                client.resume_hook(run_id, "order", {})
            with pytest.raises(AnswerRejected, match="amount is missing"):
                client.resume_hook_by_token(TOKEN, {})
            if run_id == "r3":
                sealed = app.codecs.seal_answer({"amount": 4}, run_id, "order")
                with FlowClient(direct_dsn) as keyless:
                    assert keyless.resume_hook(run_id, "order", sealed).applied
            elif by_token:
                assert client.resume_hook_by_token(TOKEN, {"amount": 4}).applied
            else:
                assert client.resume_hook(run_id, "order", {"amount": 4}).applied
        assert main.result(await engine.drive(run_id)) == 4


async def test_sql_callers_are_not_checked_and_readers_see_the_schema(
    postgres_only: EngineStore, direct_dsn: str
) -> None:
    engine = await started(postgres_only, shop())
    async with await psycopg.AsyncConnection.connect(direct_dsn) as connection:
        shown = await connection.execute(
            "SELECT payload_schema ->> 'title' FROM flowpg.flow_active_hooks"
        )
        assert await shown.fetchone() == ("Order",)
        applied = await connection.execute(
            "SELECT applied FROM flowpg.flow_resume_hook('r', 'order', '\"x\"')"
        )
        assert await applied.fetchone() == (True,)
    failed = await engine.drive("r")
    assert failed.status is RunStatus.FAILED


async def test_what_json_cannot_carry_is_refused_as_ever(engine_store: EngineStore) -> None:
    engine = await started(engine_store, shop())
    with pytest.raises(AnswerRejected):
        await engine.resume_hook("r", "order", {})
    with pytest.raises(FlowError, match=r"cannot be stored as JSON.*dataclasses.asdict\(\)"):
        await engine.resume_hook("r", "order", {"amount": object()})
