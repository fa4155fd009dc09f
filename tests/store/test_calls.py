"""Calls are pure text: quoted, cast, and as the functions in the database are."""

from datetime import UTC, datetime, timedelta, timezone
from types import ModuleType

import psycopg
import pytest

from flowpg.postgres import fleet_verbs, reads, task_verbs, verbs
from flowpg.postgres.calls import (
    Call,
    Function,
    array_text,
    interval_text,
    named_sql,
    named_values,
    psycopg_sql,
    time_text,
)

FUNCTION = Function("flow_example", ("text", "json"), ("a", "b:text"))


def functions(module: ModuleType) -> list[Function]:
    return [value for value in vars(module).values() if isinstance(value, Function)]


@pytest.mark.parametrize(
    "function",
    [*functions(verbs), *functions(reads), *functions(fleet_verbs), *functions(task_verbs)],
    ids=lambda function: function.name,
)
def test_every_function_takes_and_gives_what_its_call_says(
    function: Function, direct_dsn: str
) -> None:
    statement = psycopg_sql(function, "flowpg").replace("%s::", "NULL::")
    with psycopg.connect(direct_dsn) as connection:
        connection.execute(f"PREPARE this_call AS {statement}".encode())


def test_every_verb_is_listed_once() -> None:
    names = [function.name for function in functions(verbs) + functions(reads)]
    assert len(names) == len(set(names))


def test_arguments_are_cast_in_sql_whatever_the_driver() -> None:
    assert psycopg_sql(FUNCTION, "flowpg") == (
        'SELECT a, CAST(b AS text) AS b FROM "flowpg".flow_example(%s::text, %s::json) AS r'
    )
    assert named_sql(FUNCTION, "flowpg") == (
        'SELECT a, CAST(b AS text) AS b FROM "flowpg".flow_example('
        "CAST(CAST(:a0 AS text) AS text), CAST(CAST(:a1 AS text) AS json)) AS r"
    )


@pytest.mark.parametrize(
    ("schema", "psycopg_form", "named_form"),
    [
        ('a"b', '"a""b"', '"a""b"'),
        ("100%", '"100%%"', '"100%"'),
        ("a:b", '"a:b"', '"a\\:b"'),
    ],
)
def test_the_schema_is_quoted_for_sql_and_for_the_placeholders(
    schema: str, psycopg_form: str, named_form: str
) -> None:
    assert f" {psycopg_form}.flow_example" in psycopg_sql(FUNCTION, schema)
    assert f" {named_form}.flow_example" in named_sql(FUNCTION, schema)


def test_a_call_shows_neither_its_arguments_nor_its_token() -> None:
    call = Call(FUNCTION, ("sesame", '"payload"'), len, token="sesame")
    assert named_values(call) == {"a0": "sesame", "a1": '"payload"'}
    assert "sesame" not in repr(call)
    assert "payload" not in repr(call)


def test_durations_are_exact_to_the_microsecond() -> None:
    assert interval_text(timedelta(days=40_000, microseconds=1)) == "3456000000000001 microseconds"
    assert interval_text(timedelta(0)) == "0 microseconds"


def test_times_are_sent_in_utc() -> None:
    moment = datetime(2030, 1, 2, 3, 4, 5, 6, tzinfo=timezone(timedelta(hours=9)))
    assert time_text(moment) == "2030-01-01T18:04:05.000006+00:00"
    assert time_text(moment.astimezone(UTC)) == time_text(moment)
    assert time_text(None) is None


def test_text_arrays_survive_quotes_backslashes_and_the_word_null() -> None:
    assert array_text([]) == "{}"
    assert array_text(["a", 'b"c', "d\\e", "NULL", ""]) == '{"a","b\\"c","d\\\\e","NULL",""}'
