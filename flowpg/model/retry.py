"""Retry policies of steps.

The wire shape omits what has its default, so that a history written before a field existed keeps
its bytes: ``{"max_attempts":3,"delay_ms":0}``.
"""

from __future__ import annotations

import hashlib
from datetime import timedelta
from enum import StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict, model_serializer

from flowpg.errors import InvalidArgument, InvalidTransition
from flowpg.model import jsontext

MAX_DELAY_MS = 100 * 365 * 24 * 3600 * 1000
"""Longest delay of one retry: 100 years, so that every deadline is a valid time."""


class Backoff(StrEnum):
    """How the delay grows from one failed attempt to the next."""

    FIXED = "fixed"
    EXPONENTIAL = "exponential"


class StepFailureAction(StrEnum):
    """What a step's exhaustion does to its run."""

    FAIL_RUN = "fail_run"
    CONTINUE_WORKFLOW = "continue_workflow"


class RetryPolicy(BaseModel):
    """How often and how soon a failed step is tried again.

    ``max_attempts`` counts the first attempt (0 means 1). Delays are milliseconds. ``fixed`` waits
    ``delay_ms`` each time; ``exponential`` waits a deterministic share (full jitter) of
    ``min(max_delay_ms, delay_ms * 2**(failed attempts - 1))``, the same on every host.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=False)

    max_attempts: int = 3
    delay_ms: int = 0
    backoff: Backoff = Backoff.FIXED
    max_delay_ms: int = 0
    on_exhausted: StepFailureAction = StepFailureAction.FAIL_RUN

    @classmethod
    def none(cls) -> RetryPolicy:
        """One attempt, no retry."""
        return cls(max_attempts=1)

    @classmethod
    def fixed(cls, attempts: int, delay: timedelta = timedelta(0)) -> RetryPolicy:
        """``attempts`` attempts in all, ``delay`` apart (zero: at once, within the same drive).
        InvalidArgument for a negative number."""
        return cls(max_attempts=_attempts(attempts), delay_ms=_millis(delay))

    @classmethod
    def exponential(
        cls, attempts: int, initial: timedelta, maximum: timedelta | None = None
    ) -> RetryPolicy:
        """``attempts`` attempts in all; the delay's cap doubles from ``initial`` to ``maximum``
        (default: 64 times ``initial``). InvalidArgument for a negative number."""
        first = max(1, _millis(initial))
        limit = _millis(maximum) if maximum is not None else first * 64
        return cls(
            max_attempts=_attempts(attempts),
            delay_ms=first,
            backoff=Backoff.EXPONENTIAL,
            max_delay_ms=max(first, limit),
        )

    def continue_workflow_on_failure(self) -> RetryPolicy:
        """The same policy, but exhaustion is handed to the workflow instead of failing the run."""
        return self.model_copy(update={"on_exhausted": StepFailureAction.CONTINUE_WORKFLOW})

    @classmethod
    def read(cls, wire: object) -> RetryPolicy:
        """The policy of a JSON object, checked; None gives the default policy.

        InvalidTransition if it is no policy, naming no value. Nothing is converted: "3", 3.0 and
        true are no number of attempts.
        """
        if wire is None:
            return DEFAULT_RETRY
        known = _stored_wires.get(id(wire))
        if known is not None:
            return known
        if type(wire) is not dict:
            raise InvalidTransition("a retry policy must be a JSON object")
        # Types are part of the key: true would else find the policy of 1.
        key = (*wire.items(), *map(type, wire.values()))
        try:
            policy = _read.get(key)
        except TypeError:
            raise InvalidTransition("a retry policy has no lists or objects in it") from None
        if policy is None:
            policy = _parse(wire)
            policy.check()
            if policy == DEFAULT_RETRY:
                policy = DEFAULT_RETRY
            if len(_read) < _MAX_READ:
                _read[key] = policy
        return policy

    @property
    def attempts(self) -> int:
        """Attempts allowed in all, at least 1."""
        return max(1, self.max_attempts)

    @property
    def continues_workflow(self) -> bool:
        """Whether exhaustion is handed to the workflow."""
        return self.on_exhausted is StepFailureAction.CONTINUE_WORKFLOW

    def check(self) -> None:
        """InvalidTransition if the fields contradict each other or a deadline could not exist."""
        if self.max_attempts < 0 or self.delay_ms < 0 or self.max_delay_ms < 0:
            raise InvalidTransition("a retry policy has a negative number")
        if max(self.delay_ms, self.max_delay_ms) > MAX_DELAY_MS:
            raise InvalidTransition(
                "a retry delay over 100 years gives no valid deadline; choose a shorter one"
            )
        if self.backoff is Backoff.FIXED and self.max_delay_ms:
            raise InvalidTransition("a fixed retry policy has no max_delay_ms")
        if self.backoff is Backoff.EXPONENTIAL and not 0 < self.delay_ms <= self.max_delay_ms:
            raise InvalidTransition(
                "an exponential retry policy needs 0 < delay_ms <= max_delay_ms"
            )

    def delay_after(self, run_id: str, step_id: str, attempt: int) -> timedelta:
        """The pause after failed attempt number ``attempt`` (from 1)."""
        if self.backoff is Backoff.FIXED:
            return timedelta(milliseconds=self.delay_ms)
        cap = min(self.max_delay_ms, self.delay_ms << min(attempt - 1, 63))
        digest = hashlib.sha256()
        for part in ("flowpg.retry.v1", run_id, step_id, str(attempt)):
            raw = part.encode("utf-8", "surrogatepass")
            digest.update(len(raw).to_bytes(8, "big") + raw)
        share = int.from_bytes(digest.digest()[:8], "big")
        return timedelta(milliseconds=share % cap + 1)

    @model_serializer(mode="plain")
    def _wire(self) -> dict[str, Any]:
        return self.wire()

    def wire(self) -> dict[str, Any]:
        """The JSON object of this policy; defaults that came later are left out."""
        shape: dict[str, Any] = {"max_attempts": self.max_attempts, "delay_ms": self.delay_ms}
        if self.backoff is not Backoff.FIXED:
            shape["backoff"] = self.backoff.value
        if self.max_delay_ms:
            shape["max_delay_ms"] = self.max_delay_ms
        if self.continues_workflow:
            shape["on_exhausted"] = self.on_exhausted.value
        return shape


DEFAULT_RETRY = RetryPolicy()

# Policies repeat from step to step, and a run of ten thousand steps has a handful of them. Only
# valid ones are kept; the bound is for histories that would not fit that picture.
_read: dict[tuple[Any, ...], RetryPolicy] = {}
_MAX_READ = 1024


# A handful of policies serves all steps of a workflow, and each is one object there: to know it
# again by that is quicker than to hash it. What is kept is never let go, so no id is used twice.
_stored: dict[int, tuple[RetryPolicy, str, dict[str, Any]]] = {}
_stored_wires: dict[int, RetryPolicy] = {}


def stored_form(policy: RetryPolicy) -> tuple[str, dict[str, Any]]:
    """The JSON text and object of a policy, not to be changed. InvalidTransition as ``check``."""
    known = _stored.get(id(policy))
    if known is not None:
        return known[1], known[2]
    policy.check()
    wire = policy.wire()
    text = jsontext.encode(wire)
    if len(_stored) < _MAX_READ:
        _stored[id(policy)] = policy, text, wire
        _stored_wires[id(wire)] = policy
    return text, wire


def _parse(wire: dict[str, Any]) -> RetryPolicy:
    try:
        return RetryPolicy.model_validate(
            {
                **wire,
                "backoff": Backoff(wire.get("backoff", Backoff.FIXED)),
                "on_exhausted": StepFailureAction(
                    wire.get("on_exhausted", StepFailureAction.FAIL_RUN)
                ),
            },
            strict=True,
        )
    except ValueError:
        raise InvalidTransition(
            "a retry policy has an unknown member or one of the wrong type"
        ) from None


def _attempts(attempts: int) -> int:
    # Elsewhere -1 means "for ever"; taken for 1 without a word it would surprise.
    if attempts < 0:
        raise InvalidArgument("a retry policy needs a number of attempts from 1; 0 means 1")
    return max(1, attempts)


def _millis(delay: timedelta) -> int:
    if delay < timedelta(0):
        raise InvalidArgument("a retry policy cannot have a negative delay")
    # Rounded up: a pause is never shorter than asked for.
    return -(-delay // timedelta(milliseconds=1))
