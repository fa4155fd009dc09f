"""A process whose own clock is off by FLOWPG_TEST_SKEW seconds, in whatever way Python is asked.

On PYTHONPATH it is imported before anything else; timeouts and pauses use other clocks.
"""

import datetime as dt
import os
import time
from typing import Any

_SKEW = float(os.environ.get("FLOWPG_TEST_SKEW", "0"))
_time, _time_ns, _datetime = time.time, time.time_ns, dt.datetime


class _Kind(type(_datetime)):  # type: ignore[misc]
    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, _datetime)


class _Skewed(dt.datetime, metaclass=_Kind):
    @classmethod
    def now(cls, tz: Any = None) -> Any:
        return _datetime.fromtimestamp(time.time(), tz)

    @classmethod
    def utcnow(cls) -> Any:
        return _datetime.fromtimestamp(time.time(), dt.UTC).replace(tzinfo=None)


if _SKEW:
    time.time = lambda: _time() + _SKEW
    time.time_ns = lambda: _time_ns() + int(_SKEW * 1e9)
    dt.datetime = _Skewed  # type: ignore[misc]
