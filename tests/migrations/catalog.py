"""Two schemas are the same when their catalogs are: what to compare, as a set of readable lines."""

from pathlib import Path

import psycopg
from psycopg import sql

from flowpg.postgres.revisions import VERSION_TABLE

_QUERY = Path(__file__).with_suffix(".sql").read_text(encoding="utf-8")


def describe(dsn: str, schema: str = "flowpg") -> set[str]:
    """Every object of the schema with all that the catalog says about it."""
    with psycopg.connect(dsn, row_factory=psycopg.rows.tuple_row) as connection:
        connection.execute(
            sql.SQL("SET LOCAL search_path = {}, pg_temp").format(sql.Identifier(schema))
        )
        return {line for (line,) in connection.execute(_QUERY, {"schema": schema})}


def without_version_table(lines: set[str]) -> set[str]:
    """Leave out the table that alembic makes, which is not in sql/."""
    return {line for line in lines if VERSION_TABLE not in line}
