"""Errors as text: type and message first, then notes, causes and the members of a group."""

import asyncio

import pytest

from flowpg.engine.errortext import blocked_delay, blocked_reason, describe
from flowpg.errors import HookTokenConflict, NonDeterministic, UnknownStep


def raised(error: BaseException) -> BaseException:
    """The error after it was raised and caught."""
    try:
        raise error
    except BaseException as caught:  # noqa: BLE001
        return caught


def test_an_error_is_told_by_type_and_message() -> None:
    assert describe(raised(ValueError("no"))) == "ValueError: no"
    assert describe(raised(ValueError())) == "ValueError"
    assert describe(raised(asyncio.CancelledError())) == "CancelledError"


def chained() -> None:
    """Raises an error with a note, a context, and a cause of that."""
    try:
        try:
            raise KeyError("first")
        except KeyError as cause:
            raise TimeoutError("second") from cause
    except TimeoutError:
        error = ValueError("third")
        error.add_note("look here")
        raise error  # noqa: B904  the context is what is tested


def suppressed() -> None:
    """Raises an error that hides where it came from."""
    try:
        raise KeyError("hidden")
    except KeyError:
        raise ValueError("shown") from None


def test_causes_and_notes_are_kept_in_order() -> None:
    with pytest.raises(ValueError, match="third") as caught:
        chained()
    assert describe(caught.value) == (
        "ValueError: third\n"
        "  note: look here\n"
        "  caused by TimeoutError: second\n"
        "  caused by KeyError: 'first'"
    )


def test_a_suppressed_context_is_not_told() -> None:
    with pytest.raises(ValueError, match="shown") as caught:
        suppressed()
    assert describe(caught.value) == "ValueError: shown"


def test_the_members_of_a_group_are_told() -> None:
    group = ExceptionGroup("two", [ValueError("a"), ExceptionGroup("in", [KeyError("b")])])
    assert describe(group) == (
        "ExceptionGroup: two (2 sub-exceptions)\n"
        "  with ValueError: a\n"
        "  with ExceptionGroup: in (1 sub-exception)\n"
        "    with KeyError: 'b'"
    )


def test_a_circle_of_causes_and_a_long_chain_come_to_an_end() -> None:
    first, second = ValueError("1"), ValueError("2")
    first.__cause__, second.__cause__ = second, first
    assert describe(first).count("caused by") == 1
    last: BaseException = ValueError("0")
    for number in range(1000):
        following = ValueError(str(number))
        following.__cause__ = last
        last = following
    assert describe(last).count("caused by") < 20


def test_text_that_no_store_takes_is_escaped() -> None:
    text = describe(ValueError("a\x00b\ud800c"))
    assert text == "ValueError: a\\x00b\\ud800c"
    text.encode()


def test_a_blocked_reason_never_tells_a_token_or_what_foreign_code_said() -> None:
    assert "secret" not in blocked_reason(HookTokenConflict("secret", "r", "h"))
    assert blocked_reason(ValueError("secret")) == "ValueError"
    assert blocked_reason(UnknownStep("charge")).startswith("UnknownStep: no step named 'charge'")
    assert len(blocked_reason(NonDeterministic("r", "x" * 10_000))) < 3_000


@pytest.mark.parametrize(
    ("attempts", "seconds"), [(0, 1), (1, 1), (2, 2), (4, 8), (6, 30), (10_000, 30)]
)
def test_a_blocked_run_rests_twice_as_long_each_time_up_to_half_a_minute(
    attempts: int, seconds: int
) -> None:
    assert blocked_delay(attempts).total_seconds() == seconds
