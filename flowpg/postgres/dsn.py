"""Is this a DSN: asked before libpq is, whose own words quote it, password and all."""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict

from flowpg.errors import StoreUnavailable

_SHAPE = "use postgresql://user:password@host:port/database or key=value pairs"


def parsed_dsn(dsn: str) -> dict[str, Any]:
    """The parts of a DSN by libpq's names. StoreUnavailable, which quotes none of them, if it is
    none."""
    try:
        named = conninfo_to_dict(dsn)
    except psycopg.Error:
        raise StoreUnavailable(f"the DSN is malformed: {_advice(dsn)}") from None
    # Parts of a password, where one of these characters ended it. A refused connection would
    # name them.
    if not (_is_host(str(named.get("host", ""))) and _is_port(str(named.get("port", "")))):
        raise StoreUnavailable(
            f"the DSN is malformed: {_SHAPE}, with @ : / ? # of a password written as "
            "%40 %3A %2F %3F %23"
        )
    return named


def _advice(dsn: str) -> str:
    scheme, separator, _ = dsn.partition("://")
    base, plus, driver = scheme.partition("+")
    if separator and plus and base.strip() in ("postgresql", "postgres"):
        named = f"+{driver}" if driver.isalnum() else "the driver"
        return f"write postgresql:// without {named}"
    return _SHAPE


def _is_host(host: str) -> bool:
    # One that begins with @ is a socket in the abstract namespace.
    return all("@" not in part.strip()[1:] for part in host.split(","))


def _is_port(port: str) -> bool:
    return all(part.strip().isdigit() or not part.strip() for part in port.split(","))
