"""A clock that tests turn: time passes in a database when they say so.

The schema reads its time through one function, ``flow_now()``. Here it is replaced, in one test's
own database, by one that adds an offset read from a table, or stands still at a given moment.
"""

from datetime import datetime, timedelta

import psycopg
from psycopg import sql

_INSTALL = """
    CREATE TABLE IF NOT EXISTS public.test_clock (
        stopped_at timestamptz, shift interval NOT NULL);
    TRUNCATE public.test_clock;
    INSERT INTO public.test_clock VALUES (NULL, '0');
    GRANT SELECT ON public.test_clock TO PUBLIC;
    CREATE OR REPLACE FUNCTION {schema}.flow_now() RETURNS timestamptz
    LANGUAGE sql VOLATILE PARALLEL SAFE
    RETURN (SELECT coalesce(c.stopped_at, pg_catalog.clock_timestamp()) + c.shift
              FROM public.test_clock AS c);
"""


class DatabaseClock:
    """The clock of the migrated database at ``dsn``, which is a test's own; it starts at the time
    it is."""

    def __init__(self, dsn: str, schema: str = "flowpg") -> None:
        self._dsn = dsn
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(sql.SQL(_INSTALL).format(schema=sql.Identifier(schema)))

    def advance(self, by: timedelta) -> None:
        """Let time pass, for every connection at once."""
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            connection.execute("UPDATE public.test_clock SET shift = shift + %s", (by,))

    def stop(self, at: datetime) -> None:
        """From now on it is ``at``, plus what ``advance`` adds later."""
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            connection.execute("UPDATE public.test_clock SET stopped_at = %s, shift = '0'", (at,))
