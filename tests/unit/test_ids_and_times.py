"""Identifiers and times as they may be written."""

from datetime import UTC, datetime, timedelta, timezone
from typing import cast
from uuid import UUID

import pytest

from flowpg.errors import InvalidArgument, InvalidRunId
from flowpg.model.ids import MAX_ID_LENGTH, check_id, check_run_id, check_token, new_run_id
from flowpg.model.times import format_time, parse_time


def utc(*parts: int) -> datetime:
    """A time in UTC."""
    year, month, day, *clock = parts
    return datetime(year, month, day, *clock, tzinfo=UTC)  # type: ignore[arg-type,misc]


@pytest.mark.parametrize("run_id", ["a", "7", "A.b_c:d@e+f-g", "x" * 255, "0" * 36])
def test_a_run_id_of_the_allowed_characters_is_itself(run_id: str) -> None:
    assert check_run_id(run_id) == run_id


@pytest.mark.parametrize(
    "run_id",
    [
        "",
        "x" * 256,
        "-a",
        ".a",
        "_a",
        "a b",
        "a/b",
        "a\n",
        "a\x00",
        "é",
        "\ud800",
        "a'",
        'a"',
        "a;",
    ],
)
def test_any_other_run_id_is_refused_in_a_short_printable_message(run_id: str) -> None:
    with pytest.raises(InvalidRunId) as caught:
        check_run_id(run_id)
    assert str(caught.value).isascii()
    assert len(str(caught.value)) < 250
    assert caught.value.run_id == run_id


def test_a_run_id_that_is_no_string_is_refused() -> None:
    with pytest.raises(InvalidRunId):
        check_run_id(cast("str", 5))


def test_new_run_ids_are_uuids_of_version_7_that_sort_by_time() -> None:
    made = [new_run_id(millis) for millis in range(1_700_000_000_000, 1_700_000_000_050)]
    assert made == sorted(made)
    assert len({new_run_id(1) for _ in range(1000)}) == 1000
    for one in made:
        assert check_run_id(one)
        assert UUID(one).version == 7
        assert UUID(one).variant == "specified in RFC 4122"


@pytest.mark.parametrize("bad", ["", "  ", "\n", "x" * (MAX_ID_LENGTH + 1), "a\x00", "a\ud800"])
def test_other_ids_are_text_of_bounded_length(bad: str) -> None:
    with pytest.raises(InvalidArgument, match="step id"):
        check_id(bad, "step id")
    assert check_id("é 😀" + "x" * (MAX_ID_LENGTH - 3), "step id")


def test_a_token_may_be_long_and_is_never_shown() -> None:
    assert check_token("s" * 16_384)
    for bad in ("s3cret" * 5000, "s3cret\x00", "s3cret\ud800"):
        with pytest.raises(InvalidArgument) as caught:
            check_token(bad)
        assert "s3cret" not in str(caught.value)
    with pytest.raises(InvalidArgument, match="must be a string, not int"):
        check_token(cast("str", 5))


@pytest.mark.parametrize(
    ("text", "moment", "canonical"),
    [
        ("2026-03-01T12:00:00Z", utc(2026, 3, 1, 12), "2026-03-01T12:00:00Z"),
        ("2026-03-01T12:00:00.5Z", utc(2026, 3, 1, 12, 0, 0, 500000), None),
        ("2026-03-01T12:00:00.000001Z", utc(2026, 3, 1, 12, 0, 0, 1), None),
        ("2026-03-01T12:00:00.000000001Z", utc(2026, 3, 1, 12, 0, 0, 1), None),
        ("2026-03-01T12:00:00.999999999Z", utc(2026, 3, 1, 12, 0, 1), None),
        ("2026-03-01T12:00:00.1234560000Z", utc(2026, 3, 1, 12, 0, 0, 123456), None),
        ("2026-03-01T13:30:00+01:30", utc(2026, 3, 1, 12), "2026-03-01T12:00:00Z"),
        ("2026-03-01t12:00:00z", utc(2026, 3, 1, 12), "2026-03-01T12:00:00Z"),
        ("2026-03-01 12:00:00Z", utc(2026, 3, 1, 12), "2026-03-01T12:00:00Z"),
        ("0001-01-01T00:00:00Z", utc(1, 1, 1), "0001-01-01T00:00:00Z"),
    ],
)
def test_times_are_read_in_utc_and_rounded_up(
    text: str, moment: datetime, canonical: str | None
) -> None:
    read = parse_time(text)
    assert read == moment
    assert read.tzinfo is UTC
    assert parse_time(format_time(read)) == read
    if canonical:
        assert format_time(read) == canonical


@pytest.mark.parametrize(
    "text",
    [
        "",
        "now",
        "2026-03-01",
        "2026-03-01T12:00:00",
        "2026-03-01T12:00Z",
        "2026-02-30T12:00:00Z",
        "2026-03-01T25:00:00Z",
        "2026-03-01T12:00:60Z",
        "2026-03-01T12:00:00Z\n",
        "\uff12026-03-01T12:00:00Z",
        "9999-12-31T23:59:59.9999999Z",
        "0001-01-01T00:00:00+01:00",
        "+2026-03-01T12:00:00Z",
    ],
)
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument):
        parse_time(text)


def test_a_time_is_written_with_no_more_digits_than_needed() -> None:
    base = datetime(2026, 3, 1, 12, tzinfo=UTC)
    assert format_time(base) == "2026-03-01T12:00:00Z"
    assert format_time(base + timedelta(milliseconds=20)) == "2026-03-01T12:00:00.020Z"
    assert format_time(base + timedelta(microseconds=20)) == "2026-03-01T12:00:00.000020Z"
    assert format_time(base.astimezone(timezone(timedelta(hours=9)))) == "2026-03-01T12:00:00Z"


def test_a_time_that_is_ambiguous_or_out_of_range_is_not_written() -> None:
    with pytest.raises(InvalidArgument, match="time zone"):
        format_time(datetime(2026, 3, 1))  # noqa: DTZ001
    with pytest.raises(InvalidArgument, match="years 1 and 9999"):
        format_time(datetime.max.replace(tzinfo=timezone(-timedelta(hours=5))))
