"""What a driver says becomes an error that says what to do, and that gives nothing away."""

import json
from typing import Any

import psycopg
import pytest
import sqlalchemy.exc
from psycopg import errors as pg

from flowpg.errors import (
    FlowError,
    HookTokenConflict,
    HookTokenNotFound,
    PayloadTooLarge,
    PermissionDenied,
    RunConflict,
    SchemaBehind,
    SchemaMissing,
    StoreError,
    StoreUnavailable,
)
from flowpg.model.sqlstates import SQLSTATES
from flowpg.postgres.errors import fault_of, is_driver_error, translate


class _Diagnostic:
    def __init__(self, **fields: str) -> None:
        self.message_primary = fields.get("message", "")
        self.message_detail = fields.get("detail")


def error(sqlstate: str, message: str = "", detail: str | None = None) -> psycopg.Error:
    """An error as psycopg raises it, of any SQLSTATE."""
    known = pg.__dict__["_sqlcodes"].get(sqlstate, psycopg.DatabaseError)
    fields = {"message": message, "detail": detail}
    made = type(
        known.__name__,
        (known,),
        {"sqlstate": sqlstate, "diag": _Diagnostic(**fields)},  # type: ignore[arg-type]
    )
    result: psycopg.Error = made(f"{message}\nDETAIL: {detail}")
    return result


def translated(cause: BaseException, **more: Any) -> FlowError:
    return translate(cause, "flow_start", schema="flowpg", **more)


@pytest.mark.parametrize("sqlstate", sorted(SQLSTATES))
def test_every_own_sqlstate_has_a_class(sqlstate: str) -> None:
    detail = json.dumps(
        {"run_id": "r", "hook_id": "h", "reason": "why", "expected": 1, "actual": 2, "epoch": 3}
    )
    found = translated(error(sqlstate, "words", detail))
    assert isinstance(found, FlowError)
    assert not isinstance(found, StoreError)


def test_fields_come_from_the_detail() -> None:
    detail = '{"run_id":"r","event_type":"step_completed","bytes":9,"max_bytes":5}'
    found = translated(error("WF012", "too large", detail))
    assert isinstance(found, PayloadTooLarge)
    assert (found.run_id, found.event_type, found.size, found.limit) == (
        "r",
        "step_completed",
        9,
        5,
    )


def test_a_detail_that_is_not_json_is_survived() -> None:
    found = translated(error("WF002", "words", "not json"))
    assert isinstance(found, RunConflict)


@pytest.mark.parametrize("sqlstate", ["WF005", "WF006"])
def test_the_token_of_the_call_is_an_attribute_and_never_text(sqlstate: str) -> None:
    found = translated(error(sqlstate, "words", '{"run_id":"r","hook_id":"h"}'), token="sesame")
    assert isinstance(found, HookTokenConflict | HookTokenNotFound)
    assert found.token == "sesame"
    assert "sesame" not in f"{found} {found!r}"


def test_an_unknown_code_of_the_class_tells_to_upgrade() -> None:
    found = translated(error("WF999", "words"))
    assert isinstance(found, SchemaBehind)
    assert "upgrade" in str(found)


@pytest.mark.parametrize(
    "sqlstate", ["08006", "57P01", "57P02", "57P03", "25006", "53300", "53100"]
)
def test_a_server_that_goes_away_is_unavailable(sqlstate: str) -> None:
    assert isinstance(translated(error(sqlstate)), StoreUnavailable)


@pytest.mark.parametrize("sqlstate", ["25006", "53100", "53200", "53300"])
def test_a_server_that_cannot_do_it_now_is_said_to_have_done_nothing(sqlstate: str) -> None:
    assert "did nothing" in str(translated(error(sqlstate)))


def test_a_transaction_that_may_not_write_is_named_as_the_cause() -> None:
    found = translated(error("25006"), enlisted=True)
    assert not isinstance(found, StoreUnavailable)  # repeating it would not help
    assert "read-only" in str(found)


@pytest.mark.parametrize("sqlstate", ["40001", "40P01", "55P03", "57014"])
def test_what_may_be_repeated_says_what_to_repeat(sqlstate: str) -> None:
    assert "repeat the call" in str(translated(error(sqlstate)))
    assert "whole transaction" in str(translated(error(sqlstate), enlisted=True))


def test_a_lost_connection_without_a_code_is_unavailable() -> None:
    found = translated(psycopg.OperationalError("server closed the connection unexpectedly"))
    assert isinstance(found, StoreUnavailable)
    assert "unknown" in str(found)


def test_a_missing_privilege_names_the_role_and_the_grant() -> None:
    found = translated(error("42501", "permission denied for function flow_start"), role="web")
    assert isinstance(found, PermissionDenied)
    assert "'web'" in str(found)
    assert "flow_grant('web'" in str(found)
    assert "permission denied for function flow_start" in str(found)


@pytest.mark.parametrize(
    ("sqlstate", "kind"),
    [("3F000", SchemaMissing), ("42883", SchemaBehind), ("42P01", SchemaBehind)],
)
def test_a_schema_that_is_not_as_needed_tells_to_migrate(
    sqlstate: str, kind: type[FlowError]
) -> None:
    found = translated(error(sqlstate))
    assert isinstance(found, kind)
    assert "flowpg migrate" in str(found)


def test_a_failed_transaction_of_the_caller_is_named_as_the_cause() -> None:
    found = translated(error("25P02"), enlisted=True)
    assert "savepoint" in str(found)


@pytest.mark.parametrize("sqlstate", ["22P02", "22P05", "23505", "P0001", "XX000"])
def test_what_the_server_quotes_is_not_passed_on(sqlstate: str) -> None:
    found = translated(error(sqlstate, 'invalid input: "sesame"', "Key (token)=(sesame)"))
    assert isinstance(found, StoreError)
    assert sqlstate in str(found)
    assert "sesame" not in f"{found} {found!r}"


def test_an_error_is_read_through_sqlalchemy() -> None:
    inner = error("WF002", "words", '{"run_id":"r","reason":"because"}')
    outer = sqlalchemy.exc.DBAPIError("SELECT 1", {"a0": "sesame"}, inner)
    assert is_driver_error(outer)
    found = translated(outer)
    assert isinstance(found, RunConflict)
    assert found.reason == "because"
    assert "sesame" not in str(found)


def test_an_error_is_read_through_other_adapters() -> None:
    class DriverError(Exception):
        pgcode = "WF002"

    class NativeError(Exception):
        sqlstate = "WF002"
        message = "words"
        detail = '{"run_id":"r","reason":"because"}'

    adapted = DriverError("text with everything")
    adapted.__cause__ = NativeError()
    assert fault_of(adapted).detail == NativeError.detail


def test_an_error_is_read_from_the_letters_of_the_protocol() -> None:
    letters = {"S": "ERROR", "C": "WF002", "M": "words", "D": '{"run_id":"r","reason":"because"}'}
    found = translated(sqlalchemy.exc.DBAPIError("SELECT 1", {}, Exception(letters)))
    assert isinstance(found, RunConflict)
    assert found.reason == "because"


def test_errors_that_no_driver_raised_are_left_alone() -> None:
    assert not is_driver_error(ValueError("x"))
    assert not is_driver_error(StoreUnavailable("x"))
