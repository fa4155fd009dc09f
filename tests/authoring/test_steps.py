"""Steps: retried, failed, restored as they were raised; plain functions outside a workflow."""

import asyncio
import threading
from datetime import timedelta
from typing import Any

import pytest

from flowpg.authoring.app import FlowApp
from flowpg.authoring.errors import OutsideStep, StepFailed, WorkflowFailed
from flowpg.authoring.failures import failure_origin
from flowpg.authoring.step_context import StepContext, step_context
from flowpg.errors import InvalidArgument, NonRetryable, RetryLater, UnknownStep
from flowpg.model.errortext import human_text
from flowpg.model.retry import RetryPolicy
from flowpg.model.snapshot import RunStatus
from tests.authoring.shapes import Declined, Line, Order, Silent
from tests.authoring.support import START, both, play, stage

FAST = RetryPolicy.fixed(3)


def failing(error: Any, **options: Any) -> Any:
    """A workflow that awaits a step which raises, and says what it caught."""

    def build(app: FlowApp) -> None:
        @app.step(**options)  # type: ignore[untyped-decorator]
        async def work() -> None:
            raise error()

        @app.workflow
        async def main() -> list[Any]:
            try:
                await work()
            except Exception as caught:  # noqa: BLE001  the test says which
                origin = failure_origin(caught)
                assert origin is not None
                return [type(caught).__name__, str(caught), origin.step_id, origin.attempt]
            return []

    return build


def attempts(played: Any) -> int:
    """How often the step of a run was started."""
    return sum(event.type == "step_started" for event in played.history)


async def test_a_failed_step_raises_its_own_error_where_it_is_awaited() -> None:
    played = await both(failing(lambda: ValueError("no"), retry=FAST))
    assert played.result == ["ValueError", "no", "work#1", 3]
    assert attempts(played) == 3


@pytest.mark.parametrize(
    ("error", "name", "text"),
    [
        (lambda: Declined(7, retry=False), "Declined", "declined with 7"),
        (lambda: KeyError("x"), "KeyError", "'x'"),
        (lambda: SystemExit(3), "StepFailed", "SystemExit: 3"),
        (lambda: StopIteration(3), "RuntimeError", "a step raised StopIteration"),
    ],
)
async def test_errors_of_every_kind_come_back(error: Any, name: str, text: str) -> None:
    played = await both(failing(error, retry=RetryPolicy.none()))
    assert played.result[:2] == [name, text] or name == "RuntimeError"


async def test_an_error_that_cannot_be_rebuilt_comes_back_by_name() -> None:
    played = await play(stage(failing(lambda: Silent("secret word"), retry=RetryPolicy.none())))
    assert played.result[0] == StepFailed.__name__
    assert played.result[1].startswith("Silent: ")


@pytest.mark.parametrize(
    ("error", "options"),
    [
        (lambda: NonRetryable("never"), {"retry": FAST}),
        (lambda: Declined(1, retry=False), {"retry": FAST, "fatal": (Declined,)}),
        (lambda: Declined(1, retry=False), {"retry": FAST, "fatal": (Exception,)}),
    ],
)
async def test_some_errors_are_never_retried(error: Any, options: Any) -> None:
    played = await both(failing(error, **options))
    assert played.result[3] == 1
    assert attempts(played) == 1
    assert any(event.type == "step_non_retryable" for event in played.history)


async def test_a_step_may_say_when_to_try_again() -> None:
    class Busy(RetryLater):
        pass

    played = await both(failing(lambda: Busy("busy", timedelta(minutes=7)), retry=FAST))
    assert played.history[-1].recorded_at - START == timedelta(minutes=14)
    assert attempts(played) == 3


async def test_retries_follow_the_policy_of_the_step_and_of_the_call() -> None:
    def build(app: FlowApp) -> None:
        @app.step(retry=RetryPolicy.fixed(2, timedelta(seconds=10)))
        async def work() -> None:
            raise ValueError("no")

        @app.workflow
        async def main() -> None:
            for step in (work, work.options(retry=RetryPolicy.none())):
                with pytest.raises(ValueError, match="no"):
                    await step()

    played = await both(build)
    assert attempts(played) == 3
    assert played.history[-1].recorded_at - START == timedelta(seconds=10)


async def test_an_error_nobody_catches_fails_the_run_with_its_causes() -> None:
    def build(app: FlowApp) -> None:
        @app.step(retry=RetryPolicy.none())
        async def work() -> None:
            try:
                raise KeyError("inner")
            except KeyError as inner:
                error = Declined(51, retry=True)
                error.add_note("a note")
                raise error from inner

        @app.workflow
        async def main() -> None:
            try:
                await work()
            except Declined as declined:
                raise RuntimeError("the order failed") from declined

    played = await both(build)
    assert played.snapshot.status is RunStatus.FAILED
    assert human_text(played.snapshot.error or "").splitlines() == [
        "RuntimeError: the order failed",
        "  caused by Declined: declined with 51",
        "  note: a note",
        "  caused by KeyError: 'inner'",
    ]
    with pytest.raises(WorkflowFailed) as caught:
        _ = played.result
    error = caught.value.__cause__
    assert isinstance(error, RuntimeError)
    declined = error.__cause__
    assert isinstance(declined, Declined)
    assert (declined.code, declined.retry, declined.__notes__) == (51, True, ["a note"])
    assert repr(declined.__cause__) == "KeyError('inner')"
    origin = failure_origin(declined)
    assert origin is not None
    assert "raise error from inner" in (origin.traceback or "")
    assert "await work()" in (origin.traceback or "")


async def test_a_group_of_errors_comes_back() -> None:
    def build(app: FlowApp) -> None:
        @app.step(retry=RetryPolicy.none())
        async def work() -> None:
            raise ExceptionGroup("both", [ValueError("a"), KeyError("b")])

        @app.workflow
        async def main() -> list[str]:
            seen = []
            try:
                await work()
            except* ValueError as found:
                seen += [repr(error) for error in found.exceptions]
            except* KeyError as found:
                seen += [repr(error) for error in found.exceptions]
            return seen

    assert (await both(build)).result == ["ValueError('a')", "KeyError('b')"]


async def test_a_result_that_cannot_be_stored_fails_the_step_at_once_by_name() -> None:
    def build(app: FlowApp) -> None:
        @app.step
        async def work() -> Any:
            return threading.Lock()

        @app.workflow
        async def main() -> str:
            try:
                await work()
            except Exception as error:  # noqa: BLE001  the test says which
                return f"{type(error).__name__}: {error}"
            return ""

    played = await both(build)
    assert played.result.startswith("SerializationError: the result of step 'work' cannot")
    assert "lock" in played.result
    assert attempts(played) == 1


async def test_a_result_that_its_annotation_refuses_fails_the_step() -> None:
    def build(app: FlowApp) -> None:
        @app.step
        async def work() -> Line:
            return "no line"  # type: ignore[return-value]

        @app.workflow
        async def main() -> str:
            try:
                await work()
            except Exception as error:  # noqa: BLE001  the test says which
                return str(error)
            return ""

    assert "should be Line and is str" in (await both(build)).result


async def test_an_argument_that_cannot_be_stored_is_an_error_of_the_workflow() -> None:
    def build(app: FlowApp) -> None:
        @app.step
        async def work(thing: Any) -> Any: ...

        @app.workflow
        async def main() -> None:
            await work(threading.Lock())

    played = await both(build)
    assert played.snapshot.status is RunStatus.FAILED
    assert "argument 'thing' of step 'work' cannot be stored" in (played.snapshot.error or "")


async def test_the_first_run_sees_what_a_replay_sees() -> None:
    class Sub(dict[str, Any]):
        pass

    def build(app: FlowApp) -> None:
        @app.step
        async def work(x: Any) -> Any:
            return Sub(x=x, t=(1, 2), s={1})

        @app.workflow
        async def main() -> list[str]:
            value = await work((1, 2))
            seen = [type(value).__name__, type(value["x"]).__name__, type(value["t"]).__name__]
            value["t"] = "changed"
            value["s"].add(2)
            await asyncio.sleep(1)
            return [*seen, repr(value["s"]), value["t"]]

    assert (await both(build)).result == ["dict", "tuple", "tuple", "{1, 2}", "changed"]


async def test_models_and_data_classes_travel_by_their_annotations() -> None:
    def build(app: FlowApp) -> None:
        @app.step
        async def total(order: Order, lines: list[Line]) -> dict[str, Line]:
            return {line.sku: line for line in lines if line.sku in order.lines}

        @app.workflow
        async def main(order: Order, lines: list[Line]) -> dict[str, Line]:
            assert isinstance(order, Order)
            assert isinstance(lines[0], Line)
            return await total(order, lines)

    from decimal import Decimal

    from tests.authoring.test_codec import ORDER

    order = ORDER.model_copy(update={"lines": ["a"]})
    lines = [Line("a", Decimal("1.10"), {"x"}), Line("b", Decimal(2))]
    played = await both(build, order, lines)
    assert played.result == {"a": lines[0]}
    assert played.snapshot.output == {"a": {"sku": "a", "price": "1.10", "tags": ["x"]}}


async def test_a_plain_function_runs_in_a_thread() -> None:
    def build(app: FlowApp) -> None:
        @app.step
        def where(x: int) -> str:
            return f"{threading.current_thread().name.rsplit('_', 1)[0]} {x}"

        @app.workflow
        async def main() -> list[str]:
            return [
                await where.run(1),
                await asyncio.to_thread(where, 2),
                await asyncio.to_thread(where, x=3),
                await where(4),  # type: ignore[misc]
                *await asyncio.gather(where.run(5), where.options(retry=FAST).run(6)),
            ]

    played = await both(build)
    assert played.result == [f"flowpg-step-test {n}" for n in range(1, 7)]


async def test_outside_a_workflow_a_step_is_the_plain_function() -> None:
    app = FlowApp("plain")
    held = object()

    @app.step
    async def work(x: object) -> object:
        """What it does."""
        return x

    @app.step(name="other.name")
    def sync(x: object) -> object:
        return x

    assert await work(held) is held
    assert sync(held) is held
    assert await sync.run(held) is held
    assert work.__doc__ == "What it does."
    assert (work.name, sync.name) == ("work", "other.name")
    assert list(app.steps) == ["work", "other.name"]


async def test_a_step_knows_its_run_and_its_attempt() -> None:
    seen: list[StepContext] = []

    def build(app: FlowApp) -> None:
        @app.step(retry=FAST)
        async def work() -> None:
            seen.append(step_context())
            if step_context().attempt < 3:
                raise ValueError("again")

        @app.step
        def in_a_thread() -> str:
            return step_context().step_id

        @app.workflow
        async def main() -> str:
            await work()
            return await in_a_thread.run()

    played = await play(stage(build))
    assert played.result == "in_a_thread#2"
    assert [context.attempt for context in seen] == [1, 2, 3]
    assert {(c.run_id, c.step_id, c.step_name, c.workflow_name) for c in seen} == {
        ("run-1", "work#1", "work", "main")
    }
    assert len({context.idempotency_key for context in seen}) == 1
    assert len(seen[0].idempotency_key) == 64


def test_the_context_of_a_step_is_nowhere_else() -> None:
    with pytest.raises(OutsideStep, match=r"step_context\(\) was called outside a step"):
        step_context()


async def test_a_step_that_this_process_does_not_have_blocks_the_run() -> None:
    def build(app: FlowApp) -> None:
        @app.step
        async def work() -> None: ...

        @app.workflow
        async def main() -> None:
            await work()

    on = stage(build)
    del on.app.steps["work"]
    with pytest.raises(UnknownStep):
        await on.start()
    assert (await on.snapshot()).status is RunStatus.RUNNING


def test_what_is_no_step_is_refused_when_it_is_declared() -> None:
    app = FlowApp("strict")

    async def generator() -> Any:
        yield 1

    for wrong in (generator, Line, 5):
        with pytest.raises(InvalidArgument):
            app.step(wrong)  # type: ignore[arg-type]

    @app.step
    async def work() -> None: ...

    with pytest.raises(InvalidArgument, match="has a step 'work' already"):
        app.step(name="work")(lambda: None)
    with pytest.raises(Exception, match="negative"):
        app.step(name="x", retry=RetryPolicy(max_attempts=-1))(lambda: None)
    for fatal in (ValueError, ("ValueError",), (5,)):
        with pytest.raises(InvalidArgument, match="tuple of exception classes"):
            app.step(name="x", fatal=fatal)(lambda: None)  # type: ignore[arg-type]


async def test_a_call_that_is_not_awaited_warns_as_a_coroutine_does() -> None:
    def build(app: FlowApp) -> None:
        @app.step
        async def work() -> None: ...

        @app.workflow
        async def main() -> str:
            work()  # type: ignore[unused-coroutine]
            return "done"

    with pytest.warns(RuntimeWarning, match="never awaited"):
        played = await play(stage(build))
    assert played.result == "done"
    assert attempts(played) == 0
