"""One program in both styles, as asyncio and as a hand-written runtime: the same history."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from flowpg import FlowApp, Retry, hook, patched, progress, set_attributes, step_context
from flowpg.engine.flow_engine import FlowEngine
from flowpg.model.commands import Decision
from flowpg.model.events import FlowEventEnvelope
from flowpg.model.operations import WorkflowProgress
from flowpg.model.spec import WorkflowSpec
from flowpg.replay.runtime import StepInvocation, WorkflowInvocation
from flowpg.store.memory import InMemoryEventStore
from tests.authoring.support import RUN_ID, START
from tests.waiting import until_async

POLICY = Retry.fixed(3, timedelta(seconds=1))


def written_as_asyncio(always_replay: bool) -> FlowApp:
    """The program as a person writes it."""
    app = FlowApp("both", always_replay=always_replay)

    @app.step
    async def load(id: str) -> dict[str, Any]:
        return _load(id)

    @app.step
    async def check(what: str, cents: int) -> bool:
        return _check(what, cents)

    @app.step(retry=POLICY)
    async def post(id: str) -> str:
        return _post(id, step_context().attempt)

    @app.workflow
    async def approve(id: str) -> dict[str, Any]:
        invoice = await load(id)
        checks = await asyncio.gather(
            check("budget", invoice["cents"]), check("vendor", invoice["cents"])
        )
        progress(1, 3, "checked")
        entry = await post(id)
        await asyncio.sleep(2)
        approval = await hook("approval", token=f"approve {id}", metadata={"invoice": id})
        return {"entry": entry, "ok": all(checks) and approval["ok"]}

    return app


class WrittenByHand:
    """The same program against the protocol."""

    def run_workflow(self, invocation: WorkflowInvocation) -> Decision:
        ctx = invocation.context()
        invoice = ctx.input["id"]
        retry = Retry().continue_workflow_on_failure()
        if not ctx.step_completed("load#1"):
            return ctx.schedule_step("load#1", "load", {"id": invoice}, retry)
        cents = ctx.step_output("load#1")["cents"]
        checks = ("check#2", "check#3")
        if not all(map(ctx.step_completed, checks)):
            return ctx.schedule_steps(
                ctx.step(step_id, "check", {"what": what, "cents": cents}, retry)
                for step_id, what in zip(checks, ("budget", "vendor"), strict=True)
            )
        report = WorkflowProgress(progress_id="progress#4", completed=1, total=3, message="checked")
        post = ctx.schedule_step(
            "post#5", "post", {"id": invoice}, POLICY.continue_workflow_on_failure()
        )
        if ctx.progress("progress#4") is None:
            return ctx.record_progress(report), post
        if not ctx.step_completed("post#5"):
            return post
        if not ctx.wait_completed("sleep#6"):
            return ctx.sleep("sleep#6", timedelta(seconds=2))
        if not ctx.hook_received("approval"):
            asked = {"invoice": invoice}
            return ctx.create_hook("approval", f"approve {invoice}", asked, on_conflict="raise")
        ok = all(map(ctx.step_output, checks)) and ctx.hook_payload("approval")["ok"]
        return ctx.complete({"entry": ctx.step_output("post#5"), "ok": ok})

    async def run_step(self, step: StepInvocation) -> Any:
        match step.step_name:
            case "load":
                return _load(**step.input)
            case "check":
                return _check(**step.input)
        return _post(step.input["id"], step.attempt)


def _load(id: str) -> dict[str, Any]:
    return {"id": id, "cents": 500}


def _check(what: str, cents: int) -> bool:
    return cents < 1000


def _post(id: str, attempt: int) -> str:
    if attempt < 3:
        raise ConnectionError("the ledger did not answer")
    return f"L-{id}"


async def history_of(runtime: Any) -> list[FlowEventEnvelope]:
    """The history of the program under a runtime, on a clock that jumps."""
    store = InMemoryEventStore(clock=lambda: START)
    engine = FlowEngine(store, runtime)
    await engine.start_with_id(RUN_ID, WorkflowSpec.python("approve"), {"id": "7"})
    while not (snapshot := await engine.snapshot(RUN_ID)).terminal:
        if "approval" in snapshot.hooks:
            await engine.resume_hook(RUN_ID, "approval", {"ok": True})
        elif (wakeup := await store.next_wakeup()) is not None:
            store.advance(wakeup.due_at - await store.now())
            await engine.drive(RUN_ID)
    history = await engine.history(RUN_ID)
    await engine.close()
    return history


@pytest.mark.parametrize("always_replay", [False, True])
async def test_both_styles_write_the_same_history(always_replay: bool) -> None:
    by_hand = await history_of(WrittenByHand())
    as_asyncio = await history_of(written_as_asyncio(always_replay))

    def comparable(event: FlowEventEnvelope) -> Any:
        data = dict(event.data)
        if "error" in data:
            # As asyncio an error is kept with all that belongs to it; the first line is the same.
            data["error"] = data["error"].splitlines()[0]
        return event.sequence, event.recorded_at, event.type, data

    assert list(map(comparable, as_asyncio)) == list(map(comparable, by_hand))
    assert by_hand[-1].data == {"output": {"entry": "L-7", "ok": True}}


def racing_as_asyncio(always_replay: bool) -> FlowApp:
    """Races, a patch and attributes, as a person writes them."""
    app = FlowApp("racing", always_replay=always_replay)

    @app.step
    async def load(id: str) -> dict[str, Any]:
        return _load(id)

    @app.step
    async def never(id: str) -> None:
        await asyncio.Event().wait()

    @app.workflow
    async def approve(id: str) -> Any:
        set_attributes(invoice=id)
        async with asyncio.timeout(60):
            invoice = await load(id)
        if patched("ask"):
            try:
                async with asyncio.timeout(5):
                    await hook("approval", token=f"approve {id}")
            except TimeoutError:
                set_attributes(late=True)
        try:
            async with asyncio.timeout(3):
                await never(id)
        except TimeoutError:
            pass
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            return invoice["cents"]

    return app


class RacingByHand:
    """The same program against the protocol."""

    def run_workflow(self, invocation: WorkflowInvocation) -> Decision:
        ctx = invocation.context()
        invoice = ctx.input["id"]
        retry = Retry().continue_workflow_on_failure()
        if not ctx.step_completed("load#2"):
            timeout = ctx.sleep("sleep#1", timedelta(seconds=60))
            load = ctx.schedule_step("load#2", "load", {"id": invoice}, retry)
            fresh = ctx.set_attributes({"invoice": invoice})
            return (timeout, load) if ctx.attributes else (fresh, timeout, load)
        deadline = ctx.sleep("sleep#3", timedelta(seconds=5))
        ask = ctx.create_hook("approval", f"approve {invoice}", on_conflict="raise")
        if not ctx.patched("ask"):
            return ctx.cancel_wait("sleep#1"), ctx.record_patch("ask"), deadline, ask
        if not ctx.wait_completed("sleep#3"):
            return deadline, ask
        limit = ctx.sleep("sleep#4", timedelta(seconds=3))
        never = ctx.schedule_step("never#5", "never", {"id": invoice}, retry)
        if "late" not in ctx.attributes:
            late = ctx.set_attributes({"late": True})
            return ctx.dispose_hook("approval"), late, limit, never
        if not ctx.wait_completed("sleep#4"):
            return limit, never
        if ctx.cancellation_request() is None:
            closing = (ctx.cancel_step("never#5"),) if not ctx.step_cancelled("never#5") else ()
            return (*closing, ctx.sleep("sleep#6", timedelta(seconds=1000)))
        return ctx.complete(ctx.step_output("load#2")["cents"], despite_cancellation=True)

    async def run_step(self, step: StepInvocation) -> Any:
        if step.step_name == "load":
            return _load(**step.input)
        return await asyncio.Event().wait()


async def racing_history(runtime: Any) -> list[FlowEventEnvelope]:
    """The history of that program, asked to cancel in its last wait."""
    store = InMemoryEventStore(clock=lambda: START)
    engine = FlowEngine(store, runtime)
    spec = WorkflowSpec.python("approve")
    driving: asyncio.Task[Any]
    driving = asyncio.create_task(engine.start_with_id(RUN_ID, spec, {"id": "7"}))

    async def ended() -> bool:
        nonlocal driving
        if driving.done():
            driving.result()
            if (await engine.run_info(RUN_ID)).status.terminal:
                return True
        elif not await store.list_run_ids():
            return False
        waits = {w.subject_id for w in await store.list_open_suspensions(run_id=RUN_ID)}
        if "sleep#6" in waits and driving.done():
            await engine.request_cancellation(RUN_ID, "enough")
        elif waits & {"sleep#3", "sleep#4"}:
            store.advance(timedelta(seconds=5))
            await store.resume_due_waits()
            engine.poke(RUN_ID)
            if driving.done():
                driving = asyncio.create_task(engine.drive(RUN_ID))
        return False

    await until_async(ended, "the run ends", look_again=0)
    history = await engine.history(RUN_ID)
    await engine.close()
    return history


@pytest.mark.parametrize("always_replay", [False, True])
async def test_both_styles_close_what_lost_and_mark_runs_alike(always_replay: bool) -> None:
    by_hand = await racing_history(RacingByHand())
    as_asyncio = await racing_history(racing_as_asyncio(always_replay))

    def comparable(event: FlowEventEnvelope) -> Any:
        return event.sequence, event.recorded_at, event.type, event.data

    assert list(map(comparable, as_asyncio)) == list(map(comparable, by_hand))
    assert by_hand[-1].data == {"output": 500}
    assert {"wait_cancelled", "hook_disposed", "step_cancelled", "patch_recorded"} < {
        event.type for event in by_hand
    }


async def test_a_run_may_move_from_one_style_to_the_other() -> None:
    store = InMemoryEventStore(clock=lambda: START)
    first = FlowEngine(store, WrittenByHand())
    app = written_as_asyncio(always_replay=False)
    await first.start_with_id(RUN_ID, app.workflows["approve"].spec, {"id": "7"})
    second = FlowEngine(store, app)
    runtimes = [second, first]
    while not (snapshot := await second.snapshot(RUN_ID)).terminal:
        engine = runtimes[len(await second.history(RUN_ID)) % 2]
        if "approval" in snapshot.hooks:
            await engine.resume_hook(RUN_ID, "approval", {"ok": True})
        elif (wakeup := await store.next_wakeup()) is not None:
            store.advance(wakeup.due_at - await store.now())
            await engine.drive(RUN_ID)
    assert snapshot.output == {"entry": "L-7", "ok": True}
    await first.close()
