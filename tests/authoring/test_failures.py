"""What a history keeps of an exception, and what comes back."""

import asyncio
import pickle
from typing import Any

import pytest

from flowpg.authoring import failures
from flowpg.authoring.app import FlowApp
from flowpg.authoring.errors import StepFailed
from flowpg.engine.flow_engine import FlowEngine
from flowpg.model import jsontext
from flowpg.model.errortext import human_text
from tests.authoring.shapes import Declined, Silent


def raised(make: Any) -> Exception:
    """The exception as it looks after it was raised."""
    try:
        make()
    except Exception as error:  # noqa: BLE001  whatever the test makes
        return error
    raise AssertionError("nothing was raised")


def through(error: BaseException) -> Exception:
    """The exception as a workflow sees it."""
    return failures.read_failure(failures.failure_text(error))


@pytest.mark.parametrize(
    "error",
    [
        ValueError("no"),
        ValueError(),
        KeyError("k"),
        OSError(2, "not there"),
        FileNotFoundError(2, "not there", "name"),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"),
        StopIteration(3),
        Declined(51, retry=True),
        ZeroDivisionError("with\nlines\x00 and \ud800"),
        ValueError({"a": (1, b"x")}),
    ],
    ids=repr,
)
def test_an_error_comes_back_as_its_own_class(error: Exception) -> None:
    back = through(error)
    assert type(back) is type(error)
    assert str(back) == str(error).replace("\x00", "\\x00").replace("\ud800", "\\ud800") or (
        str(back) == str(error)
    )


def test_attributes_come_back_without_running_the_constructor() -> None:
    back = through(Declined(51, retry=True))
    assert isinstance(back, Declined)
    assert (back.code, back.retry) == (51, True)


def test_an_error_that_cannot_be_rebuilt_is_named() -> None:
    error = Silent("secret word")
    with pytest.raises(Exception, match=r"no|pickle|required"):
        pickle.loads(pickle.dumps(error))
    back = through(error)
    assert isinstance(back, StepFailed)
    assert (back.error_type, back.error_message) == ("Silent", str(error))


def test_a_class_inside_a_function_is_named_too() -> None:
    class Local(Exception):
        pass

    back = through(through(Local("x")))
    assert isinstance(back, StepFailed)
    assert (back.error_type, str(back)) == ("Local", "Local: x")


def test_causes_notes_and_groups_come_back() -> None:
    def fail() -> None:
        try:
            try:
                raise KeyError("inner")
            except KeyError as inner:
                inner.add_note("look here")
                raise ValueError("outer") from inner
        except ValueError as outer:
            raise ExceptionGroup("both", [outer, TypeError("second")]) from None

    back = through(raised(fail))
    assert isinstance(back, ExceptionGroup)
    assert back.message == "both"
    first, second = back.exceptions
    assert (repr(first), repr(second)) == ("ValueError('outer')", "TypeError('second')")
    assert isinstance(first.__cause__, KeyError)
    assert first.__cause__.__notes__ == ["look here"]


def test_what_was_being_handled_comes_back() -> None:
    def fail() -> None:
        try:
            raise KeyError("first")
        except KeyError:
            raise ValueError("second")  # noqa: B904  the point of this test

    back = through(raised(fail))
    assert repr(back.__context__) == "KeyError('first')"


def test_a_cycle_of_causes_ends() -> None:
    one, two = ValueError("one"), ValueError("two")
    one.__cause__, two.__cause__ = two, one
    back = through(one)
    assert back.__cause__ is not None
    assert back.__cause__.__cause__ is None


def test_the_text_begins_as_people_read_it() -> None:
    def fail() -> None:
        raise ValueError("no stock") from KeyError("A-1")

    text = failures.failure_text(raised(fail))
    assert human_text(text) == "ValueError: no stock\n  caused by KeyError: 'A-1'"
    assert text.rpartition("\n")[2].startswith("flowpg.error: ")


def test_the_traceback_names_the_line_of_the_user() -> None:
    def innermost() -> None:
        raise ValueError("no")

    origin = failures.failure_origin(through(raised(innermost)))
    assert origin is not None
    assert "innermost" in (origin.traceback or "")


def test_a_text_that_someone_else_wrote_is_read_as_well() -> None:
    back = failures.read_failure("ConnectionError: the ledger did not answer\n  note: x")
    assert isinstance(back, StepFailed)
    assert (back.error_type, back.error_message.splitlines()[0]) == (
        "ConnectionError",
        "the ledger did not answer",
    )
    assert str(failures.read_failure("it broke")) == "Error: it broke"


@pytest.mark.parametrize(
    "last", ["flowpg.error: {", "flowpg.error: []", 'flowpg.error: {"type":1}']
)
def test_a_broken_record_does_no_harm(last: str) -> None:
    back = failures.read_failure(f"ValueError: no\n{last}")
    assert str(back) == "ValueError: no"


def test_a_record_names_only_exceptions() -> None:
    text = "X: y\nflowpg.error: " + jsontext.encode({"type": "os:system", "message": "echo"})
    assert isinstance(failures.read_failure(text), StepFailed)
    text = "X: y\nflowpg.error: " + jsontext.encode({"type": "builtins:SystemExit", "message": "1"})
    assert isinstance(failures.read_failure(text), StepFailed)


def test_an_error_that_cannot_be_printed_is_kept() -> None:
    class Rude(Exception):
        def __str__(self) -> str:
            raise RuntimeError("never")

    assert failures.failure_text(Rude()).startswith("Rude: <its message cannot be printed>")


def test_a_huge_error_fits_into_an_event() -> None:
    error = ValueError("x" * 100_000)
    for number in range(30):
        error = _caused(f"{number}" * 9_000, error)
    text = failures.failure_text(error)
    assert len(text) < 32_000
    back = failures.read_failure(text)
    assert type(back) in (ValueError, StepFailed)


def _caused(message: str, cause: Exception) -> ValueError:
    error = ValueError(message)
    error.__cause__ = cause
    error.add_note(message)
    return error


async def test_a_plain_step_that_raises_stop_iteration_fails_in_place_of_never_ending() -> None:
    app = FlowApp("odd")

    @app.step
    def first_of_none() -> int:
        return next(iter(()))

    @app.workflow
    async def odd() -> str:
        try:
            await asyncio.to_thread(first_of_none)
        except RuntimeError:
            return "nothing there"
        return "something"

    engine = FlowEngine.in_memory(app)
    async with asyncio.timeout(20):
        await engine.start_with_id("r", odd.spec, odd.input())
    assert (await engine.snapshot("r")).output == "nothing there"
    await engine.close()
