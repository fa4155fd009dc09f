"""Times on the wire: RFC 3339 in UTC with a Z, no more fraction digits than needed."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from flowpg.errors import InvalidArgument

_RFC3339 = re.compile(
    r"(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d:\d\d)(?:\.(\d+))?([Zz]|[+-]\d\d:\d\d)\Z", re.ASCII
)


def format_time(moment: datetime) -> str:
    """``moment`` as RFC 3339 in UTC: no fraction, milliseconds or microseconds, as needed."""
    if moment.tzinfo is None:
        raise InvalidArgument("a time without a time zone is ambiguous; give it one, such as UTC")
    try:
        utc = moment.astimezone(UTC)
    except OverflowError:
        raise InvalidArgument("not a time between the years 1 and 9999 in UTC") from None
    if utc.microsecond == 0:
        spec = "seconds"
    elif utc.microsecond % 1000 == 0:
        spec = "milliseconds"
    else:
        spec = "microseconds"
    return utc.replace(tzinfo=None).isoformat(timespec=spec) + "Z"


def parse_time(text: str) -> datetime:
    """The time of an RFC 3339 text, in UTC; digits beyond microseconds round up, never down.

    Rounding up is what keeps a wait from being early.
    """
    match = _RFC3339.match(text)
    if match is None:
        raise InvalidArgument("not an RFC 3339 time with a zone")
    day, clock, fraction, zone = match.groups()
    digits = (fraction or "").ljust(6, "0")
    try:
        moment = datetime.fromisoformat(
            f"{day}T{clock}.{digits[:6]}{'+00:00' if zone in 'Zz' else zone}"
        ).astimezone(UTC)
        return moment + timedelta(microseconds=1) if digits[6:].strip("0") else moment
    except (ValueError, OverflowError):
        raise InvalidArgument("not a time between the years 1 and 9999") from None
