"""Retries: at once or after a durable pause, a finite budget, and errors that steer it."""

from datetime import timedelta
from typing import Any

import pytest

from flowpg.errors import InvalidTransition, NonRetryable, RetryLater
from flowpg.model.commands import Decision
from flowpg.model.inspection import SuspensionKind, WakeupKind
from flowpg.model.retry import MAX_DELAY_MS, RetryPolicy
from flowpg.model.snapshot import RetryExhaustedOutcome, RunStatus, StepStatus
from flowpg.replay.context import WorkflowContext
from flowpg.replay.runtime import StepInvocation
from tests.engine.support import SECOND, SPEC, EngineStore, Script, one_step, short


def failing(times: int) -> Any:
    """A step that fails its first ``times`` attempts."""

    def work(step: StepInvocation) -> Any:
        if step.attempt <= times:
            raise ConnectionError(f"attempt {step.attempt} failed")
        return step.attempt

    return work


async def test_a_failed_step_is_retried_at_once_before_the_run_fails(
    engine_store: EngineStore,
) -> None:
    runtime = Script(one_step(), {"work": failing(2)})
    engine = await engine_store.engine(runtime)
    run_id = await engine.start(SPEC)
    assert (await engine.snapshot(run_id)).output == 3
    assert short(await engine.history(run_id))[2:] == [
        "step.created s",
        "step.started s",
        "step.retrying s",
        "step.started s",
        "step.retrying s",
        "step.started s",
        "step.completed s",
        "run.completed",
    ]


async def test_an_exhausted_step_fails_the_run_with_its_last_error(
    engine_store: EngineStore,
) -> None:
    runtime = Script(one_step(retry=RetryPolicy.fixed(2)), {"work": failing(9)})
    engine = await engine_store.engine(runtime)
    run_id = await engine.start(SPEC)
    snapshot = await engine.snapshot(run_id)
    assert snapshot.status is RunStatus.FAILED
    assert snapshot.terminal_outcome == RetryExhaustedOutcome(
        step_id="s", attempt=2, error="ConnectionError: attempt 2 failed"
    )
    assert runtime.calls == [("s", 1), ("s", 2)]
    assert short(await engine.history(run_id))[-2:] == ["step.failed s", "run.retry_exhausted s"]


@pytest.mark.parametrize("attempts", [0, 1])
async def test_a_budget_of_none_or_one_means_a_single_attempt(
    engine_store: EngineStore, attempts: int
) -> None:
    policy = RetryPolicy(max_attempts=attempts)
    runtime = Script(one_step(retry=policy), {"work": failing(9)})
    engine = await engine_store.engine(runtime)
    assert (await engine.snapshot(await engine.start(SPEC))).status is RunStatus.FAILED
    assert runtime.calls == [("s", 1)]


@pytest.mark.parametrize(
    "policy",
    [
        RetryPolicy(max_attempts=-1),
        RetryPolicy(delay_ms=-1),
        RetryPolicy(delay_ms=MAX_DELAY_MS + 1),
        RetryPolicy(max_delay_ms=5),
    ],
    ids=["negative attempts", "negative delay", "no valid deadline", "fixed with a cap"],
)
async def test_a_policy_that_cannot_be_kept_is_refused_before_anything_is_stored(
    engine_store: EngineStore, policy: RetryPolicy
) -> None:
    runtime = Script(one_step(retry=policy), {"work": failing(0)})
    engine = await engine_store.engine(runtime)
    with pytest.raises(InvalidTransition):
        await engine.start_with_id("single", SPEC)

    def batch(ctx: WorkflowContext) -> Decision:
        return ctx.schedule_steps([ctx.step("a", "work"), ctx.step("s", "work", retry=policy)])

    runtime.workflow = batch
    with pytest.raises(InvalidTransition):
        await engine.start_with_id("batch", SPEC)
    assert runtime.calls == []
    for run_id in ("single", "batch"):
        assert "step.created" not in " ".join(short(await engine.history(run_id)))


async def test_a_recoverable_failure_is_handed_to_the_workflow_for_another_way(
    engine_store: EngineStore,
) -> None:
    def workflow(ctx: WorkflowContext) -> Decision:
        error = ctx.step_failed("first")
        if error is None:
            retry = RetryPolicy.fixed(2).continue_workflow_on_failure()
            return ctx.schedule_step("first", "bad", retry=retry)
        if not ctx.step_completed("second"):
            return ctx.schedule_step("second", "good", error)
        return ctx.complete(ctx.step_output("second"))

    steps = {"bad": failing(9), "good": lambda step: f"instead of {step.input}"}
    engine = await engine_store.engine(Script(workflow, steps))
    run_id = await engine.start(SPEC)
    assert (await engine.snapshot(run_id)).output == "instead of ConnectionError: attempt 2 failed"
    assert "run.retry_exhausted s" not in short(await engine.history(run_id))


async def test_an_error_that_no_retry_can_mend_stops_at_once_and_is_catchable(
    engine_store: EngineStore,
) -> None:
    def work(step: StepInvocation) -> Any:
        try:
            raise KeyError("card")
        except KeyError as cause:
            raise NonRetryable("declined") from cause

    def workflow(ctx: WorkflowContext) -> Decision:
        error = ctx.step_failed("s")
        if error is None:
            retry = RetryPolicy.fixed(5).continue_workflow_on_failure()
            return ctx.schedule_step("s", "work", retry=retry)
        return ctx.complete(error)

    runtime = Script(workflow, {"work": work})
    engine = await engine_store.engine(runtime)
    run_id = await engine.start(SPEC)
    output = (await engine.snapshot(run_id)).output
    assert output == "NonRetryable: declined\n  caused by KeyError: 'card'"
    assert runtime.calls == [("s", 1)]
    assert "step.non_retryable s" in short(await engine.history(run_id))


async def test_an_error_that_no_retry_can_mend_fails_the_run(engine_store: EngineStore) -> None:
    def work(step: StepInvocation) -> Any:
        raise NonRetryable("declined")

    engine = await engine_store.engine(Script(one_step(), {"work": work}))
    run_id = await engine.start(SPEC)
    assert (await engine.snapshot(run_id)).error == "NonRetryable: declined"
    assert short(await engine.history(run_id))[-2:] == ["step.non_retryable s", "run.failed"]


async def test_asking_again_for_a_terminal_step_is_refused_without_replaying_on_and_on(
    engine_store: EngineStore,
) -> None:
    def workflow(ctx: WorkflowContext) -> Decision:
        return ctx.schedule_step("s", "work")

    runtime = Script(workflow, {"work": failing(0)})
    engine = await engine_store.engine(runtime)
    with pytest.raises(InvalidTransition, match=r"no progress.*'s'"):
        await engine.start_with_id("r", SPEC)
    assert (runtime.replays, len(runtime.calls)) == (2, 1)
    # What had happened is kept although the decision was refused.
    assert (await engine.snapshot("r")).steps["s"].status is StepStatus.COMPLETED
    assert "no progress" in str((await engine.run_info("r")).blocked_reason)


async def test_a_delayed_retry_suspends_the_run_until_it_is_due(engine_store: EngineStore) -> None:
    retry = RetryPolicy.fixed(3, 10 * SECOND)
    runtime = Script(one_step(retry=retry), {"work": failing(1)})
    engine = await engine_store.engine(runtime)
    run_id = await engine.start(SPEC)
    snapshot = await engine.snapshot(run_id)
    assert snapshot.status is RunStatus.SUSPENDED
    [retrying] = [e for e in await engine.history(run_id) if e.type == "step_retrying"]
    assert snapshot.steps["s"].retry_after == retrying.recorded_at + 10 * SECOND

    engine_store.advance(9 * SECOND)
    assert await engine.resume_due_retries() == []
    assert (await engine.drive(run_id)).status is RunStatus.SUSPENDED
    assert runtime.calls == [("s", 1)]

    engine_store.advance(2 * SECOND)
    [due] = await engine.resume_due_retries()
    assert (due.run_id, due.kind, due.subject_id) == (run_id, WakeupKind.STEP_RETRY, "s")
    assert (await engine.snapshot(run_id)).output == 2
    assert runtime.calls == [("s", 1), ("s", 2)]


async def test_the_pause_is_counted_from_the_failure_and_not_from_the_start_of_a_long_step(
    engine_store: EngineStore,
) -> None:
    def work(step: StepInvocation) -> Any:
        engine_store.advance(60 * SECOND)
        raise TimeoutError

    retry = RetryPolicy.fixed(2, 10 * SECOND)
    engine = await engine_store.engine(Script(one_step(retry=retry), {"work": work}))
    run_id = await engine.start(SPEC)
    history = await engine.history(run_id)
    started = next(event for event in history if event.type == "step_started")
    deadline = (await engine.snapshot(run_id)).steps["s"].retry_after
    assert deadline is not None
    assert deadline >= started.recorded_at + 70 * SECOND


async def test_one_pass_with_a_late_cutoff_takes_one_attempt_and_not_the_whole_budget(
    engine_store: EngineStore,
) -> None:
    retry = RetryPolicy.fixed(4, 10 * SECOND)
    runtime = Script(one_step(retry=retry), {"work": failing(9)})
    engine = await engine_store.engine(runtime)
    run_id = await engine.start(SPEC)
    suspended = (await engine.list_open_suspensions(run_id=run_id))[0]
    assert suspended.kind is SuspensionKind.RETRY
    assert suspended.due_at is not None
    await engine.resume_due_retries(as_of=suspended.due_at + timedelta(days=1))
    assert runtime.calls == [("s", 1), ("s", 2)]
    assert (await engine.snapshot(run_id)).status is RunStatus.SUSPENDED


async def test_exponential_pauses_are_capped_and_the_budget_is_finite(
    engine_store: EngineStore,
) -> None:
    retry = RetryPolicy.exponential(4, initial=SECOND)
    runtime = Script(one_step(retry=retry), {"work": failing(9)})
    engine = await engine_store.engine(runtime)
    run_id = await engine.start(SPEC)
    for cap in (1, 2, 4):
        step = (await engine.snapshot(run_id)).steps["s"]
        [*_, retrying] = [e for e in await engine.history(run_id) if e.type == "step_retrying"]
        assert step.retry_after is not None
        pause = step.retry_after - retrying.recorded_at
        assert timedelta(0) < pause <= timedelta(seconds=cap)
        assert pause == retry.delay_after(run_id, "s", step.attempt)
        engine_store.advance(pause)
        await engine.resume_due_retries()
    assert len(runtime.calls) == 4
    assert (await engine.snapshot(run_id)).status is RunStatus.FAILED


async def test_a_step_may_ask_for_its_own_pause(engine_store: EngineStore) -> None:
    def work(step: StepInvocation) -> Any:
        if step.attempt == 1:
            raise RetryLater("the other side says when", 90 * SECOND)
        return "later"

    engine = await engine_store.engine(Script(one_step(), {"work": work}))
    run_id = await engine.start(SPEC)
    [retrying] = [e for e in await engine.history(run_id) if e.type == "step_retrying"]
    deadline = (await engine.snapshot(run_id)).steps["s"].retry_after
    assert deadline == retrying.recorded_at + 90 * SECOND
    engine_store.advance(89 * SECOND)
    assert (await engine.drive(run_id)).status is RunStatus.SUSPENDED
    engine_store.advance(2 * SECOND)
    assert (await engine.drive(run_id)).output == "later"


async def test_a_pause_survives_the_engine_that_began_it(engine_store: EngineStore) -> None:
    retry = RetryPolicy.fixed(3, 10 * SECOND)
    first = await engine_store.engine(Script(one_step(retry=retry), {"work": failing(1)}))
    run_id = await first.start(SPEC)
    await first.close()
    engine_store.advance(11 * SECOND)
    runtime = Script(one_step(retry=retry), {"work": failing(1)})
    second = await engine_store.engine(runtime)
    assert (await second.drive(run_id)).output == 2
    assert runtime.calls == [("s", 2)]


class Unprintable(Exception):
    """An exception that can neither be printed nor made again from its arguments."""

    def __init__(self, needed: object, *, also: object) -> None:
        super().__init__()

    def __str__(self) -> str:
        raise RuntimeError("no text")


async def test_an_exception_that_cannot_be_printed_is_recorded_by_its_type(
    engine_store: EngineStore,
) -> None:
    def work(step: StepInvocation) -> Any:
        raise Unprintable(object(), also=object())

    retry = RetryPolicy.none()
    engine = await engine_store.engine(Script(one_step(retry=retry), {"work": work}))
    error = (await engine.snapshot(await engine.start(SPEC))).error
    assert error == "Unprintable: <its message cannot be printed>"


async def test_run_summary_counts_statuses_and_what_can_be_acted_on(
    engine_store: EngineStore,
) -> None:
    def workflow(ctx: WorkflowContext) -> Decision:
        match ctx.input:
            case "done":
                return ctx.complete()
            case "failed":
                return ctx.fail("no")
            case "timer":
                return ctx.sleep("w", SECOND)
            case "hook":
                return ctx.create_hook("h", "token")
        return ctx.schedule_step("s", "work", retry=RetryPolicy.fixed(2, SECOND))

    engine = await engine_store.engine(Script(workflow, {"work": failing(1)}))
    for kind in ("done", "failed", "timer", "hook", "retry"):
        await engine.start(SPEC, kind)
    gone = await engine.start(SPEC, "hook2", drive=False)
    await engine.force_cancel(gone)
    summary = await engine.run_summary()
    assert (summary.total, summary.terminal, summary.non_terminal) == (6, 3, 3)
    assert (summary.completed, summary.failed, summary.cancelled) == (1, 1, 1)
    assert summary.suspended == 3
    assert (summary.open_waits, summary.active_hooks, summary.pending_retries) == (1, 1, 1)
