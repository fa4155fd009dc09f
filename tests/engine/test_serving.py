"""What a process may drive: what its runtime names and can do, and nothing of a run whose code does
not fit or which has ended."""

from datetime import timedelta
from typing import Any

import psycopg
import pytest

from flowpg.client import FlowClient
from flowpg.errors import EngineFault, FlowError, InvalidArgument, NonDeterministic, UnknownWorkflow
from flowpg.fleet.worker import FlowWorker
from flowpg.model.commands import Decision
from flowpg.model.records import StartRequest
from flowpg.model.retry import RetryPolicy
from flowpg.model.snapshot import RunStatus
from flowpg.model.spec import WorkflowSpec
from flowpg.replay.context import WorkflowContext
from flowpg.replay.runtime import FlowRuntime, StepInvocation, WorkflowInvocation, known
from tests.engine.support import LEASE, MINUTE, SPEC, EngineStore, Script, echo, one_step, short

OTHER = WorkflowSpec.python("invoice")


class Serving(Script):
    """A runtime that says which workflows it has."""

    def __init__(self, workflows: Any) -> None:
        super().__init__(one_step(), {"work": echo})
        self.workflows = workflows


@pytest.mark.parametrize(
    "named", [("invoice",), [OTHER], {"invoice"}, {"invoice": None}, frozenset({OTHER.name}), ()]
)
async def test_a_workflow_that_the_runtime_does_not_name_is_blocked_before_it_is_asked(
    engine_store: EngineStore, named: Any
) -> None:
    runtime = Serving(named)
    engine = await engine_store.engine(runtime)
    run_id = await engine.start(SPEC, drive=False)
    history = await engine.history(run_id)
    with pytest.raises(UnknownWorkflow, match="order"):
        await engine.drive(run_id)
    assert runtime.replays == 0
    assert await engine.history(run_id) == history
    assert str((await engine.run_info(run_id)).blocked_reason).startswith("UnknownWorkflow")

    runtime.workflows = [*named, SPEC]
    assert (await engine.drive(run_id)).status is RunStatus.COMPLETED


async def test_a_runtime_that_names_nothing_is_asked_about_every_workflow(
    engine_store: EngineStore,
) -> None:
    engine = await engine_store.engine(Serving(None))
    for spec in (SPEC, OTHER):
        assert (await engine.snapshot(await engine.start(spec))).status is RunStatus.COMPLETED


@pytest.mark.parametrize("named", ["order", [1], 7])
async def test_workflows_that_are_no_names_are_refused_when_the_engine_is_made(
    engine_store: EngineStore, named: Any
) -> None:
    with pytest.raises(InvalidArgument, match="workflows of Serving must be a collection"):
        await engine_store.engine(Serving(named))


def test_names_and_specs_may_stand_together() -> None:
    assert known(Serving([OTHER, "order", "order"])) == ("invoice", "order")
    assert known(Serving(None)) is None


class OnlyDecides(FlowRuntime):
    """Inherits ``run_step``."""

    def run_workflow(self, invocation: WorkflowInvocation) -> Decision:
        """One step."""
        return invocation.context().schedule_step("s", "work")


class OnlyWorks(FlowRuntime):
    """Inherits ``run_workflow``."""

    def run_step(self, invocation: StepInvocation) -> Any:
        """Nothing."""


@pytest.mark.parametrize(
    ("runtime", "method"), [(OnlyDecides(), "run_step"), (OnlyWorks(), "run_workflow")]
)
async def test_a_method_that_is_only_inherited_blocks_the_run_and_is_named(
    engine_store: EngineStore, runtime: FlowRuntime, method: str
) -> None:
    engine = await engine_store.engine(runtime)
    with pytest.raises(EngineFault, match=f"{type(runtime).__name__} does not define {method}"):
        await engine.start_with_id("run", SPEC)
    assert "step.completed s" not in short(await engine.history("run"))
    assert method in str((await engine.run_info("run")).blocked_reason)


@pytest.mark.parametrize("pause", [timedelta(0), MINUTE])
async def test_code_that_does_not_fit_the_history_burns_no_attempts(
    engine_store: EngineStore, pause: timedelta
) -> None:
    good = one_step(retry=RetryPolicy.fixed(4, pause))
    bad = one_step(retry=RetryPolicy.fixed(4, pause), input="changed by a bad deploy")

    def work(step: StepInvocation) -> Any:
        if step.attempt == 1:
            if not pause:
                runtime.workflow = bad
            raise ConnectionError
        return step.attempt

    runtime = Script(good, {"work": work})
    engine = await engine_store.engine(runtime)
    run_id = await engine.start(SPEC, drive=False)
    if pause:
        await engine.drive(run_id)
    runtime.workflow = runtime.workflow if not pause else bad
    for _ in range(5):
        with pytest.raises(NonDeterministic):
            await engine.drive(run_id)
        engine_store.advance(MINUTE)
        assert (await engine.snapshot(run_id)).steps["s"].attempt == 1
    assert short(await engine.history(run_id))[-1] == "step.retrying s"
    assert runtime.calls == [("s", 1)]

    runtime.workflow = good
    assert (await engine.drive(run_id)).output == 2


async def test_a_due_retry_that_the_workflow_does_not_ask_for_again_still_starts(
    engine_store: EngineStore,
) -> None:
    def workflow(ctx: WorkflowContext) -> Decision:
        if ctx.step_completed("s"):
            return ctx.complete(ctx.step_output("s"))
        if ctx.progress("p") is None and not runtime.calls:
            return ctx.schedule_step("s", "work", retry=RetryPolicy.fixed(3, MINUTE))
        return ctx.create_hook("h", "token")

    def work(step: StepInvocation) -> Any:
        if step.attempt == 1:
            raise ConnectionError
        return step.attempt

    runtime = Script(workflow, {"work": work})
    engine = await engine_store.engine(runtime)
    run_id = await engine.start(SPEC)
    engine_store.advance(MINUTE)
    assert (await engine.drive(run_id)).steps["s"].attempt == 2


async def test_a_run_that_was_ended_although_nobody_can_read_it_keeps_no_task(
    postgres_only: EngineStore,
) -> None:
    engine = await postgres_only.engine(Script(lambda ctx: ctx.create_hook("h", "token")))
    run_id = await engine.start(SPEC)
    assert postgres_only.dsn is not None
    with psycopg.connect(postgres_only.dsn, autocommit=True) as connection:
        with connection.transaction():  # a pooler hands the session on to others
            connection.execute("SET LOCAL session_replication_role = replica")
            connection.execute(
                "UPDATE flowpg.flow_event_log SET payload = '{\"spec\": 5}' WHERE run_id = %s"
                " AND sequence = 1",
                (run_id,),
            )
        client = FlowClient(postgres_only.dsn)
        client.request_cancellation(run_id, "it is broken")
        assert await FlowWorker(engine).run_once() == 1
        assert "cancellation" not in str(client.run_info(run_id).blocked_reason)
        with pytest.raises(FlowError):
            client.snapshot(run_id)
        postgres_only.advance(MINUTE)
        # It is ended while a worker holds it, who then reads what nobody can read.
        [lease] = await engine.store.claim_runs("default", 1, "a worker", LEASE)
        client.force_cancel(run_id, "it is broken")
        assert await engine.drive_claimed(lease) is None
        info = client.run_info(run_id)
        client.close()
        left = connection.execute("SELECT count(*) FROM flowpg.flow_tasks").fetchone()
    assert (info.status, info.blocked_reason) == (RunStatus.CANCELLED, None)
    assert left == (0,)


async def test_a_name_in_place_of_a_spec_is_refused_with_a_hint(engine_store: EngineStore) -> None:
    engine = await engine_store.engine(None)
    name: Any = "orders.fulfil"
    for start in (engine.start(name), engine.start_with_id("run", name)):
        with pytest.raises(InvalidArgument, match=r"pass a WorkflowSpec, e\.g\. WorkflowSpec\.p"):
            await start
    with pytest.raises(InvalidArgument, match="not str"):
        FlowClient("postgresql://nowhere.invalid/x").start(name)
    with pytest.raises(InvalidArgument, match="not NoneType"):
        StartRequest(None)  # type: ignore[arg-type]


async def test_a_cancelled_id_that_comes_back_is_answered_with_what_to_do(
    engine_store: EngineStore,
) -> None:
    engine = await engine_store.engine(Script(lambda ctx: ctx.create_hook("h", "token")))
    run_id = await engine.start(SPEC)
    with pytest.raises(Exception, match=r"ctx\.cancellation_request\(\).*ctx\.cancel\(\).*--force"):
        await engine.request_cancellation(run_id)
    assert (await engine.force_cancel(run_id)).status is RunStatus.CANCELLED


async def test_a_step_that_forgot_await_fails_at_once_and_is_told(
    engine_store: EngineStore,
) -> None:
    async def late() -> int:
        return 1

    async def work(step: StepInvocation) -> Any:
        return late()

    engine = await engine_store.engine(Script(one_step(), {"work": work}))
    snapshot = await engine.snapshot(await engine.start(SPEC))
    assert snapshot.status is RunStatus.FAILED
    assert "did you forget await?" in str(snapshot.error)
    assert snapshot.steps["s"].attempt == 1


async def test_an_output_that_no_step_has_blocks_the_run_and_names_the_id(
    engine_store: EngineStore,
) -> None:
    engine = await engine_store.engine(
        Script(lambda ctx: ctx.complete(ctx.step_output("never created")))
    )
    with pytest.raises(Exception, match="step 'never created' has no output yet"):
        await engine.start(SPEC)
