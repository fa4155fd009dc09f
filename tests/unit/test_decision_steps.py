"""What decisions about steps become."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from flowpg.errors import (
    InvalidArgument,
    InvalidTransition,
    NonDeterministic,
    PayloadTooLarge,
    SerializationError,
)
from flowpg.model import events, jsontext
from flowpg.model.commands import ScheduleStep, WaitUntil
from flowpg.model.retry import RetryPolicy
from flowpg.model.snapshot import StepStatus
from flowpg.replay.decision import decide
from flowpg.replay.plan import StepLaunch
from tests.unit.histories import (
    CONTINUE,
    NOW,
    SECOND,
    add,
    cancellation,
    context,
    plan,
    retrying,
    running,
    started,
    step,
    types,
)

DELAYED = RetryPolicy.fixed(3, SECOND)


def test_a_new_step_is_created_started_and_launched() -> None:
    made = plan(running(), lambda ctx: ctx.schedule_step("a", "charge", {"cents": 5}))
    assert types(made) == ["step_created", "step_started"]
    assert made.events[0].data == {
        "step_id": "a",
        "step_name": "charge",
        "input": {"cents": 5},
        "retry": {"max_attempts": 3, "delay_ms": 0},
    }
    assert made.launches == [StepLaunch("a", "charge", {"cents": 5}, 1)]
    assert not made.ended


def test_the_text_of_a_planned_event_is_its_data() -> None:
    values: list[Any] = [{"é": "\x00\ud800😀"}, None, 0, "", [], (1, (2,)), -0.0, 10**40]
    for value in values:
        command = ScheduleStep(step_id='a"é', step_name="c\\", input=value)
        for one in decide(running(), (command,), NOW).events:
            assert jsontext.decode(one.payload()) == one.data


def test_a_batch_is_declared_whole_before_its_first_step_starts() -> None:
    made = plan(
        running(), lambda ctx: ctx.schedule_steps([ctx.step(one, "w") for one in ("a", "b", "c")])
    )
    assert [(one.type, one.data["step_id"]) for one in made.events] == [
        ("step_created", "a"),
        ("step_created", "b"),
        ("step_created", "c"),
        ("step_started", "a"),
        ("step_started", "b"),
        ("step_started", "c"),
    ]
    assert [one.step_id for one in made.launches] == ["a", "b", "c"]


def test_a_running_step_is_delivered_again_at_the_same_attempt_without_an_event() -> None:
    run = running(step("a", input=[1]), started("a"), retrying("a", 1), started("a", 2))
    made = plan(run, lambda ctx: ctx.schedule_step("a", "work", [1]))
    assert made.events == []
    assert made.launches == [StepLaunch("a", "work", [1], 2, again=True)]


def test_a_pending_step_starts_its_next_attempt_when_its_time_has_come() -> None:
    run = running(step("a", DELAYED), started("a"), retrying("a", 1, NOW + SECOND))

    def again(now: datetime) -> list[str]:
        return types(plan(run, lambda ctx: ctx.schedule_step("a", "work", None, DELAYED), now=now))

    assert again(NOW) == []
    assert again(NOW + SECOND - timedelta(microseconds=1)) == []
    assert again(NOW + SECOND) == ["step_started"]
    made = plan(run, lambda ctx: ctx.schedule_step("a", "work", None, DELAYED), now=NOW + SECOND)
    assert made.launches == [StepLaunch("a", "work", None, 2)]


def test_a_step_whose_start_was_lost_is_started() -> None:
    made = plan(running(step("a")), lambda ctx: ctx.schedule_step("a", "work"))
    assert types(made) == ["step_started"]
    assert made.launches[0].attempt == 1


def test_a_batch_mixes_all_states_and_a_due_step_is_not_held_up_by_a_later_one() -> None:
    run = running(
        step("done"),
        started("done"),
        events.step_completed("done", 1),
        step("busy"),
        started("busy"),
        step("due", DELAYED),
        started("due"),
        retrying("due", 1, NOW),
        step("later", DELAYED),
        started("later"),
        retrying("later", 1, NOW + SECOND),
    )
    made = plan(
        run,
        lambda ctx: ctx.schedule_steps(
            [
                ctx.step("later", "work", None, DELAYED),
                ctx.step("done", "work"),
                ctx.step("busy", "work"),
                ctx.step("due", "work", None, DELAYED),
                ctx.step("new", "work"),
            ]
        ),
    )
    assert [(one.type, one.data["step_id"]) for one in made.events] == [
        ("step_created", "new"),
        ("step_started", "due"),
        ("step_started", "new"),
    ]
    assert [(one.step_id, one.attempt) for one in made.launches] == [
        ("busy", 1),
        ("due", 2),
        ("new", 1),
    ]


@pytest.mark.parametrize(
    ("again", "difference"),
    [
        ({"step_name": "other"}, r'another name: history="work"; replay="other"'),
        (
            {"input": {"x": 2}},
            r"another input: differs at \$\.x \(history: number; replay: number\)",
        ),
        ({"input": {"x": True}}, r"at \$\.x \(history: number; replay: boolean\)"),
        ({"input": {}}, r"at \$\.x \(history: number; replay: absent\)"),
        (
            {"retry": RetryPolicy.none()},
            r'history=\{"max_attempts":3,"delay_ms":0\}; replay=\{"max_attempts":1,"delay_ms":0\}',
        ),
    ],
)
@pytest.mark.parametrize("resolved", [False, True])
def test_a_step_that_comes_back_with_another_definition_is_not_deterministic(
    again: dict[str, Any], difference: str, resolved: bool
) -> None:
    run = running(step("a", input={"x": 1}), started("a"))
    if resolved:
        add(run, events.step_completed("a", 1))
    command = ScheduleStep(**{"step_id": "a", "step_name": "work", "input": {"x": 1}, **again})
    with pytest.raises(NonDeterministic, match=difference) as caught:
        decide(run, (command,), NOW)
    assert caught.value.run_id == run.run_id


def test_equal_json_is_no_drift_however_it_is_written() -> None:
    run = running(step("a", input={"x": 1, "y": [1, 2.0]}), started("a"))
    made = plan(run, lambda ctx: ctx.schedule_step("a", "work", {"y": (1.0, 2), "x": 1}))
    assert len(made.launches) == 1


def test_a_difference_of_payloads_is_shown_by_path_and_type_and_never_by_value() -> None:
    big = {"password": "hunter2" * 900, "items": [{"n": 1}, {"n": 2, "text": "y" * 900}]}
    run = running(step("a", input=big), started("a"))

    def difference(again: Any) -> str:
        with pytest.raises(NonDeterministic) as caught:
            plan(run, lambda ctx: ctx.schedule_step("a", "work", again))
        assert "hunter" not in str(caught.value)
        assert len(str(caught.value)) < 1500
        return str(caught.value).partition("differs at ")[2]

    assert difference({**big, "password": "hunter3"}) == (
        "$.password (history: string; replay: string)"
    )
    assert difference({**big, "items": [{"n": 1}, {"n": None, "text": "y" * 900}]}) == (
        "$.items[1].n (history: number; replay: null)"
    )
    assert difference({**big, "items": []}) == "$.items (history: array of 2; replay: array of 0)"
    assert difference({**big, "more": 1}) == "$.more (history: absent; replay: number)"
    assert difference("hunter2" * 9000) == "$ (history: object; replay: string)"
    many = {f"k{number}": "hunter" for number in range(9)}
    assert difference({**big, **many}).endswith(" and elsewhere")
    assert "k" * 300 not in difference({**big, "k" * 5000: 1})


@pytest.mark.parametrize("failed", [False, True])
def test_a_step_that_has_its_outcome_makes_no_progress_alone(failed: bool) -> None:
    run = running(step("a", CONTINUE), started("a"))
    add(run, events.step_failed("a", 1, "x") if failed else events.step_completed("a", None))
    with pytest.raises(InvalidTransition, match=r"no progress: schedule_step 'a'"):
        plan(run, lambda ctx: ctx.schedule_step("a", "work", None, CONTINUE))
    with pytest.raises(InvalidTransition, match=r"no progress: schedule_steps 'a'"):
        plan(run, lambda ctx: ctx.schedule_steps([ctx.step("a", "work", None, CONTINUE)]))


def test_an_outcome_beside_something_new_is_no_obstacle() -> None:
    run = running(step("a"), started("a"), events.step_completed("a", 1))
    made = plan(
        run, lambda ctx: ctx.schedule_step("a", "work"), lambda ctx: ctx.schedule_step("b", "work")
    )
    assert types(made) == ["step_created", "step_started"]


def test_a_cancelled_step_stays_cancelled() -> None:
    run = running(step("a"), cancellation())
    with pytest.raises(InvalidTransition, match="step 'a' was cancelled"):
        plan(run, lambda ctx: ctx.schedule_step("a", "work"))
    assert types(plan(run, lambda ctx: ctx.schedule_step("cleanup", "work"))) == [
        "step_created",
        "step_started",
    ]


def test_an_empty_batch_and_an_empty_decision_are_refused() -> None:
    with pytest.raises(InvalidTransition, match="must not be empty"):
        plan(running(), lambda ctx: ctx.schedule_steps([]))
    with pytest.raises(InvalidTransition, match="no progress: an empty decision"):
        plan(running())


def test_an_id_is_named_once_in_a_decision() -> None:
    with pytest.raises(InvalidTransition, match="names step 'a' twice"):
        plan(running(), lambda ctx: ctx.schedule_steps([ctx.step("a", "w"), ctx.step("a", "w")]))
    with pytest.raises(InvalidTransition, match="names step 'a' twice"):
        plan(
            running(),
            lambda ctx: ctx.schedule_step("a", "w"),
            lambda ctx: ctx.schedule_step("a", "w"),
        )
    same_id = plan(
        running(),
        lambda ctx: ctx.schedule_step("a", "w"),
        lambda ctx: ctx.sleep("a", SECOND),
        lambda ctx: ctx.create_hook("a", "token"),
    )
    assert types(same_id) == ["step_created", "step_started", "wait_created", "hook_created"]


@pytest.mark.parametrize("bad", ["", " ", "\t\n", "x" * 513, "a\x00b", "\ud800"])
def test_ids_and_names_are_checked_before_any_event(bad: str) -> None:
    for decision in (
        lambda ctx: ctx.schedule_step(bad, "w"),
        lambda ctx: ctx.schedule_step("a", bad),
        lambda ctx: ctx.schedule_steps([ctx.step("a", "w"), ctx.step(bad, "w")]),
    ):
        with pytest.raises(InvalidArgument) as caught:
            plan(running(), decision)
        assert caught.value.run_id == "run-1"


@pytest.mark.parametrize(
    "retry",
    [
        RetryPolicy(max_attempts=-1),
        RetryPolicy(delay_ms=-5),
        RetryPolicy(delay_ms=10**18),
        RetryPolicy(max_delay_ms=5),
        RetryPolicy.model_validate({"backoff": "exponential"}),
    ],
)
def test_a_policy_that_cannot_be_followed_is_refused_before_any_event(retry: RetryPolicy) -> None:
    with pytest.raises(InvalidTransition, match="retry"):
        plan(running(), lambda ctx: ctx.schedule_step("a", "w", None, retry))
    with pytest.raises(InvalidTransition, match="retry"):
        plan(running(), lambda ctx: ctx.schedule_steps([ctx.step("a", "w", None, retry)]))


def test_a_retry_deadline_that_would_be_no_time_is_refused_before_any_event() -> None:
    decades = RetryPolicy.fixed(3, timedelta(days=365 * 50))
    late = datetime(9990, 1, 1, tzinfo=UTC)
    with pytest.raises(InvalidTransition, match="no valid deadline"):
        plan(running(), lambda ctx: ctx.schedule_step("a", "w", None, decades), now=late)


def test_an_input_that_json_cannot_carry_is_refused_without_showing_it() -> None:
    values: list[Any] = [{"s3cret"}, float("nan"), {1: "s3cret"}, object()]
    for value in values:
        command = ScheduleStep(step_id="a", step_name="w", input=value)
        with pytest.raises(SerializationError, match="the input of a step") as caught:
            decide(running(), (command,), NOW)
        assert "s3cret" not in str(caught.value)


def test_an_input_that_is_too_large_is_refused_before_any_event() -> None:
    plan(running(), lambda ctx: ctx.schedule_step("a", "w", "x" * 1_000_000))
    with pytest.raises(PayloadTooLarge) as caught:
        plan(running(), lambda ctx: ctx.schedule_step("a", "w", "x" * 1_100_000))
    assert (caught.value.event_type, caught.value.limit) == ("step_created", 1_048_576)
    with pytest.raises(PayloadTooLarge):
        plan(running(), lambda ctx: ctx.schedule_step("a", "w", "é" * 600_000))


def test_an_input_that_is_too_large_fails_a_step_whose_failure_the_workflow_hears_of() -> None:
    def step_of(step_id: str, value: Any) -> ScheduleStep:
        return ScheduleStep(step_id=step_id, step_name="w", input=value, retry=CONTINUE)

    wait = WaitUntil(wait_id="t", delay=SECOND)
    made = decide(running(), (step_of("a", "x" * 1_100_000), step_of("b", 1), wait), NOW)
    assert [(e.type, e.subject) for e in made.events] == [
        ("step_created", "a"),
        ("step_created", "b"),
        ("step_started", "b"),
        ("wait_created", "t"),
        ("step_started", "a"),
        ("step_non_retryable", "a"),
    ]
    size = made.events[0].data["input"]["bytes"]
    assert made.events[0].data["input"] == {"$": "omitted", "bytes": size}
    assert size > 1_100_000
    assert [launch.step_id for launch in made.launches] == ["b"]
    assert made.news
    ((step_id, error),) = made.refused
    assert (step_id, made.events[-1].data["error"]) == ("a", error)
    assert error.startswith(
        f"PayloadTooLarge: run 'run-1': the payload of step_created 'a' is {size}"
    )
    # What follows decides in the same way whatever the input is by then, and whatever the limit.
    later = running(*made.events)
    assert later.steps["a"].status is StepStatus.FAILED
    for value in ("x" * 1_100_000, "another"):
        again = decide(later, (step_of("a", value), step_of("b", 1), wait), NOW)
        assert again.events == []


@pytest.mark.parametrize("letter", ["x", "é", "😀"])
def test_the_limit_of_a_payload_counts_bytes_and_is_itself_allowed(letter: str) -> None:
    width = len(letter.encode())
    frame = len(plan(running(), lambda ctx: ctx.schedule_step("a", "w", "")).events[0].payload())
    room = events.MAX_PAYLOAD_BYTES - frame
    fits = letter * (room // width) + "x" * (room % width)
    made = plan(running(), lambda ctx: ctx.schedule_step("a", "w", fits))
    assert len(made.events[0].payload().encode()) == events.MAX_PAYLOAD_BYTES
    with pytest.raises(PayloadTooLarge) as caught:
        plan(running(), lambda ctx: ctx.schedule_step("a", "w", fits + "x"))
    assert caught.value.size == events.MAX_PAYLOAD_BYTES + 1


def test_a_launch_does_not_see_what_workflow_code_does_to_its_input_later() -> None:
    value = {"items": [1]}
    made = decide(running(), (context(running()).schedule_step("a", "w", value),), NOW)
    value["items"].append(2)
    assert made.events[0].data["input"] == {"items": [1]}
    assert made.launches[0].input == {"items": [1]}
