"""Who sends an answer that the workflow cannot read is told, and the run waits on."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, cast

import psycopg
import pytest
from pydantic import BaseModel

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
    sync,
)
from flowpg.fleet import tasks
from flowpg.model import answers
from flowpg.model.commands import Decision
from flowpg.model.events import HOOK_CREATED
from flowpg.model.records import VerbResult
from flowpg.store.protocol import FlowEventStore
from flowpg.testing import replay
from tests.engine.support import SPEC, EngineStore, Script

TOKEN = "a token that nobody may see"
SECRET = "s3cret"


class Order(BaseModel):
    """What a customer decides."""

    amount: int
    note: str = ""


@dataclass
class Yes:
    yes: bool


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """No schema of a test before is tried first."""
    monkeypatch.setattr(answers, "_latest", {})


def shop(kind: Any = Order, name: str = "order", *, plain: bool = False) -> FlowApp:
    """An app whose workflow waits for one answer and returns it."""
    app = FlowApp("shop")

    if plain:

        @app.workflow(name="main")
        def waits() -> Any:
            return dumped(sync.hook(name, kind, token=TOKEN).result())

    else:

        @app.workflow(name="main")
        async def waits_too() -> Any:
            return dumped(await hook(name, kind, token=TOKEN))

    return app


def dumped(value: Any) -> Any:
    """What a workflow may return of its answer."""
    return value.model_dump() if isinstance(value, BaseModel) else str(value)


async def started(store: EngineStore, app: FlowApp, run_id: str = "r") -> Any:
    """An engine, and a run of the app's workflow that waits."""
    engine = await store.engine(app)
    [workflow] = app.workflows.values()
    await engine.start_with_id(run_id, workflow.spec, workflow.input())
    return engine


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


class Watched:
    """A store that counts the answers that are sent to it, and lets others act before one."""

    def __init__(self, inner: FlowEventStore) -> None:
        self._inner = inner
        self.calls = 0
        self.before: dict[int, Callable[[], Awaitable[Any]]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def resume_hook(self, *args: Any, **kwargs: Any) -> VerbResult:
        await self._count()
        return await self._inner.resume_hook(*args, **kwargs)

    async def resume_hook_by_token(self, *args: Any, **kwargs: Any) -> VerbResult:
        await self._count()
        return await self._inner.resume_hook_by_token(*args, **kwargs)

    async def _count(self) -> None:
        self.calls += 1
        act = self.before.pop(self.calls, None)
        if act is not None:
            await act()


async def watching(store: EngineStore, app: FlowApp | None) -> tuple[Any, Watched]:
    """An engine whose answers are counted."""
    seen: list[Watched] = []

    def wrap(inner: FlowEventStore) -> FlowEventStore:
        seen.append(Watched(inner))
        return cast("FlowEventStore", seen[-1])

    engine = await store.engine(app, wrap=wrap)
    return engine, seen[-1]


async def test_one_call_is_enough_where_nothing_is_declared_or_the_like_was_answered_before(
    engine_store: EngineStore,
) -> None:
    await started(engine_store, shop(Any, "anything"), "untyped")
    sender, store = await watching(engine_store, None)
    await sender.resume_hook("untyped", "anything", 1, drive=False)
    assert store.calls == 1
    app = shop()
    for number in range(4):
        await started(engine_store, app, f"r{number}")
        by_token = number % 2
        if by_token:
            await sender.resume_hook_by_token(TOKEN, {"amount": number}, drive=False)
        else:
            await sender.resume_hook(f"r{number}", "order", {"amount": number}, drive=False)
        # The first one has to ask.
        assert store.calls == 3 + number


async def test_a_guess_that_is_wrong_is_corrected_and_refuses_nothing(
    engine_store: EngineStore,
) -> None:
    sender, _ = await watching(engine_store, None)
    engine = await started(engine_store, shop(Order), "r1")
    await sender.resume_hook("r1", "order", {"amount": 1}, drive=False)
    # The same name, and another type by now.
    engine = await started(engine_store, shop(Yes), "r2")
    with pytest.raises(AnswerRejected, match="yes is missing"):
        await sender.resume_hook("r2", "order", {"amount": 1}, drive=False)
    await sender.resume_hook("r2", "order", {"yes": True}, drive=False)
    assert (await engine.drive("r2")).output == "Yes(yes=True)"


async def test_a_token_that_moves_on_between_two_calls_is_checked_against_the_new_hook(
    engine_store: EngineStore,
) -> None:
    engine = await started(engine_store, shop(Order), "r1")
    sender, store = await watching(engine_store, None)

    async def moves() -> None:
        await engine.force_cancel("r1")
        await started(engine_store, shop(Yes), "r2")

    store.before[2] = moves
    with pytest.raises(AnswerRejected) as refused:
        await sender.resume_hook_by_token(TOKEN, {"amount": 1}, drive=False)
    assert (refused.value.run_id, store.calls) == ("r2", 2)
    assert (await engine.snapshot("r2")).open.hooks


async def test_of_many_answers_at_once_one_that_fits_is_taken_and_none_that_does_not(
    engine_store: EngineStore,
) -> None:
    engine = await started(engine_store, shop())

    async def send(number: int) -> str:
        amount = f"no number {number}" if number % 2 else number
        try:
            await engine.resume_hook("r", "order", {"amount": amount}, drive=False)
        except (AnswerRejected, HookConflict) as error:
            return type(error).__name__
        return str(amount)

    said = await asyncio.gather(*map(send, range(30)))
    [taken] = set(said) - {"AnswerRejected", "HookConflict"}
    assert said.count(taken) == 1
    assert (await engine.drive("r")).output == {"amount": int(taken), "note": ""}


async def test_a_hook_that_is_answered_between_two_calls_says_so(
    engine_store: EngineStore,
) -> None:
    engine = await started(engine_store, shop())
    sender, store = await watching(engine_store, None)
    store.before[2] = lambda: engine.resume_hook("r", "order", {"amount": 2}, drive=False)
    with pytest.raises(HookConflict):
        await sender.resume_hook("r", "order", {"amount": 1}, drive=False)
    assert (await engine.drive("r")).output == {"amount": 2, "note": ""}


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
