"""What is logged of steps and workflows that fail: enough to debug them, and no payload."""

import logging
from typing import Any

import pytest

from flowpg.errors import UnknownStep
from flowpg.fleet.worker import FlowWorker
from flowpg.model.commands import Decision
from flowpg.model.retry import RetryPolicy
from flowpg.replay.runtime import StepInvocation, WorkflowInvocation
from tests.engine.support import SPEC, EngineStore
from tests.fleet.apps import Marked

SECRET = "s3cret-input"


class Failing(Marked):
    """Its step is tried three times; its workflow fails for another input."""

    def run_workflow(self, invocation: WorkflowInvocation) -> Decision:
        """The step, three times."""
        ctx = invocation.context()
        if ctx.input == "workflow":
            raise KeyError("a bug")
        retry = RetryPolicy.fixed(attempts=3)
        return ctx.schedule_step("charge", "card", ctx.input, retry=retry)

    def run_step(self, step: StepInvocation) -> Any:
        """Fail."""
        raise ValueError("refused")


def lines(caplog: pytest.LogCaptureFixture) -> list[tuple[str, bool]]:
    """What was logged about steps and workflows, and whether with a traceback."""
    return [
        (record.getMessage(), bool(record.exc_info))
        for record in caplog.records
        if record.name in ("flowpg.engine.steps", "flowpg.engine.workflows")
    ]


@pytest.mark.parametrize(
    ("level", "traced"),
    [(logging.INFO, [False, False, True]), (logging.DEBUG, [True, True, True])],
    ids=["info", "debug"],
)
async def test_every_failed_attempt_is_logged_and_the_last_one_with_its_traceback(
    engine_store: EngineStore, caplog: pytest.LogCaptureFixture, level: int, traced: list[bool]
) -> None:
    caplog.set_level(level, "flowpg")
    engine = await engine_store.engine(Failing())
    await engine.start_with_id("order-1", SPEC, SECRET)
    assert lines(caplog) == [
        (
            f"step 'charge' (card) of run 'order-1' failed in attempt {number} of 3: ValueError",
            with_traceback,
        )
        for number, with_traceback in enumerate(traced, start=1)
    ]
    assert "in run_step" in caplog.text
    assert SECRET not in caplog.text


async def test_an_exception_of_a_workflow_is_logged_with_its_traceback(
    engine_store: EngineStore, caplog: pytest.LogCaptureFixture
) -> None:
    engine = await engine_store.engine(Failing())
    await engine.start_with_id("order-1", SPEC, "workflow")
    assert lines(caplog) == [(f"workflow {SPEC.name!r} fails run 'order-1': KeyError", True)]
    assert "in run_workflow" in caplog.text


class Without(Failing):
    """Has no step."""

    def run_step(self, step: StepInvocation) -> Any:
        """Block."""
        raise UnknownStep(step.step_name)


async def test_a_worker_says_why_a_run_is_blocked(
    engine_store: EngineStore, caplog: pytest.LogCaptureFixture
) -> None:
    engine = await engine_store.engine(Without())
    await engine.start_with_id("order-1", SPEC, SECRET, drive=False)
    await FlowWorker(engine).run_until_idle()
    reason = (await engine.run_info("order-1")).blocked_reason
    assert reason is not None
    assert f"run 'order-1' is blocked: {reason}" in caplog.text
    assert SECRET not in caplog.text
