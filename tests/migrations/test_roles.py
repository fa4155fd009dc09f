"""Who may migrate, and what a role needs that only serves."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import psycopg
import pytest
from psycopg import conninfo, sql

from flowpg.errors import PermissionDenied, SchemaMissing
from flowpg.postgres.migrate import upgrade
from flowpg.postgres.schema_check import check, verify
from tests.migrations.support import query


@pytest.fixture
def plain_role(empty_database_dsn: str) -> Iterator[str]:
    """A role that may log in and nothing else; gone, with what it owns, after the test."""
    name = f"flowpg_test_{secrets.token_hex(4)}"
    role = sql.Identifier(name)
    with psycopg.connect(empty_database_dsn, autocommit=True) as admin:
        admin.execute(
            sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}").format(role, sql.Literal("migrations"))
        )
        try:
            yield name
        finally:
            admin.execute(sql.SQL("DROP OWNED BY {} CASCADE").format(role))
            admin.execute(sql.SQL("DROP ROLE {}").format(role))


def as_role(dsn: str, role: str) -> str:
    """The same database, by way of the role."""
    return conninfo.make_conninfo(dsn, user=role, password="migrations")


def test_a_role_without_ddl_rights_gets_a_sentence_and_leaves_no_trace(
    empty_database_dsn: str, plain_role: str
) -> None:
    dsn = as_role(empty_database_dsn, plain_role)
    with pytest.raises(PermissionDenied, match=rf"'{plain_role}' may not.*flowpg migrate --sql"):
        upgrade(dsn)
    with pytest.raises(SchemaMissing):
        verify(dsn)
    query(empty_database_dsn, "CREATE SCHEMA flowpg")
    with pytest.raises(PermissionDenied, match="nothing was changed"):
        upgrade(dsn)


def test_a_role_that_owns_only_the_schema_can_migrate_it(
    empty_database_dsn: str, plain_role: str
) -> None:
    query(empty_database_dsn, f"CREATE SCHEMA flowpg AUTHORIZATION {plain_role}")
    dsn = as_role(empty_database_dsn, plain_role)
    assert upgrade(dsn) == ("0001",)
    assert check(dsn).ok


@pytest.mark.parametrize("capability", ["worker", "client", "reader"])
def test_a_serving_role_without_ddl_rights_can_verify(
    empty_database_dsn: str, plain_role: str, capability: str
) -> None:
    upgrade(empty_database_dsn)
    query(empty_database_dsn, f"SELECT flow_grant('{plain_role}', '{capability}')")
    dsn = as_role(empty_database_dsn, plain_role)
    verify(dsn)
    assert upgrade(dsn) == ()
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        query(dsn, "CREATE TABLE mine (a int)")


def test_a_client_role_without_ddl_rights_can_run(empty_database_dsn: str, plain_role: str) -> None:
    upgrade(empty_database_dsn)
    query(empty_database_dsn, f"SELECT flow_grant('{plain_role}', 'client')")
    dsn = as_role(empty_database_dsn, plain_role)
    verify(dsn)
    rows = query(dsn, 'SELECT applied FROM flow_start(\'{"name":"w","version":"1"}\')')
    assert rows == [(True,)]


def test_a_role_without_any_grant_is_told_what_it_lacks(
    empty_database_dsn: str, plain_role: str
) -> None:
    upgrade(empty_database_dsn)
    with pytest.raises(PermissionDenied, match=r"may not read flow_migrations.*flow_grant"):
        verify(as_role(empty_database_dsn, plain_role))
