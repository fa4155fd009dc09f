"""Writing an answer as JSON, and checking it before it is sent, against what the workflow said
that it waits for.

The hook knows its schema, and whoever answers does not. So the verb is sent with the schema that
the payload was checked against, and a store that knows another one does nothing and says which.
Most answers go to hooks of a name that was answered before: their schema is tried first, and then
one call is enough.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from flowpg.errors import AnswerRejected, SerializationError
from flowpg.model.codecs import is_sealed
from flowpg.model.dumping import written
from flowpg.model.jsontext import stored
from flowpg.model.payload_check import Failures, check_of
from flowpg.model.records import VerbResult

_latest: dict[str, str] = {}
"""The latest schema by the name of its hook; under "" the latest of all."""

_MOST: Final = 256


class AnswerCheck:
    """One answer on its way: send the verb with ``payload`` and ``checked`` until ``done`` says so.

    ``hook_id`` is empty for who knows only a token. A payload that somebody else has sealed cannot
    be looked at, and is not.
    """

    def __init__(self, payload: Any, hook_id: str = "") -> None:
        self.payload = written(payload)
        """The answer as JSON, as far as it can be said in JSON."""

        guess = _latest.get(_name(hook_id), "")
        self.checked: str | None = None
        if not is_sealed(self.payload):
            self.checked = guess if guess and not self._failures(guess) else ""

    async def send(self, verb: Callable[..., Awaitable[VerbResult]]) -> VerbResult:
        """Call ``verb(checked=...)``, twice if need be. Raises as ``done`` and the verb do."""
        while not self.done(result := await verb(checked=self.checked)):
            pass
        return result

    def done(self, result: VerbResult) -> bool:
        """Whether ``result`` is that of an answer; if not, it is to be sent again. AnswerRejected
        if the payload does not fit."""
        schema = result.payload_schema
        if schema is None:
            return True
        hook_id = result.subject_id or ""
        failures = self._failures(schema)
        if failures:
            raise AnswerRejected(result.run_id, hook_id, failures)
        if len(_latest) >= _MOST:
            _latest.clear()
        _latest[_name(hook_id)] = _latest[""] = schema
        self.checked = schema
        return False

    def _failures(self, schema: str) -> Failures:
        try:
            # As the workflow will get it: a tuple is a list by then.
            _, payload = stored(self.payload, "the hook payload")
            return check_of(schema).failures(payload)
        except SerializationError:
            # It is no JSON, which the verb says; or another program wrote a schema that is none.
            return ()


def _name(hook_id: str) -> str:
    """What hooks of one sort have in common: one whose name its run used before has its place
    behind the name."""
    return str(hook_id).partition("#")[0]
