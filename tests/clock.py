"""A clock that tests turn: time passes in a database when they say so.

The schema reads its time through one function, ``flow_now()``. Here it is replaced, in one test's
own database, by one that adds an offset read from a table.
"""

from datetime import timedelta

import psycopg
from psycopg import sql

_INSTALL = """
    CREATE TABLE public.test_clock (shift interval NOT NULL);
    INSERT INTO public.test_clock VALUES ('0');
    GRANT SELECT ON public.test_clock TO PUBLIC;
    CREATE OR REPLACE FUNCTION {schema}.flow_now() RETURNS timestamptz
    LANGUAGE sql VOLATILE PARALLEL SAFE
    RETURN pg_catalog.clock_timestamp() + (SELECT c.shift FROM public.test_clock AS c);
"""


class DatabaseClock:
    """The clock of the database at ``dsn``, which must be the test's own and migrated."""

    def __init__(self, dsn: str, schema: str = "flowpg") -> None:
        self._dsn = dsn
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(sql.SQL(_INSTALL).format(schema=sql.Identifier(schema)))

    def advance(self, by: timedelta) -> None:
        """Let time pass, for every connection at once."""
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            connection.execute("UPDATE public.test_clock SET shift = shift + %s", (by,))
